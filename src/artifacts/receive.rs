//! Receives objects uploaded over the API and streams them to S3; they are never whole in memory or on the local disk.

use aws_sdk_s3::{
    primitives::ByteStream,
    types::{CompletedMultipartUpload, CompletedPart, MetadataDirective},
};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use jiff::Timestamp;
use kiln_records::{Code, Digests, Failure, ImageId, Link, arch::Arch};
use md5::{Digest, Md5};
use sha2::Sha256;

use super::{
    Misplaced,
    manifest::{self, Manifest, ManifestArtifact},
    sdk::failure,
    store::{ArtifactStore, MAX_COPY, MD5SUM, copy_source, unquoted},
    upload::part_size,
};

/// The usual size of a part, in bytes (8 MiB). A part is in memory until it is in S3.
const PART: u64 = 8 * 1024 * 1024;

/// The size of a part of an object of this size, in bytes.
pub fn largest_part(size: u64) -> u64 {
    part_size(size, PART)
}

/// The memory for an object that is received.
pub trait Room: Send {
    /// Takes so many bytes more. Returns false, and takes none, if there are too few.
    fn take(&mut self, bytes: usize) -> bool;

    /// Gives back everything that was taken.
    fn give_back(&mut self);
}

/// A received object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The object's place in S3.
    pub link: Link,
    /// Its digests, computed while it streamed.
    pub digests: Digests,
}

/// What is known of an object in advance.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    /// Its size in bytes, if announced.
    pub size: Option<u64>,
    /// The largest size accepted, in bytes.
    pub limit: u64,
}

impl ArtifactStore {
    /// Writes `body` to an object, if the object is `still_wanted` once all of it has arrived. After a failure no part is
    /// left, and no object either unless S3 cannot be reached; so the key has to be this object's own. What waits in
    /// memory takes `room`.
    ///
    /// Fails with `upload_broken` when `body` fails, differs from the announced size or finds no room, with `upload_too_large`, and
    /// with `upload_unwanted`.
    pub async fn receive<E: std::fmt::Display>(
        &self,
        (bucket, key): (&str, &str),
        content_type: &str,
        expected: Expected,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
        room: &mut impl Room,
        still_wanted: impl Future<Output = bool> + Send,
    ) -> Result<Received, Failure> {
        let what = format!("cannot write s3://{bucket}/{key}");
        let part_size = largest_part(expected.size.unwrap_or(expected.limit));
        let create = self.client.create_multipart_upload().bucket(bucket).key(key);
        let answer = create.content_type(content_type).send().await;
        let answer = answer.map_err(|error| failure(&what, &error))?;
        let id = answer.upload_id().unwrap_or_default().to_owned();

        let outcome = async {
            let (parts, digests) = self
                .receive_parts((bucket, key, &id), part_size, expected, body, room)
                .await?;
            // Receiving may have taken hours.
            if !still_wanted.await {
                return Err(Failure::new(Code::UploadUnwanted, "the object is no longer needed"));
            }
            let list = CompletedMultipartUpload::builder().set_parts(Some(parts)).build();
            let complete = self.client.complete_multipart_upload().bucket(bucket).key(key);
            let answer = complete.upload_id(&id).multipart_upload(list).send().await;
            answer.map_err(|error| failure(&what, &error))?;
            Ok(digests)
        }
        .await;
        let digests = match outcome {
            Ok(digests) => digests,
            Err(failure) => {
                // The first failure is the one to report.
                let _ = self.abort(bucket, key, &id).await;
                return Err(failure);
            }
        };
        self.note_md5((bucket, key), content_type, &digests).await;
        match self.head(bucket, key).await? {
            Some(head) if head.size == digests.size => Ok(Received {
                link: Link::s3(bucket, key, &head.etag),
                digests,
            }),
            _ => {
                // The first failure is the one to report.
                let _ = self.delete(bucket, key).await;
                Err(Failure::new(
                    Code::ArtifactMismatch,
                    format_args!("{what}: the object in S3 differs from the sent one"),
                ))
            }
        }
    }

    /// Adds its MD5, which was not known before its last byte, to the metadata of an object. An object without it is
    /// complete too: clients of IMS then take it for another one and upload theirs.
    async fn note_md5(&self, (bucket, key): (&str, &str), content_type: &str, digests: &Digests) {
        if digests.size > MAX_COPY {
            return;
        }
        let copy = self.client.copy_object().copy_source(copy_source(bucket, key));
        let copy = copy
            .metadata_directive(MetadataDirective::Replace)
            .bucket(bucket)
            .key(key);
        let copy = copy.content_type(content_type).metadata(MD5SUM, &digests.md5).send();
        if let Err(error) = copy.await {
            let failure = failure(format_args!("cannot add the MD5 to s3://{bucket}/{key}"), &error);
            tracing::warn!(code = failure.code.name(), hint = failure.hint, "{failure}");
        }
    }

