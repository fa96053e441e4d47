//! Turns a request for a new job into its record and its plan: checks what the user said in IMS's order, and adds what
//! follows from the recipe or image. It reads rows of the store and checks objects in S3; it writes nothing.

use std::collections::BTreeMap;

use kiln_records::{
    CacheDepth, Dating, Image, ImageId, Job, JobId, JobStatus, JobType, Link, Moment, PublicKey, PublicKeyId, Recipe,
    RecipeId, ShellTime, ShellWish, TwinLevel,
    arch::Arch,
    job::{Connection, JobOptions, SshContainer, WITHIN_CLUSTER},
    protocol::RecipeType,
    run::BaseImage,
};
use uuid::Uuid;

use super::{AskedShell, Asker, NewJob, Referred, Refusal};
use crate::{
    orchestrate::{admit::Asked, intake::NewRun},
    store::{Collection, Side},
};

/// The recipe or image that a job starts from, and the properties the job inherits from it.
struct Start {
    arch: Arch,
    /// Whether the job gets a kernel of its own unless its user says otherwise.
    own_kernel: bool,
    /// Which tools may run as native twins, as the recipe says.
    twins: Option<TwinLevel>,
    /// How much of earlier jobs may be reused, as the recipe says.
    cache: Option<CacheDepth>,
    /// The date of the image, as the recipe says.
    dating: Dating,
    /// Whether its packages are locked, as the recipe says.
    locked: Option<bool>,
    /// The profiles to build, as the recipe says.
    profiles: Option<Vec<String>>,
    /// The recipe's archive, and the values for its templates.
    recipe: String,
    recipe_type: RecipeType,
    values: Vec<(String, String)>,
    image: Option<BaseImage>,
}

/// Plans jobs by what an asker knows. Writes nothing.
#[derive(Debug)]
pub(super) struct Plans<'a>(pub(super) &'a Asker);

