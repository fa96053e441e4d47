//! Builds an image from a Containerfile. Runs buildah, and touches the job's disk space.
//!
//! buildah reads the file, makes the stages and commits the image; each `RUN` is started by [`runtime`], which asks `stages` first,
//! so that native twins follow the packages of the working container as they follow those of any other root.

use std::{
    io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use kiln_records::{
    Code, Execs, Failure, Warning,
    description::CONTAINERFILES,
    protocol::{JobDescription, RecipeWork},
};
use tokio::process::Command;

use self::{registries::Registries, runs::Runs, stages::Stages};
use crate::{
    build::ended,
    building::Building,
    outputs::remove,
    process::{self, Finished},
    programs::Programs,
    twins::{Twins, given_up},
};

mod docker_archive;
mod refusal;
mod registries;
mod result;
mod rewrite;
mod runs;
pub mod runtime;
mod secrets;
mod stages;

/// The name by which this program is called as the runtime.
const NAME: &str = "kiln-runtime";

/// The runtime's path in the sandbox.
const RUNTIME: &str = "/run/kiln-runtime";

/// buildah, and the name of the image that it makes.
const BUILDAH: &str = "buildah";
const IMAGE: &str = "localhost/kiln";

/// The Containerfile as buildah gets it.
const REWRITTEN: &str = "/run/kiln-Containerfile";

/// The directory in which buildah runs: an empty one, so that nothing is found there by chance.
const EMPTY: &str = "/run/kiln-empty";

/// Values that every command has without an `ARG` (docs.docker.com/reference/dockerfile, "Predefined ARGs").
const PREDEFINED: [&str; 10] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "FTP_PROXY",
    "ftp_proxy",
    "NO_PROXY",
    "no_proxy",
    "ALL_PROXY",
    "all_proxy",
];

/// The file of values for `ARG`.
const ARGUMENTS: &str = "/run/kiln-build-arguments";

/// How often an image is built, as long as further commands give up each time.
const MOST_BUILDS: u32 = 6;

/// Builds the image, and makes its root the job's. Returns how often programs ran as twins or emulated, if the machine cannot run
/// them itself.
///
/// An image that cannot be built because twins gave up is built again, a few times at most. The commands that gave up then start under
/// the emulator.
pub(crate) async fn build(building: Building<'_>, work: &RecipeWork) -> (Option<Execs>, Result<(), Failure>) {
    let list = building.outputs.given_up();
    let begun = given_up::begin(&list, &building.job.given_up).and_then(|()| Runs::listen());
    let begun = begun.map_err(|error| Failure::io("cannot prepare buildah", &error));
    let prepared = async { Ok((begun?, Prepared::of(building, work).await?)) };
    let (runs, prepared) = match prepared.await {
        Ok(prepared) => prepared,
        Err(failure) => return (None, Err(failure)),
    };
    let known = || fs_err::metadata(&list).map_or(0, |list| list.len());
    let mut builds = 1;
    loop {
        let before = known();
        let mut programs = Programs::default();
        let mut stages = Stages::new(building);
        let built = tokio::select! {
            built = bud(building, work, &prepared, &mut programs) => built,
            failed = stages.serve(&runs) => match failed {
                Err(failure) => Err(failure),
            },
        };
        let (twins, earlier) = stages.end();
        let (execs, ended) = Twins::end(twins, earlier, programs, building.emulator, built).await;
        let Err(failure) = &ended else {
            return (execs, result::take_out(building, work).await);
        };
        let gave_up = failure.code == Code::EmulatorFault && known() != before && builds < MOST_BUILDS;
        if !gave_up {
            return (execs, ended);
        }
        builds += 1;
        let text = format!(
            "the image is built once more, with commands under the emulator from their start whose native twins gave up: {failure}"
        );
        building.events.say(text).await;
    }
}

/// The directory of the recipe that has this Containerfile: its top, or the one directory there.
///
/// # Errors
///
/// `containerfile_invalid` if neither has it.
pub(crate) fn context_of(top: &Path, file: &str) -> Result<PathBuf, Failure> {
    let mut dirs = vec![top.to_owned()];
    let entries = fs_err::read_dir(top).map_err(|error| Failure::io("cannot read the recipe", &error))?;
    dirs.extend(entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()));
    let at_top = top.join(file).is_file();
    let mut having = dirs.into_iter().filter(|dir| dir.join(file).is_file());
    match (having.next(), having.next()) {
        (Some(dir), None) => Ok(dir),
        (Some(dir), Some(_)) if at_top => Ok(dir),
        _ => Err(no_file(file)),
    }
}

fn no_file(file: &str) -> Failure {
    Failure::new(Code::ContainerfileInvalid, format!("the recipe has no file {file}"))
        .hint("the path of a Containerfile begins at the top of its context")
}

/// The Containerfile of a context.
fn file_in(context: &Path, work: &RecipeWork) -> Result<PathBuf, Failure> {
    let usual = CONTAINERFILES.iter().find(|name| context.join(name).exists());
    let chosen = work.containerfile.file.as_deref().or(usual.copied());
    let file = chosen.unwrap_or(CONTAINERFILES[0]);
    let path = context.join(file);
    if path.is_file() { Ok(path) } else { Err(no_file(file)) }
}

/// What buildah is told, however often the image is built.
struct Prepared {
    /// The Containerfile as buildah gets it.
    text: String,
    /// The list of what is no part of the context, if it belongs to this Containerfile alone.
    ignored: Option<PathBuf>,
    registries: Registries,
    /// The options for the secrets.
    secrets: Vec<String>,
}

