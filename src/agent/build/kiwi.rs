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

/// The most scripts of packages whose failures are kept.
const MOST_SCRIPTS: usize = 64;

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
/// added to `programs`, whatever the result. Returns what rpm said of scripts of packages that have failed without ending it.
///
/// # Errors
///
/// `build_failed`, or a more specific code, with the first cause that kiwi's output names.
pub async fn prepare_root(
    mut kiwi: Command,
    request: PrepareRoot<'_>,
    programs: &mut Programs,
    events: &Events,
) -> Result<Vec<String>, Failure> {
    complete(&mut kiwi, &request)?;
    let watched = watched(kiwi, request.emulator, programs, events).await;
    // Whatever has become of it: somebody may look at the root of a build that failed.
    pauses::trust_the_site(request.root, false).await?;
    let (finished, scripts) = watched?;
    finished.check_own(ended::cause).map(|()| scripts)
}

/// Has `kiwi` read what it would make, and nothing else. It has no arguments of its own yet.
///
/// # Errors
///
/// As [`prepare_root`], where kiwi refuses the recipe.
pub(crate) async fn read(mut kiwi: Command, request: PrepareRoot<'_>, events: &Events) -> Result<KiwiRead, Failure> {
    complete(&mut kiwi, &request)?;
    let (finished, _) = watched(kiwi, None, &mut Programs::default(), events).await?;
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

/// Runs kiwi, and reports what it warned of. Returns what rpm said of scripts of packages that have failed, too.
async fn watched(
    mut kiwi: Command,
    emulator: Option<&Emulator>,
    programs: &mut Programs,
    events: &Events,
) -> Result<(Finished, Vec<String>), Failure> {
    pauses::warned::forget();
    if let Some(emulator) = emulator {
        kiwi.env("QEMU_CPU", &emulator.cpu);
    }
    let mut scripts = Vec::<String>::new();
    let look = |line: &str| {
        if let Some(said) = failed_script(line)
            && scripts.len() < MOST_SCRIPTS
            && scripts.iter().all(|known| known != said)
        {
            scripts.push(said.to_owned());
        }
        false
    };
    let finished = process::run(kiwi, emulator, events, look).await;
    for warning in pauses::warned::all() {
        events.send(What::Warning(warning)).await;
    }
    let mut finished = finished?;
    programs.merge(std::mem::take(&mut finished.programs));
    Ok((finished, scripts))
}

/// What rpm says in this line of a package's script that has failed, if that is no reason for it to end: scripts after the
/// installation, and triggers. The texts are those in librpm 4.20.
fn failed_script(line: &str) -> Option<&str> {
    let shell = || {
        let said = &line[line.find("warning: %")? + "warning: ".len()..];
        said.contains(") scriptlet failed").then_some(said)
    };
    let lua = || line.find("lua script failed: ").map(|at| &line[at..]);
    shell().or_else(lua).map(str::trim_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_that_fail_without_ending_anything_are_seen() {
        for (line, expected) in [
            (
                "[ DEBUG   ]: 07:40:20 | system: warning: %post(badpost-1-1.noarch) scriptlet failed, exit status 3",
                Some("%post(badpost-1-1.noarch) scriptlet failed, exit status 3"),
            ),
            (
                "warning: %transfiletriggerin(a-1-1.x86_64) scriptlet failed, signal 11\n",
                Some("%transfiletriggerin(a-1-1.x86_64) scriptlet failed, signal 11"),
            ),
            (
                "error: lua script failed: [string \"%post(badlua-1)\"]:1: no",
                Some("lua script failed: [string \"%post(badlua-1)\"]:1: no"),
            ),
            ("error: %prein(badpre-1-1.noarch) scriptlet failed, exit status 4", None),
            ("warning: %post of the day", None),
            ("a scriptlet failed", None),
        ] {
            assert_eq!(failed_script(line), expected, "{line}");
        }
    }
}
