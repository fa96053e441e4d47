//! kiwi-ng: `system prepare` makes the root; nothing else of kiwi is needed for an image that is a squashfs.

use std::path::Path;

use tokio::process::Command;

use crate::{
    agent::{
        events::Events,
        process::{self, Finished},
    },
    arch::Arch,
    records::{Failure, protocol::Emulator},
};

/// kiwi, in the toolbox's virtual environment.
const KIWI: &str = "/opt/kiwi/bin/kiwi-ng";

/// Where apt of the toolbox is told which architecture it works for.
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

/// What kiwi is asked to do.
#[derive(Debug)]
pub struct PrepareRoot<'a> {
    /// The recipe's directory.
    pub recipe: &'a Path,
    /// Where the new root goes.
    pub root: &'a Path,
    /// The root's architecture.
    pub arch: Arch,
    /// What runs programs of that architecture, when the machine itself does not.
    pub emulator: Option<&'a Emulator>,
    /// Whether the recipe has the image type `tbz`, which IMS builds.
    pub has_tbz: bool,
}

/// Makes the root that a recipe describes.
///
/// # Errors
///
/// `build_failed`, or a more telling code, with the first cause that kiwi's output names.
pub async fn prepare_root(request: PrepareRoot<'_>, events: &Events) -> Result<(), Failure> {
    let mut command = Command::new(KIWI);
    // The detailed log on standard output is the only place where kiwi shows what the tools that it runs say.
    command.args(["--logfile", "stdout", "--debug"]);
    if request.has_tbz {
        command.args(["--type", "tbz"]);
    }
    command
        .args([
            "--target-arch",
            request.arch.name(),
            "system",
            "prepare",
            "--description",
        ])
        .arg(request.recipe);
    command.arg("--root").arg(request.root);
    command
        .env("PYTHONUNBUFFERED", "1")
        .env("DEBIAN_FRONTEND", "noninteractive");
    run(command, request.emulator, events).await?.check(|kiwi| {
        cause(&kiwi.tail).unwrap_or_else(|| Failure::new("build_failed", format!("kiwi failed: {}", kiwi.status)))
    })?;
    run_image_script(request.root, request.emulator, events).await
}

/// Runs the recipe's `images.sh`, which kiwi calls when it makes an image of the root, a step that we do not take.
async fn run_image_script(root: &Path, emulator: Option<&Emulator>, events: &Events) -> Result<(), Failure> {
    if !root.join("image/images.sh").is_file() {
        return Ok(());
    }
    let mut command = Command::new("chroot");
    command.arg(root).args(["bash", "/image/images.sh"]);
    run(command, emulator, events).await?.check(|script| {
        Failure::new("script_failed", format!("images.sh failed: {}", script.status))
            .hint("the script's own output stands before this line in the log")
    })
}

/// Runs a tool that runs programs of the root.
async fn run(mut command: Command, emulator: Option<&Emulator>, events: &Events) -> Result<Finished, Failure> {
    if let Some(emulator) = emulator {
        command.env("QEMU_CPU", &emulator.cpu);
    }
    process::run(command, emulator, events, |_| false).await
}

/// kiwi's line without its level and time: `[ DEBUG   ]: 07:40:19 | system: text` becomes `text`.
fn text_of(line: &str) -> &str {
    match line.split_once(" | ") {
        Some((head, text)) if head.starts_with('[') => text.strip_prefix("system: ").unwrap_or(text).trim(),
        _ => line.trim(),
    }
}

/// Known causes: what a line contains, the code, and the advice.
const KNOWN: [(&str, &str, &str); 12] = [
    (
        "No space left on device",
        "disk_full",
        "free space in Kiln's data directory, or set KILN_DATA_DIR to a larger file system",
    ),
    (
        "uncaught target signal",
        "emulator_fault",
        "a program died under the emulator, not by its own fault; see the lines before it",
    ),
    (
        "Unable to locate package",
        "package_not_found",
        "check the package's name, and that the recipe's repositories have it for this architecture",
    ),
    (
        "has no installation candidate",
        "package_not_found",
        "check the package's name, and that the recipe's repositories have it for this architecture",
    ),
    (
        "No provider of",
        "package_not_found",
        "check the package's name, and that the recipe's repositories have it for this architecture",
    ),
    (
        "No match for argument",
        "package_not_found",
        "check the package's name, and that the recipe's repositories have it for this architecture",
    ),
    (
        "NO_PUBKEY",
        "repo_signature",
        "name the key that signs the repository: <signing key=\"file:///usr/share/keyrings/…\"/>",
    ),
    (
        "is not signed",
        "repo_signature",
        "name the key that signs the repository: <signing key=\"file:///usr/share/keyrings/…\"/>",
    ),
    (
        "Temporary failure resolving",
        "repo_unreachable",
        "check the repository's address and this host's name resolution",
    ),
    (
        "dpkg: error processing package",
        "scriptlet_failed",
        "the package's own script failed; its output stands before this line",
    ),
    (
        "scriptlet failed",
        "scriptlet_failed",
        "the package's own script failed; its output stands before this line",
    ),
    (
        "KiwiDescriptionInvalid",
        "recipe_config_invalid",
        "check config.xml against kiwi's schema; the log says where it differs",
    ),
];

/// The first cause that the last lines of a failed run name.
fn cause(tail: &[String]) -> Option<Failure> {
    let error = tail.iter().rev().find(|line| line.starts_with("[ ERROR"));
    let last_words = error.map(|line| text_of(line));
    for (pattern, code, hint) in KNOWN {
        if let Some(line) = tail
            .iter()
            .map(|line| text_of(line))
            .find(|line| line.contains(pattern))
        {
            return Some(Failure::new(code, first_line_with(line, pattern)).hint(hint));
        }
    }
    let script = last_words.filter(|text| text.contains("config.sh") || text.contains("images.sh"));
    if let Some(text) = script {
        return Some(
            Failure::new("script_failed", text).hint("the script's own output stands before this line in the log"),
        );
    }
    Some(Failure::new("build_failed", format!("kiwi: {}", last_words?)).hint("the log has everything that kiwi said"))
}

/// kiwi quotes several lines of a tool as one, with `\n` spelled out.
fn first_line_with<'a>(text: &'a str, pattern: &str) -> &'a str {
    text.split("\\n")
        .find(|part| part.contains(pattern))
        .unwrap_or(text)
        .trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_cause_is_the_line_that_names_it_not_the_last_one() {
        let failure = cause(&lines(
            "[ DEBUG   ]: 07:40:19 | system: E: Unable to locate package no-such-thing\n\
             [ ERROR   ]: 07:40:20 | KiwiInstallPhaseFailed: System package installation failed\n",
        ))
        .unwrap();
        assert_eq!(
            (failure.code.as_str(), failure.detail.as_str()),
            ("package_not_found", "E: Unable to locate package no-such-thing")
        );
    }

    #[test]
    fn an_unknown_cause_is_kiwis_own_error() {
        let failure = cause(&lines(
            "[ ERROR   ]: 07:40:20 | KiwiRuntimeError: something new\nthe end\n",
        ))
        .unwrap();
        assert_eq!(failure.detail, "kiwi: KiwiRuntimeError: something new");
    }
}
