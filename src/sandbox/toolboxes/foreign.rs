//! Prepares toolboxes for other architectures than this host's: programs that run in the new root while it is made,
//! the packages' scripts and kiwi's installation, run under an emulator from this host's toolbox. Copies one file.

use std::{os::unix::fs::PermissionsExt, path::Path};

use super::Toolbox;
use crate::{
    arch::Arch,
    emulation::binfmt::{Emulation, emulation_of},
    records::{Code, Failure},
    sandbox::namespace::HOST_COMMAND_DIR,
};

/// The emulator's file name beside the description.
const EMULATOR: &str = "emulator";

/// mmdebstrap looks for an emulator where Debian registers one. Kiln's is elsewhere, and registered only here.
pub(super) const MMDEBSTRAP_OPTION: &str = "--skip=check/qemu";

/// Copies the emulator of `arch` into `input`, where host programs can open it that have only the rights of a
/// sandbox's root. Returns how to register it.
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

/// The failure when there is no toolbox yet to take the emulator from.
pub(super) fn no_emulator() -> Failure {
    Failure::new(
        Code::NoToolbox,
        "a toolbox for another architecture is made with the emulator of this host's own, which was not built yet",
    )
    .hint("run `kiln toolbox build` first")
}
