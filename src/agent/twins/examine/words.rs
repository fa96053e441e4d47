//! Finds texts with a name of the architecture that only one of two builds has. Works on bytes in memory: no I/O.

use std::collections::BTreeSet;

use kiln_records::arch::Arch;
use memchr::memmem;

use super::{Build, Finding};
use crate::twins::{elf::Broken, truth::Image};

/// Files of records whose layout differs: the times in them have 32 bits on x86_64, and 64 on aarch64 and riscv64.
const RECORDS: [&str; 4] = ["/var/log/lastlog", "/var/log/wtmp", "/var/log/btmp", "/var/run/utmp"];

/// The most texts with names in one file. Each is looked for in the whole other build.
const MOST: usize = 4096;

/// The longest text of a finding.
const LONGEST: usize = 120;

/// The sections of a file.
pub(super) fn parts(file: &[u8]) -> Result<Image, Broken> {
    Image::read(file).map_err(|untold| Broken::Untold(untold.to_string()))
}

/// What an architecture is called: by Linux, by Debian, in triplets, and by families of CPUs.
fn names(arch: Arch) -> Vec<&'static str> {
    let cpu = arch.multiarch().split_once('-').map_or(arch.name(), |(cpu, _)| cpu);
    let mut names = vec![arch.multiarch(), arch.name(), cpu, arch.debian()];
    names.extend(match arch {
        Arch::X86_64 => ["x86-64", "i386", "i486", "i586", "i686"].as_slice(),
        Arch::Aarch64 => ["AArch64", "armv8"].as_slice(),
        Arch::Ppc64le => ["ppc64le", "powerpc64le", "power8"].as_slice(),
        Arch::Riscv64 => ["rv64"].as_slice(),
        Arch::S390x => ["s390"].as_slice(),
    });
    names
}

/// The first text of `build` that names its architecture and that `beside` does not have.
///
/// # Errors
///
/// There are more texts than any program has.
pub(super) fn unsaid(build: Build<'_>, image: &Image, beside: Build<'_>) -> Result<Option<Finding>, Broken> {
    let finders: Vec<_> = names(build.arch).into_iter().map(memmem::Finder::new).collect();
    let mut texts = BTreeSet::new();
    for part in image.constants.iter().chain(&image.data) {
        let bytes = &build.file[part.bytes.clone()];
        for at in finders.iter().flat_map(|finder| finder.find_iter(bytes)) {
            texts.insert(text_at(bytes, at));
            if texts.len() > MOST {
                return Err(Broken::Untold("it names its architecture too often".to_owned()));
            }
        }
    }
    let is_said = |text: &&[u8]| memmem::find(beside.file, &[*text, b"\0"].concat()).is_some();
    let unsaid = texts.into_iter().find(|text| !is_said(text));
    let shown = |text: &[u8]| String::from_utf8_lossy(&text[..text.len().min(LONGEST)]).into_owned();
    Ok(unsaid.map(|text| Finding::Name(shown(text))))
}

/// The first file of records that `build` names.
pub(super) fn record(build: Build<'_>) -> Option<Finding> {
    let is_named = |path: &&str| memmem::find(build.file, &[path.as_bytes(), b"\0"].concat()).is_some();
    let named = RECORDS.into_iter().find(is_named);
    named.map(|path| Finding::Layout(path.to_owned()))
}

/// The text around `at`, up to what is no text on both sides.
fn text_at(bytes: &[u8], at: usize) -> &[u8] {
    let is_text = |byte: &u8| matches!(byte, b' '..=b'~' | b'\n' | b'\t');
    let begin = bytes[..at]
        .iter()
        .rposition(|byte| !is_text(byte))
        .map_or(0, |no| no + 1);
    let end = bytes[at..]
        .iter()
        .position(|byte| !is_text(byte))
        .map_or(bytes.len(), |no| at + no);
    &bytes[begin..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twins::truth::Part;

    fn said(file: &[u8], beside: &[u8]) -> Option<Finding> {
        let part = Part {
            address: 0,
            bytes: 0..file.len(),
        };
        let image = Image {
            constants: vec![part],
            code: Vec::new(),
            data: Vec::new(),
            relocations: Vec::new(),
            fixed: false,
        };
        let build = |file, arch| Build { file, arch };
        unsaid(build(file, Arch::X86_64), &image, build(beside, Arch::Aarch64)).unwrap()
    }

    #[test]
    fn a_text_counts_if_the_other_build_does_not_have_it() {
        let table = b"\0i386\0x86_64\0aarch64\0";
        assert_eq!(said(table, table), None);
        let paths: [&[u8]; 2] = [
            b"\0/usr/lib/x86_64-linux-gnu/graphviz\0",
            b"\0/usr/lib/aarch64-linux-gnu/graphviz\0",
        ];
        assert!(said(paths[0], paths[1]).is_some());
        assert_eq!(
            said(b"on amd64\0", b"on arm64\0"),
            Some(Finding::Name("on amd64".to_owned()))
        );
        assert_eq!(said(b"\x01\x02no name\0", b""), None);
    }

    #[test]
    fn files_of_logins_are_seen() {
        let arch = Arch::X86_64;
        let named = |file| record(Build { file, arch });
        let lastlog = Finding::Layout("/var/log/lastlog".to_owned());
        assert_eq!(named(b"\0/var/log/lastlog\0"), Some(lastlog));
        assert_eq!(named(b"\0/var/log/messages\0"), None);
    }
}