    async fn receive_parts<E: std::fmt::Display>(
        &self,
        (bucket, key, id): (&str, &str, &str),
        part_size: u64,
        expected: Expected,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
        room: &mut impl Room,
    ) -> Result<(Vec<CompletedPart>, Digests), Failure> {
        let mut body = std::pin::pin!(body);
        let (mut parts, mut buffer, mut size) = (Vec::new(), Vec::new(), 0);
        let (mut sha256, mut md5) = (Sha256::new(), Md5::new());
        let part_len = usize::try_from(part_size).unwrap_or(usize::MAX);
        loop {
            let chunk = body.next().await.transpose();
            let chunk = chunk.map_err(|error| broken(format_args!("the upload was interrupted: {error}")))?;
            let is_end = chunk.is_none();
            let mut chunk = chunk.unwrap_or_default();
            size += chunk.len() as u64;
            if size > expected.limit {
                let detail = format!("more than {} bytes were sent (limits.upload_bytes)", expected.limit);
                return Err(Failure::new(Code::UploadTooLarge, detail));
            }
            sha256.update(&chunk);
            md5.update(&chunk);
            // An empty object has one empty part.
            while !chunk.is_empty() || (is_end && (!buffer.is_empty() || parts.is_empty())) {
                let some = chunk.split_to(chunk.len().min(part_len - buffer.len()));
                keep(&mut buffer, &some, part_len, room)?;
                if buffer.len() < part_len && !is_end {
                    continue;
                }
                let part = Bytes::from(std::mem::take(&mut buffer));
                let number = i32::try_from(parts.len() + 1).unwrap_or(i32::MAX);
                let put = self.client.upload_part().bucket(bucket).key(key).upload_id(id);
                let put = put.part_number(number).body(ByteStream::from(part)).send().await;
                let put = put.map_err(|error| failure(format_args!("cannot write s3://{bucket}/{key}"), &error))?;
                room.give_back();
                let etag = unquoted(put.e_tag());
                parts.push(CompletedPart::builder().part_number(number).e_tag(etag).build());
            }
            if is_end {
                break;
            }
        }
        if let Some(announced) = expected.size.filter(|announced| *announced != size) {
            return Err(broken(format_args!(
                "{announced} bytes were announced, {size} were received"
            )));
        }
        let digests = Digests {
            size,
            sha256: hex::encode(sha256.finalize()),
            md5: hex::encode(md5.finalize()),
        };
        Ok((parts, digests))
    }

    /// Copies an object that is too large for S3 to copy in one request.
    pub(super) async fn copy_in_parts(
        &self,
        source: &str,
        (bucket, key): (&str, &str),
        size: u64,
    ) -> Result<(), Failure> {
        const PART: u64 = 1024 * 1024 * 1024;
        let what = format!("cannot copy {source} to s3://{bucket}/{key}");
        let create = self
            .client
            .create_multipart_upload()
            .bucket(bucket)
            .key(key)
            .send()
            .await;
        let id = create
            .map_err(|error| failure(&what, &error))?
            .upload_id()
            .unwrap_or_default()
            .to_owned();
        let outcome = async {
            let mut parts = Vec::new();
            for begin in (0..size).step_by(usize::try_from(PART).unwrap_or(usize::MAX)) {
                let number = i32::try_from(parts.len() + 1).unwrap_or(i32::MAX);
                let end = size.min(begin + PART) - 1;
                let copy = self
                    .client
                    .upload_part_copy()
                    .copy_source(source)
                    .bucket(bucket)
                    .key(key)
                    .upload_id(&id);
                let copy = copy
                    .part_number(number)
                    .copy_source_range(format!("bytes={begin}-{end}"));
                let answer = copy.send().await.map_err(|error| failure(&what, &error))?;
                let etag = unquoted(answer.copy_part_result().and_then(|result| result.e_tag()));
                parts.push(CompletedPart::builder().part_number(number).e_tag(etag).build());
            }
            let list = CompletedMultipartUpload::builder().set_parts(Some(parts)).build();
            let complete = self.client.complete_multipart_upload().bucket(bucket).key(key);
            let answer = complete.upload_id(&id).multipart_upload(list).send().await;
            answer.map(drop).map_err(|error| failure(&what, &error))
        }
        .await;
        if outcome.is_err() {
            // The first failure is the one to report.
            let _ = self.abort(bucket, key, &id).await;
        }
        outcome
    }

    /// Writes `<image>/manifest.json` for artifacts received earlier, after checking each of them again.
    ///
    /// Fails with `artifact_mismatch` when one has changed, and with `manifest_invalid` without exactly one root file
    /// system.
    pub async fn put_manifest(
        &self,
        image: ImageId,
        arch: Arch,
        artifacts: Vec<ManifestArtifact>,
    ) -> Result<Link, Failure> {
        for artifact in &artifacts {
            let (path, etag) = (&artifact.link.path, &artifact.link.etag);
            let refused = |fault: Misplaced| Failure::new(Code::ManifestInvalid, fault);
            let (bucket, key) = self.place(path).map_err(refused)?;
            let head = self.head(bucket, key).await?;
            let head = head.ok_or_else(|| Failure::new(Code::ManifestInvalid, format_args!("{path} is not in S3")))?;
            let is_same = artifact.size.is_none_or(|size| size == head.size) && (etag.is_empty() || *etag == head.etag);
            if !is_same {
                let detail = format!("{path} differs from the object that the manifest describes");
                return Err(Failure::new(Code::ManifestInvalid, detail).hint("upload it again"));
            }
        }
        let manifest = Manifest::of(artifacts, arch, Timestamp::now())?.to_json()?;
        let (bucket, key) = (self.images_bucket(), format!("{image}/manifest.json"));
        let etag = self.put_bytes(bucket, &key, manifest::MEDIA_TYPE, manifest).await?;
        Ok(Link::s3(bucket, &key, &etag))
    }
}

/// Appends bytes to a part. Memory for them is taken before it is allocated.
fn keep(part: &mut Vec<u8>, bytes: &[u8], most: usize, room: &mut impl Room) -> Result<(), Failure> {
    let needed = part.len() + bytes.len();
    if needed > part.capacity() {
        let wanted = (2 * part.capacity()).min(most).max(needed);
        if !room.take(wanted - part.capacity()) {
            return Err(broken("there is no memory for more of the upload"));
        }
        part.reserve_exact(wanted - part.len());
    }
    part.extend_from_slice(bytes);
    Ok(())
}

fn broken(detail: impl std::fmt::Display) -> Failure {
    Failure::new(Code::UploadBroken, detail)
}
