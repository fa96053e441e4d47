//! Checks the objects that records refer to: links and manifests. It reads S3 and writes nothing.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use kiln_records::{ArtifactKind, Failure, Link, link::bucket_and_key};
use serde_json::Value;

use super::{ArtifactStore, Misplaced, ReadError, manifest};

/// The number of objects checked in S3 at the same time, for one request.
const PARALLEL: usize = 8;

/// Why a link is unusable.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// It may not name this object.
    #[error(transparent)]
    Place(#[from] Misplaced),
    /// The object does not exist.
    #[error("{0} cannot be found in S3.")]
    Missing(String),
    /// The manifest is too large to be read.
    #[error(
        "The manifest {path} has {size} bytes; allowed are less than {}.",
        manifest::MAX_SIZE
    )]
    TooLarge {
        /// Its path.
        path: String,
        /// Its size.
        size: u64,
    },
    /// The manifest is malformed.
    #[error("The manifest {path} is not valid: {cause}.")]
    Malformed {
        /// Its path.
        path: String,
        /// The fault.
        cause: String,
    },
    /// The manifest does not name exactly one root file system.
    #[error("The manifest {path} {cause}.")]
    Rootfs {
        /// Its path.
        path: String,
        /// The fault.
        cause: &'static str,
    },
    /// S3 gives no answer.
    #[error(transparent)]
    S3(#[from] Failure),
}

/// The entry of one object in a manifest.
#[derive(Debug)]
pub struct Listed {
    /// Its path.
    pub path: String,
    /// Its MD5, lower-case hexadecimal, if the manifest has it.
    pub md5: Option<String>,
    /// Its SHA-256 likewise, which manifests written by other tools lack.
    pub sha256: Option<String>,
    /// Its media type.
    pub media_type: String,
    /// Its size in bytes, if the manifest has it.
    pub size: Option<u64>,
    is_rootfs: bool,
}

#[cfg(test)]
impl Listed {
    /// An entry with this digest and size.
    pub(crate) fn for_tests(path: &str, sha256: &str, size: u64) -> Self {
        Self {
            path: path.to_owned(),
            md5: None,
            sha256: Some(sha256.to_owned()),
            media_type: String::new(),
            size: Some(size),
            is_rootfs: false,
        }
    }
}

impl ArtifactStore {
    /// Checks that the object is in S3.
    ///
    /// # Errors
    ///
    /// When it is not, or S3 gives no answer.
    pub async fn must_exist(&self, path: &str) -> Result<(), Unusable> {
        let (bucket, key) = self.place(path)?;
        if self.exists(bucket, key).await? {
            Ok(())
        } else {
            Err(Unusable::Missing(path.to_owned()))
        }
    }

    /// Reads and checks the manifest that an image's link names, and all objects named in it. Returns all objects of
    /// the image, the manifest's path first.
    ///
    /// # Errors
    ///
    /// When the manifest is not valid (even where IMS accepts it), when an object does not exist, or when S3 gives no
    /// answer.
    pub async fn check_image(&self, link: &Link) -> Result<Vec<String>, Unusable> {
        let listed = self.read_manifest(link).await?;
        let mut objects = vec![link.path.clone()];
        objects.extend(listed.into_iter().map(|object| object.path));
        // Owned paths, since the checks run side by side.
        let checks = objects[1..]
            .iter()
            .cloned()
            .map(|path| async move { self.must_exist(&path).await });
        stream::iter(checks)
            .buffer_unordered(PARALLEL)
            .try_collect::<()>()
            .await?;
        Ok(objects)
    }

    /// Checks that a job can start from an image: its manifest is readable and its root file system is in S3.
    ///
    /// # Errors
    ///
    /// The same as for [`check_image`](Self::check_image).
    pub async fn check_rootfs(&self, link: &Link) -> Result<Listed, Unusable> {
        let listed = self.read_manifest(link).await?;
        let rootfs = listed.into_iter().find(|object| object.is_rootfs);
        let rootfs = rootfs.ok_or_else(|| Unusable::Rootfs {
            path: link.path.clone(),
            cause: Fault::NO_ROOTFS,
        })?;
        self.must_exist(&rootfs.path).await?;
        Ok(rootfs)
    }

    /// The entries of the manifest that an image's link names.
    ///
    /// # Errors
    ///
    /// When the manifest is not valid, or S3 gives no answer.
    pub async fn read_manifest(&self, link: &Link) -> Result<Vec<Listed>, Unusable> {
        self.read_whole_manifest(link).await.map(|(listed, _)| listed)
    }

    /// The entries of a manifest, and its bytes.
    pub(super) async fn read_whole_manifest(&self, link: &Link) -> Result<(Vec<Listed>, Bytes), Unusable> {
        let text = self.manifest_text(link).await?;
        Ok((listed(link, &text)?.0, text))
    }

    /// The bytes of the manifest that an image's link names.
    ///
    /// # Errors
    ///
    /// When it is too large or not there, or S3 gives no answer.
    pub async fn manifest_text(&self, link: &Link) -> Result<Bytes, Unusable> {
        let (bucket, key) = self.place(&link.path)?;
        let path = || link.path.clone();
        match self.read_small(bucket, key, manifest::MAX_SIZE).await {
            Ok(Some(text)) => Ok(text),
            Ok(None) => Err(Unusable::Missing(path())),
            Err(ReadError::TooLarge(size)) => Err(Unusable::TooLarge { path: path(), size }),
            Err(ReadError::S3(failure)) => Err(failure.into()),
        }
    }
}

