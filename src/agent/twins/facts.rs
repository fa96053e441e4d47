//! A package's description of itself: name, version, architecture and digests of files. Pure: no I/O.

/// A package's name, version and files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) name: String,
    /// The full version, in the form of repositories' indexes.
    pub(super) version: String,
    /// The package format's own name of the architecture, or for none.
    pub(super) arch: String,
    pub(super) sums: Vec<Sum>,
}

/// One file of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sum {
    /// Path relative to the root.
    pub(super) path: String,
    pub(super) digest: Digest,
}

/// The digest of a file's content, by the algorithm that the package uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Digest {
    Md5([u8; 16]),
    Sha256([u8; 32]),
}

impl Sum {
    /// Reads a line of a list: a digest in hexadecimal, two spaces, a path. `None` for any other text.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (digest, path) = line.split_once("  ")?;
        let (mut md5, mut sha256) = ([0; 16], [0; 32]);
        let digest = if digest.len() == 2 * md5.len() {
            hex::decode_to_slice(digest, &mut md5).ok()?;
            Digest::Md5(md5)
        } else {
            hex::decode_to_slice(digest, &mut sha256).ok()?;
            Digest::Sha256(sha256)
        };
        let path = path
            .strip_prefix("./")
            .unwrap_or(path)
            .trim_start_matches('/')
            .to_owned();
        Some(Self { path, digest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_told_apart_by_their_length() {
        let sum = Sum::parse("0123456789abcdef0123456789abcdef  ./usr/bin/a b").unwrap();
        assert_eq!(sum.path, "usr/bin/a b");
        assert!(matches!(sum.digest, Digest::Md5([0x01, 0x23, ..])));
        let sum = Sum::parse(&format!("{}  /usr/bin/a", "1f".repeat(32))).unwrap();
        assert_eq!((&*sum.path, sum.digest), ("usr/bin/a", Digest::Sha256([0x1f; 32])));
        for line in [
            "",
            "nonsense",
            "  /a/link",
            "0123  a",
            "0123456789abcdef0123456789abcdex  a",
        ] {
            assert_eq!(Sum::parse(line), None, "{line}");
        }
        assert_eq!(Sum::parse(&format!("{}  a", "1f".repeat(64))), None);
    }
}
