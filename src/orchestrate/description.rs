//! Describes a job to its agent: all that it needs to carry the job out. It reads rows of the store, reads objects in S3 and
//! presigns their addresses.

use std::{sync::Arc, time::Duration};

use kiln_inside::emulation::binfmt::emulation_of;
use kiln_records::{
    CheckLevels, Code, FailedTwin, Failure, GivenUp, Job, Shell, TwinLevel,
    arch::Arch,
    link::bucket_and_key,
    log,
    protocol::{
        ChangeSource, Emulator, ImageWork, JobDescription, ObjectSource, Purpose, RecipeSource, RecipeType, RecipeWork,
        ShellPlan, Work,
    },
    run::{BaseImage, How, Plan},
};

use super::{admit::HISTORY, bases::Bases, sandboxes::Sandboxes, secrets::Secrets, shell_ports::ShellPlace};
use crate::{
    artifacts::{ArtifactStore, LONG_URL_VALID, URL_VALID},
    config::WatchSettings,
    host,
    store::{SharedStore, StoredRun},
};

/// The longest an agent waits for a server, or for S3, that does not answer.
const SERVER_PATIENCE: Duration = Duration::from_mins(30);

/// Describes jobs.
#[derive(Debug)]
pub(super) struct Descriptions {
    pub(super) store: SharedStore,
    pub(super) artifacts: ArtifactStore,
    pub(super) sandboxes: Arc<Sandboxes>,
    /// The levels of the checks of a finished root that this site chose.
    pub(super) checks: CheckLevels,
    pub(super) shell_place: ShellPlace,
    /// When jobs are given up.
    pub(super) watch: WatchSettings,
    pub(super) secrets: Arc<Secrets>,
    pub(super) bases: Arc<Bases>,
}

impl Descriptions {
    /// All that the agent of a job needs.
    pub(super) async fn of(&self, stored: &StoredRun) -> Result<JobDescription, Failure> {
        let (job, plan) = (&stored.job, &stored.run.plan);
        Ok(JobDescription {
            id: job.id,
            image_name: job.image_root_archive_name.clone(),
            arch: job.arch,
            work: match &plan.image {
                Some(image) => Work::Customize(self.describe_image(image).await?),
                None => Work::Create(Box::new(self.describe_recipe(plan).await?)),
            },
            shell: stored.run.shell.as_ref().map(|shell| self.describe_shell(shell)),
            environment: environment(job),
            emulator: emulator(plan.how, job.arch)?,
            twins: stored.run.twins_in_force(),
            verify_twins: plan.verify_twins,
            purpose: plan.verifies.map_or(Purpose::Image, |_| Purpose::Verification),
            failed_twins: self.failed_twins(stored).await?,
            given_up: self.given_up(stored).await?,
            epoch: plan.epoch,
            cache: plan.cache,
            locked: plan.locked,
            squashfs: plan.squashfs.clone(),
            boot: plan.boot.clone(),
            checks: self.checks.clone(),
            cpus: self.sandboxes.cpus_of(&stored.run).await?,
            ca_bundle: host::ca_bundle(),
            kept_authorities: host::kept_authorities()?,
            signing_keys: host::signing_keys()?,
            from: stored.run.resumes().map(|resume| resume.step),
            // The agent knows what it waits for; the clock that would end its job for silence does not.
            patience_s: SERVER_PATIENCE.min(self.watch.silence.duration() / 2).as_secs(),
            log_bytes: self.log_share(stored).await?,
        })
    }

    /// The size that the log of this attempt may have, in bytes, less a little for the lines that are made of other
    /// events.
    async fn log_share(&self, stored: &StoredRun) -> Result<u64, Failure> {
        let before = self.store.pulse(stored.job.id).await?.map_or(0, |pulse| {
            if pulse.attempt == stored.run.attempt {
                pulse.log_bytes_before
            } else {
                pulse.log_bytes
            }
        });
        let share = log::share(self.watch.log_bytes.0, before);
        Ok(share - share / 16)
    }

