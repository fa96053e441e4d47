//! Finds all that belongs to an image: what it consists of, and what refers to it. Reads manifests only.
//!
//! Whoever writes to a repository decides what refers to what, so the search has limits, and each document is read once
//! however many others name it.

use std::collections::{HashMap, HashSet};

use kiln_records::{Code, Failure};

use crate::{
    Notes,
    digest::Digest,
    model::{Descriptor, Document, MAX_MANIFEST, media},
    place::Place,
    reference::Which,
    remote::Found,
};

/// How deeply indexes and referrers may be nested.
const MAX_DEPTH: usize = 12;

/// The most manifests.
const MAX_MANIFESTS: usize = 10_000;

/// The most bytes of manifests together, which are kept in memory.
const MAX_BYTES: usize = 256 << 20;

/// All that belongs to an image.
#[derive(Debug, Default)]
pub struct All {
    /// Manifests and indexes, each after those that it names. The image itself is the last one.
    pub documents: Vec<Found>,
    /// Blobs, each once.
    pub blobs: Vec<Descriptor>,
}

struct Search<'a> {
    place: &'a Place,
    notes: &'a Notes,
    all: All,
    /// Digests of documents that were looked at, or are being looked at.
    seen: HashSet<Digest>,
    blobs: HashMap<Digest, u64>,
    bytes: usize,
}

/// Work that is left.
enum Task {
    /// A document, with what it has to refer to.
    Visit(Descriptor, Option<Digest>, usize),
    /// A document whose parts are done.
    Add(Found),
}

/// Finds all that belongs to `image`.
pub async fn all(place: &Place, image: Found, notes: &Notes) -> Result<All, Failure> {
    let mut search = Search {
        place,
        notes,
        all: All::default(),
        seen: HashSet::new(),
        blobs: HashMap::new(),
        bytes: 0,
    };
    search.seen.insert(image.descriptor.digest.clone());
    let mut tasks = search.open(image, None, 0).await?;
    while let Some(task) = tasks.pop() {
        match task {
            Task::Add(found) => search.all.documents.push(found),
            Task::Visit(descriptor, subject, depth) => {
                if search.seen.insert(descriptor.digest.clone()) {
                    tasks.extend(search.visit(descriptor, subject, depth).await?);
                }
            }
        }
    }
    Ok(search.all)
}

impl Search<'_> {
    async fn visit(&mut self, entry: Descriptor, subject: Option<Digest>, depth: usize) -> Result<Vec<Task>, Failure> {
        let which = Which::Digest(entry.digest.clone());
        let is_known = media::MANIFESTS.contains(&entry.media_type.as_str());
        let found = match self.place {
            // In a directory, a document that is not understood is told from a blob by its looks only.
            Place::Layout(_) if !is_known && entry.size > MAX_MANIFEST as u64 => None,
            place => place.manifest(&which, Some(&entry.media_type)).await?,
        };
        let is_blob = match (&found, self.place) {
            (None, _) => !is_known,
            (Some(found), Place::Layout(_)) => !is_known && !found.bytes.starts_with(b"{"),
            (Some(_), Place::Remote(_)) => false,
        };
        if is_blob && self.place.has(&entry).await? {
            // An index may name anything.
            self.blob(&entry)?;
            return Ok(Vec::new());
        }
        let Some(found) = found else {
            let name = self.place.name(&which);
            if let Some(subject) = subject {
                (self.notes)(&format!(
                    "{name} is listed as referring to {subject}, and is not there: it is left out"
                ));
                return Ok(Vec::new());
            }
            return Err(Failure::new(
                Code::RegistryMissing,
                format!("{name} belongs to the image, and is not there"),
            )
            .hint("the image is incomplete: publish or mirror it again"));
        };
        if found.descriptor.size != entry.size {
            return Err(Failure::new(
                Code::RegistryDigest,
                format!(
                    "{} has {} bytes, and is named with {}",
                    self.place.name(&which),
                    found.descriptor.size,
                    entry.size
                ),
            ));
        }
        self.open(found, subject, depth).await
    }

    /// The work that a document makes.
    async fn open(&mut self, found: Found, subject: Option<Digest>, depth: usize) -> Result<Vec<Task>, Failure> {
        let which = Which::Digest(found.descriptor.digest.clone());
        let name = self.place.name(&which);
        let too_much = |what: &str| {
            Err(Failure::new(Code::RegistryGraph, format!("{name}: {what}"))
                .hint("copy the images that the index names one by one, by their digests"))
        };
        if depth > MAX_DEPTH {
            return too_much("images and what refers to them are nested too deeply");
        }
        self.bytes += found.bytes.len();
        if self.seen.len() > MAX_MANIFESTS || self.bytes > MAX_BYTES {
            return too_much("too much belongs to the image");
        }
        let document = Document::parse(&found.descriptor.media_type, &found.bytes)
            .map_err(|why| Failure::new(Code::RegistryAnswer, format!("{name} cannot be understood: {why}")))?;
        if let Some(subject) = subject
            && document.subject().is_none_or(|named| named.digest != subject)
        {
            (self.notes)(&format!(
                "{name} is listed as referring to {subject}, and does not: it is left out"
            ));
            return Ok(Vec::new());
        }
        let digest = found.descriptor.digest.clone();
        let mut tasks = vec![Task::Add(found)];
        let referrers = self.place.referrers(&digest).await?;
        self.bytes += referrers.bytes;
        if self.bytes > MAX_BYTES {
            return too_much("too much is said to refer to it");
        }
        for referrer in referrers.entries {
            tasks.push(Task::Visit(referrer, Some(digest.clone()), depth + 1));
        }
        match document {
            Document::Index(index) => {
                let entries = index.manifests.into_iter().rev();
                tasks.extend(entries.map(|entry| Task::Visit(entry, None, depth + 1)));
            }
            Document::Manifest(manifest) => {
                for blob in std::iter::once(&manifest.config).chain(&manifest.layers) {
                    self.blob(blob)?;
                }
            }
            Document::Other => {}
        }
        Ok(tasks)
    }

    fn blob(&mut self, blob: &Descriptor) -> Result<(), Failure> {
        match self.blobs.insert(blob.digest.clone(), blob.size) {
            None => self.all.blobs.push(blob.clone()),
            Some(size) if size != blob.size => {
                return Err(Failure::new(
                    Code::RegistryDigest,
                    format!(
                        "{} is named with {size} bytes and with {} bytes",
                        blob.digest, blob.size
                    ),
                ));
            }
            Some(_) => {}
        }
        Ok(())
    }
}
