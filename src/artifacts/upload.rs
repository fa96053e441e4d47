//! Uploads an image's artifacts to S3. Talks to S3 only.
//!
//! The server opens an upload and hands out presigned URLs; an agent sends the parts; the server completes the upload
//! and trusts only what S3 confirms. Every object, however small, is uploaded this way, so that there is one way only.

use std::time::Duration;

use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};
use bytes::Bytes;
use kiln_records::{
    ArtifactKind, Code, Digests, Failure, ImageId, JobId, Link, Upload, UploadedArtifact, percent,
    protocol::PartReceipt,
};
use md5::{Digest, Md5};

use super::{
    ReadError, Unusable, manifest,
    sdk::{failure, is_missing},
    store::{ArtifactStore, Head, unquoted},
};

/// The usual part size, in bytes (16 MiB).
const PART_SIZE: u64 = 16 * MIB;

/// The most parts that S3 accepts.
const MAX_PARTS: u64 = 10_000;

const MIB: u64 = 1024 * 1024;

impl ArtifactStore {
    /// Opens an upload of exactly `size` bytes to `<image>/<key name of its kind>`.
    pub async fn open_upload(
        &self,
        image: ImageId,
        job: JobId,
        image_name: &str,
        kind: ArtifactKind,
        size: u64,
    ) -> Result<Upload, Failure> {
        let (bucket, key) = (self.images_bucket().to_owned(), format!("{image}/{}", kind.key_name()));
        let create = self.client.create_multipart_upload().bucket(&bucket).key(&key);
        let create = create
            .content_type(kind.media_type())
            .metadata("x-shasta-ims-image-id", image.to_string())
            .metadata("x-shasta-ims-image-name", header_safe(image_name))
            .metadata("x-shasta-ims-job-id", job.to_string());
        let what = format!("cannot open the upload of s3://{bucket}/{key}");
        let answer = create.send().await.map_err(|error| failure(&what, &error))?;
        let id = answer.upload_id().map(str::to_owned);
        let id = id.ok_or_else(|| Failure::new(Code::S3Error, format_args!("{what}: S3 returned no upload id")))?;
        Ok(Upload {
            kind,
            bucket,
            key,
            id,
            size,
            part_size: part_size(size, PART_SIZE),
        })
    }

    /// Presigned PUT URLs for these parts, in the same order. Anyone can use them until they expire, for content of the
    /// part's size only.
    pub async fn part_urls(&self, upload: &Upload, parts: &[u32], valid: Duration) -> Result<Vec<String>, Failure> {
        let mut urls = Vec::with_capacity(parts.len());
        for &number in parts {
            if number == 0 || u64::from(number) > upload.parts() {
                return Err(Failure::new(
                    Code::UploadInvalid,
                    format_args!(
                        "{} has no part {number}, its parts are 1 to {}",
                        upload.key,
                        upload.parts()
                    ),
                ));
            }
            urls.push(
                self.presign_part(
                    (&upload.bucket, &upload.key, &upload.id),
                    (number, upload.size_of_part(number)),
                    valid,
                )
                .await?,
            );
        }
        Ok(urls)
    }

