//! Finds the files of a package that are unchanged in the root. Reads the root.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use kiln_records::arch::Arch;
use md5::Md5;
use sha2::Sha256;

use super::facts::{Digest, Sum};
use crate::twins::root::{Root, by_fd};

/// Bytes at the beginning of an ELF file, up to its machine.
const HEAD: usize = 20;

/// Programs, modules and libraries for `arch` in `root` that still have the digests in their package's `sums`, by
/// their link-free paths in the root. Others were edited, replaced or diverted, are not there yet, or are gone.
pub(super) fn unchanged(root: &Path, sums: &[Sum], arch: Arch) -> io::Result<Vec<PathBuf>> {
    let opened = Root::open(root)?;
    let top = fs_err::canonicalize(root)?;
    Ok(sums
        .iter()
        .filter_map(|sum| is_unchanged(&opened, &top, sum, arch))
        .collect())
}

fn is_unchanged(root: &Root, top: &Path, sum: &Sum, arch: Arch) -> Option<PathBuf> {
    let (mut file, _) = root.file(Path::new(&sum.path)).ok()??;
    let mut head = [0; HEAD];
    file.read_exact(&mut head).ok()?;
    if !is_program_for(&head, arch) {
        return None;
    }
    let is_right = match &sum.digest {
        Digest::Md5(digest) => hash::<Md5>(&head, &mut file)?.as_slice() == digest,
        Digest::Sha256(digest) => hash::<Sha256>(&head, &mut file)?.as_slice() == digest,
    };
    if !is_right {
        return None;
    }
    let found = fs_err::read_link(by_fd(&file)).ok()?;
    Some(Path::new("/").join(found.strip_prefix(top).ok()?))
}

/// The digest of `head` and the rest of `file`.
fn hash<D: sha2::Digest>(head: &[u8], file: &mut File) -> Option<sha2::digest::Output<D>> {
    let mut hash = D::new_with_prefix(head);
    let mut piece = vec![0; 128 * 1024];
    loop {
        match file.read(&mut piece).ok()? {
            0 => return Some(hash.finalize()),
            read => hash.update(&piece[..read]),
        }
    }
}

/// Whether the file begins like an executable or a shared object for `arch`.
fn is_program_for(head: &[u8; HEAD], arch: Arch) -> bool {
    let number = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    head.starts_with(b"\x7fELF\x02\x01") && [2, 3].contains(&number(16)) && number(18) == arch.elf_machine()
}

/// Whether a program, a module or a library could have this path. Most files of a package could not, and need not be
/// read.
pub(super) fn may_be_program(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let no_program = |dir| path.contains(dir);
    if ["share/", "lib/modules/", "include/", "boot/", "etc/"]
        .iter()
        .any(no_program)
    {
        return false;
    }
    let in_dir = |dir: &&str| path.split('/').any(|part| part == *dir);
    ["bin", "sbin", "games"].iter().any(in_dir)
        || name.split('.').skip(1).any(|part| part == "so")
        || (!name.contains('.') && ["lib", "lib64", "libexec"].iter().any(in_dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_tell_what_may_be_a_program() {
        for (path, may) in [
            ("bin/bash", true),
            ("usr/bin/perl5.36.0", true),
            ("lib/aarch64-linux-gnu/libc.so.6", true),
            ("usr/lib/apt/methods/http", true),
            (
                "usr/lib/python3.11/lib-dynload/_ssl.cpython-311-aarch64-linux-gnu.so",
                true,
            ),
            ("usr/lib/python3.11/ast.py", false),
            ("lib/modules/6.1.0/kernel/fs/nfs/nfs.ko", false),
            ("usr/share/doc/bash/copyright", false),
            ("boot/vmlinuz-6.1.0-1-arm64", false),
        ] {
            assert_eq!(may_be_program(path), may, "{path}");
        }
    }
}
