//! The documents of the OCI image specification: descriptors, manifests, indexes and configurations. Pure: no I/O.
//!
//! Maps are sorted, so that the same content always has the same bytes and the same digest. Members that are not known
//! here are skipped when a document is read; a document that is passed on keeps its own bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// The largest manifest or index, in bytes: what registries take at least, and what is read at most.
pub const MAX_MANIFEST: usize = 4 << 20;

/// The largest configuration of an image that is read.
pub const MAX_CONFIG: usize = 4 << 20;

/// Media types.
pub mod media {
    #![allow(missing_docs, reason = "the names are those of the specification")]

    pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
    pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    pub const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
    pub const LAYER_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
    pub const EMPTY: &str = "application/vnd.oci.empty.v1+json";
    pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
    pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
    pub const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";

    /// All kinds of manifests that are understood, in the order of preference.
    pub const MANIFESTS: [&str; 4] = [INDEX, MANIFEST, DOCKER_LIST, DOCKER_MANIFEST];
}

/// Annotations: sorted names and values.
pub type Annotations = BTreeMap<String, String>;

/// A reference to content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// Its media type.
    pub media_type: String,
    /// Its digest.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// The kind of an artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// The platform of an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// Its annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Annotations>,
}

impl Descriptor {
    /// A descriptor of these bytes.
    pub fn of(media_type: &str, bytes: &[u8]) -> Self {
        Self::new(media_type, Digest::of(bytes), bytes.len() as u64)
    }

    /// A descriptor without optional members.
    pub fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        Self {
            media_type: media_type.to_owned(),
            digest,
            size,
            artifact_type: None,
            platform: None,
            annotations: None,
        }
    }

    /// Adds an annotation.
    #[must_use]
    pub fn annotated(mut self, name: &str, value: impl Into<String>) -> Self {
        self.annotations
            .get_or_insert_default()
            .insert(name.to_owned(), value.into());
        self
    }

    /// The value of an annotation.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(name).map(String::as_str)
    }
}

/// The platform of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// The architecture, as Go names it.
    pub architecture: String,
    /// The operating system, as Go names it.
    pub os: String,
    /// The variant of the architecture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let variant = self.variant.as_deref();
        let text = match variant {
            Some(variant) => format!("{}/{}/{variant}", self.os, self.architecture),
            None => format!("{}/{}", self.os, self.architecture),
        };
        f.pad(&text)
    }
}

/// An index: images of several platforms under one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    /// Always 2.
    pub schema_version: u32,
    /// Its own media type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// The kind of an artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// Its entries.
    pub manifests: Vec<Descriptor>,
    /// What it refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Descriptor>,
    /// Its annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Annotations>,
}

impl Index {
    /// An index of these entries.
    pub fn new(manifests: Vec<Descriptor>) -> Self {
        Self {
            schema_version: 2,
            media_type: Some(media::INDEX.to_owned()),
            artifact_type: None,
            manifests,
            subject: None,
            annotations: None,
        }
    }
}

/// The manifest of an image or artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Always 2.
    pub schema_version: u32,
    /// Its own media type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// The kind of an artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// The configuration.
    pub config: Descriptor,
    /// The layers of an image, or the files of an artifact.
    pub layers: Vec<Descriptor>,
    /// What it refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Descriptor>,
    /// Its annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Annotations>,
}

impl Manifest {
    /// Whether it is an image that a container can be made of.
    pub fn is_image(&self) -> bool {
        matches!(self.config.media_type.as_str(), media::CONFIG | media::DOCKER_CONFIG)
    }

    /// The kind of an artifact: as it says, or else the type of its configuration.
    pub fn artifact_kind(&self) -> Option<&str> {
        if self.is_image() {
            return None;
        }
        Some(self.artifact_type.as_deref().unwrap_or(&self.config.media_type))
    }
}

/// The configuration of an image.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Config {
    /// When the image was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// The platform.
    #[serde(flatten)]
    pub platform: Platform,
    /// How containers are run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Run>,
    /// The layers.
    pub rootfs: Layers,
}

/// How containers of an image are run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Run {
    /// The environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<Vec<String>>,
    /// The beginning of the command line, which users rarely replace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    /// The rest of the command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmd: Option<Vec<String>>,
    /// The directory in which the command begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// Labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<Annotations>,
}

/// The layers of an image, uncompressed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Layers {
    /// Always `layers`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The digest of each.
    pub diff_ids: Vec<Digest>,
}

/// A document of a registry, as far as it is understood.
#[derive(Debug, Clone)]
pub enum Document {
    /// An index, or Docker's list of manifests.
    Index(Index),
    /// The manifest of an image or artifact.
    Manifest(Manifest),
    /// Something else, which is passed on and not interpreted.
    Other,
}

impl Document {
    /// Interprets bytes by their media type.
    ///
    /// # Errors
    ///
    /// The bytes are not what the media type says.
    pub fn parse(media_type: &str, bytes: &[u8]) -> Result<Self, String> {
        let unless_other = |own: Option<&String>| match own {
            // A document that can be read in two ways is read in none.
            Some(own) if own != media_type => Err(format!("it is announced as {media_type}, and calls itself {own}")),
            _ => Ok(()),
        };
        match media_type {
            media::INDEX | media::DOCKER_LIST => {
                let index: Index = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
                unless_other(index.media_type.as_ref())?;
                Ok(Self::Index(index))
            }
            media::MANIFEST | media::DOCKER_MANIFEST => {
                let manifest: Manifest = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
                unless_other(manifest.media_type.as_ref())?;
                Ok(Self::Manifest(manifest))
            }
            _ => Ok(Self::Other),
        }
    }

    /// What it refers to.
    pub fn subject(&self) -> Option<&Descriptor> {
        match self {
            Self::Index(index) => index.subject.as_ref(),
            Self::Manifest(manifest) => manifest.subject.as_ref(),
            Self::Other => None,
        }
    }
}

/// A document as bytes. Those of this module can always be written.
pub fn to_json(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(document).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_contradicts_itself_is_not_read() {
        let index = to_json(&Index::new(Vec::new()));
        assert!(matches!(Document::parse(media::INDEX, &index), Ok(Document::Index(_))));
        assert!(Document::parse(media::MANIFEST, &index).is_err());
        assert!(Document::parse(media::DOCKER_LIST, &index).is_err());
        assert!(matches!(Document::parse("text/html", &index), Ok(Document::Other)));
        let negative = index
            .escape_ascii()
            .to_string()
            .replace("[]", r#"[{"mediaType":"x","digest":"sha256:0","size":-1}]"#);
        assert!(Document::parse(media::INDEX, negative.replace('\\', "").as_bytes()).is_err());
    }
}
