//! The steps that only a create job has: from a recipe to a root. Downloads from S3, and touches the job's disk space.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    build::kiwi, channel::Channel, events::Events, fetch, kiwi_config, outputs::Outputs, process::blocking,
    programs::Programs, repos, template, twins::Twins, unpack,
};
use kiln_records::{
    Execs, Failure,
    arch::Arch,
    protocol::{Emulator, JobDescription, RecipeWork},
};

/// Fetches and unpacks the recipe. Returns its directory.
pub async fn fetch(
    work: &RecipeWork,
    http: &reqwest::Client,
    outputs: &Outputs,
    events: &Events,
) -> Result<PathBuf, Failure> {
    let (archive, into) = outputs.recipe();
    fetch::fetch(http, &work.recipe, &archive).await?;
    let source = work.recipe.clone();
    let unpacked = blocking(move || {
        unpack::check_fetched(&archive, &source)?;
        unpack::unpack(&archive, &into, &unpack::Limits::default())
    })
    .await?;
    events
        .say(format!(
            "{} entries, {} bytes unpacked",
            unpacked.entries, unpacked.bytes
        ))
        .await;
    Ok(unpacked.root)
}

/// Renders the recipe's template files.
pub async fn template(work: &RecipeWork, recipe: &Path, events: &Events) -> Result<(), Failure> {
    let mut values = work.values.clone();
    // A recipe without templates needs no values, and the user gave none.
    if !values.is_empty() || recipe.join(template::LIST_FILE).exists() {
        for (name, value) in &work.default_values {
            values.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
    let (recipe, mode, events) = (recipe.to_owned(), work.template_mode, events.clone());
    blocking(move || template::render(&recipe, &values, mode, &|line| events.say_blocking(line))).await
}

/// Waits for the recipe's repositories. Returns whether the recipe has a type `tbz`, the one for IMS.
pub async fn repos(
    work: &RecipeWork,
    arch: Arch,
    http: &reqwest::Client,
    recipe: &Path,
    events: &Events,
) -> Result<bool, Failure> {
    let facts = kiwi_config::read(recipe, arch)?;
    let timeout = Duration::from_secs(work.repos_timeout_s);
    repos::wait(&facts, http, timeout, &|line| events.say_soon(line)).await?;
    Ok(facts.has_tbz)
}

/// Makes the root. Returns how often programs ran as twins or emulated, if the machine cannot run them itself.
pub async fn build(
    job: &JobDescription,
    http: &reqwest::Client,
    channel: &Channel,
    outputs: &Outputs,
    emulator: Option<&Emulator>,
    events: &Events,
) -> (Option<Execs>, Result<(), Failure>) {
    let request = kiwi::PrepareRoot {
        recipe: &outputs.facts.recipe,
        root: &outputs.root(),
        arch: job.arch,
        emulator,
        has_tbz: outputs.facts.has_tbz,
    };
    let twins = Twins::of_job(job, outputs, events, channel, http);
    let mut programs = Programs::default();
    let built = kiwi::prepare_root(request, &mut programs, events).await;
    let (execs, ended) = Twins::end(twins, programs, emulator).await;
    (execs, built.and(ended))
}