    /// Completes the object from its parts and checks that S3 has what was sent.
    ///
    /// Fails with `upload_invalid` when `parts` or `digests` cannot belong to this upload, and with
    /// `artifact_mismatch` when S3 has something else; the object is then deleted. May be repeated.
    pub async fn complete_upload(
        &self,
        upload: &Upload,
        parts: &[PartReceipt],
        digests: &Digests,
    ) -> Result<UploadedArtifact, Failure> {
        check_receipts(upload, parts, digests)?;
        let completed = |part: &PartReceipt| {
            CompletedPart::builder()
                .part_number(part.number.cast_signed())
                .e_tag(&part.etag)
                .build()
        };
        let list = CompletedMultipartUpload::builder()
            .set_parts(Some(parts.iter().map(completed).collect()))
            .build();
        let complete = self
            .client
            .complete_multipart_upload()
            .bucket(&upload.bucket)
            .key(&upload.key);
        let answer = complete.upload_id(&upload.id).multipart_upload(list).send().await;

        let what = format!("cannot complete the upload of s3://{}/{}", upload.bucket, upload.key);
        match answer {
            Ok(_) => {}
            // A repeated request may find the upload completed by the earlier one: the object exists then.
            Err(error) if is_missing(&error) && self.head(&upload.bucket, &upload.key).await?.is_some() => {}
            Err(error) => return Err(failure(&what, &error)),
        }
        // With some services the answer itself lacks the entity tag.
        let head = self.head(&upload.bucket, &upload.key).await?;
        let head =
            head.ok_or_else(|| Failure::new(Code::S3Missing, format_args!("{what}: the object is not there")))?;
        if let Err(cause) = check_object(&head, upload.size, &multipart_etag(parts)?) {
            self.delete(&upload.bucket, &upload.key).await?;
            let detail = format!(
                "s3://{}/{} differs from the sent object: {cause}",
                upload.bucket, upload.key
            );
            return Err(Failure::new(Code::ArtifactMismatch, detail).hint("build the image again"));
        }
        Ok(UploadedArtifact {
            kind: upload.kind,
            bucket: upload.bucket.clone(),
            key: upload.key.clone(),
            etag: head.etag,
            digests: digests.clone(),
        })
    }

    /// Reads artifacts back from S3 and compares them with the digests that were reported for them.
    ///
    /// # Errors
    ///
    /// `artifact_mismatch` when one differs.
    pub async fn verify(&self, artifacts: &[UploadedArtifact]) -> Result<(), Failure> {
        for artifact in artifacts {
            if self.digests(&artifact.bucket, &artifact.key).await? != artifact.digests {
                let detail = format!("{} does not have the digests that its agent reported", artifact.path());
                return Err(Failure::new(Code::ArtifactMismatch, detail)
                    .hint("the recipe, or a user of its shell, interfered with the agent"));
            }
        }
        Ok(())
    }

    /// Aborts an upload and removes its parts. A missing upload is not an error.
    pub async fn abort_upload(&self, upload: &Upload) -> Result<(), Failure> {
        self.abort(&upload.bucket, &upload.key, &upload.id).await
    }

    pub(super) async fn abort(&self, bucket: &str, key: &str, id: &str) -> Result<(), Failure> {
        match self
            .client
            .abort_multipart_upload()
            .bucket(bucket)
            .key(key)
            .upload_id(id)
            .send()
            .await
        {
            Err(error) if !is_missing(&error) => Err(failure(
                format_args!("cannot abort the upload of s3://{bucket}/{key}"),
                &error,
            )),
            _ => Ok(()),
        }
    }

    /// Checks every artifact once more and writes `<image>/manifest.json`, which makes them an image.
    ///
    /// Fails with `artifact_mismatch` when an artifact is gone or has changed, and with `manifest_invalid` without
    /// exactly one root file system.
    pub async fn write_manifest(
        &self,
        image: ImageId,
        manifest: Vec<u8>,
        artifacts: &[UploadedArtifact],
    ) -> Result<Link, Failure> {
        for artifact in artifacts {
            let head = self.head(&artifact.bucket, &artifact.key).await?;
            let unchanged = head.is_some_and(|head| head.size == artifact.digests.size && head.etag == artifact.etag);
            if !unchanged {
                let detail = format!("{} changed after it was uploaded", artifact.path());
                return Err(Failure::new(Code::ArtifactMismatch, detail)
                    .hint("look for another writer to the bucket, then build the image again"));
            }
        }
        let (bucket, key) = (self.images_bucket(), format!("{image}/manifest.json"));
        let etag = self.put_bytes(bucket, &key, manifest::MEDIA_TYPE, manifest).await?;
        Ok(Link::s3(bucket, &key, &etag))
    }

