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
use serde::Deserialize;
use tokio::process::Command;

use self::{refusal::Beyond, runs::Runs, stages::Stages};
use crate::{
    build::ended,
    building::Building,
    outputs::remove,
    process::{self, Finished, blocking},
    programs::Programs,
    twins::{Twins, given_up},
};

mod platforms;
mod refusal;
mod runs;
pub mod runtime;
mod stages;

/// The name by which this program is called as the runtime.
const NAME: &str = "kiln-runtime";

/// The runtime's path in the sandbox.
const RUNTIME: &str = "/run/kiln-runtime";

/// buildah, and the name of the image that it makes.
const BUILDAH: &str = "buildah";
const IMAGE: &str = "localhost/kiln";

/// The container by which the finished image's root is read.
const READ: &str = "kiln-read";

/// The Containerfile with the platform of every base.
const NAMED: &str = "/run/kiln-Containerfile";

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

/// buildah's configuration in the sandbox. Where images come from without a registry's name is what other tools do, too.
const CONFIGURATION: [(&str, &str); 2] = [
    (
        "/etc/containers/policy.json",
        "{\"default\": [{\"type\": \"insecureAcceptAnything\"}]}\n",
    ),
    (
        "/etc/containers/registries.conf",
        "unqualified-search-registries = [\"docker.io\"]\nshort-name-mode = \"permissive\"\n",
    ),
];

