//! Packs the programs for a sandbox's volume; the sandbox can run the agent but not read it. Reads the programs'
//! files; the archive stays in memory.

use std::path::Path;

use kiln_inside::room::{
    mounts::companions,
    order::{AGENT, DISK, ENTRANCE, NO_DOORS, PROGRAMS},
};
use kiln_records::Failure;
use tar::{Builder, EntryType};

use crate::sandbox::packed::header;

/// The archive that the engine unpacks into the volume. [`ENTRANCE`] becomes the container's first process, [`AGENT`]
/// the sandbox's.
///
/// # Errors
///
/// One of the programs cannot be read.
pub(super) fn archive(entrance: &Path, agent: &Path) -> Result<Vec<u8>, Failure> {
    let pack = || -> std::io::Result<Vec<u8>> {
        let mut tar = Builder::new(Vec::new());
        directory(&mut tar, PROGRAMS, 0o755)?;
        directory(&mut tar, NO_DOORS, 0o755)?;
        // Open to the sandbox's ids, which differ from those of the volume.
        directory(&mut tar, DISK, 0o777)?;
        // Readable by its owner only, whose id does not exist inside: the kernel then protects the processes that run
        // it.
        program(&mut tar, ENTRANCE, entrance, 0o711)?;
        program(&mut tar, AGENT, agent, 0o711)?;
        for (name, path) in companions(agent) {
            program(&mut tar, name, &path, 0o755)?;
        }
        tar.into_inner()
    };
    pack().map_err(|error| Failure::io("cannot pack the agent", &error))
}

/// An archive of one file.
///
/// # Errors
///
/// It cannot be packed.
pub(super) fn one_file(name: &str, content: &[u8]) -> Result<Vec<u8>, Failure> {
    let pack = || -> std::io::Result<Vec<u8>> {
        let mut tar = Builder::new(Vec::new());
        let mut header = header(EntryType::Regular, content.len() as u64, 0o644);
        tar.append_data(&mut header, name, content)?;
        tar.into_inner()
    };
    pack().map_err(|error| Failure::io("cannot pack a file", &error))
}

fn directory(tar: &mut Builder<Vec<u8>>, name: &str, mode: u32) -> std::io::Result<()> {
    tar.append_data(
        &mut header(EntryType::Directory, 0, mode),
        format!("{name}/"),
        std::io::empty(),
    )
}

fn program(tar: &mut Builder<Vec<u8>>, name: &str, path: &Path, mode: u32) -> std::io::Result<()> {
    let bytes = fs_err::read(path)?;
    let mut header = header(EntryType::Regular, bytes.len() as u64, mode);
    tar.append_data(&mut header, format!("{PROGRAMS}/{name}"), bytes.as_slice())
}

/// The image of [`probe`](super::probe): the first process, and the empty directories that a container needs.
///
/// # Errors
///
/// The program cannot be read.
pub(super) fn probe_image(entrance: &Path) -> Result<Vec<u8>, Failure> {
    let pack = || -> std::io::Result<Vec<u8>> {
        let mut tar = Builder::new(Vec::new());
        directory(&mut tar, "tmp", 0o1777)?;
        let bytes = fs_err::read(entrance)?;
        let mut header = header(EntryType::Regular, bytes.len() as u64, 0o755);
        tar.append_data(&mut header, ENTRANCE, bytes.as_slice())?;
        tar.into_inner()
    };
    pack().map_err(|error| Failure::io("cannot pack the agent", &error))
}
