//! Toolboxes for other architectures than this host's: what runs in the new root while it is made, the packages' own
//! scripts and kiwi's installation, runs under an emulator. That one comes out of this host's toolbox.

use std::{os::unix::fs::PermissionsExt, path::Path};

use super::Toolbox;
use crate::{
    arch::Arch,
    emulation::binfmt::{Emulation, emulation_of},
    records::Failure,
    sandbox::namespace::HOST_COMMAND_DIR,
};

/// The emulator's name beside the description.
const EMULATOR: &str = "emulator";

/// mmdebstrap looks for an emulator at the places where Debian registers one. Ours is somewhere else, and only here.
pub(super) const MMDEBSTRAP_OPTION: &str = "--skip=check/qemu";

/// Copies the emulator of `arch` into `input`, where programs of the host can open it that are no more than a sandbox's
/// root. Returns how it is to be registered.
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
            "emulator_missing",
            format!("the toolbox of this host has no emulator for {arch}: {error}"),
        )
        .hint("qemu/binfmt.toml and kata/toolbox/toolbox.toml must agree")
    })?;
    emulation.entry.interpreter = format!("{HOST_COMMAND_DIR}/input/{EMULATOR}");
    Ok(emulation)
}

/// There is no toolbox yet that the emulator could come from.
pub(super) fn no_emulator() -> Failure {
    Failure::new(
        "no_toolbox",
        "a toolbox for another architecture is made with the emulator of this host's own, which was not built yet",
    )
    .hint("run `kiln toolbox build` first")
}
