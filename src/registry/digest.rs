//! Digests of content, as registries write them. Pure: no I/O.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use sha2::{Digest as _, Sha256, Sha512};

/// A digest: `sha256:` or `sha512:`, and lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(String);

/// A text is no digest that this code can check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoDigest;

impl fmt::Display for NoDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is no digest: `sha256:` and 64 hexadecimal digits, or `sha512:` and 128")
    }
}

impl Digest {
    /// The SHA-256 digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self::sha256(&hex::encode(Sha256::digest(bytes)))
    }

    fn sha256(hex: &str) -> Self {
        Self(format!("sha256:{hex}"))
    }

    /// The whole digest.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The algorithm, and the hexadecimal digits.
    pub fn parts(&self) -> (&str, &str) {
        self.0.split_once(':').unwrap_or(("", &self.0))
    }

    /// The tag that lists what refers to this content in registries that have no list of their own.
    pub fn referrers_tag(&self) -> String {
        let (algorithm, hex) = self.parts();
        // The longest tag has 128 characters.
        format!("{algorithm}-{}", &hex[..hex.len().min(64)])
    }

    /// Begins to compute a digest by the same algorithm.
    pub fn hasher(&self) -> Hasher {
        match self.parts().0 {
            "sha512" => Hasher::Sha512(Box::default()),
            _ => Hasher::default(),
        }
    }

    /// Whether it is the digest of `bytes`.
    pub fn is_of(&self, bytes: &[u8]) -> bool {
        let mut hasher = self.hasher();
        hasher.update(bytes);
        hasher.finish() == *self
    }
}

/// Computes a digest.
#[derive(Debug, Clone)]
pub enum Hasher {
    /// By SHA-256.
    Sha256(Box<Sha256>),
    /// By SHA-512.
    Sha512(Box<Sha512>),
}

impl Default for Hasher {
    fn default() -> Self {
        Self::Sha256(Box::default())
    }
}

impl Hasher {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    /// The digest of all bytes.
    pub fn finish(self) -> Digest {
        match self {
            Self::Sha256(hasher) => Digest::sha256(&hex::encode(hasher.finalize())),
            Self::Sha512(hasher) => Digest(format!("sha512:{}", hex::encode(hasher.finalize()))),
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for Digest {
    type Err = NoDigest;

    fn from_str(text: &str) -> Result<Self, NoDigest> {
        let length = match text.split_once(':') {
            Some(("sha256", hex)) => (hex, 64),
            Some(("sha512", hex)) => (hex, 128),
            _ => return Err(NoDigest),
        };
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if length.0.len() == length.1 && length.0.bytes().all(is_hex) {
            Ok(Self(text.to_owned()))
        } else {
            Err(NoDigest)
        }
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_checked_is_a_digest() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").as_str(), empty);
        let long: Digest = format!("sha512:{}", "a".repeat(128)).parse().unwrap();
        assert!(empty.parse::<Digest>().unwrap().is_of(b"") && !long.is_of(b""));
        assert_eq!(long.hasher().finish().parts().0, "sha512");
        assert_eq!(long.referrers_tag().len(), "sha512-".len() + 64);
        for wrong in [
            "",
            "sha256:",
            "md5:d41d8cd98f00b204e9800998ecf8427e",
            "sha256:../../x",
            &empty.to_uppercase(),
            &empty[..70],
            &format!("{empty}0"),
        ] {
            assert_eq!(wrong.parse::<Digest>(), Err(NoDigest), "{wrong}");
        }
    }
}
