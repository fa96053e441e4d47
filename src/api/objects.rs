//! Checks the objects that records refer to: links and manifests. Reads S3.

use futures::{StreamExt, TryStreamExt, stream};
use serde_json::{Map, Value};

use super::{
    Api,
    fields::error,
    problem::{Problem, Result},
};
use crate::{
    artifacts::{ReadError, manifest},
    records::{ArtifactKind, Link, link::bucket_and_key},
};

/// Objects checked in S3 at the same time, for one request.
const PARALLEL: usize = 8;

/// Bucket and key of a link.
///
/// # Errors
///
/// 422 when the path is not one of S3.
pub(super) fn place(path: &str) -> Result<(&str, &str)> {
    bucket_and_key(path).ok_or_else(|| {
        let mut errors = Map::new();
        errors.insert("path".to_owned(), error("Not of the form s3://bucket/key."));
        Problem::invalid([("link".to_owned(), Value::Object(errors))].into_iter().collect())
    })
}

/// Checks that the object is in S3.
///
/// # Errors
///
/// 422 when it is missing, 502 when S3 does not answer.
pub(super) async fn must_exist(api: &Api, path: &str) -> Result<()> {
    let (bucket, key) = place(path)?;
    if api.artifacts.exists(bucket, key).await? {
        Ok(())
    } else {
        Err(Problem::unprocessable(format_args!("{path} cannot be found in S3.")))
    }
}

/// Reads and checks the manifest behind an image's link, and every object that it names. Returns the paths of all
/// objects of the image: the manifest's first.
///
/// # Errors
///
/// 422 or 400 as in IMS, and 422 where IMS accepts an invalid manifest; 502 when S3 does not answer.
pub(super) async fn check_image(api: &Api, link: &Link) -> Result<Vec<String>> {
    let artifacts = read_manifest(api, link).await?;
    let mut objects = vec![link.path.clone()];
    objects.extend(artifacts.into_iter().map(|artifact| artifact.path));
    // Owned values, since the checks run concurrently.
    let checks = objects[1..]
        .iter()
        .cloned()
        .map(|path| async move { must_exist(api, &path).await });
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
/// As [`check_image`].
pub(super) async fn check_rootfs(api: &Api, link: &Link) -> Result<Artifact> {
    let artifacts = read_manifest(api, link).await?;
    let rootfs = artifacts.into_iter().find(|artifact| artifact.is_rootfs);
    let none = || Problem::bad_request(format_args!("The manifest {} names no root file system.", link.path));
    let rootfs = rootfs.ok_or_else(none)?;
    must_exist(api, &rootfs.path).await?;
    Ok(rootfs)
}

/// A manifest's entry for one object.
pub(super) struct Artifact {
    /// The location of the object.
    pub(super) path: String,
    /// Its MD5, lower-case hexadecimal, if the manifest has it.
    pub(super) md5: Option<String>,
    /// Its SHA-256 in the same form; manifests of other systems lack it.
    pub(super) sha256: Option<String>,
    is_rootfs: bool,
}

async fn read_manifest(api: &Api, link: &Link) -> Result<Vec<Artifact>> {
    let (bucket, key) = place(&link.path)?;
    let text = match api.artifacts.read_small(bucket, key, manifest::MAX_SIZE).await {
        Ok(Some(text)) => text,
        Ok(None) => {
            return Err(Problem::unprocessable(format_args!(
                "{} cannot be found in S3.",
                link.path
            )));
        }
        Err(ReadError::TooLarge(size)) => {
            return Err(Problem::bad_request(format_args!(
                "The manifest {} has {size} bytes; allowed are less than {}.",
                link.path,
                manifest::MAX_SIZE
            )));
        }
        Err(ReadError::S3(failure)) => return Err(failure.into()),
    };
    let wrong = |cause: String| Problem::unprocessable(format!("The manifest {} is not valid: {cause}.", link.path));
    let manifest: Value = serde_json::from_slice(&text).map_err(|error| wrong(format!("it is not JSON: {error}")))?;
    check_manifest(&manifest).map_err(|fault| match fault {
        Fault::Malformed(cause) => wrong(cause),
        Fault::Rootfs(cause) => Problem::bad_request(format_args!("The manifest {} {cause}.", link.path)),
    })
}

/// The mistake in a manifest: IMS answers the two kinds with different statuses.
#[derive(Debug, PartialEq)]
enum Fault {
    Malformed(String),
    Rootfs(&'static str),
}

fn check_manifest(manifest: &Value) -> std::result::Result<Vec<Artifact>, Fault> {
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
        .collect::<std::result::Result<_, _>>()?;
    match artifacts.iter().filter(|artifact| artifact.is_rootfs).count() {
        1 => Ok(artifacts),
        0 => Err(Fault::Rootfs("names no root file system")),
        _ => Err(Fault::Rootfs("names more than one root file system")),
    }
}

fn check_artifact(number: usize, artifact: &Value) -> std::result::Result<Artifact, Fault> {
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
    Ok(Artifact {
        path: path.to_owned(),
        md5: digest("md5").filter(|md5| !md5.is_empty()),
        sha256: digest("sha256").filter(|sha256| !sha256.is_empty()),
        is_rootfs: media_type.starts_with(ArtifactKind::Rootfs.media_type()),
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