/// Builds the image, and makes its root the job's. Returns how often programs ran as twins or emulated, if the machine cannot run
/// them itself.
///
/// An image that cannot be built because twins gave up is built again, a few times at most. The commands that gave up then start under
/// the emulator.
pub(crate) async fn build(building: Building<'_>, work: &RecipeWork) -> (Option<Execs>, Result<(), Failure>) {
    let list = building.outputs.given_up();
    let begun = given_up::begin(&list, &building.job.given_up)
        .and_then(|()| prepare(&file_in(&building.outputs.facts.recipe), work))
        .and_then(|()| Runs::listen());
    let runs = match begun {
        Ok(runs) => runs,
        Err(error) => return (None, Err(Failure::io("cannot prepare buildah", &error))),
    };
    let known = || fs_err::metadata(&list).map_or(0, |list| list.len());
    let mut builds = 1;
    loop {
        let before = known();
        let mut programs = Programs::default();
        let mut stages = Stages::new(building);
        let built = tokio::select! {
            built = bud(building, work, &mut programs) => built,
            failed = stages.serve(&runs) => match failed {
                Err(failure) => Err(failure),
            },
        };
        let (twins, earlier) = stages.end();
        let (execs, ended) = Twins::end(twins, earlier, programs, building.emulator, built).await;
        let Err(failure) = &ended else {
            return (execs, take_out(building).await);
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

/// The Containerfile of a context.
fn file_in(context: &Path) -> PathBuf {
    let [usual, other] = CONTAINERFILES.map(|name| context.join(name));
    if usual.exists() { usual } else { other }
}

/// Writes the configuration, and puts the runtime where buildah finds it.
fn prepare(recipe: &Path, work: &RecipeWork) -> io::Result<()> {
    for (path, text) in CONFIGURATION {
        let path = Path::new(path);
        if let Some(dir) = path.parent() {
            fs_err::create_dir_all(dir)?;
        }
        fs_err::write(path, text)?;
    }
    // A base may be named by a value.
    let words = work
        .values
        .values()
        .fold(fs_err::read_to_string(recipe)?, |words, value| words + "\n" + value);
    insecure_loopback(&words)?;
    remove(Path::new(RUNTIME))?;
    symlink(std::env::current_exe()?, RUNTIME)
}

/// Allows registries on the loopback that these words name to speak plain HTTP, as container engines do.
fn insecure_loopback(words: &str) -> io::Result<()> {
    let mut hosts: Vec<&str> = words
        .split(|c: char| c.is_whitespace() || "=\"'".contains(c))
        .filter_map(|word| {
            word.trim_start_matches("docker://")
                .split_once('/')
                .map(|(host, _)| host)
        })
        .filter(|host| {
            let name = host.split(':').next().unwrap_or_default();
            name == "localhost"
                || name
                    .parse::<std::net::Ipv4Addr>()
                    .is_ok_and(|address| address.is_loopback())
        })
        .collect();
    hosts.sort_unstable();
    hosts.dedup();
    let row = |host: &&str| format!("[[registry]]\nlocation = \"{host}\"\ninsecure = true\n");
    let rows = hosts.iter().map(row).collect::<Vec<_>>().join("\n");
    let dir = Path::new("/etc/containers/registries.conf.d");
    fs_err::create_dir_all(dir)?;
    fs_err::write(dir.join("kiln-loopback.conf"), rows)
}

/// Runs `buildah bud`.
async fn bud(building: Building<'_>, work: &RecipeWork, programs: &mut Programs) -> Result<(), Failure> {
    let Building {
        job, outputs, events, ..
    } = building;
    let context = &outputs.facts.recipe;
    let recipe = &file_in(context);
    let failed_to = |error: io::Error| Failure::io("cannot read the Containerfile", &error);
    let text = fs_err::read_to_string(recipe).map_err(failed_to)?;
    let named = platforms::named(&text, &platform(job));
    let recipe = match &named {
        Some(named) => {
            fs_err::write(NAMED, named).map_err(failed_to)?;
            Path::new(NAMED)
        }
        None => recipe,
    };
    for name in work
        .values
        .keys()
        .filter(|name| !asks_for(&text, name) && !PREDEFINED.contains(&name.as_str()))
    {
        let text = format!("the Containerfile has no ARG {name}, for which a value was given");
        events.warn(Warning::new(Code::RecipeValues, text)).await;
    }
    // Values may be secrets, which no list of arguments shows.
    fs_err::write(ARGUMENTS, arguments(work, &text)?).map_err(failed_to)?;
    let mut command = Command::new(BUILDAH);
    // This format keeps SHELL from one instruction to the next.
    command.args(["bud", "--isolation", "oci", "--runtime", RUNTIME, "--network", "host"]);
    command.args(["--layers=false", "--force-rm", "--jobs", "1", "--format", "docker"]);
    // The storage is this job's own: what is in it for another stage may be of another architecture.
    command.arg("--pull=always");
    command
        .args(["--platform", &platform(job), "--tag", IMAGE, "--file"])
        .arg(recipe);
    if let Some(epoch) = outputs.facts.epoch(job) {
        command.args(["--timestamp", &epoch.to_string()]);
    }
    command.args(["--build-arg-file", ARGUMENTS]);
    command.arg(context).current_dir(context);
    let mut finished = process::run(command, building.emulator, events, |_| false).await?;
    programs.merge(std::mem::take(&mut finished.programs));
    finished.check_own(|finished| failed(finished, &text))
}

/// Why buildah failed, with this Containerfile.
fn failed(finished: &Finished, file: &str) -> Failure {
    let failure = refusal::cause(&finished.tail, &finished.last_error, file);
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
fn arguments(work: &RecipeWork, text: &str) -> Result<String, Failure> {
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
        lines.push(format!("{name}={value}\n"));
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

/// Writes the image as an archive, and copies its root to where that of every job is.
async fn take_out(building: Building<'_>) -> Result<(), Failure> {
    let beyond = beyond_oci().await?;
    for text in beyond.lost() {
        building
            .events
            .warn(Warning::new(Code::ContainerfileIgnored, text))
            .await;
    }
    let archive = building.outputs.container();
    let to = format!("oci-archive:{}:latest", archive.display());
    buildah(building, &["push", "--quiet", "--format", "oci", IMAGE, &to]).await?;
    // Whoever makes a container of an image carries out its ONBUILD, which is for images that are built on it.
    let source = if beyond.has_triggers() { &to } else { IMAGE };
    buildah(building, &["from", "--pull=never", "--name", READ, source]).await?;
    let mounted = buildah(building, &["mount", READ]).await?;
    let root = building.outputs.root();
    let from = PathBuf::from(mounted.trim());
    let found = from.clone();
    let found = blocking(move || Ok(stages::arch_of(&found))).await?;
    if let Some(other) = found.filter(|arch| *arch != building.job.arch) {
        let detail = format!(
            "the programs of the image are for {other}, and not for {}",
            building.job.arch
        );
        return Err(Failure::new(Code::BaseWithoutArch, detail)
            .hint("its last stage has a base for another architecture: look for `FROM --platform`, and for a base by its digest"));
    }
    // An ordinary directory, which later steps may change, and another attempt can go on with.
    let cleared = root.clone();
    blocking(move || remove(&cleared).map_err(|error| Failure::io("cannot remove the root of an instruction", &error)))
        .await?;
    let mut copy = Command::new("cp");
    copy.args(["--archive", "--one-file-system", "--no-target-directory"])
        .arg(from)
        .arg(&root);
    let copied = process::run(copy, None, building.events, |_| false).await?;
    copied.check_own(|finished| Failure::new(Code::BuildFailed, finished.last_words().unwrap_or("cp failed")))?;
    buildah(building, &["rm", "--all"]).await.map(drop)
}

/// What the image's configuration has that its archive will not.
async fn beyond_oci() -> Result<Beyond, Failure> {
    #[derive(Deserialize)]
    struct Inspected {
        #[serde(rename = "Docker")]
        docker: Docker,
    }
    #[derive(Deserialize)]
    struct Docker {
        config: Option<Beyond>,
    }
    let failed = |error: io::Error| Failure::io("cannot read the configuration of the image", &error);
    let mut command = Command::new(BUILDAH);
    let inspected = command
        .args(["inspect", "--type", "image", IMAGE])
        .kill_on_drop(true)
        .output()
        .await;
    let inspected: Inspected =
        serde_json::from_slice(&inspected.map_err(failed)?.stdout).map_err(|error| failed(error.into()))?;
    Ok(inspected.docker.config.unwrap_or_default())
}

/// Runs buildah for something that no program of the image has a part in. Returns what it wrote.
async fn buildah(building: Building<'_>, words: &[&str]) -> Result<String, Failure> {
    let mut command = Command::new(BUILDAH);
    command.args(words);
    let said = std::cell::RefCell::new(String::new());
    let keep = |line: &str| {
        line.clone_into(&mut said.borrow_mut());
        false
    };
    let finished = process::run(command, None, building.events, keep).await?;
    finished.check_own(|finished| refusal::cause(&finished.tail, &finished.last_error, ""))?;
    Ok(said.into_inner())
}
