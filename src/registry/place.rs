//! A registry's repository or a directory: what is the same for both. Talks to registries, reads and writes layouts.

use std::path::Path;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use kiln_records::{Code, Failure};

use crate::digest::{Digest, Hasher};
use crate::{
    download,
    layout::Layout,
    model::{Descriptor, Document},
    reference::{Location, Which},
    referrers::{self, Referrers},
    remote::{Found, Remote},
    source::{Pieces, Source},
    transport::Access,
    upload::{self, Sent},
};

/// A place for images.
#[derive(Debug, Clone)]
pub enum Place {
    /// A repository of a registry.
    Remote(Remote),
    /// A directory.
    #[doc(hidden)]
    Layout(LayoutPlace),
}

/// A directory.
#[derive(Debug, Clone)]
pub struct LayoutPlace(Layout);

/// Opens a place. A directory that does not exist is made if it is to be written to.
///
/// # Errors
///
/// `layout_unusable`, `ca_file_invalid`, `tls_unusable`. A registry is not asked yet.
pub async fn open(location: &Location, access: &Access, to_write: bool) -> Result<Place, Failure> {
    match location {
        Location::Registry {
            registry, repository, ..
        } => Remote::open(registry, repository, access).await.map(Place::Remote),
        Location::Layout { dir, .. } => Layout::open(dir, to_write).map(|layout| Place::Layout(LayoutPlace(layout))),
    }
}

impl Place {
    /// A directory with images.
    pub(crate) fn layout(dir: &Path) -> Result<Self, Failure> {
        Layout::open(dir, false).map(|layout| Self::Layout(LayoutPlace(layout)))
    }

    /// The name of an image in it.
    pub fn name(&self, which: &Which) -> String {
        match self {
            Self::Remote(remote) => remote.name(which),
            Self::Layout(layout) => layout.0.name(which),
        }
    }

    /// The only image of a directory, if users name none.
    pub(crate) fn only(&self) -> Result<Option<Which>, Failure> {
        match self {
            Self::Remote(_) => Ok(None),
            Self::Layout(layout) => {
                let mut tags = layout.0.tags()?;
                let only = tags.pop().filter(|_| tags.is_empty());
                Ok(only.map(Which::Tag))
            }
        }
    }

    /// Reads a manifest or index. `media_type` is what it is known as, if that is known.
    pub(crate) async fn manifest(&self, which: &Which, media_type: Option<&str>) -> Result<Option<Found>, Failure> {
        match self {
            Self::Remote(remote) => {
                let found = remote.manifest(which).await?;
                Ok(found.map(|mut found| {
                    if let Some(media_type) = media_type {
                        media_type.clone_into(&mut found.descriptor.media_type);
                    }
                    found
                }))
            }
            Self::Layout(layout) => layout.0.manifest(which, media_type),
        }
    }

    /// Reads what must be there.
    pub(crate) async fn must_have(&self, which: &Which) -> Result<Found, Failure> {
        let found = self.manifest(which, None).await?;
        found.ok_or_else(|| {
            Failure::new(Code::RegistryMissing, format!("there is no {}", self.name(which)))
                .hint("check the name and the tag")
        })
    }

    /// The digest of what has a name now.
    ///
    /// # Errors
    ///
    /// The registry does not answer, or refuses.
    pub async fn head(&self, which: &Which) -> Result<Option<Digest>, Failure> {
        match self {
            Self::Remote(remote) => remote.head(which).await,
            Self::Layout(layout) => Ok(layout.0.manifest(which, None)?.map(|found| found.descriptor.digest)),
        }
    }

    /// Writes a manifest or index, and notes what it refers to.
    pub(crate) async fn put(&self, which: &Which, found: &Found) -> Result<(), Failure> {
        let Descriptor { media_type, .. } = &found.descriptor;
        match self {
            Self::Layout(layout) => layout.0.put(which, media_type, &found.bytes),
            Self::Remote(remote) => {
                let is_noted = remote.put(which, media_type, found.bytes.clone()).await?;
                let document = Document::parse(media_type, &found.bytes).unwrap_or(Document::Other);
                let Some(subject) = document.subject().filter(|_| !is_noted) else {
                    return Ok(());
                };
                let mut entry = found.descriptor.clone();
                match &document {
                    Document::Manifest(manifest) => {
                        entry.artifact_type = manifest.artifact_kind().map(str::to_owned);
                        entry.annotations.clone_from(&manifest.annotations);
                    }
                    Document::Index(index) => {
                        entry.artifact_type.clone_from(&index.artifact_type);
                        entry.annotations.clone_from(&index.annotations);
                    }
                    Document::Other => {}
                }
                referrers::add(remote, &subject.digest, &entry).await
            }
        }
    }

