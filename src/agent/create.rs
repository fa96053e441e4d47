//! The steps that only a create job has: from a recipe to a root. Downloads from S3, and touches the job's disk space.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    build::kiwi,
    building::Building,
    checks::Levels,
    containerfile,
    events::Events,
    fetch, found,
    kiwi_config::{self, Choice},
    line_ends, lock, mask,
    outputs::Outputs,
    pauses::{Pauses, kiwi_alone},
    process::blocking,
    programs::Programs,
    recipe_settings, repos,
    resolved::{self, Before},
    template,
    twins::{Earlier, Twins, given_up},
    unpack,
};
use kiln_records::{
    Code, Execs, Failure,
    archive::Limits,
    protocol::{JobDescription, RecipeType, RecipeWork},
};
use tokio::process::Command;

/// Fetches and unpacks the recipe. Returns its directory, and the time of its newest file in seconds since 1970.
///
/// # Errors
///
/// Also if the job may have locked packages only, and the recipe does not say which.
pub async fn fetch(
    work: &RecipeWork,
    job: &JobDescription,
    http: &reqwest::Client,
    outputs: &Outputs,
    events: &Events,
) -> Result<(PathBuf, u32), Failure> {
    let (archive, into) = outputs.recipe();
    fetch::fetch(http, &work.recipe, &archive).await?;
    let (source, kind) = (work.recipe.clone(), work.recipe_type);
    let chosen = work.containerfile.file.clone();
    let say = events.clone();
    let (recipe, newest) = blocking(move || {
        unpack::check_fetched(&archive, &source)?;
        let mut lost = unpack::Lost::default();
        let unpacked = unpack::unpack(&archive, &into, &Limits::default(), &mut lost)?;
        for line in found::lines(&unpacked, kind) {
            say.say_blocking(&line);
        }
        for warning in lost.warnings().into_iter().chain(found::warning(&unpacked)) {
            say.warn_blocking(warning);
        }
        if let Some(file) = &chosen {
            return Ok((containerfile::context_of(&into, file)?, unpacked.newest));
        }
        let place = unpacked.place(kind).clone()?;
        let recipe = into.join(&place.dir);
        if kind == RecipeType::KiwiNg {
            found::decode(&recipe, &place.name, &|line| say.say_blocking(line))?;
        }
        Ok((recipe, unpacked.newest))
    })
    .await?;
    // Before anything of the recipe is used.
    lock::of_job(job, &recipe)?;
    recipe_settings::of_recipe(&recipe)?;
    Ok((recipe, newest))
}

/// Renders the recipe's template files, resolves its description, and adds to it what the job adds. From here on, that is what kiwi
/// makes of it. Returns what the description was.
pub async fn template(
    work: &RecipeWork,
    job: &JobDescription,
    recipe: &Path,
    events: &Events,
) -> Result<Before, Failure> {
    let addresses = work.additions.repositories().flat_map(|line| {
        let parts = line.parts();
        parts.source.into_iter().chain(parts.signing_keys)
    });
    events.conceal(addresses.flat_map(mask::of_address));
    let values = values(work, recipe);
    let (path, mode, say) = (recipe.to_owned(), work.template_mode, events.clone());
    blocking(move || {
        template::apart::render(&path, &values, mode, &|line| say.say_blocking(line))?;
        for warning in template::unused(&path, &values)
            .into_iter()
            .chain(line_ends::check(&path)?)
        {
            say.warn_blocking(warning);
        }
        Ok(())
    })
    .await?;
    let before = resolved::resolve(recipe, events).await?;
    resolved::additions::add(recipe, &work.additions, Choice::of(job), events).await?;
    Ok(before)
}

