//! Makes artifacts from a root, and uploads them to S3. Runs mksquashfs, and touches the job's disk space.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use kiln_records::{ArtifactKind, CheckLevel, Code, Failure, JobType, Warning, protocol::JobDescription};

use super::{
    boot_files,
    channel::Channel,
    checks::{self, Finished, Levels},
    events::Events,
    identity,
    inventory::{self, Written},
    mksquashfs,
    normalize::{self, Normalized},
    outputs::{Artifacts, Outputs},
    pauses,
    process::blocking,
    upload::Uploader,
};
use crate::squashfs::{Options, Outcome, Unpacked, rebase};

/// Makes the artifacts of the job's root.
pub async fn package(job: &JobDescription, outputs: &Outputs, events: &Events) -> Result<Artifacts, Failure> {
    let (rootfs, kernel) = outputs.packages();
    let (arch, names) = (job.arch, job.boot.clone());
    let (root_of_search, kernel_file) = (outputs.root(), kernel.clone());
    let levels = Levels::of_job(job, outputs)?;
    let boot = blocking(move || {
        mksquashfs::restrict_image_dir(&root_of_search)?;
        let boot = boot_files::find_boot_files(&root_of_search, arch, &names)?;
        if let Some(set) = &boot {
            boot_files::write_kernel(set, &kernel_file)?;
        }
        Ok(boot)
    })
    .await?;
    let finished = Finished::new(outputs.root(), arch, boot.clone());
    checks::look(finished, &levels, events).await?;
    part_machines(job, outputs, &levels, events).await?;
    let inventory = inventory_of(job, outputs, &levels, events).await?;
    let epoch = match job.work.job_type() {
        JobType::Create => outputs.facts.epoch(job),
        JobType::Customize => None,
    };
    if let Some(epoch) = epoch {
        normalize_root(outputs, epoch, events).await?;
    }
    let has_base = job.work.job_type() == JobType::Customize || (epoch.is_none() && outputs.unpacked().exists());
    if !has_base || !rebase_image(job, outputs, &rootfs, events).await? {
        make_squashfs(job, outputs, epoch, &rootfs, events).await?;
    }
    let mut artifacts = vec![(ArtifactKind::Rootfs, rootfs)];
    match boot {
        Some(set) => {
            artifacts.push((ArtifactKind::Kernel, kernel));
            artifacts.push((ArtifactKind::Initrd, set.initrd));
            artifacts.extend(set.parameters.map(|path| (ArtifactKind::BootParameters, path)));
        }
        None => {
            events
                .say("the root has no kernel: the image is a root file system only")
                .await;
        }
    }
    if outputs.container().exists() {
        artifacts.push((ArtifactKind::Container, outputs.container()));
    }
    artifacts.extend(inventory);
    Ok(artifacts)
}

/// Takes out of the root what all machines with the image would share. An image that is changed keeps what it has: its owner may
/// have wanted that.
async fn part_machines(
    job: &JobDescription,
    outputs: &Outputs,
    levels: &Levels,
    events: &Events,
) -> Result<(), Failure> {
    let code = Code::RootIdentity;
    let advice = "every machine is to make it for itself; `off` for this check keeps it on purpose";
    let failed = |error| Failure::io("cannot take out of the root what machines must not share", &error);
    let (root, recipe) = (outputs.root(), outputs.facts.recipe.clone());
    let is_new = job.work.job_type() == JobType::Create;
    match levels.of(code) {
        CheckLevel::Off => return Ok(()),
        CheckLevel::Warn if is_new => {}
        CheckLevel::Warn | CheckLevel::Fail => {
            let shared = blocking(move || identity::shared(&root).map_err(failed)).await?;
            let say = |path| format!("all machines with this image share its {path}");
            return levels
                .judge(code, advice, shared.into_iter().map(say).collect(), events)
                .await;
        }
    }
    let parted = blocking(move || identity::part(&root, &recipe).map_err(failed)).await?;
    for (path, why) in parted.treated {
        events.say(format!("identity: {path}: {why}")).await;
    }
    let say = |path| format!("all machines with this image share its {path}, which the recipe brings");
    let mut findings: Vec<String> = parted.kept.into_iter().map(say).collect();
    findings.extend(parted.said);
    levels.judge(code, advice, findings, events).await
}

/// Takes out of the root what no two builds have in common.
async fn normalize_root(outputs: &Outputs, epoch: u32, events: &Events) -> Result<(), Failure> {
    let (root, begun) = (outputs.root(), outputs.facts.begun);
    let normalized = blocking(move || {
        normalize::normalize(&root, begun, epoch)
            .map_err(|error| Failure::io("cannot make the root reproducible", &error))
    })
    .await?;
    let Normalized { treated, dated, future } = normalized;
    let date = Timestamp::from_second(i64::from(epoch)).map_or_else(|_| epoch.to_string(), |date| date.to_string());
    events
        .say(format!(
            "reproducible: {dated} files that the build wrote have the date {date}"
        ))
        .await;
    for (path, why) in treated {
        events.say(format!("reproducible: {path}: {why}")).await;
    }
    if future > 0 {
        let text = format!(
            "{future} files of the root are newer than this machine's clock: at another time, the image may not be the same"
        );
        events.warn(Warning::new(Code::FutureFiles, text)).await;
    }
    Ok(())
}

