//! Tests what becomes of requests for jobs.

use kiln_records::{
    CacheDepth, Epoch, Link, LinuxDistribution, Recipe, RecipeId, RecipeType,
    job::JobOptions,
    protocol::{SquashfsOptions, TemplateMode},
    run::Plan,
};
use uuid::Uuid;

use super::*;
use crate::{
    config::JobSettings,
    orchestrate::ask::{Ask, AskedShell, Asker, NewJob, Referred, Refusal},
};

impl Site {
    pub(super) fn asker(&self, server: Option<&Server>) -> Asker {
        Asker {
            store: Arc::clone(&self.store),
            artifacts: self.artifacts.clone(),
            webhooks: Arc::new(Webhooks::new(
                &WebhookSettings::default(),
                None,
                Arc::clone(&self.store),
            )),
            met: crate::orchestrate::Met::default(),
            channels: Vec::new(),
            boots: None,
            jobs: JobSettings::default(),
            most_records: crate::store::Most::default(),
            orchestrator: server.map(|server| Arc::clone(&server.orchestrator)),
        }
    }

    /// Adds a recipe of an architecture, whose archive is in S3.
    pub(super) async fn recipe(&self, arch: Arch, recipe_type: RecipeType) -> RecipeId {
        self.changed_recipe(arch, recipe_type, |_| {}).await
    }

    /// The same with what it says of its jobs.
    async fn changed_recipe(&self, arch: Arch, recipe_type: RecipeType, says: impl FnOnce(&mut Recipe)) -> RecipeId {
        let id = RecipeId::new();
        let (bucket, key) = (self.artifacts.recipes_bucket(), id.to_string());
        let etag = self.artifacts.put_bytes(bucket, &key, "a/b", "archive").await.unwrap();
        let mut recipe = Recipe {
            id,
            created: Moment::now(),
            link: Some(Link::s3(bucket, &key, &etag)),
            recipe_type,
            linux_distribution: LinuxDistribution::Debian,
            name: "r".to_owned(),
            arch,
            require_dkms: false,
            template_dictionary: None,
            twins: None,
            cache: None,
            reproducible: None,
            source_date_epoch: None,
            locked: None,
            profiles: None,
            deleted: None,
        };
        says(&mut recipe);
        self.store.insert(&recipe, &[]).await.unwrap();
        recipe.id
    }

    /// Cancels a job and asks for it again.
    async fn retried(&self, server: &Server, job: JobId) -> JobId {
        let no_more = Failure::new(Code::Cancelled, "no more");
        server.orchestrator.jobs.cancel(job, no_more).await.unwrap();
        let old = Box::new(self.store.get_run(job).await.unwrap().unwrap());
        let again = Ask::Again { old, from: None };
        let asked = self.asker(Some(server)).ask(JobId::new(), again, None).await;
        asked.unwrap().id
    }

    async fn plan(&self, job: JobId) -> Plan {
        self.store.get_run(job).await.unwrap().unwrap().run.plan
    }
}

fn build(recipe: RecipeId) -> NewJob {
    NewJob {
        job_type: JobType::Create,
        artifact_id: recipe.into(),
        public_key_id: None,
        image_root_archive_name: "image".to_owned(),
        enable_debug: false,
        shells: Vec::new(),
        changes: Vec::new(),
        options: JobOptions::default(),
    }
}

async fn asked(asker: &Asker, new: NewJob) -> Result<Job, Refusal> {
    asker.ask(JobId::new(), Ask::New(Box::new(new)), None).await
}

#[tokio::test]
async fn a_kernel_that_is_named_is_required_whatever_its_name_is() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let asker = site.asker(Some(&server));
    for arch in Arch::ALL {
        let recipe = site.recipe(arch, RecipeType::KiwiNg).await;
        let usual = arch.kernel_file_name();
        for (named, expected) in [(None, usual), (Some(usual), usual), (Some("vmlinux-6"), "vmlinux-6")] {
            let mut new = build(recipe);
            new.options.kernel_file_name = named.map(str::to_owned);
            let job = asked(&asker, new).await.unwrap();
            assert_eq!((job.arch, job.kernel_file_name.as_str()), (arch, expected));
            let boot = site.plan(job.id).await.boot;
            assert_eq!((boot.kernel.as_str(), boot.required), (expected, named.is_some()));

            let again = site.retried(&server, job.id).await;
            assert_eq!(site.plan(again).await.boot, boot);
        }
    }
}

#[tokio::test]
async fn the_plan_says_how_templates_and_the_root_are_treated() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let recipe = site.recipe(Arch::host(), RecipeType::KiwiNg).await;
    let job = asked(&site.asker(Some(&server)), build(recipe)).await.unwrap();
    let plan = site.plan(job.id).await;
    assert_eq!(
        (plan.template_mode, plan.squashfs),
        (TemplateMode::Strict, SquashfsOptions::default())
    );
}

