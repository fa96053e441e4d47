//! What a new job is: what the request says, checked in IMS's order, and what follows from the recipe or image.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::{
    api::{
        Api, JobSettings,
        fields::{FileName, Flatten, List, Nullable, OrDefault, Text, body},
        objects::{check_rootfs, must_exist},
        problem::{Problem, Result},
    },
    arch::Arch,
    orchestrate::{Asked, NewRun},
    records::{
        Image, ImageId, Job, JobId, JobStatus, JobType, Link, Moment, PublicKey, PublicKeyId, Recipe, RecipeId,
        RecipeType, ShellTime, ShellWish,
        job::{Connection, JobOptions, SshContainer},
        run::BaseImage,
        schedule::ScheduledJob,
    },
    store::{Collection, Side},
};

body! {
    /// What makes a job.
    pub(in crate::api) struct JobCreate {
        /// What it does.
        job_type: JobType,
        /// The recipe (create) or image (customize) that it starts from.
        artifact_id: Uuid,
        /// The key that may log in to its shell.
        public_key_id: Uuid,
        /// The name of the image that comes out.
        image_root_archive_name: FileName,
        /// Whether a failed build opens a shell.
        enable_debug: OrDefault<bool>,
        /// Shells; only for customize jobs, and at most one.
        ssh_containers: Nullable<List<SshContainerCreate>>,
        options: Flatten<JobOptions>,
    }
}

body! {
    /// A shell that a job shall have.
    pub(in crate::api) struct SshContainerCreate {
        /// Its name.
        name: Option<Text>,
        /// Whether the shell is confined to the image's root.
        jail: OrDefault<bool>,
    }
}

/// What a request says of a job, before it is compared with anything.
pub(in crate::api) struct Request {
    job_type: JobType,
    artifact_id: Uuid,
    /// None only of jobs that nobody logs in to.
    public_key_id: Option<PublicKeyId>,
    image_root_archive_name: String,
    enable_debug: bool,
    ssh_containers: Vec<(Option<String>, bool)>,
    options: JobOptions,
}

impl From<JobCreate> for Request {
    fn from(given: JobCreate) -> Self {
        let shells = given.ssh_containers.flatten().unwrap_or_default();
        Self {
            job_type: given.job_type,
            artifact_id: given.artifact_id,
            public_key_id: Some(PublicKeyId(given.public_key_id)),
            image_root_archive_name: given.image_root_archive_name,
            enable_debug: given.enable_debug,
            ssh_containers: shells.into_iter().map(|shell| (shell.name, shell.jail)).collect(),
            options: given.options,
        }
    }
}

impl Request {
    /// One that changes an image, and nobody logs in to.
    pub(in crate::api) fn customize(image: ImageId, name: String, options: JobOptions) -> Self {
        Self {
            job_type: JobType::Customize,
            artifact_id: image.into(),
            public_key_id: None,
            image_root_archive_name: name,
            enable_debug: false,
            ssh_containers: Vec::new(),
            options,
        }
    }
}

impl From<&ScheduledJob> for Request {
    fn from(scheduled: &ScheduledJob) -> Self {
        Self {
            job_type: JobType::Create,
            artifact_id: scheduled.recipe_id.into(),
            public_key_id: scheduled.public_key_id,
            image_root_archive_name: scheduled.image_root_archive_name.clone(),
            enable_debug: false,
            ssh_containers: Vec::new(),
            options: scheduled.options.clone(),
        }
    }
}

/// A job that is asked for, and what is to be known to carry it out.
pub(in crate::api) struct Planned {
    pub(in crate::api) job: Job,
    pub(in crate::api) run: NewRun,
}