    /// Writes a small object beside those of an image. Returns its place: `s3://bucket/key`.
    pub async fn put_beside(
        &self,
        image: ImageId,
        name: &str,
        media_type: &str,
        content: Vec<u8>,
    ) -> Result<String, Failure> {
        let (bucket, key) = (self.images_bucket(), format!("{image}/{name}"));
        self.put_bytes(bucket, &key, media_type, content).await?;
        Ok(format!("s3://{bucket}/{key}"))
    }

    /// A small object beside those of an image; `None` if it is not there.
    ///
    /// # Errors
    ///
    /// When it is not smaller than `limit` bytes, or S3 gives no answer.
    pub async fn read_beside(&self, image: ImageId, name: &str, limit: usize) -> Result<Option<Bytes>, Unusable> {
        let (bucket, key) = (self.images_bucket(), format!("{image}/{name}"));
        self.read_small(bucket, &key, limit).await.map_err(|error| match error {
            ReadError::S3(failure) => Unusable::S3(failure),
            ReadError::TooLarge(size) => Unusable::Malformed {
                path: format!("s3://{bucket}/{key}"),
                cause: format!("it has {size} bytes"),
            },
        })
    }

    /// Removes all objects of an image, complete or not. May be repeated.
    pub async fn discard_image(&self, image: ImageId) -> Result<(), Failure> {
        // Uploads first: one that completes meanwhile leaves an object, which the second half finds.
        self.abort_uploads(image).await?;
        let (bucket, prefix) = (self.images_bucket(), format!("{image}/"));
        // The manifest first: a half-removed image must not look complete.
        self.delete(bucket, &format!("{prefix}manifest.json")).await?;
        for object in self.list(bucket, &prefix).await? {
            self.delete(bucket, &object.key).await?;
        }
        Ok(())
    }

    /// Aborts every open upload to an image. May be repeated.
    pub async fn abort_uploads(&self, image: ImageId) -> Result<(), Failure> {
        self.abort_uploads_to(self.images_bucket(), &format!("{image}/")).await
    }

    /// Aborts every open upload to a key that begins like this.
    pub(super) async fn abort_uploads_to(&self, bucket: &str, prefix: &str) -> Result<(), Failure> {
        for upload in self.open_uploads(bucket, prefix).await? {
            self.give_up(&upload).await?;
        }
        Ok(())
    }
}

/// A part size that keeps the number of parts within S3's limit.
pub(super) fn part_size(size: u64, least: u64) -> u64 {
    size.div_ceil(MAX_PARTS).next_multiple_of(MIB).max(least)
}

fn check_receipts(upload: &Upload, parts: &[PartReceipt], digests: &Digests) -> Result<(), Failure> {
    let invalid = |cause: String| {
        Err(Failure::new(
            Code::UploadInvalid,
            format_args!("{}: {cause}", upload.key),
        ))
    };
    if digests.size != upload.size {
        return invalid(format!(
            "{} bytes were announced, {} were sent",
            upload.size, digests.size
        ));
    }
    if !parts.iter().map(|part| u64::from(part.number)).eq(1..=upload.parts()) {
        return invalid(format!("the receipts are not those of parts 1 to {}", upload.parts()));
    }
    let differs = |part: &&PartReceipt| {
        let etag = unquoted(Some(&part.etag));
        is_md5(&etag) && !etag.eq_ignore_ascii_case(&part.md5)
    };
    match parts.iter().find(differs) {
        Some(part) => {
            let detail = format!("part {} of {} in S3 differs from the sent one", part.number, upload.key);
            Err(Failure::new(Code::ArtifactMismatch, detail).hint("build the image again"))
        }
        None => Ok(()),
    }
}

/// Checks S3's object against the one that was sent. An entity tag of unknown form, as with server-side encryption,
/// proves nothing, and then only the size is compared.
fn check_object(head: &Head, size: u64, etag: &str) -> Result<(), String> {
    if head.size != size {
        return Err(format!("it has {} bytes instead of {size}", head.size));
    }
    let known = head
        .etag
        .split_once('-')
        .is_some_and(|(md5, parts)| is_md5(md5) && parts.parse::<u32>().is_ok());
    if known && !head.etag.eq_ignore_ascii_case(etag) {
        return Err(format!("its entity tag is {} instead of {etag}", head.etag));
    }
    Ok(())
}