impl Prepared {
    /// Writes what buildah reads, and puts the runtime where it finds it.
    async fn of(building: Building<'_>, work: &RecipeWork) -> Result<Self, Failure> {
        let Building {
            job, outputs, events, ..
        } = building;
        let context = &outputs.facts.recipe;
        let recipe = file_in(context, work)?;
        events.conceal(secrets::to_conceal(&work.secrets));
        let failed_to = |error: io::Error| Failure::io("cannot prepare buildah", &error);
        let text = fs_err::read_to_string(&recipe).map_err(failed_to)?;
        let values = || work.values.values().map(String::as_str);
        let text = rewrite::rewritten(&text, (&platform(job), context), values())?;
        for name in work
            .values
            .keys()
            .filter(|name| !asks_for(&text, name) && !PREDEFINED.contains(&name.as_str()))
        {
            let text = format!("the Containerfile has no ARG {name}, for which a value was given");
            events.warn(Warning::new(Code::RecipeValues, text)).await;
        }
        fs_err::write(REWRITTEN, &text).map_err(failed_to)?;
        // Values may be secrets, which no list of arguments shows.
        fs_err::write(ARGUMENTS, arguments(work, &text, context)?).map_err(failed_to)?;
        fs_err::create_dir_all(EMPTY).map_err(failed_to)?;
        remove(Path::new(RUNTIME)).map_err(failed_to)?;
        std::env::current_exe()
            .and_then(|own| symlink(own, RUNTIME))
            .map_err(failed_to)?;
        // A base may be named by a value.
        let words = values().fold(text.clone(), |words, value| words + "\n" + value);
        Ok(Self {
            registries: Registries::prepare(building, work, &words).await?,
            secrets: secrets::write(&work.secrets).map_err(failed_to)?,
            ignored: ignore_file(&recipe),
            text,
        })
    }
}

/// Runs `buildah bud`.
async fn bud(
    building: Building<'_>,
    work: &RecipeWork,
    prepared: &Prepared,
    programs: &mut Programs,
) -> Result<(), Failure> {
    let Building {
        job, outputs, events, ..
    } = building;
    let context = &outputs.facts.recipe;
    let mut command = Command::new(BUILDAH);
    // This format keeps SHELL from one instruction to the next.
    command.args(["bud", "--isolation", "oci", "--runtime", RUNTIME, "--network", "host"]);
    command.args(["--layers=false", "--force-rm", "--jobs", "1", "--format", "docker"]);
    // The storage is this job's own: what is in it for another stage may be of another architecture.
    command.arg("--pull=always");
    command.args(["--platform", &platform(job), "--tag", IMAGE, "--file", REWRITTEN]);
    if let Some(epoch) = outputs.facts.epoch(job) {
        command.args(["--timestamp", &epoch.to_string()]);
    }
    command
        .args(["--build-arg-file", ARGUMENTS])
        .args(prepared.registries.options());
    command.args(work.containerfile.target.iter().flat_map(|stage| ["--target", stage]));
    command.args(&prepared.secrets);
    // The lists of a file of another name are found by that name only.
    if let Some(ignored) = &prepared.ignored {
        command.arg("--ignorefile").arg(ignored);
    }
    command.arg(context).current_dir(EMPTY);
    let mut finished = process::run(command, building.emulator, events, |_| false).await?;
    programs.merge(std::mem::take(&mut finished.programs));
    finished.check_own(|finished| failed(finished, prepared))
}

/// The list of what is no part of the context that belongs to this Containerfile alone, if it has one (buildah-build(1)).
fn ignore_file(recipe: &Path) -> Option<PathBuf> {
    let named = |ending: &str| {
        let mut name = recipe.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    };
    [".containerignore", ".dockerignore"]
        .map(named)
        .into_iter()
        .find(|file| file.exists())
}

/// Why buildah failed, with this Containerfile.
fn failed(finished: &Finished, prepared: &Prepared) -> Failure {
    let last = prepared.registries.named(&finished.last_error);
    let failure = refusal::cause(&finished.tail, &last, &prepared.text);
    let own = finished.failures.own;
    let cleared =
        failure.code != Code::InstructionFailed || own.is_some_and(|own| ended::is_cleared(own, failure.code));
    failure.beyond_twins(cleared)
}

/// The values for `ARG`, a line each: the user's, and of the site's own those that the file asks for.
///
/// # Errors
///
/// `containerfile_invalid` for a value of several lines.
fn arguments(work: &RecipeWork, text: &str, context: &Path) -> Result<String, Failure> {
    let own = work.values.iter();
    let defaults = work
        .default_values
        .iter()
        .filter(|(name, _)| !work.values.contains_key(*name) && asks_for(text, name));
    let mut lines = Vec::new();
    for (name, value) in own.chain(defaults) {
        if value.contains('\n') {
            let detail = format!("the value of {name} has several lines, which no ARG can have");
            return Err(Failure::new(Code::ContainerfileInvalid, detail));
        }
        let located = rewrite::located(value, context);
        lines.push(format!("{name}={}\n", located.as_ref().unwrap_or(value)));
    }
    Ok(lines.concat())
}

/// Whether a Containerfile has an `ARG` of this name.
fn asks_for(text: &str, name: &str) -> bool {
    text.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.next().is_some_and(|word| word.eq_ignore_ascii_case("ARG"))
            && words.any(|word| word.split('=').next() == Some(name))
    })
}

/// The platform of the job's architecture, in the words of OCI.
fn platform(job: &JobDescription) -> String {
    format!("linux/{}", job.arch.oci())
}
