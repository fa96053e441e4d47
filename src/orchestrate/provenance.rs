//! The statement about an image that a job made: from what, how, and where. Pure: no I/O.
//!
//! Values for templates are left out, and only their names are recorded: they may be secrets.

use jiff::Timestamp;
use kiln_records::{Epoch, Installed, Job, JobType, Moment, Run, UploadedArtifact, Warning, protocol::RecipeType};
use serde_json::{Value, json};

use crate::{
    origin::{MANIFEST, REPOSITORY, Statement, Subject},
    store::StoredRun,
};

/// The beginning of the type of build, which says what the parameters mean; docs/origin.md does.
const BUILD_TYPE: &str = "urn:kiln:build";

/// The statement about an image with this manifest (its SHA-256) and these artifacts.
pub(super) fn statement(
    stored: &StoredRun,
    builder: &str,
    manifest: &str,
    artifacts: &[UploadedArtifact],
    installed: Option<&Installed>,
) -> Statement {
    let named = artifacts
        .iter()
        .map(|artifact| Subject::new(artifact.kind.key_name(), artifact.digests.sha256.clone()));
    let subjects = std::iter::once(Subject::new(MANIFEST, manifest)).chain(named);
    Statement::provenance(
        subjects.collect(),
        predicate(&stored.job, &stored.run, builder, installed),
    )
}

fn predicate(job: &Job, run: &Run, builder: &str, installed: Option<&Installed>) -> Value {
    let plan = &run.plan;
    let names: Vec<&str> = plan.values.iter().map(|(name, _)| name.as_str()).collect();
    let mut metadata = json!({ "invocationId": job.id.to_string() });
    if let Some(launched) = run.launched {
        metadata["startedOn"] = at(launched).into();
    }
    if !run.warnings.is_empty() {
        let warning = |warning: &Warning| json!({ "code": warning.code, "message": warning.message });
        let list: Vec<_> = run.warnings.list.iter().map(warning).collect();
        metadata["kiln_warnings"] = json!({ "list": list, "more": run.warnings.more });
    }
    let found = run
        .found
        .as_ref()
        .map(|found| json!({ "kernel": found.kernel, "hypervisor": found.hypervisor, "emulator": found.emulator }));
    json!({
        "buildDefinition": {
            "buildType": format!("{BUILD_TYPE}:{}", job.job_type.name()),
            "externalParameters": {
                "name": job.image_root_archive_name,
                "arch": job.arch,
                "recipe": (job.job_type == JobType::Create).then(|| job.artifact_id.to_string()),
                "image": (job.job_type == JobType::Customize).then(|| job.artifact_id.to_string()),
                "valueNames": names,
                "squashfs": plan.squashfs,
                "requireDkms": job.require_dkms,
                "locked": plan.locked,
                "profiles": plan.profiles,
                "containerfile": (plan.recipe_type == RecipeType::Containerfile).then_some(&plan.containerfile),
                "additions": plan.additions.shown().iter().map(|(option, text)| format!("{option} {text}")).collect::<Vec<_>>(),
                "sourceDateEpoch": plan.epoch.map(|epoch| match epoch {
                    Epoch::Recipe => Value::from("recipe"),
                    Epoch::At(seconds) => Value::from(seconds),
                }),
            },
            "internalParameters": {
                "driver": plan.driver,
                "how": plan.how,
                "twins": run.twins_in_force(),
                "programs": run.execs.as_ref().map(|execs| json!({ "twins": execs.twins, "emulated": execs.emulated })),
                "sandbox": found,
                "attempt": run.attempt,
                "layer": run.layer.as_ref().map(|layer| {
                    json!({ "outcome": layer.outcome, "sha256": layer.sha256, "image": layer.image })
                }),
                "resumedFrom": plan.resume.map(|resume| resume.job.to_string()),
            },
            "resolvedDependencies": dependencies(run, installed),
        },
        "runDetails": {
            "builder": { "id": builder, "version": { "kiln": env!("CARGO_PKG_VERSION") } },
            "metadata": metadata,
        },
    })
}

/// What the image was made from, by digests.
fn dependencies(run: &Run, installed: Option<&Installed>) -> Vec<Value> {
    let dependency =
        |name: &str, uri: &str, sha256: &str| json!({ "name": name, "uri": uri, "digest": { "sha256": sha256 } });
    let mut all = Vec::new();
    if let Some(sha256) = &run.recipe_sha256 {
        all.push(dependency("recipe", &run.plan.recipe, sha256));
    }
    if let Some(sha256) = &run.toolbox_sha256 {
        all.push(dependency("toolbox", &format!("urn:kiln:toolbox:{sha256}"), sha256));
    }
    let of_layer = run.layer.as_ref().map(|layer| &layer.repositories);
    if let Some(repositories) = installed.map(|installed| &installed.repositories).or(of_layer) {
        let repositories = repositories.iter();
        all.extend(repositories.map(|one| dependency(REPOSITORY, &one.metadata, &one.sha256)));
    }
    if let Some(installed) = installed {
        let bases = installed.bases.iter();
        all.extend(bases.map(|base| dependency("base", &format!("docker://{}", base.metadata), &base.sha256)));
        all.extend(installed.packages.iter().filter_map(|package| {
            let mut entry = json!({ "name": package.name, "uri": installed.purl(package)? });
            // Without one where the file could not be looked at: no value stands for that.
            if let Some(sha256) = &package.sha256 {
                entry["digest"] = json!({ "sha256": sha256 });
            }
            Some(entry)
        }));
    }
    if let Some(base) = &run.plan.image {
        let digests = [("sha256", &base.sha256), ("md5", &base.md5)];
        let digests: serde_json::Map<String, Value> = digests
            .into_iter()
            .filter_map(|(name, digest)| Some((name.to_owned(), digest.clone()?.into())))
            .collect();
        all.push(json!({ "name": "rootfs", "uri": base.rootfs, "digest": digests }));
        let changes = base.changes.iter();
        all.extend(changes.map(|change| dependency(change.kind.name(), &change.object, &change.sha256)));
    }
    all
}

/// A moment as in-toto has it.
fn at(moment: Moment) -> Option<String> {
    Timestamp::from_microsecond(moment.micros())
        .ok()
        .map(|time| time.to_string())
}
