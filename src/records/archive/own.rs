//! The archives that Kiln itself packs: gzip with a mark. Works on writers: no I/O of its own.

use std::io::Write;

use flate2::{Compression, GzBuilder, write::GzEncoder};

/// The mark: a comment in the header of gzip, without a name or other fields before it. Whoever writes it himself gains that the
/// ratio of sizes is not looked at; all other limits hold.
const COMMENT: &[u8] = b"packed by kiln";

/// The flag for a comment (RFC 1952, section 2.3.1), and where a comment is if nothing else is there.
const FLAGS: usize = 3;
const HAS_COMMENT: u8 = 0x10;
const PLACE: usize = 10;

/// Makes a tar archive into `to` that is known as Kiln's own.
pub fn builder<W: Write>(to: W) -> tar::Builder<GzEncoder<W>> {
    let mark = GzBuilder::new().mtime(0).comment(COMMENT);
    tar::Builder::new(mark.write(to, Compression::fast()))
}

/// Whether an archive that begins with `head` was packed by Kiln from files, so that what compresses well in it was there.
pub fn is_own(head: &[u8]) -> bool {
    let comment = head.get(PLACE..).and_then(|rest| rest.strip_prefix(COMMENT));
    head.starts_with(b"\x1f\x8b")
        && head.get(FLAGS) == Some(&HAS_COMMENT)
        && comment.is_some_and(|rest| rest.first() == Some(&0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marked_archives_are_known() {
        let own = builder(Vec::new()).into_inner().unwrap().finish().unwrap();
        assert!(is_own(&own));
        let plain = GzEncoder::new(Vec::new(), Compression::fast()).finish().unwrap();
        let named = GzBuilder::new().filename("x").comment(COMMENT);
        let longer = GzBuilder::new().comment("packed by kiln or others");
        for other in [
            plain,
            named.write(Vec::new(), Compression::fast()).finish().unwrap(),
            longer.write(Vec::new(), Compression::fast()).finish().unwrap(),
            own[..20].to_vec(),
            Vec::new(),
        ] {
            assert!(!is_own(&other));
        }
    }
}
