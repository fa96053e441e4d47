//! Prepares the files with which every machine of a toolbox boots. Writes them once, beside the toolbox.

use std::{
    io::{BufWriter, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use kiln_records::{Code, Failure};
use sha2::{Digest, Sha256};

use super::{initrd, kernel, modules};
use crate::sandbox::toolbox::Toolbox;

/// A kernel and its initrd.
#[derive(Debug, Clone)]
pub(crate) struct BootFiles {
    pub(crate) kernel: PathBuf,
    pub(crate) initrd: PathBuf,
    /// Bytes of the program in the initrd that is process 1.
    pub(crate) init_size: u64,
}

/// The prefix of initrds' names; the rest is the digest of the program inside.
const INITRD: &str = "initrd-";

impl BootFiles {
    /// The boot files of machines with this toolbox and the program `init` as first process. Blocks for a second the
    /// first time.
    ///
    /// # Errors
    ///
    /// `no_vm` when the toolbox has no kernel, `vm_kernel` when that kernel is unsuitable.
    pub(crate) fn of(toolbox: &Toolbox, init: &Path) -> Result<Self, Failure> {
        if !toolbox.vm.exists() {
            return Err(Failure::new(
                Code::NoVm,
                format!(
                    "the toolbox has no kernel for virtual machines on {}",
                    toolbox.facts.arch
                ),
            )
            .hint("Debian has a kernel for clouds on x86_64 and aarch64 only; use a host with one of these, or Kata"));
        }
        let failed = |error: std::io::Error| Failure::io("cannot make the boot files of virtual machines", &error);
        let dir = toolbox.squashfs.parent().unwrap_or(Path::new("/"));
        let program = fs_err::read(init).map_err(failed)?;
        let digest = hex::encode(Sha256::digest(&program));
        let files = Self {
            kernel: dir.join("kernel"),
            initrd: dir.join(format!("{INITRD}{}", &digest[..16])),
            init_size: program.len() as u64,
        };
        if !files.initrd.exists() {
            let modules = modules::needed(&toolbox.vm.join("modules"))?;
            make(dir, &files.initrd, |out| initrd::write_base(out, &program, &modules)).map_err(failed)?;
        }
        if !files.kernel.exists() {
            let image = fs_err::read(toolbox.vm.join("vmlinuz")).map_err(failed)?;
            let kernel = kernel::unpacked(&image).unwrap_or(image);
            make(dir, &files.kernel, |out| out.write_all(&kernel)).map_err(failed)?;
        }
        Ok(files)
    }
}

/// Removes the initrds in a toolbox's directory, one per agent that was used. The next machine makes its own.
pub(crate) fn prune(dir: &Path) -> std::io::Result<()> {
    let Ok(entries) = fs_err::read_dir(dir) else {
        // No toolbox has been built yet.
        return Ok(());
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(INITRD) {
            fs_err::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Makes a file atomically and readable by everyone: the ids of sandboxes own nothing here.
fn make(
    dir: &Path,
    path: &Path,
    write: impl FnOnce(&mut BufWriter<&std::fs::File>) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let file = tempfile::NamedTempFile::new_in(dir)?;
    let mut out = BufWriter::new(file.as_file());
    write(&mut out)?;
    out.flush()?;
    drop(out);
    file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
    file.persist(path)?;
    Ok(())
}