#[tokio::test]
async fn a_job_and_its_retry_have_the_date_that_the_job_or_its_recipe_says() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let asker = site.asker(Some(&server));
    let says = |recipe: &mut Recipe| recipe.reproducible = Some(true);
    let recipe = site.changed_recipe(Arch::host(), RecipeType::KiwiNg, says).await;
    for (reproducible, source_date_epoch, expected) in [
        (None, None, Some(Epoch::Recipe)),
        (None, Some(7), Some(Epoch::At(7))),
        (Some(false), None, None),
    ] {
        let mut new = build(recipe);
        new.options.reproducible = reproducible;
        new.options.source_date_epoch = source_date_epoch;
        let job = asked(&asker, new).await.unwrap();
        assert_eq!(site.plan(job.id).await.epoch, expected);
        let again = site.retried(&server, job.id).await;
        assert_eq!(site.plan(again).await.epoch, expected);
    }
}

#[tokio::test]
async fn a_recipe_locks_the_packages_of_jobs_that_do_not_say() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let asker = site.asker(Some(&server));
    for (recipes, jobs, expected) in [
        (None, None, false),
        (Some(true), None, true),
        (Some(true), Some(false), false),
        (Some(false), Some(true), true),
    ] {
        let says = |recipe: &mut Recipe| recipe.locked = recipes;
        let recipe = site.changed_recipe(Arch::host(), RecipeType::KiwiNg, says).await;
        let mut new = build(recipe);
        new.options.locked = jobs;
        let job = asked(&asker, new).await.unwrap();
        assert_eq!(site.plan(job.id).await.locked, expected, "{recipes:?} and {jobs:?}");
    }
}

#[tokio::test]
async fn a_recipe_names_the_profiles_of_jobs_that_do_not() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let asker = site.asker(Some(&server));
    let names = |names: &[&str]| Some(names.iter().map(ToString::to_string).collect::<Vec<_>>());
    for (recipes, jobs, expected) in [
        (None, None, None),
        (names(&["Live"]), None, names(&["Live"])),
        (names(&["Live"]), names(&["Disk", "PXE"]), names(&["Disk", "PXE"])),
        // Those that the description has in force by itself.
        (names(&["Live"]), names(&[]), None),
    ] {
        let says = |recipe: &mut Recipe| recipe.profiles.clone_from(&recipes);
        let recipe = site.changed_recipe(Arch::host(), RecipeType::KiwiNg, says).await;
        let mut new = build(recipe);
        new.options.profiles.clone_from(&jobs);
        let plan = site.plan(asked(&asker, new).await.unwrap().id).await;
        assert_eq!(plan.profiles, expected.unwrap_or_default(), "{recipes:?} and {jobs:?}");
    }
}

#[tokio::test]
async fn reuse_is_asked_for_by_a_job_or_its_recipe() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let asker = site.asker(Some(&server));
    for (recipes, jobs, expected) in [
        (None, None, false),
        (Some(CacheDepth::Packages), None, true),
        (None, Some(CacheDepth::Packages), true),
    ] {
        let says = |recipe: &mut Recipe| recipe.cache = recipes;
        let recipe = site.changed_recipe(Arch::host(), RecipeType::KiwiNg, says).await;
        let mut new = build(recipe);
        new.options.cache = jobs;
        let plan = site.plan(asked(&asker, new).await.unwrap().id).await;
        assert_eq!(plan.cache_asked, expected, "{recipes:?} and {jobs:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_a_job_is_refused_for_one_reason() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let (asker, records) = (site.asker(Some(&server)), site.asker(None));
    let (recipe, packer) = (
        site.recipe(Arch::host(), RecipeType::KiwiNg).await,
        site.recipe(Arch::host(), RecipeType::Packer).await,
    );

    let shell = || AskedShell {
        name: None,
        jail: false,
    };
    let mut new = build(recipe);
    new.shells = vec![shell()];
    assert!(matches!(asked(&asker, new).await, Err(Refusal::ShellOfCreate)));
    let mut new = build(recipe);
    (new.job_type, new.shells) = (JobType::Customize, vec![shell(), shell()]);
    assert!(matches!(asked(&asker, new).await, Err(Refusal::TooManyShells)));
    let mut new = build(recipe);
    new.job_type = JobType::Customize;
    let refused = asked(&asker, new).await;
    assert!(matches!(refused, Err(Refusal::Unknown(Referred::Image, id)) if id == Uuid::from(recipe)));
    let refused = asked(&asker, build(RecipeId::new())).await;
    assert!(matches!(refused, Err(Refusal::Unknown(Referred::Recipe, _))));
    let mut new = build(recipe);
    new.public_key_id = Some(PublicKeyId::new());
    let refused = asked(&asker, new).await;
    assert!(matches!(refused, Err(Refusal::Unknown(Referred::PublicKey, _))));
    assert!(matches!(asked(&asker, build(packer)).await, Err(Refusal::Packer)));

    let job = asked(&records, build(recipe)).await.unwrap();
    assert!(
        site.store.get_run(job.id).await.unwrap().is_none(),
        "it is a record only"
    );
    let job = asked(&asker, build(recipe)).await.unwrap();
    let old = Box::new(site.store.get_run(job.id).await.unwrap().unwrap());
    let again = Ask::Again { old, from: None };
    let refused = asker.ask(JobId::new(), again.clone(), None).await;
    assert!(matches!(refused, Err(Refusal::NotEnded)));
    let refused = records.ask(JobId::new(), again, None).await;
    assert!(matches!(refused, Err(Refusal::RecordsOnly)));
}
