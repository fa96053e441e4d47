//! Prepares building toolboxes for architectures other than this host's: programs that run in the new root during the
//! build, such as the packages' scripts and kiwi's installation, run under an emulator from this host's toolbox. Copies
//! one file.

use std::{os::unix::fs::PermissionsExt, path::Path};

use super::Toolbox;
use kiln_inside::emulation::binfmt::{Emulation, emulation_of};
use kiln_records::{Code, Failure, arch::Arch};

use crate::sandbox::namespace::HOST_COMMAND_DIR;

/// The emulator's file name beside the description.
const EMULATOR: &str = "emulator";

/// mmdebstrap looks for an emulator where Debian registers one. Kiln's is elsewhere, and registered only for the build.
pub(super) const MMDEBSTRAP_OPTION: &str = "--skip=check/qemu";

/// Copies the emulator of `arch` into `input`, where host programs with no more rights than a sandbox's root can open
/// it. Returns its registration.
///
/// # Errors
///
/// `emulator_missing` when the toolbox has none.
pub(super) fn bring_emulator(own: &Toolbox, arch: Arch, input: &Path) -> Result<Emulation, Failure> {
    let mut emulation = emulation_of(arch)?;
    let interpreter = own.tree.join(emulation.entry.interpreter.trim_start_matches('/'));
    let to = input.join(EMULATOR);
    let copied = fs_err::copy(&interpreter, &to)
        .and_then(|_| fs_err::set_permissions(&to, std::fs::Permissions::from_mode(0o755)));
    copied.map_err(|error| {
        Failure::new(
            Code::EmulatorMissing,
            format!("the toolbox of this host has no emulator for {arch}: {error}"),
        )
        .hint("qemu/binfmt.toml and kata/toolbox/toolbox.toml must agree")
    })?;
    emulation.entry.interpreter = format!("{HOST_COMMAND_DIR}/input/{EMULATOR}");
    Ok(emulation)
}

/// The failure when no toolbox exists yet from which to take the emulator.
pub(super) fn no_emulator() -> Failure {
    Failure::new(
        Code::NoToolbox,
        "a toolbox for a foreign architecture needs the emulator in the toolbox of this host, which is not built yet",
    )
    .hint("run `kiln toolbox build` first")
}
