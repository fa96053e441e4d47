//! Reads the manifest of an image of a set, and checks that what it names is there. It reads S3 and writes nothing.

use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use kiln_records::{
    ArtifactKind, Link,
    arch::Arch,
    set::{ImageFile, Proof, name::check_name},
};
use sha2::{Digest, Sha256};

use super::{
    ArtifactStore, ReadError, Unusable,
    linked::{Listed, listed},
};

/// The most objects of one image: each is asked for.
const MOST_FILES: usize = 64;

/// The number of objects asked for at the same time, for one image.
const PARALLEL: usize = 8;

/// The name of the manifest among the files of an image.
pub const MANIFEST: &str = "manifest.json";

impl ArtifactStore {
    /// Reads the manifest that an image's link names, and asks for each object in it.
    ///
    /// # Errors
    ///
    /// When the manifest is not valid, or one for another architecture; when an object is not there, or has another size;
    /// or when S3 gives no answer.
    pub async fn prove(&self, link: &Link, arch: Arch) -> Result<Proof, Unusable> {
        let text = self.manifest_text(link).await?;
        let (listed, named) = listed(link, &text)?;
        let malformed = |cause: String| Unusable::Malformed {
            path: link.path.clone(),
            cause,
        };
        if let Some(named) = named.filter(|named| named.as_str() != Some(arch.name())) {
            return Err(malformed(format!("it is one for {named}, not for {arch}")));
        }
        if listed.len() > MOST_FILES {
            return Err(malformed(format!(
                "it names {} objects; at most {MOST_FILES} are looked at",
                listed.len()
            )));
        }
        // Owned paths, since the checks run side by side.
        let objects: Vec<(String, Option<u64>)> =
            listed.iter().map(|object| (object.path.clone(), object.size)).collect();
        let checks = objects
            .into_iter()
            .map(|(path, size)| async move { self.must_have(&path, size).await });
        stream::iter(checks)
            .buffer_unordered(PARALLEL)
            .try_collect::<()>()
            .await?;
        Ok(Proof {
            path: link.path.clone(),
            sha256: hex::encode(Sha256::digest(&text)),
            files: files(listed),
        })
    }

    /// A URL that lets anyone read an object that a record names, for that long.
    ///
    /// # Errors
    ///
    /// When the object may not be named, or the URL cannot be made.
    pub async fn presign_linked(&self, path: &str, valid: Duration) -> Result<String, Unusable> {
        let (bucket, key) = self.place(path)?;
        Ok(self.presign_get(bucket, key, valid).await?)
    }

    /// A small object that a record names; `None` if it does not exist or may not be read.
    ///
    /// # Errors
    ///
    /// When it is not smaller than `limit` bytes, or S3 gives no answer.
    pub async fn read_linked(&self, path: &str, limit: usize) -> Result<Option<Bytes>, ReadError> {
        match self.place(path) {
            Ok((bucket, key)) => self.read_small(bucket, key, limit).await,
            Err(_) => Ok(None),
        }
    }

    /// Checks that an object is there, and has this size if one is given.
    async fn must_have(&self, path: &str, size: Option<u64>) -> Result<(), Unusable> {
        let (bucket, key) = self.place(path)?;
        match (self.size(bucket, key).await?, size) {
            (None, _) => Err(Unusable::Missing(path.to_owned())),
            (Some(found), Some(size)) if found != size => Err(Unusable::Malformed {
                path: path.to_owned(),
                cause: format!("the object has {found} bytes, the manifest says {size}"),
            }),
            (Some(_), _) => Ok(()),
        }
    }
}

/// The files with their names in addresses. An object without a name that an address can have is left out.
fn files(listed: Vec<Listed>) -> Vec<ImageFile> {
    let mut files: Vec<ImageFile> = Vec::new();
    for object in listed {
        let Some(name) = name(&object) else { continue };
        if name != MANIFEST && files.iter().all(|known| known.name != name) {
            files.push(ImageFile {
                name,
                media_type: object.media_type,
                path: object.path,
                sha256: object.sha256,
                size: object.size,
            });
        }
    }
    files
}

/// The name that Kiln gives to objects of this kind, or else the last part of the key.
fn name(object: &Listed) -> Option<String> {
    let known = [
        ArtifactKind::Rootfs,
        ArtifactKind::Kernel,
        ArtifactKind::Initrd,
        ArtifactKind::BootParameters,
    ];
    let kind = known.into_iter().find(|kind| object.media_type == kind.media_type());
    let last = || object.path.rsplit('/').next().unwrap_or_default();
    let name = kind.map_or_else(last, |kind| kind.key_name());
    check_name(name).is_ok().then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn files_have_names_for_addresses() {
        let object = |media_type: &str, path: &str| json!({"type": media_type, "link": {"path": path, "etag": "", "type": "s3"}, "size": 3});
        let manifest = json!({"version": "1.0", "arch": "aarch64", "artifacts": [
            object("application/vnd.cray.image.rootfs.squashfs", "s3://boot-images/x/root.sqfs"),
            object("application/vnd.cray.image.kernel", "s3://boot-images/x/Image"),
            object("application/vnd.cray.image.kernel", "s3://boot-images/x/second"),
            object("text/plain", "s3://boot-images/x/notes.txt"),
            object("text/plain", "s3://boot-images/x/<b>"),
            object("text/plain", "s3://boot-images/x/manifest.json"),
        ]});
        let link = Link::s3("boot-images", "x/manifest.json", "");
        let (found, arch) = listed(&link, manifest.to_string().as_bytes()).unwrap();
        assert_eq!(arch, Some(json!("aarch64")));
        let files = files(found);
        let names: Vec<_> = files
            .iter()
            .map(|file| (file.name.as_str(), file.path.as_str()))
            .collect();
        assert_eq!(
            names,
            [
                ("rootfs", "s3://boot-images/x/root.sqfs"),
                ("kernel", "s3://boot-images/x/Image"),
                ("notes.txt", "s3://boot-images/x/notes.txt"),
            ]
        );
    }
}
