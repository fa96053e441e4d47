//! What a client that pulls asks of a registry, answered from a repository. Talks to the registry.

use std::fmt;

use bytes::Bytes;
use futures::{StreamExt, stream};
use kiln_records::Failure;

use crate::{digest::Digest, download, model::Descriptor, reference::Which, remote::Remote, source::Pieces};

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// A manifest or index.
    Manifest(Which),
    /// A layer or configuration.
    Blob(Digest),
}

/// What is answered.
pub struct Pulled {
    /// Its media type.
    pub media_type: String,
    /// Its digest.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// Its content. The last piece comes only when digest and size are right.
    pub content: Pieces,
}

impl Asked {
    /// Reads what follows the name of a repository in an address: `manifests/TAG`, `blobs/DIGEST`.
    pub fn parse(kind: &str, text: &str) -> Option<Self> {
        let digest = text.parse::<Digest>().ok();
        match kind {
            "manifests" => Some(Self::Manifest(
                digest.map_or_else(|| Which::Tag(text.to_owned()), Which::Digest),
            )),
            "blobs" => digest.map(Self::Blob),
            _ => None,
        }
    }
}

impl fmt::Debug for Pulled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pulled")
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}

/// Looks for it; none if it is not there. Of a blob, nothing is read before its content is.
///
/// # Errors
///
/// The registry does not answer, refuses, or what it answers is not what was asked for.
pub async fn pull(from: &Remote, asked: &Asked) -> Result<Option<Pulled>, Failure> {
    Ok(match asked {
        Asked::Manifest(which) => from.manifest(which).await?.map(|found| Pulled {
            media_type: found.descriptor.media_type,
            digest: found.descriptor.digest,
            size: found.descriptor.size,
            content: stream::once(async { Ok::<Bytes, Failure>(found.bytes) }).boxed(),
        }),
        Asked::Blob(digest) => from.blob_size(digest).await?.map(|size| {
            let blob = Descriptor::new("application/octet-stream", digest.clone(), size);
            Pulled {
                content: download::pieces(from, &blob),
                media_type: blob.media_type,
                digest: blob.digest,
                size,
            }
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_a_document_or_a_blob() {
        let digest = format!("sha256:{}", "a".repeat(64));
        assert_eq!(
            Asked::parse("manifests", "12"),
            Some(Asked::Manifest(Which::Tag("12".to_owned())))
        );
        assert_eq!(
            Asked::parse("manifests", &digest),
            Some(Asked::Manifest(Which::Digest(digest.parse().unwrap())))
        );
        assert_eq!(
            Asked::parse("blobs", &digest),
            Some(Asked::Blob(digest.parse().unwrap()))
        );
        assert_eq!(Asked::parse("blobs", "12"), None);
        assert_eq!(Asked::parse("tags", "list"), None);
    }
}
