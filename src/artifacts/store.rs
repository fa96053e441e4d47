//! The only way to S3: copying, reading, listing and deleting objects. Talks to S3; downloads write one local file.

use std::{fmt, path::Path, time::Duration};

use aws_sdk_s3::{
    Client,
    operation::create_bucket::CreateBucketError,
    presigning::PresigningConfig,
    primitives::{ByteStream, DateTime},
    types::{BucketLocationConstraint, CreateBucketConfiguration},
};
use bytes::Bytes;
use jiff::Timestamp;
use kiln_records::{Code, Digests, Failure, artifact::Digesting, percent};
use md5::{Digest, Md5};
use tokio::io::AsyncWriteExt;

use crate::config::ForeignBuckets;

use super::{
    S3Settings,
    sdk::{self, broken_stream, failure, io_failure, is_missing, is_refused, presign_failure},
};

/// The largest object that S3 copies in one request, in bytes (5 GiB).
pub(super) const MAX_COPY: u64 = 5 * 1024 * 1024 * 1024;

/// The metadata in which clients of IMS look for the MD5 of an object.
pub(super) const MD5SUM: &str = "md5sum";

/// A connection to the buckets of recipes and images. Cheap to clone.
#[derive(Clone)]
pub struct ArtifactStore {
    pub(super) client: Client,
    pub(super) presigner: Client,
    recipes_bucket: String,
    images_bucket: String,
    pub(super) foreign_buckets: ForeignBuckets,
}

impl fmt::Debug for ArtifactStore {
    // Derived output would include the clients' whole configuration, which is pages long.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArtifactStore")
            .field("recipes_bucket", &self.recipes_bucket)
            .field("images_bucket", &self.images_bucket)
            .finish_non_exhaustive()
    }
}

/// The result of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Copied {
    /// The copy exists and has this entity tag, without quotes.
    As(String),
    /// The source does not exist.
    Missing,
    /// Another object is at the destination.
    Occupied,
}

/// An object as S3 lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its key.
    pub key: String,
    /// Size in bytes.
    pub size: u64,
    /// Its entity tag, without quotes.
    pub etag: String,
    /// When it was written.
    pub modified: Timestamp,
}

/// Why a small object was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The object is too large; this is its size in bytes.
    #[error("the object has {0} bytes")]
    TooLarge(u64),
    /// S3 refused, or did not answer.
    #[error(transparent)]
    S3(#[from] Failure),
}

/// The size and entity tag of an object.
pub(super) struct Head {
    pub(super) size: u64,
    /// Without quotes.
    pub(super) etag: String,
}

impl ArtifactStore {
    /// The store of these settings. Asks nothing of the service yet, and creates nothing.
    ///
    /// Fails with `s3_settings`.
    pub async fn open(settings: &S3Settings) -> Result<Self, Failure> {
        let (client, presigner) = sdk::clients(settings).await?;
        Ok(Self {
            client,
            presigner,
            recipes_bucket: settings.recipes_bucket.clone(),
            images_bucket: settings.images_bucket.clone(),
            foreign_buckets: settings.foreign_buckets,
        })
    }

    /// Connects, and creates each of the two buckets that does not exist.
    ///
    /// Fails with `s3_unreachable`, `s3_timeout`, `s3_denied`, `s3_region` or `s3_settings`.
    pub async fn connect(settings: &S3Settings) -> Result<Self, Failure> {
        let store = Self::open(settings).await?;
        // Only Amazon itself wants the region again; other services take it for the name of a zone.
        let constraint = settings.endpoint.is_none().then_some(settings.region.as_str());
        for bucket in [&store.recipes_bucket, &store.images_bucket] {
            store.ensure_bucket(bucket, constraint).await?;
        }
        Ok(store)
    }

    /// The bucket of recipes.
    pub fn recipes_bucket(&self) -> &str {
        &self.recipes_bucket
    }

