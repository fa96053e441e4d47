//! Looks whether what a node starts first can be started: the program loaders that the shell and the first process name. Reads
//! the root.

use std::{
    collections::BTreeMap,
    io::Read,
    path::{Path, PathBuf},
};

use object::{
    FileKind,
    elf::{self, FileHeader32, FileHeader64},
    read::elf::{FileHeader, ProgramHeader},
};

use super::Finished;
use crate::{boot_files::resolve, twins::Root};

/// The programs without which nothing runs on a node.
const FIRST: [&str; 4] = ["bin/sh", "sbin/init", "usr/lib/systemd/systemd", "init"];

/// The most bytes of a program that are looked at. Its headers and the loader's name are at the beginning.
const HEAD: u64 = 1 << 20;

/// Programs whose loader is not there.
pub(super) fn missing(finished: &Finished) -> Vec<String> {
    let Ok(root) = Root::open(&finished.root) else {
        return Vec::new();
    };
    // By their loaders: one is missing once.
    let mut missing: BTreeMap<PathBuf, Vec<&str>> = BTreeMap::new();
    for program in FIRST {
        let Some(loader) = loader_of(&finished.root, &root, program) else {
            continue;
        };
        let is_there = resolve(&finished.root, &loader).is_ok_and(|place| place.is_file());
        if !is_there {
            missing.entry(loader).or_default().push(program);
        }
    }
    let say = |(loader, programs): (PathBuf, Vec<&str>)| {
        format!(
            "/{} cannot be started on a node: the root has no {}, the program loader that it names",
            programs.join(" and /"),
            loader.display()
        )
    };
    missing.into_iter().map(say).collect()
}

/// The loader that a program of the root names.
fn loader_of(top: &Path, root: &Root, program: &str) -> Option<PathBuf> {
    let real = resolve(top, Path::new(program)).ok()?;
    let (file, _) = root.file(real.strip_prefix(top).ok()?).ok()??;
    let mut head = Vec::new();
    file.take(HEAD).read_to_end(&mut head).ok()?;
    interpreter(&head)
}

/// The path in the segment that says which loader a program needs.
fn interpreter(head: &[u8]) -> Option<PathBuf> {
    let name = match FileKind::parse(head).ok()? {
        FileKind::Elf64 => in_segments::<FileHeader64<object::Endianness>>(head)?,
        FileKind::Elf32 => in_segments::<FileHeader32<object::Endianness>>(head)?,
        _ => return None,
    };
    let name = name.split(|byte| *byte == 0).next()?;
    let name = PathBuf::from(String::from_utf8_lossy(name).into_owned());
    name.is_absolute().then_some(name)
}

fn in_segments<H: FileHeader<Endian = object::Endianness>>(head: &[u8]) -> Option<&[u8]> {
    let header = H::parse(head).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, head).ok()?;
    let segment = segments
        .iter()
        .find(|segment| segment.p_type(endian) == elf::PT_INTERP)?;
    segment.data(endian, head).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use kiln_records::arch::Arch;

    use super::*;

    #[test]
    fn a_shell_needs_its_loader_where_links_of_the_root_lead() {
        let shell = fs_err::read("/bin/sh").unwrap();
        let loader = interpreter(&shell).expect("the shell of this machine has a loader");
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs_err::create_dir_all(root.join("usr/bin")).unwrap();
        fs_err::write(root.join("usr/bin/dash"), &shell).unwrap();
        symlink("/usr/bin/dash", root.join("usr/bin/sh")).unwrap();
        symlink("usr/bin", root.join("bin")).unwrap();
        let finished = Finished::new(root.to_owned(), Arch::host(), None);
        let found = missing(&finished);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains(&*loader.to_string_lossy()) && found[0].contains("/bin/sh"),
            "{found:?}"
        );

        // The host's own loader is not the root's.
        let inside = root.join(loader.strip_prefix("/").unwrap());
        let dir_of = inside.parent().unwrap();
        fs_err::create_dir_all(root.join("usr/libraries")).unwrap();
        fs_err::create_dir_all(dir_of.parent().unwrap()).unwrap();
        symlink("/usr/libraries", dir_of).unwrap();
        assert_eq!(missing(&finished).len(), 1);
        fs_err::write(root.join("usr/libraries").join(inside.file_name().unwrap()), "").unwrap();
        assert_eq!(missing(&finished), Vec::<String>::new());
    }

    #[test]
    fn a_root_without_programs_lacks_none() {
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir_all(dir.path().join("bin")).unwrap();
        fs_err::write(dir.path().join("bin/sh"), "#!/bin/busybox sh").unwrap();
        let finished = Finished::new(dir.path().to_owned(), Arch::X86_64, None);
        assert_eq!(missing(&finished), Vec::<String>::new());
    }
}