impl Plans<'_> {
    /// Makes the checks in IMS's order, and derives what follows from them.
    pub(super) async fn of(&self, id: JobId, new: &NewJob) -> Result<(Job, NewRun), Refusal> {
        if new.job_type == JobType::Create && !new.shells.is_empty() {
            return Err(Refusal::ShellOfCreate);
        }
        if new.shells.len() > 1 {
            return Err(Refusal::TooManyShells);
        }
        let options = &new.options;
        let is_of_recipe = !options.of_containerfile().is_empty()
            || !options.additions().is_empty()
            || options.profiles.as_ref().is_some_and(|it| !it.is_empty());
        if new.job_type == JobType::Customize && is_of_recipe {
            return Err(Refusal::OfRecipes);
        }
        let start = match new.job_type {
            JobType::Create => self.recipe(RecipeId(new.artifact_id)).await?,
            JobType::Customize => self.image(ImageId(new.artifact_id)).await?,
        };
        let mut keys = None;
        if let Some(id) = new.public_key_id {
            let key = Collection::<PublicKey>::get(&*self.0.store, Side::Live, id).await?;
            let unknown = || Refusal::Unknown(Referred::PublicKey, id.into());
            keys = Some(key.ok_or_else(unknown)?.record.public_key);
        }
        let own_kernel = options.require_dkms.unwrap_or(start.own_kernel);
        let job = self.record(id, new, start.arch, own_kernel);
        let gib = |size: u32| u64::from(size) << 30;
        let run = NewRun {
            shell: keys.and_then(|keys| shell(new, keys)),
            own_kernel,
            twins: options.twins.or(start.twins),
            verify_twins: options.verify_twins.unwrap_or_default(),
            cache: options.cache.or(start.cache),
            cache_from: self.known_image(options).await?,
            locked: options.locked.or(start.locked).unwrap_or_default(),
            profiles: options.profiles.clone().or(start.profiles).unwrap_or_default(),
            additions: options.additions(),
            containerfile: Box::new(options.of_containerfile()),
            epoch: options.dating().epoch(start.dating),
            kernel_required: options.kernel_file_name.is_some(),
            asked: Asked {
                disk: options.build_env_size.map(gib),
                memory: options.job_mem_size.map(gib),
                usual_disk: gib(self.0.jobs.default_image_size_gib),
                usual_memory: gib(self.0.jobs.default_mem_size_gib),
            },
            recipe: start.recipe,
            recipe_type: start.recipe_type,
            values: start.values,
            image: start.image,
            ..NewRun::default()
        };
        Ok((job, run))
    }

    /// The image whose packages a job starts from, which must be there.
    pub(super) async fn known_image(&self, options: &JobOptions) -> Result<Option<ImageId>, Refusal> {
        let Some(id) = options.cache_from else {
            return Ok(None);
        };
        let image = Collection::<Image>::get(&*self.0.store, Side::Live, id).await?;
        image.ok_or(Refusal::Unknown(Referred::Image, id.into()))?;
        Ok(Some(id))
    }

    async fn recipe(&self, id: RecipeId) -> Result<Start, Refusal> {
        let recipe = Collection::<Recipe>::get(&*self.0.store, Side::Live, id).await?;
        let unknown = || Refusal::Unknown(Referred::Recipe, id.into());
        let recipe = recipe.ok_or_else(unknown)?.record;
        let link = linked(Referred::Recipe, recipe.link.as_ref())?;
        self.0.artifacts.must_exist(&link.path).await?;
        let recipe_type = recipe.recipe_type.built().ok_or(Refusal::Packer)?;
        let values = recipe.template_dictionary.clone().unwrap_or_default().into_iter();
        Ok(Start {
            arch: recipe.arch,
            own_kernel: recipe.require_dkms,
            twins: recipe.twins,
            cache: recipe.cache,
            dating: recipe.dating(),
            locked: recipe.locked,
            profiles: recipe.profiles.clone(),
            recipe: link.path.clone(),
            recipe_type,
            values: values.map(|entry| (entry.key, entry.value)).collect(),
            image: None,
        })
    }

    async fn image(&self, id: ImageId) -> Result<Start, Refusal> {
        let image = Collection::<Image>::get(&*self.0.store, Side::Live, id).await?;
        let unknown = || Refusal::Unknown(Referred::Image, id.into());
        let image = image.ok_or_else(unknown)?.record;
        let link = linked(Referred::Image, image.link.as_ref())?;
        let rootfs = self.0.artifacts.check_rootfs(link).await?;
        Ok(Start {
            arch: image.arch,
            own_kernel: self.0.jobs.enable_dkms,
            twins: None,
            cache: None,
            dating: Dating::default(),
            locked: None,
            profiles: None,
            recipe: String::new(),
            recipe_type: RecipeType::default(),
            values: Vec::new(),
            image: Some(BaseImage {
                id,
                rootfs: rootfs.path,
                md5: rootfs.md5,
                sha256: rootfs.sha256,
                changes: Vec::new(),
            }),
        })
    }

    /// The job's record: the part that IMS defines.
    pub(super) fn record(&self, id: JobId, new: &NewJob, arch: Arch, own_kernel: bool) -> Job {
        let options = &new.options;
        let said = |name: &Option<String>, usual: &str| name.clone().unwrap_or_else(|| usual.to_owned());
        let name = |part: &str| format!("cray-ims-{id}-{part}");
        Job {
            id,
            created: Moment::now(),
            job_type: new.job_type,
            artifact_id: new.artifact_id,
            // Clients expect an id.
            public_key_id: new.public_key_id.unwrap_or(PublicKeyId(Uuid::nil())),
            image_root_archive_name: new.image_root_archive_name.clone(),
            enable_debug: new.enable_debug,
            build_env_size: options.build_env_size.unwrap_or(self.0.jobs.default_image_size_gib),
            job_mem_size: options.job_mem_size.unwrap_or(self.0.jobs.default_mem_size_gib),
            kernel_file_name: said(&options.kernel_file_name, arch.kernel_file_name()),
            initrd_file_name: said(&options.initrd_file_name, "initrd"),
            kernel_parameters_file_name: said(&options.kernel_parameters_file_name, "kernel-parameters"),
            ssh_containers: self.containers(id, new),
            // As in IMS, a job for aarch64 always has this set.
            require_dkms: arch == Arch::Aarch64 || own_kernel,
            status: JobStatus::Creating,
            arch,
            resultant_image_id: None,
            kubernetes_job: name(new.job_type.name()),
            kubernetes_service: name("service"),
            kubernetes_configmap: name("configmap"),
            kubernetes_pvc: name("job-claim"),
            kubernetes_secret: None,
            kubernetes_namespace: self.0.jobs.namespace.clone(),
            remote_build_node: String::new(),
        }
    }

    /// The shells of a job: those requested, or else the one that this kind of job always has. A job without a key that
    /// could log in has none.
    fn containers(&self, id: JobId, new: &NewJob) -> Option<Vec<SshContainer>> {
        new.public_key_id?;
        let usual = |name: &str| AskedShell {
            name: Some(name.to_owned()),
            jail: false,
        };
        let asked = match (new.job_type, new.enable_debug) {
            (JobType::Create, false) => return None,
            (JobType::Create, true) => vec![usual("debug")],
            (JobType::Customize, _) if new.shells.is_empty() => vec![usual("customize")],
            (JobType::Customize, _) => new.shells.clone(),
        };
        let at = |host: String| Connection { host, port: 22 };
        let outside = format!("{id}.ims.{}.{}", self.0.jobs.access_subnet, self.0.jobs.access_domain);
        let inside = format!("cray-ims-{id}-service.{}.svc.cluster.local", self.0.jobs.namespace);
        let container = |AskedShell { name, jail }| SshContainer {
            name,
            jail,
            status: "pending".to_owned(),
            connection_info: BTreeMap::from([
                ("customer_access".to_owned(), at(outside.clone())),
                (WITHIN_CLUSTER.to_owned(), at(inside.clone())),
            ]),
        };
        Some(asked.into_iter().map(container).collect())
    }
}

/// The shell that Kiln opens to the holders of the keys.
fn shell(new: &NewJob, keys: String) -> Option<ShellWish> {
    let when = match (new.job_type, new.enable_debug) {
        (JobType::Customize, _) => ShellTime::Customize,
        (JobType::Create, true) => ShellTime::Debug,
        (JobType::Create, false) => return None,
    };
    let jail = new.shells.first().is_some_and(|shell| shell.jail);
    Some(ShellWish { keys, jail, when })
}

fn linked(referred: Referred, link: Option<&Link>) -> Result<&Link, Refusal> {
    link.ok_or(Refusal::NoLink(referred))
}
