//! Copies an image with all that belongs to it and refers to it. Reads one place, and writes another.

use futures::{StreamExt, TryStreamExt, stream};
use kiln_records::{Code, Failure};
use serde::Serialize;

use crate::{
    Notes,
    digest::Digest,
    model::Descriptor,
    place::{Blob, Place},
    reference::Which,
    walk,
};

/// How many blobs are copied at the same time.
const PARALLEL: usize = 4;

/// What was copied.
#[derive(Debug, Clone, Serialize)]
pub struct Mirrored {
    /// The name of the copy.
    pub reference: String,
    /// The digest, which is that of the original.
    pub digest: Digest,
    /// Manifests and indexes, with those that were there already.
    pub manifests: usize,
    /// Blobs, with those that were there already.
    pub blobs: usize,
    /// Blobs that were not there.
    pub copied: usize,
    /// The bytes of these.
    pub bytes: u64,
}

/// Copies the image `which` of one place to another, under the tag `to_which`; by its digest if there is none.
///
/// # Errors
///
/// Something cannot be read or written. The tag then stands for what it stood for before.
pub async fn mirror(
    from: &Place,
    which: Option<&Which>,
    to: &Place,
    to_which: Option<&Which>,
    notes: &Notes,
) -> Result<Mirrored, Failure> {
    let only = from.only()?;
    let which = which.or(only.as_ref()).ok_or_else(|| {
        Failure::new(
            Code::RegistryReference,
            "the name to copy from has neither a tag nor a digest",
        )
        .hint("add `:TAG` or `@sha256:…`")
    })?;
    let image = from.must_have(which).await?;
    let digest = image.descriptor.digest.clone();
    let to_which = match (to_which, which) {
        (Some(Which::Digest(wanted)), _) if *wanted != digest => {
            return Err(Failure::new(
                Code::RegistryReference,
                format!("{} is {digest}, and a copy has no other digest", from.name(which)),
            )
            .hint("name the copy by a tag"));
        }
        (Some(to_which), _) => to_which.clone(),
        (None, Which::Tag(tag)) => Which::Tag(tag.clone()),
        (None, Which::Digest(_)) => Which::Digest(digest.clone()),
    };
    let before = to.head(&to_which).await?;
    let mut all = walk::all(from, image, notes).await?;
    let blobs = stream::iter(all.blobs.clone());
    let copying = blobs.map(async |blob: Descriptor| copy(from, to, &blob, notes).await);
    let copied: Vec<u64> = copying.buffer_unordered(PARALLEL).try_collect().await?;
    let image = all.documents.pop();
    for document in &all.documents {
        to.put(&Which::Digest(document.descriptor.digest.clone()), document)
            .await?;
    }
    if let Some(image) = &image {
        to.put_last(&to_which, image, before.as_ref()).await?;
    }
    if which.tag().is_some() && from.head(which).await?.as_ref() != Some(&digest) {
        notes(&format!(
            "{} has moved meanwhile: {digest}, as it was before, was copied",
            from.name(which)
        ));
    }
    Ok(Mirrored {
        reference: to.name(&to_which),
        digest,
        manifests: all.documents.len() + 1,
        blobs: all.blobs.len(),
        copied: copied.iter().filter(|bytes| **bytes > 0).count(),
        bytes: copied.iter().sum(),
    })
}

/// Copies a blob that is not there yet. Returns the number of bytes copied.
async fn copy(from: &Place, to: &Place, blob: &Descriptor, notes: &Notes) -> Result<u64, Failure> {
    if to.has(blob).await? || to.mount(blob, from).await? {
        return Ok(0);
    }
    to.write(blob, &Blob { place: from, blob }).await?;
    notes(&format!("copied {} ({} bytes)", blob.digest, blob.size));
    Ok(blob.size)
}
