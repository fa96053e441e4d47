//! Finds strings that contain a name of the host, and replaces them by the text of the target's build. Works on bytes
//! in memory: no I/O.

use std::ops::Range;

use super::{
    Untold,
    image::{Image, append_segment},
    moves::Move,
    references,
};
use kiln_records::arch::Arch;

use crate::twins::layout;

/// How far before a name the beginning of its string is searched.
const LONGEST_BEGINNING: usize = 1024;
/// A triplet's vendor: `pc`, `unknown`, `redhat`.
const LONGEST_VENDOR: usize = 32;

/// The names that strings are searched for.
#[derive(Debug)]
pub(super) struct Names {
    /// Pairs of the host's and the target's name, the most specific first.
    pairs: Vec<(&'static str, &'static str)>,
    /// The first part of a triplet such as `x86_64-pc-linux-gnu`, for the host and the target.
    cpu: (&'static str, &'static str),
}

impl Names {
    pub fn new(host: Arch, target: Arch) -> Self {
        let cpu = |arch: Arch| arch.multiarch().split_once('-').map_or(arch.name(), |(cpu, _)| cpu);
        Self {
            pairs: vec![
                (host.multiarch(), target.multiarch()),
                (host.name(), target.name()),
                (cpu(host), cpu(target)),
                (host.debian(), target.debian()),
            ],
            cpu: (cpu(host), cpu(target)),
        }
    }

    /// The text of `original` where the host's build has `text`, whose first name is at `at`.
    fn translate(&self, text: &[u8], at: usize, original: &[u8]) -> Option<Vec<u8>> {
        let known = self
            .pairs
            .iter()
            .filter(|(old, _)| text[at..].starts_with(old.as_bytes()));
        let mut candidates = known.map(|(old, new)| replace(text, old.as_bytes(), new.as_bytes()));
        candidates
            .find(|candidate| says(original, &candidate[at..]))
            .or_else(|| self.translate_triplet(text, at, original))
    }

    /// The vendor of a triplet may differ too: `x86_64-pc-linux-gnu` is `aarch64-unknown-linux-gnu` to configure.
    fn translate_triplet(&self, text: &[u8], at: usize, original: &[u8]) -> Option<Vec<u8>> {
        let after_cpu = text[at..].strip_prefix(self.cpu.0.as_bytes())?.strip_prefix(b"-")?;
        let system = &after_cpu[after_cpu.iter().position(|byte| *byte == b'-')?..];
        let cpu = [self.cpu.1.as_bytes(), b"-"].concat();
        let mut ends = [system, b"\0"].concat();
        let found = occurrences(original, &cpu).find_map(|begin| {
            let rest = &original[begin + cpu.len()..];
            let vendor = rest.iter().take(LONGEST_VENDOR).position(|byte| *byte == b'-')?;
            let is_word = rest[..vendor].iter().all(u8::is_ascii_alphanumeric);
            (is_word && rest[vendor..].starts_with(&ends)).then(|| &rest[..vendor])
        })?;
        ends.pop();
        Some([&text[..at], &cpu, found, &ends].concat())
    }
}

/// A string and its replacement.
#[derive(Debug)]
pub(super) struct Change {
    /// Address at which it is mapped. Bytes before it may look like text but belong to something else.
    address: u64,
    /// Its range in the file, without the NUL.
    bytes: Range<usize>,
    /// Offset of the name in the string.
    name: usize,
    /// The new text.
    new: Vec<u8>,
}

/// The strings of `twin` that differ in `original`.
pub(super) fn find(twin: &[u8], image: &Image, original: &[u8], names: &Names) -> Vec<Change> {
    let mut changes: Vec<Change> = Vec::new();
    for part in &image.constants {
        let bytes = &twin[part.bytes.clone()];
        let mut done = 0;
        while let Some(at) = names
            .pairs
            .iter()
            .filter_map(|(old, _)| position(&bytes[done..], old.as_bytes()))
            .min()
        {
            let at = done + at;
            let earliest = done.max(at.saturating_sub(LONGEST_BEGINNING));
            let begin = bytes[earliest..at]
                .iter()
                .rposition(|byte| !is_text(*byte))
                .map_or(earliest, |no| earliest + no + 1);
            let Some(length) = bytes[at..].iter().position(|byte| *byte == 0) else {
                break;
            };
            let text = &bytes[begin..at + length];
            done = at + length;
            if is_said_too(original, text, at - begin) {
                continue;
            }
            if let Some(new) = names.translate(text, at - begin, original) {
                changes.push(Change {
                    address: part.address + begin as u64,
                    bytes: part.bytes.start + begin..part.bytes.start + done,
                    name: at - begin,
                    new,
                });
            }
        }
    }
    changes
}