/// The checks in IMS's order, and what follows from them.
pub(in crate::api) async fn plan(api: &Api, id: JobId, request: Request) -> Result<Planned> {
    if request.job_type == JobType::Create && !request.ssh_containers.is_empty() {
        return Err(Problem::bad_request(
            "`ssh_containers` cannot be given for a create job.",
        ));
    }
    if request.ssh_containers.len() > 1 {
        return Err(Problem::bad_request("A job has one SSH container at most."));
    }
    let (mut from, mut base) = (None, None);
    let (arch, dkms) = match request.job_type {
        JobType::Create => {
            let recipe = Collection::<Recipe>::get(&*api.store, Side::Live, RecipeId(request.artifact_id)).await?;
            let recipe = recipe.ok_or_else(|| unknown("recipe", request.artifact_id))?.record;
            must_exist(api, &linked("recipe", recipe.link.as_ref())?.path).await?;
            if recipe.recipe_type == RecipeType::Packer {
                return Err(Problem::unprocessable("Recipes of type packer cannot be built."));
            }
            let facts = (recipe.arch, recipe.require_dkms);
            from = Some(recipe);
            facts
        }
        JobType::Customize => {
            let image = Collection::<Image>::get(&*api.store, Side::Live, ImageId(request.artifact_id)).await?;
            let image = image.ok_or_else(|| unknown("image", request.artifact_id))?.record;
            let rootfs = check_rootfs(api, linked("image", image.link.as_ref())?).await?;
            base = Some(BaseImage {
                id: image.id,
                rootfs: rootfs.path,
                md5: rootfs.md5,
                sha256: rootfs.sha256,
                changes: Vec::new(),
            });
            (image.arch, api.jobs.enable_dkms)
        }
    };
    let mut keys = None;
    if let Some(id) = request.public_key_id {
        let key = Collection::<PublicKey>::get(&*api.store, Side::Live, id).await?;
        keys = Some(key.ok_or_else(|| unknown("public key", id.0))?.record.public_key);
    }
    let shell = keys.and_then(|keys| {
        let when = match (request.job_type, request.enable_debug) {
            (JobType::Customize, _) => ShellTime::Customize,
            (JobType::Create, true) => ShellTime::Debug,
            (JobType::Create, false) => return None,
        };
        let jail = request.ssh_containers.first().is_some_and(|(_, jail)| *jail);
        Some(ShellWish { keys, jail, when })
    });

    let options = request.options;
    let own_kernel = options.require_dkms.unwrap_or(dkms);
    // As in IMS, a job for aarch64 always says so.
    let require_dkms = arch == Arch::Aarch64 || own_kernel;
    let gib = |size: u32| u64::from(size) << 30;
    let twins = options.twins.or(from.as_ref().and_then(|recipe| recipe.twins));
    let run = NewRun {
        recipe: from,
        image: base,
        shell,
        own_kernel,
        twins,
        asked: Asked {
            disk: options.build_env_size.map(gib),
            memory: options.job_mem_size.map(gib),
            usual_disk: gib(api.jobs.default_image_size_gib),
            usual_memory: gib(api.jobs.default_mem_size_gib),
        },
        who: None,
    };
    let name = |part: &str| format!("cray-ims-{id}-{part}");
    let job = Job {
        id,
        created: Moment::now(),
        job_type: request.job_type,
        artifact_id: request.artifact_id,
        // Clients expect an id.
        public_key_id: request.public_key_id.unwrap_or(PublicKeyId(Uuid::nil())),
        image_root_archive_name: request.image_root_archive_name,
        enable_debug: request.enable_debug,
        build_env_size: options.build_env_size.unwrap_or(api.jobs.default_image_size_gib),
        job_mem_size: options.job_mem_size.unwrap_or(api.jobs.default_mem_size_gib),
        kernel_file_name: options
            .kernel_file_name
            .unwrap_or_else(|| arch.kernel_file_name().to_owned()),
        initrd_file_name: options.initrd_file_name.unwrap_or_else(|| "initrd".to_owned()),
        kernel_parameters_file_name: options
            .kernel_parameters_file_name
            .unwrap_or_else(|| "kernel-parameters".to_owned()),
        // One that nobody can log in to has no shell.
        ssh_containers: request.public_key_id.and_then(|_| {
            shells(
                id,
                request.job_type,
                request.enable_debug,
                request.ssh_containers,
                &api.jobs,
            )
        }),
        require_dkms,
        status: JobStatus::Creating,
        arch,
        resultant_image_id: None,
        kubernetes_job: name(request.job_type.name()),
        kubernetes_service: name("service"),
        kubernetes_configmap: name("configmap"),
        kubernetes_pvc: name("job-claim"),
        kubernetes_secret: None,
        kubernetes_namespace: api.jobs.namespace.clone(),
        remote_build_node: String::new(),
    };
    Ok(Planned { job, run })
}

/// As in IMS, what a job refers to and cannot have is a 400.
fn unknown(kind: &str, id: Uuid) -> Problem {
    Problem::bad_request(format_args!("There is no {kind} with the id {id}."))
}

fn linked<'a>(kind: &str, link: Option<&'a Link>) -> Result<&'a Link> {
    link.ok_or_else(|| Problem::bad_request(format_args!("The {kind} has no link: nothing was uploaded for it yet.")))
}

/// The shells of a job: what was asked for, else one that the kind of job always has.
fn shells(
    id: JobId,
    job_type: JobType,
    debug: bool,
    asked: Vec<(Option<String>, bool)>,
    settings: &JobSettings,
) -> Option<Vec<SshContainer>> {
    let asked = match (job_type, debug) {
        (JobType::Create, false) => return None,
        (JobType::Create, true) => vec![(Some("debug".to_owned()), false)],
        (JobType::Customize, _) if asked.is_empty() => vec![(Some("customize".to_owned()), false)],
        (JobType::Customize, _) => asked,
    };
    let at = |host: String| Connection { host, port: 22 };
    let outside = format!("{id}.ims.{}.{}", settings.access_subnet, settings.access_domain);
    let inside = format!("cray-ims-{id}-service.{}.svc.cluster.local", settings.namespace);
    let shell = |(name, jail)| SshContainer {
        name,
        jail,
        status: "pending".to_owned(),
        connection_info: BTreeMap::from([
            ("customer_access".to_owned(), at(outside.clone())),
            ("cluster.local".to_owned(), at(inside.clone())),
        ]),
    };
    Some(asked.into_iter().map(shell).collect())
}
