//! `manifest.json` of an image, version 1.0: the list of its artifacts that boot services read. Reads other manifests
//! from S3; everything else here is pure.

use bytes::Bytes;
use jiff::Timestamp;
use kiln_records::{ArtifactKind, Code, Failure, Link, UploadedArtifact, arch::Arch};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ArtifactStore, Misplaced, ReadError};

/// The limit of services for a manifest, in bytes (1 MiB); a manifest must be smaller.
pub const MAX_SIZE: usize = 1_048_576;

/// The media type of a manifest object.
pub const MEDIA_TYPE: &str = "application/json";

const VERSION: &str = "1.0";

/// The whole document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// `1.0`.
    pub version: String,
    /// When it was written, UTC, `YYYY-mm-dd HH:MM:SS.ffffff`. For people; programs do not parse it.
    #[serde(default)]
    pub created: String,
    /// The image's architecture. Kiln's own member; manifests of others lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arch: Option<Arch>,
    /// The image's objects.
    pub artifacts: Vec<ManifestArtifact>,
}

/// An object of the image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ManifestArtifact {
    /// Its media type. Manifests made by other systems may have types that Kiln does not use.
    #[serde(rename = "type")]
    pub media_type: String,
    /// MD5, lower-case hexadecimal. Manifests made by other systems may lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub md5: Option<String>,
    /// SHA-256, lower-case hexadecimal. Kiln's addition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Size in bytes. Kiln's addition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Where it is.
    pub link: Link,
}

impl Manifest {
    /// The manifest of an image that consists of `artifacts`. Logs are left out: they are not part of the image.
    ///
    /// Fails with `manifest_invalid` unless there is exactly one root file system.
    pub fn new(artifacts: &[UploadedArtifact], arch: Arch, created: Timestamp) -> Result<Self, Failure> {
        let named = artifacts.iter().filter(|artifact| artifact.kind != ArtifactKind::Log);
        Self::of(named.map(ManifestArtifact::from).collect(), arch, created)
    }

    /// The manifest with these entries.
    ///
    /// Fails with `manifest_invalid` unless there is exactly one root file system.
    pub fn of(artifacts: Vec<ManifestArtifact>, arch: Arch, created: Timestamp) -> Result<Self, Failure> {
        let manifest = Self {
            version: VERSION.to_owned(),
            created: created.strftime("%Y-%m-%d %H:%M:%S%.6f").to_string(),
            arch: Some(arch),
            artifacts,
        };
        manifest.rootfs()?;
        Ok(manifest)
    }

    /// Parses and checks a manifest. Fails with `manifest_invalid`.
    pub fn from_json(text: &[u8]) -> Result<Self, Failure> {
        if text.len() >= MAX_SIZE {
            return Err(invalid(format_args!(
                "it has {} bytes, allowed are less than {MAX_SIZE}",
                text.len()
            )));
        }
        let manifest: Self = serde_json::from_slice(text).map_err(invalid)?;
        if manifest.version != VERSION {
            return Err(invalid(format_args!(
                "version `{}` is not `{VERSION}`",
                manifest.version
            )));
        }
        manifest.rootfs()?;
        Ok(manifest)
    }

    /// The document as text. Fails with `manifest_invalid` when it is too large.
    pub fn to_json(&self) -> Result<Vec<u8>, Failure> {
        let text = serde_json::to_vec_pretty(self).map_err(invalid)?;
        if text.len() >= MAX_SIZE {
            return Err(invalid(format_args!(
                "it has {} bytes, allowed are less than {MAX_SIZE}",
                text.len()
            )));
        }
        Ok(text)
    }

    /// The only root file system. Fails with `manifest_invalid` unless there is exactly one.
    pub fn rootfs(&self) -> Result<&ManifestArtifact, Failure> {
        let rootfs = ArtifactKind::Rootfs.media_type();
        let mut found = self
            .artifacts
            .iter()
            .filter(|artifact| artifact.media_type.starts_with(rootfs));
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one),
            (None, _) => Err(invalid("it names no root file system")),
            (Some(_), Some(_)) => Err(invalid("it names more than one root file system")),
        }
    }
}

impl ArtifactStore {
    /// The entries of a manifest made by another program, each with the path that it names. The rest of the manifest
    /// is ignored; entries without a path are left out.
    ///
    /// Fails with `manifest_invalid` when it cannot be parsed.
    pub async fn manifest_entries(&self, link: &Link) -> Result<Vec<(String, Value)>, Failure> {
        self.manifest_with_entries(link).await.map(|(_, entries)| entries)
    }

