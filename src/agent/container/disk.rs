//! Disk space of a fixed size in a virtual machine: a file on the volume with a file system of its own. The volume itself
//! is a shared directory there, which is slow for small files and has no size.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    records::Failure,
    sandbox::room::order::{TOOLBOX, VOLUME},
};

/// The file.
const FILE: &str = "disk.ext4";

/// Mounts a file system of `bytes` over `dir`; makes it unless a sandbox before this one left it.
///
/// # Errors
///
/// `no_scratch` with what the tool of the toolbox said.
pub(super) fn mount_file(dir: &Path, bytes: u64) -> Result<PathBuf, Failure> {
    let file = Path::new(VOLUME).join(FILE);
    if !file.exists() {
        let made = fs_err::File::create(&file).and_then(|made| made.set_len(bytes));
        made.map_err(|error| Failure::io("cannot make the sandbox's disk space", &error))?;
        tool(
            "mkfs.ext4",
            &["-q", "-F", "-O", "^has_journal", "-E", "lazy_itable_init=1"],
            &file,
            None,
        )?;
    }
    tool("mount", &["-o", "loop"], &file, Some(dir))?;
    Ok(dir.to_owned())
}

/// Runs a tool of the toolbox, with the container's own file system below `/`.
fn tool(name: &str, args: &[&str], file: &Path, dir: Option<&Path>) -> Result<(), Failure> {
    let failed = |why: String| {
        Failure::new(
            "no_scratch",
            format!("{name} cannot make the sandbox's disk space: {why}"),
        )
    };
    let library = format!("{TOOLBOX}/usr/lib");
    let output = Command::new(format!("{TOOLBOX}/usr/sbin/{name}"))
        .args(args)
        .arg(file)
        .args(dir)
        .env_clear()
        .env("LD_LIBRARY_PATH", library)
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}
