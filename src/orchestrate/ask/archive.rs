//! Takes in the build of a recipe archive that has no record, as `kiln build` asks for it. It writes a row of the store
//! and the archive to S3.

use bytes::Bytes;
use kiln_records::{
    Dating, Job, JobId, JobType,
    arch::Arch,
    job::JobOptions,
    protocol::{RecipeType, SquashfsOptions, TemplateMode},
};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{Asker, NewJob, Refusal, plan::Plans};
use crate::orchestrate::{admit::Asked, intake::NewRun};

/// A build as its user describes it. An absent option was not given.
#[derive(Debug, Clone)]
pub struct ArchiveJob {
    /// The name of the resulting image.
    pub image_name: String,
    /// The recipe's name, by which a later build of it is recognised.
    pub recipe_name: String,
    /// The recipe archive.
    pub archive: Bytes,
    /// The recipe's format.
    pub recipe_type: RecipeType,
    /// The architecture of the image.
    pub arch: Arch,
    /// Whether the job gets a kernel of its own.
    pub own_kernel: bool,
    /// Names and values for the recipe's templates.
    pub values: Vec<(String, String)>,
    /// The treatment of template names without a value.
    pub template_mode: TemplateMode,
    /// How the root is packed.
    pub squashfs: SquashfsOptions,
    /// How long to wait for the recipe's repositories, in seconds.
    pub repos_timeout_s: u64,
    /// The most memory, in bytes.
    pub memory: Option<u64>,
    /// The most disk space, in bytes.
    pub disk: Option<u64>,
    /// Whether the files of the sandbox stay on disk.
    pub keep: bool,
    /// The options that every job has. Sizes in GiB are not used: they are given in bytes here.
    pub options: JobOptions,
}

/// Makes the job of an archive, then stores the archive: a process that dies in between leaves a job that is cleared away, rather
/// than an object that belongs to nothing. The job must not be launched before this returns.
pub(super) async fn build(asker: &Asker, id: JobId, build: ArchiveJob, who: Option<String>) -> Result<Job, Refusal> {
    /// Bytes per GiB.
    const GIB: u64 = 1 << 30;
    let orchestrator = asker.orchestrator()?;
    let gib = |bytes: Option<u64>| bytes.map(|bytes| u32::try_from(bytes.div_ceil(GIB)).unwrap_or(u32::MAX));
    let options = JobOptions {
        build_env_size: gib(build.disk),
        job_mem_size: gib(build.memory),
        ..build.options
    };
    let new = NewJob {
        job_type: JobType::Create,
        artifact_id: history_id(&build.recipe_name),
        public_key_id: None,
        image_root_archive_name: build.image_name,
        enable_debug: false,
        shells: Vec::new(),
        changes: Vec::new(),
        options,
    };
    let job = Plans(asker).record(id, &new, build.arch, build.own_kernel);
    let run = NewRun {
        recipe: asker.artifacts.recipe_path(id),
        recipe_type: build.recipe_type,
        values: build.values,
        template_mode: build.template_mode,
        squashfs: build.squashfs,
        repos_timeout_s: Some(build.repos_timeout_s),
        keep: build.keep,
        own_kernel: build.own_kernel,
        twins: new.options.twins,
        verify_twins: new.options.verify_twins.unwrap_or_default(),
        cache: new.options.cache,
        cache_from: Plans(asker).known_image(&new.options).await?,
        locked: new.options.locked.unwrap_or_default(),
        profiles: new.options.profiles.clone().unwrap_or_default(),
        additions: new.options.additions(),
        containerfile: Box::new(new.options.of_containerfile()),
        epoch: new.options.dating().epoch(Dating::default()),
        kernel_required: new.options.kernel_file_name.is_some(),
        asked: Asked {
            disk: build.disk,
            memory: build.memory,
            usual_disk: u64::from(asker.jobs.default_image_size_gib) * GIB,
            usual_memory: u64::from(asker.jobs.default_mem_size_gib) * GIB,
        },
        who,
        ..NewRun::default()
    };
    let job = orchestrator.intake.accept(job, run).await?;
    if let Err(failure) = asker.artifacts.put_recipe(id, build.archive).await {
        orchestrator.jobs.fail(id, 1, failure).await?;
    }
    Ok(job)
}

/// An id for all builds of a recipe by its name: what they used tells what the next one will need.
fn history_id(recipe_name: &str) -> Uuid {
    let digest: [u8; 32] = Sha256::digest(recipe_name).into();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    // A version 8 UUID is one whose content is its maker's own (RFC 9562, section 5.8).
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_of_a_recipe_share_an_id() {
        assert_eq!(history_id("a"), history_id("a"));
        assert_ne!(history_id("a"), history_id("b"));
        assert_eq!(history_id("a").get_version_num(), 8);
    }
}
