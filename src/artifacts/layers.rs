//! Layers: the roots of recipes as they were after their packages, kept between jobs. A layer is an object named by its
//! SHA-256; a small object beside it, named by the key of everything the layer depends on, leads to it. Such objects lead to whole
//! images, too. Talks to S3 only.
//!
//! A reader checks the digest. What is missing, damaged or of another size is no layer, and is made anew.

use kiln_records::{DigestKind, PackageDigest};
use std::time::Duration;

use jiff::Timestamp;
use kiln_records::{
    ArtifactKind, Code, Digests, Failure, ImageId, Installed, Link, RepositoryState, UploadedArtifact, Warnings,
    protocol::{FoundLayer, ObjectSource, PackageFile, PackageUrl},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    ArtifactStore,
    manifest::{MAX_SIZE, Manifest},
    packages::oldest,
    store::{Copied, Head, ObjectInfo, ReadError},
};

/// The key prefix of all that belongs to layers, in the bucket for recipes.
const PREFIX: &str = "layers/";

/// The largest layer, in bytes: that of one PUT in S3.
pub const LARGEST: u64 = 5 << 30;

/// The most bytes of an entry, which has a few hundred; each script of a package that has failed makes it longer.
const LARGEST_ENTRY: usize = 128 << 10;

/// What leads from a key to its layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerEntry {
    /// The layer's SHA-256, hexadecimal.
    pub sha256: String,
    /// Its size in bytes.
    pub size: u64,
    /// Files that each root must have of its own, and that are not in the layer.
    pub anew: Vec<String>,
    /// What rpm said of scripts of its packages that have failed.
    pub failed_scripts: Vec<String>,
    /// Whether the packages in it are known, and stored beside it.
    #[serde(default)]
    pub has_installed: bool,
}

/// What leads from a key without packages to the key of the latest layer of such a recipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SimilarEntry {
    key: String,
}

/// What leads from a key to an image, together with the inputs that have to be looked at again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageEntry {
    /// The image.
    pub image: ImageId,
    /// Its repositories, as they were.
    pub repositories: Vec<RepositoryState>,
    /// Whether the packages in it are known, and stored beside this.
    pub has_installed: bool,
    /// What its job warned of.
    #[serde(default)]
    pub warnings: Warnings,
}

/// What leads from an image to the layer that its build kept or reused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerOfImage {
    /// The key of everything that the layer depends on but the repositories.
    pub without_repositories: String,
    /// The layer's key.
    pub key: String,
}

fn of_image(image: ImageId) -> String {
    format!("{PREFIX}of/{image}.json")
}

fn entry_of(key: &str) -> String {
    format!("{PREFIX}keys/{key}.json")
}

fn similar_of(key: &str) -> String {
    format!("{PREFIX}similar/{key}.json")
}

fn image_entry_of(key: &str) -> String {
    format!("{PREFIX}images/{key}.json")
}

/// The packages of a key, not of a layer: two keys may lead to equal roots.
fn installed_of(key: &str) -> String {
    format!("{PREFIX}installed/{key}.json.zst")
}

fn data_of(sha256: &str) -> String {
    format!("{PREFIX}data/{sha256}")
}

impl ArtifactStore {
    /// The layer of a key, if it is all there.
    ///
    /// # Errors
    ///
    /// S3 does not answer.
    pub async fn find_layer(&self, key: &str, valid: Duration) -> Result<Option<FoundLayer>, Failure> {
        let bucket = self.recipes_bucket();
        let Some(entry) = self.entry::<LayerEntry>(&entry_of(key)).await? else {
            return Ok(None);
        };
        let data = data_of(&entry.sha256);
        if self.size(bucket, &data).await? != Some(entry.size) {
            return Ok(None);
        }
        let mut installed = None;
        if entry.has_installed {
            installed = self.read_packed(&installed_of(key)).await.ok().flatten();
            // Without what was known of it, it is made anew.
            if installed.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(FoundLayer {
            layer: Some(ObjectSource {
                url: self.presign_get(bucket, &data, valid).await?,
                size: entry.size,
                md5: None,
                sha256: Some(entry.sha256),
            }),
            anew: entry.anew,
            failed_scripts: entry.failed_scripts,
            installed,
            ..FoundLayer::default()
        }))
    }

    /// The latest layer of a key without packages, if it is all there, and its packages are known.
    ///
    /// # Errors
    ///
    /// S3 does not answer.
    pub async fn find_similar_layer(&self, key: &str, valid: Duration) -> Result<Option<FoundLayer>, Failure> {
        let Some(entry) = self.entry::<SimilarEntry>(&similar_of(key)).await? else {
            return Ok(None);
        };
        let found = self.find_layer(&entry.key, valid).await?;
        Ok(found.filter(|found| found.installed.is_some()).map(|found| FoundLayer {
            is_similar: true,
            ..found
        }))
    }

    /// Leads a key without packages to a layer.
    ///
    /// # Errors
    ///
    /// S3 does not answer.
    pub async fn note_similar_layer(&self, without_packages: &str, key: &str) -> Result<(), Failure> {
        let entry = SimilarEntry { key: key.to_owned() };
        self.put_entry(&similar_of(without_packages), &entry).await
    }