    /// The bucket of images.
    pub fn images_bucket(&self) -> &str {
        &self.images_bucket
    }

    async fn ensure_bucket(&self, bucket: &str, constraint: Option<&str>) -> Result<(), Failure> {
        match self.client.head_bucket().bucket(bucket).send().await {
            Ok(_) => return Ok(()),
            Err(error) if is_missing(&error) => {}
            Err(error) => return Err(failure(format_args!("cannot reach the bucket `{bucket}`"), &error)),
        }
        let place = constraint.filter(|region| *region != "us-east-1").map(|region| {
            let constraint = BucketLocationConstraint::from(region);
            CreateBucketConfiguration::builder()
                .location_constraint(constraint)
                .build()
        });
        let created = self
            .client
            .create_bucket()
            .bucket(bucket)
            .set_create_bucket_configuration(place)
            .send()
            .await;
        match created {
            Ok(_) => Ok(()),
            // Another process created the bucket first.
            Err(error)
                if error
                    .as_service_error()
                    .is_some_and(CreateBucketError::is_bucket_already_owned_by_you) =>
            {
                Ok(())
            }
            Err(error) => Err(failure(format_args!("cannot create the bucket `{bucket}`"), &error)),
        }
    }

    /// Writes a small object in one request, with its MD5. Returns its entity tag, without quotes.
    pub async fn put_bytes(
        &self,
        bucket: &str,
        key: &str,
        content_type: &str,
        bytes: impl Into<Bytes>,
    ) -> Result<String, Failure> {
        let what = format!("cannot write s3://{bucket}/{key}");
        let bytes = bytes.into();
        let md5 = hex::encode(Md5::digest(&bytes));
        let body = ByteStream::from(bytes);
        let put = self
            .client
            .put_object()
            .bucket(bucket)
            .key(key)
            .content_type(content_type)
            .metadata(MD5SUM, md5)
            .body(body);
        let answer = put.send().await.map_err(|error| failure(&what, &error))?;
        Ok(unquoted(answer.e_tag()))
    }

    /// A URL that lets anyone read the object for that long.
    pub async fn presign_get(&self, bucket: &str, key: &str, valid: Duration) -> Result<String, Failure> {
        let what = format!("cannot presign s3://{bucket}/{key}");
        let valid = PresigningConfig::expires_in(valid).map_err(|error| presign_failure(&what, &error))?;
        let request = self
            .presigner
            .get_object()
            .bucket(bucket)
            .key(key)
            .presigned(valid)
            .await;
        Ok(request.map_err(|error| failure(&what, &error))?.uri().to_owned())
    }

    /// A URL that lets anyone write that part of an upload for that long.
    pub(super) async fn presign_part(
        &self,
        (bucket, key, upload_id): (&str, &str, &str),
        (number, size): (u32, u64),
        valid: Duration,
    ) -> Result<String, Failure> {
        let what = format!("cannot presign part {number} of s3://{bucket}/{key}");
        let valid = PresigningConfig::expires_in(valid).map_err(|error| presign_failure(&what, &error))?;
        let part = self
            .presigner
            .upload_part()
            .bucket(bucket)
            .key(key)
            .upload_id(upload_id);
        let part = part
            .part_number(number.cast_signed())
            .content_length(size.cast_signed());
        let part = part.presigned(valid).await;
        Ok(part.map_err(|error| failure(&what, &error))?.uri().to_owned())
    }