/// The two documents that say what the root consists of. A root whose packages cannot be listed is an image
/// nevertheless, and its log says that the documents are missing.
async fn inventory_of(
    job: &JobDescription,
    outputs: &Outputs,
    levels: &Levels,
    events: &Events,
) -> Result<Artifacts, Failure> {
    let (root, into) = (outputs.root(), outputs.documents());
    let (image, arch, id) = (job.image_name.clone(), job.arch, job.id.0);
    let known = pauses::saved(outputs);
    let written = blocking(move || {
        let of = inventory::Of {
            image: &image,
            arch,
            id,
            installed: known.as_ref(),
        };
        fs_err::create_dir_all(&into)
            .and_then(|()| inventory::write(&root, of, &into))
            .map_err(|error| Failure::io("cannot list the packages of the root", &error))
    })
    .await;
    match written {
        Ok(Written {
            documents,
            packages,
            loose,
            setuid,
            unseen,
        }) => {
            let text = format!(
                "the root has {packages} packages, and {loose} programs, libraries and kernel modules that no package owns"
            );
            events.say(text).await;
            if unseen > 0 {
                let text = format!("{unseen} directories are too deep: the list of packages has no program below them");
                events.warn(Warning::new(Code::PackagesUnrecorded, text)).await;
            }
            if packages > 0 {
                let say = |path: PathBuf| {
                    format!(
                        "/{} runs with the rights of its owner or group, and no package owns it",
                        path.display()
                    )
                };
                let advice = "make sure that the recipe means it; chmod u-s,g-s in config.sh takes the rights";
                let findings = setuid.into_iter().map(say).collect();
                levels.judge(Code::RootSetuid, advice, findings, events).await?;
            }
            Ok(documents)
        }
        Err(failure) if failure.code == Code::DiskFull => Err(failure),
        Err(failure) => {
            let text = format!("the image gets no list of its packages: {failure}");
            events.warn(Warning::new(Code::PackagesUnrecorded, text)).await;
            Ok(Artifacts::new())
        }
    }
}

/// Makes the squashfs of a changed image from the original image's, or that of a recipe from its layer, if possible. Returns whether it exists.
async fn rebase_image(job: &JobDescription, outputs: &Outputs, to: &Path, events: &Events) -> Result<bool, Failure> {
    let options = Options {
        squashfs: job.squashfs.clone(),
        cpus: job.cpus,
        devices: outputs.facts.devices.clone(),
        made: u32::try_from(Timestamp::now().as_second()).unwrap_or_default(),
    };
    let (base, note, root, to) = (outputs.base(), outputs.unpacked(), outputs.root(), to.to_owned());
    let made = blocking(move || rebase(&base, &Unpacked::load(&note)?, &root, &to, &options)).await?;
    let (is_there, text) = match made {
        Outcome::Rebased(rebased) => (
            true,
            format!(
                "{} files with {} bytes are unchanged, {} files with {} bytes were packed",
                rebased.reused_files, rebased.reused_bytes, rebased.new_files, rebased.new_bytes
            ),
        ),
        Outcome::NotPossible(why) => (false, format!("the whole root is packed again: {why}")),
    };
    events.say(text).await;
    Ok(is_there)
}

async fn make_squashfs(
    job: &JobDescription,
    outputs: &Outputs,
    made: Option<u32>,
    to: &Path,
    events: &Events,
) -> Result<(), Failure> {
    let root = outputs.root();
    let mut args = mksquashfs::mksquashfs_args(&root, to, &job.squashfs, job.cpus, mksquashfs::MEMORY_MIB);
    args.extend(mksquashfs::time_args(made));
    args.extend(mksquashfs::device_args(&root, &outputs.facts.devices));
    mksquashfs::run(args, events).await
}

/// Uploads the artifacts to S3.
pub async fn upload(
    job: &JobDescription,
    http: &reqwest::Client,
    channel: &Channel,
    artifacts: &Artifacts,
    events: &Events,
) -> Result<(), Failure> {
    let uploader = Uploader {
        http: http.clone(),
        channel: channel.clone(),
        events: events.clone(),
        patience: Duration::from_secs(job.patience_s),
    };
    for (kind, path) in artifacts {
        let digests = uploader.upload(*kind, path).await?;
        events
            .say(format!(
                "{}: {} bytes, sha256 {}",
                kind.key_name(),
                digests.size,
                digests.sha256
            ))
            .await;
    }
    Ok(())
}