    /// [`Self::manifest_entries`], and the bytes that they were read from.
    ///
    /// # Errors
    ///
    /// As for the entries alone.
    pub async fn manifest_with_entries(&self, link: &Link) -> Result<(Bytes, Vec<(String, Value)>), Failure> {
        let unusable = |cause: &str| Failure::new(Code::ManifestInvalid, format_args!("{} {cause}", link.path));
        let (bucket, key) = self.place(&link.path).map_err(|fault| match fault {
            Misplaced::Foreign(_) => unusable("is in a bucket that is not this server's"),
            Misplaced::NotAPath(_) => unusable("is no path in S3"),
        })?;
        let text = self.read_small(bucket, key, MAX_SIZE).await;
        let text = text.map_err(|error| match error {
            ReadError::TooLarge(_) => unusable("is too large"),
            ReadError::S3(failure) => failure,
        })?;
        let text = text.ok_or_else(|| unusable("cannot be found in S3"))?;
        let mut manifest: Value = serde_json::from_slice(&text).map_err(|_| unusable("is not JSON"))?;
        let Some(Value::Array(entries)) = manifest.get_mut("artifacts").map(Value::take) else {
            return Err(unusable("has no `artifacts`"));
        };
        let named = entries.into_iter().filter_map(|entry| {
            let path = entry.pointer("/link/path")?.as_str()?.to_owned();
            Some((path, entry))
        });
        Ok((text, named.collect()))
    }
}

impl From<&UploadedArtifact> for ManifestArtifact {
    fn from(artifact: &UploadedArtifact) -> Self {
        Self {
            media_type: artifact.kind.media_type().to_owned(),
            md5: Some(artifact.digests.md5.clone()),
            sha256: Some(artifact.digests.sha256.clone()),
            size: Some(artifact.digests.size),
            link: Link::s3(&artifact.bucket, &artifact.key, &artifact.etag),
        }
    }
}

fn invalid(cause: impl std::fmt::Display) -> Failure {
    Failure::new(
        Code::ManifestInvalid,
        format_args!("the image's manifest is not valid: {cause}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_records::Digests;

    fn artifact(kind: ArtifactKind) -> UploadedArtifact {
        UploadedArtifact {
            kind,
            bucket: "boot-images".to_owned(),
            key: format!("id/{}", kind.key_name()),
            etag: "5d41402abc4b2a76b9719d911017c592-2".to_owned(),
            digests: Digests {
                size: 7,
                sha256: "ab".repeat(32),
                md5: "cd".repeat(16),
            },
        }
    }

    #[test]
    fn has_the_form_that_others_read() {
        let created: Timestamp = "2026-02-03T04:05:06.070809Z".parse().unwrap();
        let manifest = Manifest::new(
            &[artifact(ArtifactKind::Rootfs), artifact(ArtifactKind::Log)],
            Arch::Aarch64,
            created,
        )
        .unwrap();
        insta::assert_snapshot!(String::from_utf8(manifest.to_json().unwrap()).unwrap(), @r#"
        {
          "version": "1.0",
          "created": "2026-02-03 04:05:06.070809",
          "arch": "aarch64",
          "artifacts": [
            {
              "type": "application/vnd.cray.image.rootfs.squashfs",
              "md5": "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd",
              "sha256": "abababababababababababababababababababababababababababababababab",
              "size": 7,
              "link": {
                "path": "s3://boot-images/id/rootfs",
                "etag": "5d41402abc4b2a76b9719d911017c592-2",
                "type": "s3"
              }
            }
          ]
        }
        "#);
        assert_eq!(Manifest::from_json(&manifest.to_json().unwrap()).unwrap(), manifest);
    }

    #[test]
    fn whole_seconds_keep_their_six_digits() {
        let manifest = Manifest::new(&[artifact(ArtifactKind::Rootfs)], Arch::X86_64, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(manifest.created, "1970-01-01 00:00:00.000000");
    }

    #[test]
    fn reads_a_manifest_made_by_others() {
        let text = br#"{"version": "1.0", "created": "2020-01-14 03:17:14.000000", "artifacts": [
            {"link": {"path": "s3://boot-images/a/rootfs", "etag": "x-131", "type": "s3"},
             "type": "application/vnd.cray.image.rootfs.squashfs", "md5": "0123"},
            {"link": {"path": "s3://other/k?versionId=1", "type": "s3"},
             "type": "application/vnd.cray.image.debug.kernel"}]}"#;
        let manifest = Manifest::from_json(text).unwrap();
        assert_eq!(manifest.rootfs().unwrap().sha256, None);
        assert_eq!(manifest.artifacts[1].link.etag, "");
        assert_eq!(
            manifest.artifacts[1].link.bucket_and_key(),
            Some(("other", "k?versionId=1"))
        );
    }

    #[test]
    fn wants_exactly_one_rootfs() {
        let none = Manifest::new(&[artifact(ArtifactKind::Kernel)], Arch::X86_64, Timestamp::UNIX_EPOCH).unwrap_err();
        assert_eq!(none.code, Code::ManifestInvalid);
        let two = [artifact(ArtifactKind::Rootfs), artifact(ArtifactKind::Rootfs)];
        assert!(Manifest::new(&two, Arch::X86_64, Timestamp::UNIX_EPOCH).is_err());
    }

    #[test]
    fn refuses_other_versions_and_stores() {
        assert!(Manifest::from_json(br#"{"version": "2.0", "artifacts": []}"#).is_err());
        let store = br#"{"version": "1.0", "artifacts": [{"type": "application/vnd.cray.image.rootfs.squashfs",
            "link": {"path": "s3://b/k", "type": "swift"}}]}"#;
        assert!(Manifest::from_json(store).is_err());
    }
}
