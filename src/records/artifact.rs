//! The artifacts of an image: their kinds, names and digests (IMS contract: media types and key names). Pure: no I/O.

use md5::{Digest as _, Md5};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// The kind of an image's object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArtifactKind {
    /// The root file system as squashfs.
    Rootfs,
    /// The kernel.
    Kernel,
    /// The initial RAM disk.
    Initrd,
    /// The kernel parameters, one text file.
    BootParameters,
    /// The container image: a tar archive of an OCI image layout. Kiln's own.
    Container,
    /// The packages of the root, as an SPDX document. Kiln's own.
    Spdx,
    /// The packages of the root, as a CycloneDX document. Kiln's own.
    CycloneDx,
    /// The whole log of the build, zstd-compressed. Kiln's own; not named by the manifest.
    Log,
}

impl ArtifactKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Rootfs,
        Self::Kernel,
        Self::Initrd,
        Self::BootParameters,
        Self::Container,
        Self::Spdx,
        Self::CycloneDx,
        Self::Log,
    ];

    /// The last part of the object's key: `<image id>/<key name>`.
    pub const fn key_name(self) -> &'static str {
        match self {
            ArtifactKind::Rootfs => "rootfs",
            ArtifactKind::Kernel => "kernel",
            ArtifactKind::Initrd => "initrd",
            ArtifactKind::BootParameters => "boot_parameters",
            ArtifactKind::Container => "container.tar",
            ArtifactKind::Spdx => "sbom.spdx.json",
            ArtifactKind::CycloneDx => "sbom.cdx.json",
            ArtifactKind::Log => "build.log.zst",
        }
    }

    /// The media type in manifest.json.
    pub const fn media_type(self) -> &'static str {
        match self {
            ArtifactKind::Rootfs => "application/vnd.cray.image.rootfs.squashfs",
            ArtifactKind::Kernel => "application/vnd.cray.image.kernel",
            ArtifactKind::Initrd => "application/vnd.cray.image.initrd",
            ArtifactKind::BootParameters => "application/vnd.cray.image.parameters.boot",
            ArtifactKind::Container => "application/vnd.kiln.container.oci-archive.v1+tar",
            ArtifactKind::Spdx => "application/spdx+json",
            ArtifactKind::CycloneDx => "application/vnd.cyclonedx+json",
            ArtifactKind::Log => "application/zstd",
        }
    }
}

/// Size and digests of one object, computed while it was read for upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digests {
    /// Bytes.
    pub size: u64,
    /// SHA-256, lower-case hexadecimal.
    pub sha256: String,
    /// MD5, lower-case hexadecimal; IMS clients check this one.
    pub md5: String,
}

/// An open upload of one artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upload {
    /// The kind of artifact.
    pub kind: ArtifactKind,
    /// The target bucket.
    pub bucket: String,
    /// The target key.
    pub key: String,
    /// S3's name for the upload.
    pub id: String,
    /// Size of the whole object, in bytes.
    pub size: u64,
    /// Size of every part but the last, in bytes.
    pub part_size: u64,
}

impl Upload {
    /// The number of parts. An empty object has one, also empty.
    pub fn parts(&self) -> u64 {
        self.size.div_ceil(self.part_size).max(1)
    }

    /// Bytes of a part; `number` is from 1. There are none beyond the last part.
    pub fn size_of_part(&self, number: u32) -> u64 {
        let before = u64::from(number).saturating_sub(1).saturating_mul(self.part_size);
        self.size.saturating_sub(before).min(self.part_size)
    }
}

/// Computes size and digests of a stream of bytes.
#[derive(Debug, Default)]
pub struct Digesting {
    size: u64,
    sha256: Sha256,
    md5: Md5,
}

impl Digesting {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.size += bytes.len() as u64;
        self.md5.update(bytes);
        self.sha256.update(bytes);
    }

    /// The number of bytes so far.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The size and digests of all bytes.
    pub fn finish(self) -> Digests {
        Digests {
            size: self.size,
            sha256: hex::encode(self.sha256.finalize()),
            md5: hex::encode(self.md5.finalize()),
        }
    }
}

/// An object that is in S3 and was verified there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadedArtifact {
    /// Its kind.
    pub kind: ArtifactKind,
    /// Its bucket.
    pub bucket: String,
    /// Its key.
    pub key: String,
    /// The entity tag that S3 reports, without quotes.
    pub etag: String,
    /// Size and digests of the uploaded bytes.
    pub digests: Digests,
}

impl UploadedArtifact {
    /// Its location: `s3://bucket/key`.
    pub fn path(&self) -> String {
        format!("s3://{}/{}", self.bucket, self.key)
    }
}
