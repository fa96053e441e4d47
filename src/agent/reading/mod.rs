//! Reads a recipe by the same steps as a build, makes nothing of it, and reports what is understood. Talks to the server, S3 and the
//! recipe's repositories, runs kiwi, and touches the job's disk space.

mod scripts;

use std::path::Path;

use futures::future::join_all;
use kiln_records::{
    Code, Failure, Step, Warning,
    protocol::{
        JobDescription, ManagerRead, PackagesRead, Reading, RecipeWork, RepositoryReach, RepositoryRead, SchemaRead,
        ValueRead, Work,
    },
};

use crate::{
    build::kiwi,
    channel::Channel,
    checks, create,
    events::Events,
    kiwi_config::{self, Choice, KiwiConfig, Source},
    layers,
    outputs::Outputs,
    pauses,
    process::blocking,
    repos, template,
};

/// What reading a recipe takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub(crate) job: &'a JobDescription,
    /// For the recipe itself.
    pub(crate) http: &'a reqwest::Client,
    /// For what the recipe names.
    pub(crate) web: &'a reqwest::Client,
    pub(crate) outputs: &'a Outputs,
    pub(crate) channel: &'a Channel,
    pub(crate) events: &'a Events,
}

impl Reader<'_> {
    /// Reads the recipe of the job.
    ///
    /// # Errors
    ///
    /// The failure that its build would have. What was understood before is reported all the same.
    pub(crate) async fn read(self) -> Result<(), Failure> {
        let Work::Create(work) = &self.job.work else {
            return Err(Failure::new(Code::Protocol, "there is no recipe to read"));
        };
        let mut reading = Reading::nothing(self.job.arch);
        let read = Box::pin(self.understand(work, &mut reading)).await;
        let read = read.map_err(|failure| self.events.masked(failure));
        reading.failure = read.as_ref().err().cloned();
        self.channel.keep_reading(&reading).await?;
        read
    }

    async fn understand(self, work: &RecipeWork, reading: &mut Reading) -> Result<(), Failure> {
        let Self {
            job, outputs, events, ..
        } = self;
        let fetched = create::fetch(work, job, self.http, outputs, events).await;
        let (recipe, _) = fetched.map_err(|failure| failure.at(Step::Fetch))?;
        self.after_fetch(work, &recipe, reading)
            .await
            .map_err(|failure| failure.at(Step::Template))?;
        let before = create::template(work, self.job, &recipe, events).await;
        let before = before.map_err(|failure| failure.at(Step::Template))?;
        let [version, read_as] = [before.schema.0, before.schema.1];
        reading.schema = Some(SchemaRead { version, read_as });
        reading.included = before.included;

        events.conceal(kiwi_config::secrets(&recipe, work.values.values()));
        let sources = self
            .after_template(&recipe, reading)
            .map_err(|failure| failure.at(Step::Repos))?;
        let choice = Choice::of(job);
        let read = kiwi_config::read(&recipe, choice);
        let config = read.map_err(|failure| failure.at(Step::Repos))?;
        let mut renamed = before.managers.into_iter();
        let renamed = renamed.find(|(_, name)| *name == config.package_manager);
        let renamed = renamed.map(|(was, _)| was);
        reading.package_manager = Some(ManagerRead {
            written: renamed.or(config.written_manager.clone()),
            read_as: config.package_manager.clone(),
        });
        config
            .check_types(job.arch)
            .map_err(|failure| failure.at(Step::Repos))?;
        reading.repositories = self.repositories(&config, sources).await;
        reading.no_layer = layers::impossible(&recipe, choice, self.web).await;
        let built = self.by_kiwi(&recipe, &config, reading).await;
        built.map_err(|failure| failure.at(Step::Build))
    }

    /// What is known before templates are rendered.
    async fn after_fetch(self, work: &RecipeWork, recipe: &Path, reading: &mut Reading) -> Result<(), Failure> {
        let description = kiwi_config::find(recipe)?;
        let (_, top) = self.outputs.recipe();
        let below = description.strip_prefix(fs_err::canonicalize(&top).unwrap_or(top));
        let below = below.unwrap_or_else(|_| description.file_name().unwrap_or_default().as_ref());
        reading.description = Some(below.display().to_string());
        reading.checks = checks::read(&self.job.checks, recipe)?;
        let of = recipe.to_owned();
        let given = create::values(work, recipe);
        let asked = blocking(move || template::apart::needed_values(&of)).await?;
        let value = |name: String| ValueRead {
            given: given.contains_key(&name),
            name,
        };
        reading.values = asked.into_iter().map(value).collect();
        Ok(())
    }

    /// What the description says.
    fn after_template(self, recipe: &Path, reading: &mut Reading) -> Result<Vec<Source>, Failure> {
        let whole = kiwi_config::whole(recipe, Choice::of(self.job))?;
        reading.name = whole.name;
        reading.archs = whole.archs;
        reading.profiles = whole.profiles;
        reading.types = whole.types;
        let scripts = scripts::look(recipe, &scripts::OF_ROOT, true);
        reading.scripts = scripts.map_err(|error| unreadable(&error))?;
        Ok(whole.sources)
    }

    async fn repositories(self, config: &KiwiConfig, sources: Vec<Source>) -> Vec<RepositoryRead> {
        let looking = config
            .repositories
            .iter()
            .map(|it| repos::look(it, self.web, self.job.arch));
        let looked = join_all(looking).await;
        let mut all = Vec::new();
        for (source, looked) in sources.into_iter().zip(looked) {
            if looked.state == RepositoryReach::Unreachable {
                let why = looked.why.as_deref().unwrap_or_default();
                let text = format!("{} is not reachable: {why}", source.shown);
                self.events.warn(Warning::new(Code::RepoUnreachable, text)).await;
            }
            if looked.has_arch == Some(false) {
                let has = looked.has.join(", ");
                let text = format!("{} has no packages for {}: it has {has}", source.shown, self.job.arch);
                self.events.warn(Warning::new(Code::RepoWithoutArch, text)).await;
            }
            all.push(RepositoryRead {
                url: source.shown,
                kind: source.kind,
                profiles: source.profiles,
                archs: source.archs,
                state: looked.state,
                why: looked.why,
                has: looked.has,
                has_arch: looked.has_arch,
                signed: looked.signed,
                signed_by: looked.signed_by,
                keys: source.keys,
            });
        }
        all
    }

    /// What kiwi itself says of the recipe.
    async fn by_kiwi(self, recipe: &Path, config: &KiwiConfig, reading: &mut Reading) -> Result<(), Failure> {
        let request = kiwi::PrepareRoot {
            recipe,
            root: &self.outputs.root(),
            arch: self.job.arch,
            emulator: None,
            has_tbz: config.has_tbz(),
            profiles: Choice::of(self.job).profiles,
            epoch: None,
        };
        let read = kiwi::read(pauses::kiwi_that_reads()?, request, self.events).await?;
        reading.packages = Some(PackagesRead {
            bootstrap: read.bootstrap,
            image: read.image,
            collections: read.collections,
        });
        for key in &read.missing_keys {
            let text = format!("the signing key {key} is not there");
            self.events.warn(Warning::new(Code::RecipeConfigInvalid, text)).await;
        }
        for script in &mut reading.scripts {
            script.obsolete = read.obsolete.get(&script.name).cloned().unwrap_or_default();
            if !script.obsolete.is_empty() {
                let called = script.obsolete.join(", ");
                let text = format!(
                    "{} calls functions of kiwi that are obsolete and do nothing: {called}",
                    script.name
                );
                self.events.warn(Warning::new(Code::ObsoleteFunction, text)).await;
            }
        }
        for name in &read.not_run {
            let text = format!(
                "{name} is not run: kiwi runs it for disks, live images and overlays, and not for a root file system"
            );
            self.events.warn(Warning::new(Code::ScriptNotRun, text)).await;
        }
        let others = scripts::look(recipe, &read.not_run, false).map_err(|error| unreadable(&error))?;
        reading.scripts.extend(others);
        Ok(())
    }
}

fn unreadable(error: &std::io::Error) -> Failure {
    Failure::io("cannot read the recipe's scripts", error)
}