    /// Gives a tag to something, unless another client did so since it was `before`.
    pub(crate) async fn put_last(&self, which: &Which, found: &Found, before: Option<&Digest>) -> Result<(), Failure> {
        if which.tag().is_some() {
            let now = self.head(which).await?;
            if now.as_ref() != before && now.as_ref() != Some(&found.descriptor.digest) {
                return Err(Failure::new(
                    Code::RegistryMoved,
                    format!(
                        "another client gave {} to something else in the meantime",
                        self.name(which)
                    ),
                )
                .hint("look at what has the tag now, and repeat if it is to be replaced"));
            }
        }
        self.put(which, found).await
    }

    /// All that refers to a manifest.
    pub(crate) async fn referrers(&self, subject: &Digest) -> Result<Referrers, Failure> {
        match self {
            Self::Remote(remote) => referrers::list(remote, subject).await,
            Self::Layout(layout) => {
                let mut found = Referrers::default();
                found.add(layout.0.referrers(subject)?, 0);
                Ok(found)
            }
        }
    }

    /// Whether the whole blob is there.
    pub(crate) async fn has(&self, blob: &Descriptor) -> Result<bool, Failure> {
        match self {
            Self::Remote(remote) => Ok(remote.blob_size(&blob.digest).await? == Some(blob.size)),
            Self::Layout(layout) => Ok(layout.0.has(blob)),
        }
    }

    /// The bytes of a blob. The last piece comes only when digest and size are right.
    pub(crate) fn pieces(&self, blob: &Descriptor) -> Result<Pieces, Failure> {
        match self {
            Self::Remote(remote) => Ok(download::pieces(remote, blob)),
            Self::Layout(layout) => layout.0.pieces(blob),
        }
    }

    /// A small blob as a whole.
    pub(crate) async fn small(&self, blob: &Descriptor, limit: usize) -> Result<Bytes, Failure> {
        if blob.size > limit as u64 {
            return Err(Failure::new(
                Code::RegistryAnswer,
                format!("{} has {} bytes; {limit} are read at most", blob.digest, blob.size),
            ));
        }
        let mut pieces = self.pieces(blob)?;
        let mut bytes = bytes::BytesMut::new();
        while let Some(piece) = pieces.next().await.transpose()? {
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes.freeze())
    }

    /// Writes a blob that is not there yet.
    pub(crate) async fn write(&self, blob: &Descriptor, source: &dyn Source) -> Result<(), Failure> {
        self.send(Some(blob), source).await.map(drop)
    }

    /// Writes a blob that may not be known yet. Returns what was written.
    pub(crate) async fn send(&self, known: Option<&Descriptor>, source: &dyn Source) -> Result<Sent, Failure> {
        let layout = match self {
            Self::Remote(remote) => return upload::upload(remote, known, source).await,
            Self::Layout(layout) => layout,
        };
        let blob = if let Some(known) = known {
            known.clone()
        } else {
            // A directory has files by their digests, so that of this one is asked for first.
            let (mut hasher, mut size) = (Hasher::default(), 0);
            let mut pieces = source.open().await?;
            while let Some(piece) = pieces.next().await.transpose()? {
                size += piece.len() as u64;
                hasher.update(&piece);
            }
            Descriptor::new("application/octet-stream", hasher.finish(), size)
        };
        layout.0.write_blob(&blob, source.open().await?).await?;
        Ok(Sent {
            digest: blob.digest,
            size: blob.size,
        })
    }

    /// Has a registry take a blob from the repository that it is to be copied from, if it is one of the same registry.
    pub(crate) async fn mount(&self, blob: &Descriptor, from: &Place) -> Result<bool, Failure> {
        match (self, from) {
            (Self::Remote(to), Self::Remote(from))
                if to.transport.registry == from.transport.registry && to.repository != from.repository =>
            {
                upload::mount(to, blob, &from.repository).await
            }
            _ => Ok(false),
        }
    }
}

/// A blob of a place, as the source of a copy.
#[derive(Debug)]
pub(crate) struct Blob<'a> {
    pub(crate) place: &'a Place,
    pub(crate) blob: &'a Descriptor,
}

#[async_trait]
impl Source for Blob<'_> {
    async fn open(&self) -> Result<Pieces, Failure> {
        self.place.pieces(self.blob)
    }
}
