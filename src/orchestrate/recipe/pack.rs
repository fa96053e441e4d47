//! Packs directories, and zip files anew, as tar archives. It reads files and writes none.

use std::{
    fmt::Display,
    io::{Cursor, Read, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use flate2::write::GzEncoder;
use kiln_records::{
    Code, Failure,
    archive::{self, Kind, Limits, check_target, leads_outside},
};
use tar::{Builder, EntryType, Header};

use super::attributes;

/// A packed directory.
#[derive(Debug)]
pub struct Packed {
    /// The archive.
    pub bytes: Vec<u8>,
    /// What is not in it, each with the reason.
    pub left_out: Vec<String>,
}

/// Packs a directory: sorted, owned by root, without times, with links as links, and modes and extended attributes
/// unchanged. No link is followed.
///
/// # Errors
///
/// `recipe_too_large` with the largest file; `recipe_unsafe` for a link beside the description that leads out of the
/// directory.
pub fn pack(dir: &Path) -> Result<Packed, Failure> {
    let most = Limits::default().bytes;
    let unreadable = |error: std::io::Error| Failure::io("cannot read the recipe", &error);
    let mut archive = archive::builder(Vec::new());
    let (mut left_out, mut pending) = (Vec::new(), vec![PathBuf::new()]);
    let (mut size, mut largest) = (0, (0, PathBuf::new()));
    while let Some(relative) = pending.pop() {
        let names = fs_err::read_dir(dir.join(&relative)).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let mut names = names.map_err(unreadable)?;
        names.sort_by_key(fs_err::DirEntry::file_name);
        for entry in names {
            let path = relative.join(entry.file_name());
            // Version control is not part of a recipe.
            if path == Path::new(".git") {
                continue;
            }
            let found = fs_err::symlink_metadata(entry.path()).map_err(unreadable)?;
            let kind = found.file_type();
            let mut header = Header::new_gnu();
            header.set_metadata_in_mode(&found, tar::HeaderMode::Deterministic);
            header.set_mode(found.permissions().mode() & 0o7777);
            if kind.is_dir() || kind.is_file() {
                attributes::append(&mut archive, &entry.path()).map_err(unreadable)?;
            }
            if kind.is_symlink() {
                let target = fs_err::read_link(entry.path()).map_err(unreadable)?;
                if relative == Path::new("") && check_target(&path, &target).is_err() {
                    return Err(leads_outside(dir.display(), &path, &target));
                }
                append_link(&mut archive, &mut header, &path, &target).map_err(unreadable)?;
            } else if kind.is_dir() {
                let nothing = std::io::empty();
                archive.append_data(&mut header, &path, nothing).map_err(unreadable)?;
                pending.push(path);
            } else if kind.is_file() {
                size += found.len();
                if found.len() > largest.0 {
                    largest = (found.len(), path.clone());
                }
                if size > most {
                    return Err(too_large(dir.display(), &largest));
                }
                let file = kiln_files::open_beneath(dir, &path).map_err(unreadable)?;
                // A file that grows meanwhile is as long as its header says.
                let content = file.take(found.len());
                archive.append_data(&mut header, &path, content).map_err(unreadable)?;
            } else {
                let what = match () {
                    () if kind.is_fifo() => "a fifo",
                    () if kind.is_socket() => "a socket",
                    () => "a device",
                };
                left_out.push(format!(
                    "{} is {what}, and no archive of a recipe has one",
                    path.display()
                ));
            }
        }
    }
    let bytes = finish(archive).map_err(unreadable)?;
    Ok(Packed { bytes, left_out })
}

/// Packs what is in a zip file as a tar archive.
///
/// # Errors
///
/// Those of [`archive::read`].
pub(super) fn from_zip(zip: &[u8], shown: impl Display, limits: &Limits) -> Result<Vec<u8>, Failure> {
    let unwritable = |error: std::io::Error| Failure::io("cannot pack the recipe", &error);
    let mut tar = archive::builder(Vec::new());
    archive::read(Cursor::new(zip), &shown, limits, &mut |entry, content| {
        // The top itself has no entry in what Kiln packs.
        if entry.path.as_os_str().is_empty() && entry.kind == Kind::Directory {
            return Ok(());
        }
        let mut header = Header::new_gnu();
        header.set_mode(entry.mode);
        header.set_mtime(entry.modified.unwrap_or_default());
        header.set_size(0);
        let packed = match &entry.kind {
            Kind::Directory => {
                header.set_entry_type(EntryType::Directory);
                tar.append_data(&mut header, &entry.path, std::io::empty())
            }
            Kind::File => {
                header.set_size(entry.size);
                let mut exact = content.take(entry.size);
                let appended = tar.append_data(&mut header, &entry.path, &mut exact);
                let is_short = exact.limit() > 0;
                // A fault of the archive is told by its reader.
                if appended.is_ok() && (is_short || exact.into_inner().read(&mut [0]).is_ok_and(|more| more > 0)) {
                    return Err(wrong_size(&shown, &entry.path));
                }
                appended
            }
            Kind::Symlink(target) => {
                header.set_entry_type(EntryType::Symlink);
                append_link(&mut tar, &mut header, &entry.path, target)
            }
            Kind::HardLink(target) => {
                header.set_entry_type(EntryType::Link);
                append_link(&mut tar, &mut header, &entry.path, target)
            }
        };
        packed.map_err(unwritable)
    })?;
    finish(tar).map_err(unwritable)
}

/// Appends a link with its text as it is: the library's own way would leave out parts that mean nothing to it.
fn append_link(
    archive: &mut Builder<impl Write>,
    header: &mut Header,
    path: &Path,
    target: &Path,
) -> std::io::Result<()> {
    let target = target.as_os_str().as_bytes();
    if header.set_link_name_literal(target).is_err() {
        archive.append_pax_extensions([("linkpath", target)])?;
    }
    archive.append_data(header, path, std::io::empty())
}

fn finish(archive: Builder<GzEncoder<Vec<u8>>>) -> std::io::Result<Vec<u8>> {
    let mut packed = archive.into_inner()?;
    packed.flush()?;
    packed.finish()
}

fn wrong_size(shown: &impl Display, path: &Path) -> Failure {
    let path = path.display().to_string();
    let what = format!(
        "{shown}: the entry `{}` has not the size that is said of it",
        path.escape_debug()
    );
    Failure::new(Code::RecipeDamaged, what)
        .hint("create the archive again; `unzip -t` must be able to read it to the end")
}

fn too_large(shown: impl Display, (size, path): &(u64, PathBuf)) -> Failure {
    let most = Limits::default().bytes;
    Failure::new(
        Code::RecipeTooLarge,
        format!(
            "{shown} holds more than {most} bytes; its largest file so far, {}, has {size}",
            path.display()
        ),
    )
    .hint("leave large or generated files out of the recipe; packages and repositories do not belong in it")
}
