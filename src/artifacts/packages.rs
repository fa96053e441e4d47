//! Distribution packages that jobs fetched, shared between jobs as objects named by the digest in their repository. Talks to S3 only.
//!
//! A job reads a package through a presigned address, and adds one through an address that is valid for that content
//! only, since S3 checks the digest in it if it is a SHA-256. The reader checks again, so a store that does not check costs
//! time and nothing else.

use std::time::Duration;

use aws_sdk_s3::presigning::PresigningConfig;
use base64::{Engine, prelude::BASE64_STANDARD};
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use kiln_records::{
    Code, DigestKind, Failure,
    protocol::{LARGEST_PACKAGE, MOST_PACKAGES, PackageFile, PackageUrl},
};

use super::{
    ArtifactStore,
    sdk::{failure, presign_failure},
    store::ObjectInfo,
};
use crate::metrics;

/// The key prefix of packages, in the bucket for recipes.
const PREFIX: &str = "packages/";

/// The number of objects checked at a time.
const AT_ONCE: usize = 16;

impl ArtifactStore {
    /// The address to read each package from, or to write it to if it is missing; in the same order.
    ///
    /// # Errors
    ///
    /// `upload_invalid` for a package that is too large, or too many packages.
    pub async fn package_urls(&self, packages: Vec<PackageFile>, valid: Duration) -> Result<Vec<PackageUrl>, Failure> {
        if packages.len() > MOST_PACKAGES {
            let detail = format!("{} packages are more than {MOST_PACKAGES}", packages.len());
            return Err(Failure::new(Code::UploadInvalid, detail));
        }
        let urls = packages.into_iter().map(|package| self.package_url(package, valid));
        let urls: Vec<_> = futures::stream::iter(urls).buffered(AT_ONCE).try_collect().await?;
        Ok(urls)
    }

    async fn package_url(&self, package: PackageFile, valid: Duration) -> Result<PackageUrl, Failure> {
        self.shared_url(PREFIX, LARGEST_PACKAGE, package, valid).await
    }

    /// The address to read an object named by its digest from, or to write it to if it is missing.
    pub(super) async fn shared_url(
        &self,
        prefix: &str,
        largest: u64,
        package: PackageFile,
        valid: Duration,
    ) -> Result<PackageUrl, Failure> {
        let PackageFile { digest, size } = package;
        if size > largest {
            let detail = format!("{digest} of {size} bytes is nothing to share");
            return Err(Failure::new(Code::UploadInvalid, detail));
        }
        let (bucket, key) = (self.recipes_bucket(), format!("{prefix}{digest}"));
        let is_there = self.exists(bucket, &key).await?;
        if prefix == PREFIX {
            metrics::shared_package(is_there);
        }
        if is_there {
            return self.presign_get(bucket, &key, valid).await.map(PackageUrl::Get);
        }
        let what = format!("cannot presign s3://{bucket}/{key}");
        let valid = PresigningConfig::expires_in(valid).map_err(|error| presign_failure(&what, &error))?;
        let put = self
            .presigner
            .put_object()
            .bucket(bucket)
            .key(key)
            .content_length(size.cast_signed());
        let sha256 = hex::decode(digest.as_str())
            .ok()
            .filter(|_| digest.kind() == DigestKind::Sha256);
        let put = match sha256 {
            Some(sha256) => put.checksum_sha256(BASE64_STANDARD.encode(sha256)),
            // S3 knows no other of these. Each reader checks.
            None => put,
        };
        let request = put.presigned(valid).await.map_err(|error| failure(&what, &error))?;
        Ok(PackageUrl::Put {
            url: request.uri().to_owned(),
            // Every client sends the length by itself.
            headers: request
                .headers()
                .filter(|(name, _)| !name.eq_ignore_ascii_case("content-length"))
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        })
    }

    /// The shared packages that were stored before a moment, and the oldest beyond a number of bytes in all. Repositories move
    /// on, and most packages with them.
    ///
    /// # Errors
    ///
    /// S3 fails.
    pub async fn old_packages(&self, before: Timestamp, bytes: u64) -> Result<Vec<ObjectInfo>, Failure> {
        Ok(oldest(self.list(self.recipes_bucket(), PREFIX).await?, before, bytes))
    }
}

/// The objects that were stored before a moment, and the oldest beyond a number of bytes in all.
pub(super) fn oldest(mut objects: Vec<ObjectInfo>, before: Timestamp, bytes: u64) -> Vec<ObjectInfo> {
    objects.sort_by_key(|object| std::cmp::Reverse(object.modified));
    let mut left = Some(bytes);
    objects.retain(|object| {
        left = left.and_then(|left| left.checked_sub(object.size));
        object.modified < before || left.is_none()
    });
    objects
}