/// The MD5 of the parts' MD5s, followed by their number.
fn multipart_etag(parts: &[PartReceipt]) -> Result<String, Failure> {
    let mut md5 = Md5::new();
    for part in parts {
        let digest = hex::decode(&part.md5).ok().filter(|digest| digest.len() == 16);
        md5.update(digest.ok_or_else(|| {
            Failure::new(
                Code::UploadInvalid,
                format_args!("`{}` of part {} is not an MD5", part.md5, part.number),
            )
        })?);
    }
    Ok(format!("{}-{}", hex::encode(md5.finalize()), parts.len()))
}

fn is_md5(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A text in a form that fits into a header: all but printable ASCII is percent-encoded.
fn header_safe(text: &str) -> String {
    percent::encode(text, |byte| matches!(byte, b' '..=b'~') && byte != b'%')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upload(size: u64) -> Upload {
        Upload {
            kind: ArtifactKind::Rootfs,
            bucket: "b".to_owned(),
            key: "k".to_owned(),
            id: "u".to_owned(),
            size,
            part_size: part_size(size, PART_SIZE),
        }
    }

    fn receipts(count: u32) -> Vec<PartReceipt> {
        let receipt = |number| PartReceipt {
            number,
            etag: format!("\"{}\"", "0".repeat(32)),
            md5: "0".repeat(32),
        };
        (1..=count).map(receipt).collect()
    }

    fn digests(size: u64) -> Digests {
        Digests {
            size,
            sha256: String::new(),
            md5: String::new(),
        }
    }

    #[test]
    fn parts_grow_only_when_there_would_be_too_many() {
        assert_eq!(part_size(0, PART_SIZE), PART_SIZE);
        assert_eq!(part_size(PART_SIZE * MAX_PARTS, PART_SIZE), PART_SIZE);
        assert_eq!(part_size(PART_SIZE * MAX_PARTS + 1, PART_SIZE), PART_SIZE + MIB);
        assert_eq!(upload(0).parts(), 1);
        assert_eq!(upload(PART_SIZE + 1).parts(), 2);
        assert!(upload(5 * 1024 * 1024 * MIB).parts() <= MAX_PARTS);
    }

    #[test]
    fn receipts_must_be_complete_and_in_order() {
        let upload = upload(PART_SIZE * 2);
        let check = |parts: &[PartReceipt], size| check_receipts(&upload, parts, &digests(size)).map_err(|it| it.code);
        let mut parts = receipts(2);
        assert_eq!(check(&parts, upload.size), Ok(()));
        assert_eq!(check(&parts, upload.size - 1), Err(Code::UploadInvalid));
        assert_eq!(check(&parts[..1], upload.size), Err(Code::UploadInvalid));
        parts.reverse();
        assert_eq!(check(&parts, upload.size), Err(Code::UploadInvalid));
        parts.reverse();
        parts[1].md5 = "1".repeat(32);
        assert_eq!(check(&parts, upload.size), Err(Code::ArtifactMismatch));
    }

    #[test]
    fn an_object_is_known_by_size_and_where_possible_by_tag() {
        let tag = multipart_etag(&receipts(2)).unwrap();
        let head = |size, etag: &str| Head {
            size,
            etag: etag.to_owned(),
        };
        assert!(check_object(&head(7, &tag), 7, &tag).is_ok());
        assert!(check_object(&head(8, &tag), 7, &tag).is_err());
        assert!(check_object(&head(7, &format!("{}-2", "a".repeat(32))), 7, &tag).is_err());
        assert!(check_object(&head(7, "opaque"), 7, &tag).is_ok());
    }

    #[test]
    fn a_name_fits_into_a_header() {
        assert_eq!(header_safe("Küche 100%\n"), "K%C3%BCche 100%25%0A");
    }
}
