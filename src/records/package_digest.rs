//! The digest by which a repository lists a package's file. Pure: no I/O.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The functions that repositories use: Debian's and most of rpms the first one, those of SLES 16 and Leap 16 the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DigestKind {
    /// 256 bits of SHA-2.
    Sha256,
    /// 384 bits of SHA-2.
    Sha384,
    /// 512 bits of SHA-2.
    Sha512,
}

/// A digest of one of these kinds, in lower-case hexadecimal. Its length says which.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PackageDigest(String);

impl DigestKind {
    const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];

    /// The number of hexadecimal digits.
    const fn digits(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha384 => 96,
            Self::Sha512 => 128,
        }
    }
}

impl PackageDigest {
    /// The digest that a text is, in either case. `None` for any other text, and for digests that are too weak to choose a file by.
    pub fn parse(text: &str) -> Option<Self> {
        let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_known = DigestKind::ALL.iter().any(|kind| kind.digits() == text.len());
        (is_hex && is_known).then(|| Self(text.to_ascii_lowercase()))
    }

    /// Its kind.
    pub fn kind(&self) -> DigestKind {
        let of_length = DigestKind::ALL.into_iter().find(|kind| kind.digits() == self.0.len());
        of_length.unwrap_or(DigestKind::Sha256)
    }

    /// Its digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for PackageDigest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("`{text}` is no digest of a package"))
    }
}

impl From<PackageDigest> for String {
    fn from(digest: PackageDigest) -> Self {
        digest.0
    }
}

impl fmt::Display for PackageDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_known_by_its_length() {
        for kind in DigestKind::ALL {
            let digest = PackageDigest::parse(&"A".repeat(kind.digits())).unwrap();
            assert_eq!((digest.kind(), digest.as_str()), (kind, &*"a".repeat(kind.digits())));
        }
        // MD5, SHA-1 and SHA-224, no hexadecimal digits, and none at all.
        for wrong in [
            "a".repeat(32),
            "a".repeat(40),
            "a".repeat(56),
            "g".repeat(64),
            String::new(),
        ] {
            assert_eq!(PackageDigest::parse(&wrong), None, "{wrong}");
            serde_json::from_value::<PackageDigest>(wrong.into()).unwrap_err();
        }
    }
}
