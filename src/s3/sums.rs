//! The checksums of objects and parts, besides their MD5, and how those of parts become one. Pure: no I/O.

use base64::{Engine, prelude::BASE64_STANDARD};
use crc_fast::{CrcAlgorithm, checksum_combine};
use s3s::{
    checksum::ChecksumHasher,
    crypto::{Checksum as _, Crc32, Crc32c, Sha1, Sha256},
    dto::{Checksum, ChecksumType},
};
use serde::{Deserialize, Serialize};

/// Checksums, as Base64.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Sums {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) crc32: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) crc32c: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) crc64nvme: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sha1: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sha256: Option<String>,
}

/// The checksums in a request of the library.
macro_rules! sums_of {
    ($input:expr) => {
        $crate::sums::Sums {
            crc32: $input.checksum_crc32.clone(),
            crc32c: $input.checksum_crc32c.clone(),
            crc64nvme: $input.checksum_crc64nvme.clone(),
            sha1: $input.checksum_sha1.clone(),
            sha256: $input.checksum_sha256.clone(),
        }
    };
}

/// Puts checksums into an answer of the library.
macro_rules! put_sums {
    ($output:expr, $sums:expr) => {{
        let sums: $crate::sums::Sums = $sums;
        $output.checksum_crc32 = sums.crc32;
        $output.checksum_crc32c = sums.crc32c;
        $output.checksum_crc64nvme = sums.crc64nvme;
        $output.checksum_sha1 = sums.sha1;
        $output.checksum_sha256 = sums.sha256;
    }};
}

pub(super) use {put_sums, sums_of};

impl TryFrom<String> for Sums {
    type Error = serde_json::Error;

    fn try_from(json: String) -> Result<Self, Self::Error> {
        serde_json::from_str(&json)
    }
}

impl Sums {
    /// Each with the name of its header.
    pub(super) fn each(&self) -> [(&'static str, Option<&str>); 5] {
        [
            ("x-amz-checksum-crc32", self.crc32.as_deref()),
            ("x-amz-checksum-crc32c", self.crc32c.as_deref()),
            ("x-amz-checksum-crc64nvme", self.crc64nvme.as_deref()),
            ("x-amz-checksum-sha1", self.sha1.as_deref()),
            ("x-amz-checksum-sha256", self.sha256.as_deref()),
        ]
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The header of the first one that differs from what was promised.
    pub(super) fn differs_from(&self, promised: &Self) -> Option<&'static str> {
        let mut pairs = promised.each().into_iter().zip(self.each());
        let differs = pairs.find(|((_, promised), (_, own))| promised.is_some() && promised != own);
        differs.map(|((header, _), _)| header)
    }

    /// The checksums of the whole, from those of its parts with their sizes: those that all parts have.
    pub(super) fn of_parts(parts: &[(Sums, u64)], kind: SumsOf) -> Self {
        let each = |select: fn(&Sums) -> Option<&str>| -> Option<Vec<(Vec<u8>, u64)>> {
            let raw = |(sums, size): &(Sums, u64)| Some((BASE64_STANDARD.decode(select(sums)?).ok()?, *size));
            parts.iter().map(raw).collect()
        };
        let full = |select, algorithm, width| combined(&each(select)?, algorithm, width);
        let crc64nvme = full(|sums| sums.crc64nvme.as_deref(), CrcAlgorithm::Crc64Nvme, 8);
        if kind == SumsOf::Whole {
            return Self {
                crc32: full(|sums| sums.crc32.as_deref(), CrcAlgorithm::Crc32IsoHdlc, 4),
                crc32c: full(|sums| sums.crc32c.as_deref(), CrcAlgorithm::Crc32Iscsi, 4),
                crc64nvme,
                ..Self::default()
            };
        }
        let composite = |select, hasher: ChecksumHasher, pick: fn(Checksum) -> Option<String>| {
            let parts = each(select)?;
            let mut hasher = hasher;
            for (raw, _) in &parts {
                hasher.update(raw);
            }
            pick(hasher.finalize()).map(|sum| format!("{sum}-{}", parts.len()))
        };
        let hasher = ChecksumHasher::default;
        Self {
            crc32: composite(
                |sums| sums.crc32.as_deref(),
                ChecksumHasher {
                    crc32: Some(Crc32::default()),
                    ..hasher()
                },
                |sums| sums.checksum_crc32,
            ),
            crc32c: composite(
                |sums| sums.crc32c.as_deref(),
                ChecksumHasher {
                    crc32c: Some(Crc32c::default()),
                    ..hasher()
                },
                |sums| sums.checksum_crc32c,
            ),
            // There is none of this kind.
            crc64nvme: None,
            sha1: composite(
                |sums| sums.sha1.as_deref(),
                ChecksumHasher {
                    sha1: Some(Sha1::new()),
                    ..hasher()
                },
                |sums| sums.checksum_sha1,
            ),
            sha256: composite(
                |sums| sums.sha256.as_deref(),
                ChecksumHasher {
                    sha256: Some(Sha256::new()),
                    ..hasher()
                },
                |sums| sums.checksum_sha256,
            ),
        }
    }
}

/// What the checksums of an object that came in parts are of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SumsOf {
    /// The object.
    #[default]
    Whole,
    /// The checksums of its parts.
    Parts,
}