    /// Leads a key to a layer, which may not be there yet, and to the packages in it. Returns where to put it.
    ///
    /// # Errors
    ///
    /// `upload_invalid` for one that is too large or has no SHA-256; S3 does not answer.
    pub async fn keep_layer(
        &self,
        key: &str,
        entry: &LayerEntry,
        installed: Option<&Installed>,
        valid: Duration,
    ) -> Result<PackageUrl, Failure> {
        let digest = PackageDigest::parse(&entry.sha256).filter(|digest| digest.kind() == DigestKind::Sha256);
        let file = PackageFile {
            digest: digest.ok_or_else(|| Failure::new(Code::UploadInvalid, "a layer without a SHA-256"))?,
            size: entry.size,
        };
        let url = self.shared_url(&data_of(""), LARGEST, file, valid).await?;
        // Before the entry, which says that it is there.
        if let Some(installed) = installed {
            self.put_packed(&installed_of(key), installed).await?;
        }
        self.put_entry(&entry_of(key), entry).await?;
        Ok(url)
    }

    /// The layer of an image's build, if it had one.
    ///
    /// # Errors
    ///
    /// S3 does not answer.
    pub async fn layer_of_image(&self, image: ImageId) -> Result<Option<LayerOfImage>, Failure> {
        self.entry(&of_image(image)).await
    }

    /// Leads an image to the layer of its build.
    ///
    /// # Errors
    ///
    /// S3 does not answer.
    pub async fn note_layer_of_image(&self, image: ImageId, layer: &LayerOfImage) -> Result<(), Failure> {
        self.put_entry(&of_image(image), layer).await
    }

    /// The image of a key, if one is noted, and its packages, if they are known.
    ///
    /// # Errors
    ///
    /// S3 does not answer.
    pub async fn find_image(&self, key: &str) -> Result<Option<(ImageEntry, Option<Installed>)>, Failure> {
        let Some(entry) = self.entry::<ImageEntry>(&image_entry_of(key)).await? else {
            return Ok(None);
        };
        if !entry.has_installed {
            return Ok(Some((entry, None)));
        }
        // Without what was known of it, it is made anew.
        let installed = self.read_packed(&installed_of(key)).await.ok().flatten();
        Ok(installed.map(|installed| (entry, Some(installed))))
    }

    /// Leads a key to an image, and to the packages in it.
    ///
    /// # Errors
    ///
    /// S3 does not answer.
    pub async fn keep_image(
        &self,
        key: &str,
        entry: &ImageEntry,
        installed: Option<&Installed>,
    ) -> Result<(), Failure> {
        if let Some(installed) = installed {
            self.put_packed(&installed_of(key), installed).await?;
        }
        self.put_entry(&image_entry_of(key), entry).await
    }

    /// Copies all artifacts of the image with this manifest to the place of another one. `None` unless each of them is as the
    /// manifest has it: what was replaced, or is of a kind that no job makes, is not copied.
    ///
    /// # Errors
    ///
    /// S3 does not answer.
    pub async fn copy_image(&self, manifest: &Link, to: ImageId) -> Result<Option<Vec<UploadedArtifact>>, Failure> {
        let Some((bucket, key)) = self.own_place(&manifest.path) else {
            return Ok(None);
        };
        let is_as_noted = |head: &Head, etag: &str| !etag.is_empty() && head.etag == etag;
        if !self
            .head(bucket, key)
            .await?
            .is_some_and(|head| is_as_noted(&head, &manifest.etag))
        {
            return Ok(None);
        }
        let text = match self.read_small(bucket, key, MAX_SIZE).await {
            Ok(text) => text,
            Err(ReadError::TooLarge(_)) => None,
            Err(ReadError::S3(failure)) => return Err(failure),
        };
        let Some(manifest) = text.and_then(|text| Manifest::from_json(&text).ok()) else {
            return Ok(None);
        };
        let mut copies = Vec::with_capacity(manifest.artifacts.len());
        for artifact in manifest.artifacts {
            let kind = ArtifactKind::ALL
                .into_iter()
                .find(|kind| kind.media_type() == artifact.media_type);
            let place = self.own_place(&artifact.link.path);
            let (Some(kind), Some((bucket, key)), Some(md5), Some(sha256), Some(size)) =
                (kind, place, artifact.md5, artifact.sha256, artifact.size)
            else {
                return Ok(None);
            };
            let found = self.head(bucket, key).await?;
            if bucket != self.images_bucket()
                || !found.is_some_and(|head| head.size == size && is_as_noted(&head, &artifact.link.etag))
            {
                return Ok(None);
            }
            let copy = format!("{to}/{}", kind.key_name());
            let Copied::As(etag) = self.copy(bucket, key, &copy).await? else {
                return Ok(None);
            };
            copies.push(UploadedArtifact {
                kind,
                bucket: bucket.to_owned(),
                key: copy,
                etag,
                digests: Digests { size, sha256, md5 },
            });
        }
        Ok(Some(copies))
    }

    /// A small object. One that is not what it should be leads nowhere.
    async fn entry<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, Failure> {
        let text = match self.read_small(self.recipes_bucket(), key, LARGEST_ENTRY).await {
            Ok(text) => text,
            Err(ReadError::TooLarge(_)) => None,
            Err(ReadError::S3(failure)) => return Err(failure),
        };
        Ok(text.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    async fn put_entry(&self, key: &str, entry: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_vec(entry).map_err(|error| Failure::new(Code::Protocol, error))?;
        let put = self.put_bytes(self.recipes_bucket(), key, "application/json", text);
        put.await.map(drop)
    }

    /// What belongs to layers that were stored before a moment, and the oldest beyond a number of bytes in all.
    ///
    /// # Errors
    ///
    /// S3 fails.
    pub async fn old_layers(&self, before: Timestamp, bytes: u64) -> Result<Vec<ObjectInfo>, Failure> {
        Ok(oldest(self.list(self.recipes_bucket(), PREFIX).await?, before, bytes))
    }
}
