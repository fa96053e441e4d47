//! Describes what a name stands for: platforms, digests, sizes, and what refers to it. Reads a place.

use kiln_records::Failure;
use serde::Serialize;

use crate::{
    digest::Digest,
    model::{Config, Descriptor, Document, MAX_CONFIG, Manifest, media},
    place::Place,
    reference::Which,
    refusal,
};

/// The most entries whose own manifests are read. The others are listed as the index describes them.
const MAX_READ: usize = 100;

/// What a name stands for.
#[derive(Debug, Clone, Serialize)]
pub struct Inspected {
    /// The name.
    pub reference: String,
    /// Its digest.
    pub digest: Digest,
    /// Its media type.
    pub media_type: String,
    /// `index`, `image`, `artifact` or `unknown`.
    pub kind: Kind,
    /// The images in it, or itself.
    pub entries: Vec<Entry>,
}

/// A kind of document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Images of several platforms.
    Index,
    /// An image.
    Image,
    /// Anything else with a manifest.
    Artifact,
    /// A document that is not understood.
    Unknown,
}

impl Kind {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Image => "image",
            Self::Artifact => "artifact",
            Self::Unknown => "unknown",
        }
    }
}

/// One image or artifact.
#[derive(Debug, Clone, Serialize)]
pub struct Entry {
    /// What it is, if that was looked at.
    pub kind: Kind,
    /// Its platform, such as `linux/arm64/v8`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// The kind of an artifact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// Its media type.
    pub media_type: String,
    /// Its digest.
    pub digest: Digest,
    /// Bytes of all that it consists of, as stored; none if that was not looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The names of an artifact's files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// What refers to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub referrers: Vec<Entry>,
}

/// Describes what a name stands for.
///
/// # Errors
///
/// It cannot be read, or contradicts itself.
pub async fn inspect(place: &Place, which: Option<&Which>) -> Result<Inspected, Failure> {
    let only = place.only()?;
    let which = which.or(only.as_ref()).ok_or_else(no_tag)?;
    let found = place.must_have(which).await?;
    let name = place.name(which);
    let document = parse(&name, &found.descriptor.media_type, &found.bytes)?;
    let (kind, entries) = match document {
        Document::Index(index) => {
            let mut entries = Vec::new();
            for (number, entry) in index.manifests.iter().enumerate() {
                entries.push(describe(place, entry, number < MAX_READ, true).await?);
            }
            (Kind::Index, entries)
        }
        Document::Manifest(manifest) => {
            let entry = of_manifest(place, &found.descriptor, &manifest, true).await?;
            (entry.kind, vec![entry])
        }
        Document::Other => (Kind::Unknown, Vec::new()),
    };
    Ok(Inspected {
        reference: name,
        digest: found.descriptor.digest,
        media_type: found.descriptor.media_type,
        kind,
        entries,
    })
}

/// The failure for a name without tag and digest.
pub(crate) fn no_tag() -> Failure {
    Failure::new(
        kiln_records::Code::RegistryReference,
        "the name has neither a tag nor a digest",
    )
    .hint("add `:TAG` or `@sha256:…`")
}

pub(crate) fn parse(name: &str, media_type: &str, bytes: &[u8]) -> Result<Document, Failure> {
    Document::parse(media_type, bytes).map_err(|why| refusal::senseless(name, "cannot be understood", why))
}

async fn describe(place: &Place, entry: &Descriptor, to_read: bool, with_referrers: bool) -> Result<Entry, Failure> {
    let plain = Entry {
        kind: Kind::Unknown,
        platform: entry.platform.as_ref().map(ToString::to_string),
        artifact_type: entry.artifact_type.clone(),
        media_type: entry.media_type.clone(),
        digest: entry.digest.clone(),
        size: None,
        files: Vec::new(),
        referrers: Vec::new(),
    };
    if !to_read || !media::MANIFESTS.contains(&entry.media_type.as_str()) {
        return Ok(plain);
    }
    let which = Which::Digest(entry.digest.clone());
    let Some(found) = place.manifest(&which, Some(&entry.media_type)).await? else {
        return Ok(plain);
    };
    match parse(&place.name(&which), &entry.media_type, &found.bytes)? {
        Document::Manifest(manifest) => {
            let mut described = of_manifest(place, entry, &manifest, with_referrers).await?;
            described.platform = plain.platform.or(described.platform);
            Ok(described)
        }
        // An index in an index: its own entries are shown when it is inspected itself.
        Document::Index(_) => Ok(Entry {
            kind: Kind::Index,
            ..plain
        }),
        Document::Other => Ok(plain),
    }
}

async fn of_manifest(
    place: &Place,
    descriptor: &Descriptor,
    manifest: &Manifest,
    with_referrers: bool,
) -> Result<Entry, Failure> {
    let is_image = manifest.is_image();
    let platform = match &descriptor.platform {
        Some(platform) => Some(platform.to_string()),
        None if is_image => Some(config(place, manifest).await?.platform.to_string()),
        None => None,
    };
    let mut referrers = Vec::new();
    if with_referrers {
        for referrer in place.referrers(&descriptor.digest).await?.entries.iter().take(MAX_READ) {
            referrers.push(Box::pin(describe(place, referrer, true, false)).await?);
        }
    }
    let blobs = manifest.layers.iter().map(|layer| layer.size);
    let title = |layer: &Descriptor| layer.annotation("org.opencontainers.image.title").map(str::to_owned);
    Ok(Entry {
        kind: if is_image { Kind::Image } else { Kind::Artifact },
        platform,
        artifact_type: manifest.artifact_kind().map(str::to_owned),
        media_type: descriptor.media_type.clone(),
        digest: descriptor.digest.clone(),
        size: Some(blobs.fold(manifest.config.size, u64::saturating_add)),
        files: manifest.layers.iter().filter_map(title).collect(),
        referrers,
    })
}

/// The configuration of an image.
pub(crate) async fn config(place: &Place, manifest: &Manifest) -> Result<Config, Failure> {
    let bytes = place.small(&manifest.config, MAX_CONFIG).await?;
    serde_json::from_slice(&bytes).map_err(|why| {
        refusal::senseless(
            manifest.config.digest.as_str(),
            "cannot be understood as a configuration",
            why,
        )
    })
}