/// The values for the recipe's templates.
pub fn values(work: &RecipeWork, recipe: &Path) -> BTreeMap<String, String> {
    let mut values = work.values.clone();
    // A recipe without templates needs no values, and the user gave none.
    if !values.is_empty() || recipe.join(template::LIST_FILE).exists() {
        for (name, value) in &work.default_values {
            values.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
    values
}

/// Waits for the recipe's repositories. Returns whether a type `tbz`, the one for IMS, is in force.
pub async fn repos(
    work: &RecipeWork,
    job: &JobDescription,
    http: &reqwest::Client,
    recipe: &Path,
    events: &Events,
) -> Result<bool, Failure> {
    let facts = kiwi_config::read(recipe, Choice::of(job))?;
    facts.check_types(job.arch)?;
    if !facts.profiles.is_empty() {
        events
            .say(format!("profiles in force: {}", facts.profiles.join(", ")))
            .await;
    }
    let timeout = Duration::from_secs(work.repos_timeout_s);
    repos::wait(&facts, http, timeout, &|line| events.say_soon(line)).await?;
    for warning in repos::architectures::check(&facts, http, job.arch).await? {
        events.warn(warning).await;
    }
    Ok(facts.has_tbz())
}

/// How often a root is made, as long as further commands give up each time. All of these take about as long as one
/// under plain emulation.
const MOST_ROOTS: u32 = 6;

impl Building<'_> {
    /// Makes the root, with the twins that the job may have. A record of the files that they change is put at
    /// `writers`, if one is wanted. Returns how often programs ran as twins or emulated, if the
    /// machine cannot run them itself.
    ///
    /// A root that cannot be made because twins gave up is made again, a few times at most. The commands that gave up
    /// then start under the emulator.
    pub async fn with_twins(&self, writers: Option<PathBuf>) -> (Option<Execs>, Result<(), Failure>) {
        let list = self.outputs.given_up();
        if let Err(error) = given_up::begin(&list, &self.job.given_up) {
            return (
                None,
                Err(Failure::io("cannot list the commands for the emulator", &error)),
            );
        }
        // A record of writers is wanted of a root that is only compared.
        let pauses = match Box::pin(Pauses::of_job(*self, writers.is_none())).await {
            Ok(pauses) => pauses,
            Err(failure) => return (None, Err(failure)),
        };
        let known = || fs_err::metadata(&list).map_or(0, |list| list.len());
        let mut roots = 1;
        loop {
            let before = known();
            let twins = Twins::of_job(
                self.job,
                self.outputs,
                self.events,
                self.channel,
                self.http,
                self.web,
                writers.clone(),
            );
            let mut programs = Programs::default();
            let built = tokio::select! {
                built = Box::pin(self.root(&mut programs, Pauses::kiwi())) => built,
                failure = Box::pin(pauses.serve(twins.as_ref())) => Err(failure),
            };
            let is_broken = pauses.is_broken();
            let built = if is_broken {
                pauses.begin_again().await;
                let went_on = || Failure::new(Code::BuildFailed, "kiwi went on with a root that a layer has broken");
                Err(built.err().unwrap_or_else(went_on))
            } else {
                built.and(pauses.close().await)
            };
            let (execs, ended) = Twins::end(twins, Earlier::default(), programs, self.emulator, built).await;
            let Err(failure) = &ended else { return (execs, ended) };
            let gave_up = failure.code == Code::EmulatorFault && known() != before && roots < MOST_ROOTS;
            if !is_broken && !gave_up {
                return (execs, ended);
            }
            if !is_broken {
                roots += 1;
                let text = format!(
                    "the root is made once more, with commands under the emulator from their start whose native twins gave up: {failure}"
                );
                self.events.say(text).await;
            }
            let outputs = self.outputs.clone();
            if let Err(failure) = blocking(move || outputs.remove_root()).await {
                return (execs, pauses.close().await.and(Err(failure)));
            }
        }
    }

    /// Makes the root without twins.
    pub async fn without_twins(&self) -> Result<(), Failure> {
        self.root(&mut Programs::default(), kiwi_alone()?).await
    }

    async fn root(&self, programs: &mut Programs, kiwi: Command) -> Result<(), Failure> {
        let facts = &self.outputs.facts;
        let request = kiwi::PrepareRoot {
            recipe: &facts.recipe,
            root: &self.outputs.root(),
            arch: self.job.arch,
            emulator: self.emulator,
            has_tbz: facts.has_tbz,
            profiles: Choice::of(self.job).profiles,
            epoch: facts.epoch(self.job),
        };
        let uname = recipe_settings::of_recipe(&facts.recipe)?.uname;
        let root = request.root.to_owned();
        tokio::select! {
            prepared = kiwi::prepare_root(kiwi, request, programs, self.failed_scripts, self.events) => prepared?,
            failure = self.releases.follow(&root, uname, self.events) => return Err(failure),
        }
        let levels = Levels::of_job(self.job, self.outputs)?;
        let advice = "rpm goes on after such a script; what precedes its failure in the log says why";
        let scripts = self.failed_scripts.all();
        levels.judge(Code::RootPackages, advice, scripts, self.events).await
    }
}