    /// Copies an object inside S3, with its metadata. An existing object is never replaced; an earlier copy counts as
    /// done.
    pub async fn copy(&self, bucket: &str, from: &str, to: &str) -> Result<Copied, Failure> {
        let what = format!("cannot copy s3://{bucket}/{from} to {to}");
        let Some(head) = self.head(bucket, from).await? else {
            return Ok(Copied::Missing);
        };
        if let Some(there) = self.head(bucket, to).await? {
            // Copies in parts have a different entity tag.
            let is_copy = there.size == head.size && (there.etag == head.etag || head.size > MAX_COPY);
            return Ok(if is_copy {
                Copied::As(there.etag)
            } else {
                Copied::Occupied
            });
        }
        let source = copy_source(bucket, from);
        if head.size <= MAX_COPY {
            let copy = self
                .client
                .copy_object()
                .copy_source(&source)
                .bucket(bucket)
                .key(to)
                .send();
            copy.await.map_err(|error| failure(&what, &error))?;
        } else {
            self.copy_in_parts(&source, (bucket, to), head.size).await?;
        }
        let copy = self.head(bucket, to).await?.filter(|copy| copy.size == head.size);
        let copy =
            copy.ok_or_else(|| Failure::new(Code::ArtifactMismatch, format_args!("{what}: the copy differs")))?;
        Ok(Copied::As(copy.etag))
    }

    /// Deletes an object. A missing object is not an error.
    pub async fn delete(&self, bucket: &str, key: &str) -> Result<(), Failure> {
        match self.client.delete_object().bucket(bucket).key(key).send().await {
            Err(error) if !is_missing(&error) => {
                Err(failure(format_args!("cannot delete s3://{bucket}/{key}"), &error))
            }
            _ => Ok(()),
        }
    }