impl SumsOf {
    /// What a client asks for. Without a word, checksums other than CRC-64/NVME are of the parts.
    pub(super) fn asked(kind: Option<&ChecksumType>, algorithm: Option<&str>) -> Self {
        match (kind.map(ChecksumType::as_str), algorithm) {
            (Some(ChecksumType::FULL_OBJECT), _) | (None, None | Some("CRC64NVME")) => Self::Whole,
            _ => Self::Parts,
        }
    }
}

impl From<SumsOf> for ChecksumType {
    fn from(kind: SumsOf) -> Self {
        Self::from_static(match kind {
            SumsOf::Whole => Self::FULL_OBJECT,
            SumsOf::Parts => Self::COMPOSITE,
        })
    }
}

/// The CRC of the whole from those of its parts, which have `width` bytes.
fn combined(parts: &[(Vec<u8>, u64)], algorithm: CrcAlgorithm, width: usize) -> Option<String> {
    let number = |raw: &[u8]| (raw.len() == width).then(|| raw.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
    let mut parts = parts.iter().map(|(raw, size)| Some((number(raw)?, *size)));
    let (first, _) = parts.next()??;
    let whole = parts.try_fold(first, |whole, part| {
        let (sum, size) = part?;
        Some(checksum_combine(algorithm, whole, sum, size))
    })?;
    Some(BASE64_STANDARD.encode(&whole.to_be_bytes()[8 - width..]))
}

#[cfg(test)]
mod tests {
    use s3s::crypto::Crc64Nvme;

    use super::*;

    fn sums(bytes: &[u8]) -> Sums {
        let mut hasher = ChecksumHasher {
            crc32: Some(Crc32::default()),
            crc32c: Some(Crc32c::default()),
            crc64nvme: Some(Crc64Nvme::default()),
            sha1: Some(Sha1::new()),
            sha256: Some(Sha256::new()),
        };
        hasher.update(bytes);
        let sums = hasher.finalize();
        sums_of!(sums)
    }

    #[test]
    fn the_checksums_of_a_whole_are_those_of_its_bytes() {
        let parts = [&b"first part, "[..], b"second part, ", b"", b"third"];
        let each: Vec<_> = parts.iter().map(|part| (sums(part), part.len() as u64)).collect();
        let whole = sums(&parts.concat());
        let combined = Sums::of_parts(&each, SumsOf::Whole);
        assert_eq!((&combined.crc32, &combined.crc32c), (&whole.crc32, &whole.crc32c));
        assert_eq!(combined.crc64nvme, whole.crc64nvme);
        assert_eq!((combined.sha1, combined.sha256), (None, None));
    }

    #[test]
    fn the_checksums_of_parts_name_their_number() {
        let each = [(sums(b"a"), 1), (sums(b"b"), 1)];
        let composite = Sums::of_parts(&each, SumsOf::Parts);
        let raw = each
            .iter()
            .flat_map(|(sums, _)| BASE64_STANDARD.decode(sums.sha256.as_ref().unwrap()).unwrap());
        let expected = sums(&raw.collect::<Vec<_>>()).sha256.unwrap();
        assert_eq!(composite.sha256.unwrap(), format!("{expected}-2"));
        assert!(composite.crc32.unwrap().ends_with("-2"));
        // One part without it leaves the whole without it.
        let each = [(sums(b"a"), 1), (Sums::default(), 1)];
        assert!(Sums::of_parts(&each, SumsOf::Parts).is_empty());
        assert!(Sums::of_parts(&each, SumsOf::Whole).is_empty());
    }
}