/// The objects that a manifest names, and the architecture that it names, if it does.
pub(super) fn listed(link: &Link, text: &[u8]) -> Result<(Vec<Listed>, Option<Value>), Unusable> {
    let path = || link.path.clone();
    let malformed = |cause: String| Unusable::Malformed { path: path(), cause };
    let manifest: Value =
        serde_json::from_slice(text).map_err(|error| malformed(format!("it is not JSON: {error}")))?;
    let listed = check_manifest(&manifest).map_err(|fault| match fault {
        Fault::Malformed(cause) => malformed(cause),
        Fault::Rootfs(cause) => Unusable::Rootfs { path: path(), cause },
    })?;
    Ok((listed, manifest.get("arch").cloned()))
}

/// The fault in a manifest: IMS answers the two kinds with different statuses.
#[derive(Debug, PartialEq)]
enum Fault {
    Malformed(String),
    Rootfs(&'static str),
}

impl Fault {
    const NO_ROOTFS: &str = "names no root file system";
}

fn check_manifest(manifest: &Value) -> Result<Vec<Listed>, Fault> {
    let malformed = |cause: &str| Fault::Malformed(cause.to_owned());
    let Value::Object(members) = manifest else {
        return Err(malformed("it is not an object"));
    };
    match members.get("version") {
        None => return Err(malformed("it has no `version`")),
        Some(version) if version == "1.0" => {}
        Some(version) => return Err(Fault::Malformed(format!("version {version} is not \"1.0\""))),
    }
    let artifacts = members
        .get("artifacts")
        .ok_or_else(|| malformed("it has no `artifacts`"))?;
    let artifacts = artifacts
        .as_array()
        .ok_or_else(|| malformed("`artifacts` is not a list"))?;
    let artifacts: Vec<_> = artifacts
        .iter()
        .enumerate()
        .map(|(number, artifact)| check_artifact(number, artifact))
        .collect::<Result<_, _>>()?;
    match artifacts.iter().filter(|artifact| artifact.is_rootfs).count() {
        1 => Ok(artifacts),
        0 => Err(Fault::Rootfs(Fault::NO_ROOTFS)),
        _ => Err(Fault::Rootfs("names more than one root file system")),
    }
}

fn check_artifact(number: usize, artifact: &Value) -> Result<Listed, Fault> {
    let wrong = |cause: &str| Fault::Malformed(format!("artifact {number} {cause}"));
    let members = artifact.as_object().ok_or_else(|| wrong("is not an object"))?;
    let link = members.get("link").ok_or_else(|| wrong("has no `link`"))?;
    let link = link
        .as_object()
        .ok_or_else(|| wrong("has a `link` that is not an object"))?;
    match link.get("type") {
        None => return Err(wrong("has a link without `type`")),
        Some(store) if store == "s3" => {}
        Some(_) => return Err(wrong("has a link whose type is not `s3`")),
    }
    let path = link
        .get("path")
        .and_then(Value::as_str)
        .ok_or_else(|| wrong("has a link without `path`"))?;
    if bucket_and_key(path).is_none() {
        return Err(wrong("has a link that is not of the form s3://bucket/key"));
    }
    let media_type = members
        .get("type")
        .and_then(Value::as_str)
        .ok_or_else(|| wrong("has no `type`"))?;
    let digest = |name: &str| members.get(name).and_then(Value::as_str).map(str::to_lowercase);
    Ok(Listed {
        path: path.to_owned(),
        md5: digest("md5").filter(|md5| !md5.is_empty()),
        sha256: digest("sha256").filter(|sha256| !sha256.is_empty()),
        size: members.get("size").and_then(Value::as_u64),
        is_rootfs: media_type.starts_with(ArtifactKind::Rootfs.media_type()),
        media_type: media_type.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rootfs(path: &str) -> Value {
        json!({"type": "application/vnd.cray.image.rootfs.squashfs", "md5": "x",
               "link": {"path": path, "etag": "", "type": "s3"}})
    }

    fn fault(manifest: &Value) -> Fault {
        check_manifest(manifest).map(|artifacts| artifacts.len()).unwrap_err()
    }

    #[test]
    fn a_manifest_needs_exactly_one_root_file_system() {
        let one = rootfs("s3://bbb/r");
        assert_eq!(
            check_manifest(&json!({"version": "1.0", "artifacts": [one]})).map(|list| list.len()),
            Ok(1)
        );
        assert!(matches!(
            fault(&json!({"version": "1.0", "artifacts": []})),
            Fault::Rootfs(_)
        ));
        assert!(matches!(
            fault(&json!({"version": "1.0", "artifacts": [one, one]})),
            Fault::Rootfs(_)
        ));
    }

    #[test]
    fn every_fault_has_its_words() {
        let with = |artifact: Value| json!({"version": "1.0", "artifacts": [artifact]});
        for (manifest, words) in [
            (json!({}), "it has no `version`"),
            (json!([]), "it is not an object"),
            (json!({"version": "2.0"}), "version \"2.0\" is not \"1.0\""),
            (json!({"version": "1.0"}), "it has no `artifacts`"),
            (json!({"version": "1.0", "artifacts": {}}), "`artifacts` is not a list"),
            (with(json!(7)), "artifact 0 is not an object"),
            (with(json!({})), "artifact 0 has no `link`"),
            (with(json!({"link": {}})), "artifact 0 has a link without `type`"),
            (
                with(json!({"link": {"type": "swift"}})),
                "artifact 0 has a link whose type is not `s3`",
            ),
            (
                with(json!({"link": {"type": "s3"}})),
                "artifact 0 has a link without `path`",
            ),
            (
                with(json!({"link": {"type": "s3", "path": "x"}})),
                "artifact 0 has a link that is not of the form s3://bucket/key",
            ),
            (
                with(json!({"link": {"type": "s3", "path": "s3://bbb/k"}})),
                "artifact 0 has no `type`",
            ),
        ] {
            assert_eq!(fault(&manifest), Fault::Malformed(words.to_owned()));
        }
    }
}