    /// All objects whose keys begin with `prefix`, sorted by key.
    pub async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<ObjectInfo>, Failure> {
        let mut pages = self
            .client
            .list_objects_v2()
            .bucket(bucket)
            .prefix(prefix)
            .into_paginator()
            .send();
        let mut objects = Vec::new();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| failure(format_args!("cannot list s3://{bucket}/{prefix}"), &error))?;
            objects.extend(page.contents().iter().map(|object| ObjectInfo {
                key: object.key().unwrap_or_default().to_owned(),
                size: object.size().unwrap_or_default().unsigned_abs(),
                etag: unquoted(object.e_tag()),
                modified: object.last_modified().map(timestamp).unwrap_or_default(),
            }));
        }
        Ok(objects)
    }

    /// Downloads an object into a file, which appears only when it is complete.
    ///
    /// Fails with `artifact_mismatch` when the object differs from `expected`.
    pub async fn download(
        &self,
        bucket: &str,
        key: &str,
        to: &Path,
        expected: Option<&Digests>,
    ) -> Result<Digests, Failure> {
        self.download_at_most(bucket, key, to, expected, u64::MAX).await
    }

    /// As [`Self::download`]. Fails with `artifact_mismatch`, too, when the object has more bytes than `most`.
    pub async fn download_at_most(
        &self,
        bucket: &str,
        key: &str,
        to: &Path,
        expected: Option<&Digests>,
        most: u64,
    ) -> Result<Digests, Failure> {
        let what = format!("cannot read s3://{bucket}/{key}");
        let local = io_failure(format!("cannot write {}", to.display()));
        let answer = self.client.get_object().bucket(bucket).key(key).send().await;
        let mut body = answer.map_err(|error| failure(&what, &error))?.body;

        let directory = to.parent().unwrap_or(Path::new("."));
        let file = tempfile::Builder::new()
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))
            .tempfile_in(directory)
            .map_err(&local)?;
        let (file, path) = file.into_parts();
        let mut file = tokio::fs::File::from_std(file);
        let (mut reading, mut left) = (Digesting::default(), most);
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(|error| broken_stream(&what, &error))?;
            reading.update(&chunk);
            left = left.checked_sub(chunk.len() as u64).ok_or_else(|| {
                let cause = format!("s3://{bucket}/{key} has more than the {most} bytes that it had before");
                Failure::new(Code::ArtifactMismatch, cause)
            })?;
            file.write_all(&chunk).await.map_err(&local)?;
        }
        file.flush().await.map_err(&local)?;
        file.sync_all().await.map_err(&local)?;

        let digests = reading.finish();
        if let Some(expected) = expected.filter(|expected| **expected != digests) {
            let cause = format!(
                "s3://{bucket}/{key} has {} bytes with SHA-256 {}, expected were {} bytes with {}",
                digests.size, digests.sha256, expected.size, expected.sha256
            );
            return Err(Failure::new(Code::ArtifactMismatch, cause));
        }
        path.persist(to).map_err(|error| local(error.error))?;
        Ok(digests)
    }

    /// Reads an object to compute its size and digests.
    ///
    /// Fails with `s3_missing` when it does not exist.
    pub async fn digests(&self, bucket: &str, key: &str) -> Result<Digests, Failure> {
        let what = format!("cannot read s3://{bucket}/{key}");
        let answer = self.client.get_object().bucket(bucket).key(key).send().await;
        let mut body = answer.map_err(|error| failure(&what, &error))?.body;
        let mut reading = Digesting::default();
        while let Some(chunk) = body.next().await {
            reading.update(&chunk.map_err(|error| broken_stream(&what, &error))?);
        }
        Ok(reading.finish())
    }

    /// Whether an object exists and may be read. A missing or foreign bucket has no objects.
    pub async fn exists(&self, bucket: &str, key: &str) -> Result<bool, Failure> {
        Ok(self.head(bucket, key).await?.is_some())
    }

    /// The size of an object in bytes; `None` if it does not exist or may not be read.
    pub async fn size(&self, bucket: &str, key: &str) -> Result<Option<u64>, Failure> {
        Ok(self.head(bucket, key).await?.map(|head| head.size))
    }

    /// An object of less than `limit` bytes; `None` if it does not exist or may not be read.
    pub async fn read_small(&self, bucket: &str, key: &str, limit: usize) -> Result<Option<Bytes>, ReadError> {
        let what = format!("cannot read s3://{bucket}/{key}");
        let answer = match self.client.get_object().bucket(bucket).key(key).send().await {
            Ok(answer) => answer,
            Err(error) if is_missing(&error) || (is_refused(&error) && !self.is_own(bucket)) => return Ok(None),
            Err(error) => return Err(failure(&what, &error).into()),
        };
        let size = answer.content_length().unwrap_or_default().unsigned_abs();
        if size >= limit as u64 {
            return Err(ReadError::TooLarge(size));
        }
        let body = answer.body.collect().await;
        Ok(Some(body.map_err(|error| broken_stream(&what, &error))?.into_bytes()))
    }

    /// Whether a bucket is one of Kiln's own. These must be accessible; any other may refuse access.
    pub fn is_own(&self, bucket: &str) -> bool {
        bucket == self.recipes_bucket || bucket == self.images_bucket
    }

    /// Size and entity tag of an object; `None` if it does not exist or may not be read.
    pub(super) async fn head(&self, bucket: &str, key: &str) -> Result<Option<Head>, Failure> {
        match self.client.head_object().bucket(bucket).key(key).send().await {
            Ok(head) => Ok(Some(Head {
                size: head.content_length().unwrap_or_default().unsigned_abs(),
                etag: unquoted(head.e_tag()),
            })),
            Err(error) if is_missing(&error) || (is_refused(&error) && !self.is_own(bucket)) => Ok(None),
            Err(error) => Err(failure(format_args!("cannot look at s3://{bucket}/{key}"), &error)),
        }
    }
}

/// An object as the header that names the source of a copy has it.
pub(super) fn copy_source(bucket: &str, key: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    percent::encode(&format!("{bucket}/{key}"), plain)
}

/// An entity tag without its quotes.
pub(super) fn unquoted(etag: Option<&str>) -> String {
    etag.unwrap_or_default().trim_matches('"').to_owned()
}

fn timestamp(moment: &DateTime) -> Timestamp {
    moment
        .to_millis()
        .ok()
        .and_then(|ms| Timestamp::from_millisecond(ms).ok())
        .unwrap_or_default()
}