/// Writes `changes` into `twin`. Returns their number.
pub(super) fn write(twin: &mut Vec<u8>, image: &Image, changes: Vec<Change>, host: Arch) -> Result<usize, Untold> {
    let count = changes.len();
    let (longer, others): (Vec<_>, Vec<_>) = changes
        .into_iter()
        .partition(|change| change.new.len() > change.bytes.len());
    for change in others {
        let (text, rest) = twin[change.bytes].split_at_mut(change.new.len());
        text.copy_from_slice(&change.new);
        rest.fill(0);
    }
    if longer.is_empty() {
        return Ok(count);
    }
    if host != Arch::X86_64 {
        return Err(Untold::new(
            "a string grows, and only x86_64 instructions can be turned to another place",
        ));
    }
    let mut content = Vec::new();
    let mut moves = Vec::new();
    for change in longer {
        let to = content.len() as u64;
        content.extend_from_slice(&change.new);
        content.push(0);
        moves.push(Move {
            from: change.address..change.address + change.name as u64 + 1,
            end: change.address + change.bytes.len() as u64,
            to,
            at: change.bytes.start,
            new: change.new,
        });
    }
    let base = append_segment(twin, &content)?;
    for one in &mut moves {
        one.to += base;
    }
    references::turn(twin, image, &moves)?;
    Ok(count)
}

/// Makes libc load character set converters from the directory of twins. Slashes pad the path to its old length.
pub(super) fn move_gconv(twin: &mut [u8], image: &Image) -> Result<usize, Untold> {
    const NAME: &[u8] = b"/gconv";
    let mut moved = 0;
    for part in &image.constants {
        let bytes = &mut twin[part.bytes.clone()];
        let places: Vec<usize> = occurrences(bytes, NAME).collect();
        for at in places {
            let begin = bytes[..at].iter().rposition(|byte| *byte == 0).map_or(0, |no| no + 1);
            let directory = &mut bytes[begin..at];
            if !directory.starts_with(b"/usr/lib") && !directory.starts_with(b"/lib") {
                continue;
            }
            if directory.len() < layout::LIB.len() {
                return Err(Untold::new(
                    "the path of character set converters is too short to be replaced",
                ));
            }
            let (lib, slashes) = directory.split_at_mut(layout::LIB.len());
            lib.copy_from_slice(layout::LIB.as_bytes());
            slashes.fill(b'/');
            moved += 1;
        }
    }
    if moved == 0 {
        return Err(Untold::new("libc has no path of character set converters"));
    }
    Ok(moved)
}

/// Whether `original` has `text` too, from the name at `at` on and with the same bytes before it.
fn is_said_too(original: &[u8], text: &[u8], at: usize) -> bool {
    // More of it may not be text at all, but data that happens to precede it.
    const ENOUGH: usize = 4;
    let begin = at.saturating_sub(ENOUGH);
    let tail = [&text[begin..], b"\0"].concat();
    occurrences(original, &tail).any(|found| {
        let before = found.checked_sub(1).map(|index| original[index]);
        begin > 0 || before.is_none_or(|byte| !is_text(byte))
    })
}

/// Whether `original` has a string that ends in `tail`.
fn says(original: &[u8], tail: &[u8]) -> bool {
    occurrences(original, &[tail, b"\0"].concat()).next().is_some()
}

fn is_text(byte: u8) -> bool {
    matches!(byte, b' '..=b'~' | b'\n' | b'\t')
}

fn position(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, wanted)
}

fn occurrences<'a>(bytes: &'a [u8], wanted: &'a [u8]) -> impl Iterator<Item = usize> + use<'a> {
    memchr::memmem::find_iter(bytes, wanted)
}

fn replace(text: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut done = 0;
    for at in occurrences(text, old) {
        out.extend_from_slice(&text[done..at]);
        out.extend_from_slice(new);
        done = at + old.len();
    }
    out.extend_from_slice(&text[done..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(text: &str, original: &[u8]) -> Option<String> {
        let names = Names::new(Arch::X86_64, Arch::Ppc64le);
        let at = text.find("x86_64").or_else(|| text.find("amd64")).unwrap();
        let new = names.translate(text.as_bytes(), at, original)?;
        Some(String::from_utf8(new).unwrap())
    }

    #[test]
    fn the_targets_build_decides_what_is_said() {
        let original =
            b"/usr/lib/powerpc64le-linux-gnu/perl\0(ppc64el)\0powerpc64le\0powerpc64le-unknown-linux-gnu) %s\n\0";
        for (text, expected) in [
            (
                "/usr/lib/x86_64-linux-gnu/perl",
                Some("/usr/lib/powerpc64le-linux-gnu/perl"),
            ),
            ("x86_64", Some("powerpc64le")),
            ("1.2 (amd64)", Some("1.2 (ppc64el)")),
            (
                "curl (x86_64-pc-linux-gnu) %s\n",
                Some("curl (powerpc64le-unknown-linux-gnu) %s\n"),
            ),
            ("/usr/lib/x86_64-linux-gnu/python", None),
            ("x86_64-pc-linux-musl", None),
        ] {
            assert_eq!(translated(text, original).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn what_both_say_is_no_answer() {
        let original = b"i386\0x86_64\0aarch64\0built for aarch64 on x86_64\0";
        assert!(is_said_too(original, b"x86_64", 0));
        assert!(is_said_too(original, b"for aarch64 on x86_64", 15));
        assert!(!is_said_too(original, b"for x86_64", 4));
        assert!(!is_said_too(b"for x86_64\0", b"x86_64", 0));
    }

    #[test]
    fn every_name_in_a_text_is_replaced() {
        assert_eq!(replace(b"/a/x:/b/x:", b"x", b"yy"), b"/a/yy:/b/yy:");
        assert_eq!(replace(b"", b"x", b"y"), b"");
    }
}
