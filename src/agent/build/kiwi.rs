//! Runs kiwi-ng: `system prepare` makes the root; an image that is a squashfs needs nothing else of kiwi. Runs
//! processes, and touches the root.

use std::path::Path;

use kiln_records::{Code, Failure, arch::Arch, protocol::Emulator};
use tokio::process::Command;

use crate::{
    cause,
    events::Events,
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

/// Makes the root that a recipe describes, by `kiwi`, which has no arguments of its own yet. Programs that ran under the emulator are added to `programs`, whatever the
/// result.
///
/// # Errors
///
/// `build_failed`, or a more specific code, with the first cause that kiwi's output names.
pub async fn prepare_root(
    mut kiwi: Command,
    request: PrepareRoot<'_>,
    programs: &mut Programs,
    events: &Events,
) -> Result<(), Failure> {
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
    date(&mut kiwi, request.epoch);
    run(kiwi, request.emulator, programs, events)
        .await?
        .check_own(|finished| cause(&finished.tail))?;
    run_image_script(&request, programs, events).await
}

/// Runs the recipe's `images.sh`. kiwi calls it when it makes an image of the root, a step that Kiln does not use.
async fn run_image_script(request: &PrepareRoot<'_>, programs: &mut Programs, events: &Events) -> Result<(), Failure> {
    if !request.root.join("image/images.sh").is_file() {
        return Ok(());
    }
    let mut command = Command::new("chroot");
    command.arg(request.root).args(["bash", "/image/images.sh"]);
    date(&mut command, request.epoch);
    run(command, request.emulator, programs, events).await?.check(|script| {
        Failure::new(Code::ScriptFailed, format!("images.sh failed: {}", script.status))
            .hint("the script's own output precedes this line in the log")
    })
}

/// Names the date by the variable that programs agree on (reproducible-builds.org/specs/source-date-epoch).
fn date(command: &mut Command, epoch: Option<u32>) {
    if let Some(epoch) = epoch {
        command.env("SOURCE_DATE_EPOCH", epoch.to_string());
    }
}

/// Runs a tool that runs programs of the root.
async fn run(
    mut command: Command,
    emulator: Option<&Emulator>,
    programs: &mut Programs,
    events: &Events,
) -> Result<Finished, Failure> {
    if let Some(emulator) = emulator {
        command.env("QEMU_CPU", &emulator.cpu);
    }
    let mut finished = process::run(command, emulator, events, |_| false).await?;
    programs.merge(std::mem::take(&mut finished.programs));
    Ok(finished)
}

/// Why kiwi failed: the cause that its output names, or else its own last error.
fn cause(said: &[String]) -> Failure {
    if let Some(known) = cause::known_cause(said) {
        return known;
    }
    let error = said.iter().rposition(|line| line.starts_with("[ ERROR"));
    let error = error.map(|at| match (cause::text_of(&said[at]), said.get(at + 1)) {
        // Only the error's name is in its line.
        (name, Some(text)) if name.ends_with(':') && !name.contains(' ') => format!("{name} {text}"),
        (text, _) => text.to_owned(),
    });
    let Some(error) = error.or_else(|| cause::last_words(said).map(str::to_owned)) else {
        return Failure::new(Code::BuildFailed, "kiwi failed without a message");
    };
    if ["config.sh", "images.sh"].iter().any(|script| error.contains(script)) {
        return Failure::new(Code::ScriptFailed, error).hint("the script's own output precedes this line in the log");
    }
    Failure::new(Code::BuildFailed, format!("kiwi: {error}")).hint("the log has the whole output of kiwi")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(text: &str) -> (Code, String) {
        let said: Vec<String> = text.lines().map(str::to_owned).collect();
        let failure = cause(&said);
        (failure.code, failure.detail)
    }

    #[test]
    fn an_unknown_cause_is_kiwis_own_error() {
        for (said, code, detail) in [
            (
                "[ ERROR   ]: 07:40:20 | KiwiRuntimeError: something new\nthe end\n",
                Code::BuildFailed,
                "kiwi: KiwiRuntimeError: something new",
            ),
            (
                "[ ERROR   ]: 07:40:20 | KiwiPackagesDeletePhaseFailed: \nSystem package deletion failed: why\nFurther details\n",
                Code::BuildFailed,
                "kiwi: KiwiPackagesDeletePhaseFailed: System package deletion failed: why",
            ),
            (
                "[ ERROR   ]: 07:40:20 | KiwiScriptFailed: config.sh failed:\n",
                Code::ScriptFailed,
                "KiwiScriptFailed: config.sh failed:",
            ),
            (
                "Traceback:\nTypeError: oops\n\n",
                Code::BuildFailed,
                "kiwi: TypeError: oops",
            ),
            ("", Code::BuildFailed, "kiwi failed without a message"),
        ] {
            assert_eq!(failure(said), (code, detail.to_owned()));
        }
    }
}