    async fn describe_recipe(&self, plan: &Plan) -> Result<RecipeWork, Failure> {
        let (bucket, key) = bucket_and_key(&plan.recipe)
            .ok_or_else(|| Failure::new(Code::RecipeMissing, format!("{} is no object in S3", plan.recipe)))?;
        let digests = self.artifacts.digests(bucket, key).await?;
        let mirror = host::apt_mirror().map(|mirror| ("debian_mirror".to_owned(), mirror.archive));
        Ok(RecipeWork {
            recipe: RecipeSource {
                url: self.artifacts.presign_get(bucket, key, URL_VALID).await?,
                sha256: digests.sha256,
                size: digests.size,
            },
            recipe_type: plan.recipe_type,
            values: plan.values.iter().cloned().collect(),
            default_values: mirror.into_iter().collect(),
            template_mode: plan.template_mode,
            repos_timeout_s: plan.repos_timeout_s,
            profiles: plan.profiles.clone(),
            additions: plan.additions.clone(),
            containerfile: (*plan.containerfile).clone(),
            secrets: self
                .secrets
                .read(&plan.containerfile.secrets, plan.who.as_deref())
                .await?,
            registries: match plan.recipe_type {
                RecipeType::Containerfile => self.bases.names(plan),
                RecipeType::KiwiNg => Vec::new(),
            },
        })
    }

    async fn describe_image(&self, image: &BaseImage) -> Result<ImageWork, Failure> {
        let mut changes = Vec::with_capacity(image.changes.len());
        for change in &image.changes {
            changes.push(ChangeSource {
                kind: change.kind,
                name: change.name.clone(),
                source: self.object(&change.object, None, Some(change.sha256.clone())).await?,
            });
        }
        let rootfs = self.object(&image.rootfs, image.md5.clone(), image.sha256.clone());
        Ok(ImageWork {
            rootfs: rootfs.await?,
            changes,
        })
    }

    /// An object that an agent reads.
    async fn object(&self, path: &str, md5: Option<String>, sha256: Option<String>) -> Result<ObjectSource, Failure> {
        let missing = || Failure::new(Code::S3Missing, format!("{path} is not in S3"));
        let (bucket, key) = bucket_and_key(path).ok_or_else(missing)?;
        Ok(ObjectSource {
            size: self.artifacts.size(bucket, key).await?.ok_or_else(missing)?,
            url: self.artifacts.presign_get(bucket, key, LONG_URL_VALID).await?,
            md5,
            sha256,
        })
    }

    /// The pairs that this attempt must not use as twins.
    async fn failed_twins(&self, stored: &StoredRun) -> Result<Vec<FailedTwin>, Failure> {
        if !has_twins(stored) {
            return Ok(Vec::new());
        }
        Ok(self.store.failed_twins(Some(stored.job.arch)).await?)
    }

    /// The commands at which twins gave up in the latest job of the same recipe that has an account of them. They only save
    /// time, so a job does without those of an account that cannot be read.
    async fn given_up(&self, stored: &StoredRun) -> Result<GivenUp, Failure> {
        if !has_twins(stored) || stored.run.plan.image.is_some() {
            return Ok(GivenUp::default());
        }
        let past = self.store.past_runs(stored.job.artifact_id, HISTORY).await?;
        for past in past
            .iter()
            .filter(|past| past.job.arch == stored.job.arch && has_twins(past))
        {
            match self.artifacts.account(past.job.id).await {
                Ok(Some(kept)) => return Ok(kept.account.given_up),
                Ok(None) => {}
                Err(failure) => {
                    tracing::warn!(job = %past.job.id, "the account of its programs cannot be read: {failure}");
                }
            }
        }
        Ok(GivenUp::default())
    }

    fn describe_shell(&self, shell: &Shell) -> ShellPlan {
        ShellPlan {
            wish: shell.wish.clone(),
            idle_s: self.shell_place.idle.as_secs(),
            longest_s: self.shell_place.longest.as_secs(),
        }
    }
}

/// The environment that IMS gives to users and scripts that change its images.
fn environment(job: &Job) -> Vec<(String, String)> {
    let dkms = if job.require_dkms { "True" } else { "False" };
    let values = [
        ("IMS_JOB_ID", job.id.to_string()),
        ("IMS_ARCH", job.arch.name().to_owned()),
        ("IMS_DKMS_ENABLED", dkms.to_owned()),
        ("REMOTE_BUILD_NODE", job.remote_build_node.clone()),
    ];
    values.map(|(name, value)| (name.to_owned(), value)).into()
}

/// The emulator that runs the programs of an image, if the CPU does not.
fn emulator(how: How, arch: Arch) -> Result<Option<Emulator>, Failure> {
    match how {
        How::Native => Ok(None),
        How::Emulated => {
            let emulation = emulation_of(arch)?;
            Ok(Some(Emulator {
                binfmt: emulation.entry,
                cpu: emulation.cpu,
            }))
        }
    }
}

/// Whether programs of the image may run as twins in this try.
fn has_twins(stored: &StoredRun) -> bool {
    stored.run.plan.how == How::Emulated && stored.run.twins_in_force() != TwinLevel::Off
}
