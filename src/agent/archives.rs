//! Finds the files that a root's packages came in, for their digests. Reads the directories in which kiwi's package managers
//! keep what they downloaded. Programs of the root can change these at any time, so only regular files are opened.
//!
//! apt, dnf and zypper compare each file with the digest in the signed lists when they download it, and name it after its
//! package. A package is told by that name.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt::Write,
    io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
};

use kiln_records::InstalledPackage;

use crate::{
    digest,
    twins::{Format, Root},
};

/// The most files and directories that are looked at.
const MOST_FILES: usize = 100_000;

/// The most bytes of all files that are digested.
const MOST_BYTES: u64 = 64 << 30;

/// Adds the digests of their files to packages, where there is one such file, or several equal ones. `top` is the sandbox's
/// own root.
///
/// # Errors
///
/// The sandbox's root cannot be opened.
pub(crate) fn add_digests(top: &Path, format: Format, packages: &mut [InstalledPackage]) -> io::Result<()> {
    let mut wanted: BTreeMap<OsString, Vec<usize>> = BTreeMap::new();
    for (number, package) in packages.iter().enumerate() {
        wanted.entry(name(format, package).into()).or_default().push(number);
    }
    let top = Root::open(top)?;
    let (dirs, depth) = format.caches();
    let mut pending: Vec<_> = dirs.iter().map(|dir| (PathBuf::from(dir), depth)).collect();
    let (mut seen, mut bytes) = (0, 0);
    let mut found: BTreeMap<usize, Option<String>> = BTreeMap::new();
    while let Some((dir, depth)) = pending.pop() {
        for name in top.names(&dir) {
            seen += 1;
            if seen > MOST_FILES {
                return Ok(());
            }
            let path = dir.join(&name);
            let Ok(Some((file, about))) = top.file(&path) else {
                if depth > 0 {
                    pending.push((path, depth - 1));
                }
                continue;
            };
            // One name for two packages says nothing of either.
            let Some(&[number]) = wanted.get(&name).map(Vec::as_slice) else {
                continue;
            };
            bytes += about.len();
            if bytes > MOST_BYTES {
                return Ok(());
            }
            let by_number = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            let sha256 = digest::sha256_of(&by_number).ok().map(|(_, sha256)| sha256);
            found
                .entry(number)
                // Which of two different files was installed is not known.
                .and_modify(|before| *before = before.take().filter(|before| Some(before) == sha256.as_ref()))
                .or_insert(sha256);
        }
    }
    for (number, sha256) in found {
        packages[number].sha256 = sha256;
    }
    Ok(())
}

/// The name of a package's file.
fn name(format: Format, package: &InstalledPackage) -> String {
    let InstalledPackage {
        name, version, arch, ..
    } = package;
    match format {
        Format::Deb => format!("{}_{}_{}.deb", quoted(name), quoted(version), quoted(arch)),
        Format::Rpm => {
            let version = version.split_once(':').map_or(version.as_str(), |(_, version)| version);
            format!("{name}-{version}.{arch}.rpm")
        }
    }
}

/// A part of a name as apt has it, which uses `_` between parts (`QuoteString` in its sources).
fn quoted(part: &str) -> String {
    let mut quoted = String::new();
    for byte in part.bytes() {
        if byte.is_ascii_graphic() && !b"_:%".contains(&byte) {
            quoted.push(char::from(byte));
        } else {
            let _ = write!(quoted, "%{byte:02x}");
        }
    }
    quoted
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    fn package(name: &str, version: &str, arch: &str) -> InstalledPackage {
        InstalledPackage {
            name: name.to_owned(),
            version: version.to_owned(),
            arch: arch.to_owned(),
            sha256: None,
        }
    }

    /// The digests that packages get from these files.
    fn digests(format: Format, files: &[(&str, &str)], packages: &[InstalledPackage]) -> Vec<Option<String>> {
        let top = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = top.path().join("var/cache/kiwi").join(path);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            match content.strip_prefix("-> ") {
                Some(to) => fs_err::os::unix::fs::symlink(to, path).unwrap(),
                None => fs_err::write(path, content).unwrap(),
            }
        }
        let mut packages = packages.to_vec();
        add_digests(top.path(), format, &mut packages).unwrap();
        packages.into_iter().map(|package| package.sha256).collect()
    }

    #[expect(clippy::unnecessary_wraps, reason = "as a package has it")]
    fn of(content: &str) -> Option<String> {
        Some(hex::encode(Sha256::digest(content)))
    }

    #[test]
    fn files_of_debs_are_told_by_apts_names() {
        let files = [
            ("apt-get/archives/bash_5.2-1_arm64.deb", "bash"),
            ("apt-get/archives/libstdc++6_1%3a12~rc1_arm64.deb", "c++"),
            ("apt-get/archives/other_1_arm64.deb", "other"),
            ("apt-get/archives/linked_1_all.deb", "-> /etc/passwd"),
            ("apt-get/archives/partial/half_1_all.deb", "half"),
            ("lists/gone_1_all.deb", "elsewhere"),
        ];
        let packages = [
            package("bash", "5.2-1", "arm64"),
            package("libstdc++6", "1:12~rc1", "arm64"),
            package("other", "1", "amd64"),
            package("linked", "1", "all"),
            package("half", "1", "all"),
            package("gone", "1", "all"),
        ];
        let expected = [of("bash"), of("c++"), None, None, None, None];
        assert_eq!(digests(Format::Deb, &files, &packages), expected);
    }

    #[test]
    fn files_of_rpms_are_told_by_their_names_in_any_repository() {
        let files = [
            ("dnf/cache/one-0123/packages/bash-5.2-1.el9.x86_64.rpm", "bash"),
            ("packages/two/x86_64/vim-9-1.x86_64.rpm", "vim"),
            ("packages/one/noarch/twice-1-1.noarch.rpm", "equal"),
            ("packages/two/noarch/twice-1-1.noarch.rpm", "equal"),
            ("packages/one/noarch/odd-1-1.noarch.rpm", "one"),
            ("packages/two/noarch/odd-1-1.noarch.rpm", "another"),
            ("packages/two/noarch/epoch-1-1.noarch.rpm", "of one of two"),
        ];
        let packages = [
            package("bash", "5.2-1.el9", "x86_64"),
            package("vim", "2:9-1", "x86_64"),
            package("twice", "1-1", "noarch"),
            package("odd", "1-1", "noarch"),
            package("epoch", "1-1", "noarch"),
            package("epoch", "2:1-1", "noarch"),
        ];
        let expected = [of("bash"), of("vim"), of("equal"), None, None, None];
        assert_eq!(digests(Format::Rpm, &files, &packages), expected);
    }
}
