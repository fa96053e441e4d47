//! Runs kiwi-ng: `system prepare` makes the root; an image that is a squashfs needs nothing else of kiwi. Runs
//! processes, and touches the root.

use std::path::Path;

use kiln_records::{
    Failure,
    arch::Arch,
    protocol::{Emulator, What},
};
use tokio::process::Command;

use super::ended;
use crate::{
    events::Events,
    failed_scripts::FailedScripts,
    pauses::{self, KiwiRead},
    process::{self, Finished},
    programs::Programs,
};

/// The configuration by which the toolbox's apt learns the target architecture.
const APT_CONFIG: &str = "/etc/apt/apt.conf.d/50kiln";

/// Makes the toolbox's package managers work for `arch`.
pub fn prepare_package_managers(arch: Arch) -> Result<(), Failure> {
    let debian = arch.debian();
    let config = format!(
        "APT::Architecture \"{debian}\";\nAPT::Architectures {{ \"{debian}\"; }};\nAcquire::Languages \"none\";\n\
         Acquire::Retries \"3\";\n"
    );
    fs_err::write(APT_CONFIG, config).map_err(|error| Failure::io("cannot configure apt", &error))
}

/// A task for kiwi.
#[derive(Debug)]
pub struct PrepareRoot<'a> {
    /// The recipe's directory.
    pub recipe: &'a Path,
    /// The place of the new root.
    pub root: &'a Path,
    /// The root's architecture.
    pub arch: Arch,
    /// The emulator for programs of that architecture, unless the machine runs them itself.
    pub emulator: Option<&'a Emulator>,
    /// Whether the recipe has the image type `tbz`, which IMS builds.
    pub has_tbz: bool,
    /// The profiles that were asked for.
    pub profiles: &'a [String],
    /// The date that programs put into files instead of the time of day, in seconds since 1970, if there is one.
    pub epoch: Option<u32>,
}

/// Makes the root that a recipe describes, by `kiwi`, which has no arguments of its own yet. Programs that ran under the emulator are
/// added to `programs`, and what rpm said of scripts of packages that have failed without ending it to `scripts`, whatever the result.
///
/// # Errors
///
/// `build_failed`, or a more specific code, with the first cause that kiwi's output names.
pub(crate) async fn prepare_root(
    mut kiwi: Command,
    request: PrepareRoot<'_>,
    programs: &mut Programs,
    scripts: &FailedScripts,
    events: &Events,
) -> Result<(), Failure> {
    complete(&mut kiwi, &request)?;
    let watched = watched(kiwi, request.emulator, programs, scripts, events).await;
    // Whatever has become of it: somebody may look at the root of a build that failed.
    pauses::trust_the_site(request.root, false).await?;
    watched?.check_own(ended::cause)
}

/// Has `kiwi` read what it would make, and nothing else. It has no arguments of its own yet.
///
/// # Errors
///
/// As [`prepare_root`], where kiwi refuses the recipe.
pub(crate) async fn read(mut kiwi: Command, request: PrepareRoot<'_>, events: &Events) -> Result<KiwiRead, Failure> {
    complete(&mut kiwi, &request)?;
    let finished = watched(kiwi, None, &mut Programs::default(), &FailedScripts::default(), events).await?;
    finished.check_own(ended::cause)?;
    pauses::read_by_kiwi()
}

/// Gives kiwi the arguments and the environment for a task, and forgets how an earlier one ended.
fn complete(kiwi: &mut Command, request: &PrepareRoot<'_>) -> Result<(), Failure> {
    // Only the detailed log on standard output contains the messages of the tools that kiwi runs.
    kiwi.args(["--logfile", "stdout", "--debug"]);
    if request.has_tbz {
        kiwi.args(["--type", "tbz"]);
    }
    kiwi.args(request.profiles.iter().map(|name| format!("--profile={name}")));
    kiwi.args([
        "--target-arch",
        request.arch.name(),
        "system",
        "prepare",
        "--description",
    ])
    .arg(request.recipe);
    kiwi.arg("--root").arg(request.root);
    kiwi.env("PYTHONUNBUFFERED", "1")
        .env("DEBIAN_FRONTEND", "noninteractive");
    date(kiwi, request.epoch);
    ended::forget().map_err(|error| Failure::io("cannot prepare kiwi", &error))
}

/// Names the date by the variable that programs agree on (reproducible-builds.org/specs/source-date-epoch).
fn date(command: &mut Command, epoch: Option<u32>) {
    if let Some(epoch) = epoch {
        command.env("SOURCE_DATE_EPOCH", epoch.to_string());
    }
}

/// Runs kiwi, and reports what it warned of.
async fn watched(
    mut kiwi: Command,
    emulator: Option<&Emulator>,
    programs: &mut Programs,
    scripts: &FailedScripts,
    events: &Events,
) -> Result<Finished, Failure> {
    pauses::warned::forget();
    if let Some(emulator) = emulator {
        kiwi.env("QEMU_CPU", &emulator.cpu);
    }
    scripts.forget();
    let look = |line: &str| {
        scripts.look(line);
        false
    };
    let finished = process::run(kiwi, emulator, events, look).await;
    for warning in pauses::warned::all() {
        events.send(What::Warning(warning)).await;
    }
    let mut finished = finished?;
    programs.merge(std::mem::take(&mut finished.programs));
    Ok(finished)
}
