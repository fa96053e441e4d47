//! Writes objects whose size is not known before their last byte, in constant memory. Talks to S3.

use aws_sdk_s3::{
    primitives::ByteStream,
    types::{CompletedMultipartUpload, CompletedPart},
};
use bytes::{Bytes, BytesMut};
use futures::{Stream, TryStreamExt};
use kiln_records::Failure;

use super::{
    sdk::failure,
    store::{ArtifactStore, unquoted},
};

/// Size of a part in bytes: S3 accepts no less than 5 MiB, and two are in memory. Room for 80 GB.
const PART_SIZE: usize = 8 * 1024 * 1024;

impl ArtifactStore {
    /// Writes an object. One that fits into a part is written in one request. After a failure, no new object or part
    /// is left, and an earlier object is unchanged. May be repeated, but not at the same time.
    ///
    /// # Errors
    ///
    /// Those of `body` unchanged, and those of S3.
    pub(super) async fn put_stream(
        &self,
        (bucket, key): (&str, &str),
        content_type: &str,
        body: impl Stream<Item = Result<Bytes, Failure>> + Send,
    ) -> Result<(), Failure> {
        let mut parts = Parts {
            body: std::pin::pin!(body),
            buffer: BytesMut::new(),
        };
        let first = parts.next().await?;
        if first.len() < PART_SIZE {
            return self.put_bytes(bucket, key, content_type, first).await.map(drop);
        }
        let what = format!("cannot write s3://{bucket}/{key}");
        // A process that was killed may have left its own.
        self.abort_uploads_to(bucket, key).await?;
        let create = self.client.create_multipart_upload().bucket(bucket).key(key);
        let answer = create.content_type(content_type).send().await;
        let answer = answer.map_err(|error| failure(&what, &error))?;
        let id = answer.upload_id().unwrap_or_default();
        let outcome = async {
            let (mut part, mut sent) = (first, Vec::new());
            while !part.is_empty() {
                let number = i32::try_from(sent.len() + 1).unwrap_or(i32::MAX);
                let put = self.client.upload_part().bucket(bucket).key(key).upload_id(id);
                let put = put.part_number(number).body(ByteStream::from(part)).send().await;
                let etag = unquoted(put.map_err(|error| failure(&what, &error))?.e_tag());
                sent.push(CompletedPart::builder().part_number(number).e_tag(etag).build());
                part = parts.next().await?;
            }
            let list = CompletedMultipartUpload::builder().set_parts(Some(sent)).build();
            let complete = self.client.complete_multipart_upload().bucket(bucket).key(key);
            let answer = complete.upload_id(id).multipart_upload(list).send().await;
            answer.map(drop).map_err(|error| failure(&what, &error))
        }
        .await;
        if outcome.is_err() {
            // The first failure is the one to report.
            let _ = self.abort(bucket, key, id).await;
        }
        outcome
    }
}

/// Cuts a stream into parts.
struct Parts<S> {
    body: S,
    buffer: BytesMut,
}

impl<S: Stream<Item = Result<Bytes, Failure>> + Unpin> Parts<S> {
    /// A part of [`PART_SIZE`], or what is left, or nothing.
    async fn next(&mut self) -> Result<Bytes, Failure> {
        while self.buffer.len() < PART_SIZE
            && let Some(chunk) = self.body.try_next().await?
        {
            self.buffer.extend_from_slice(&chunk);
        }
        Ok(self.buffer.split_to(self.buffer.len().min(PART_SIZE)).freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;

    #[tokio::test]
    async fn parts_have_the_size_that_s3_demands() {
        let chunks = (0..40_u8).map(|number| Ok(Bytes::from(vec![number; 1_000_003])));
        let mut parts = Parts {
            body: stream::iter(chunks),
            buffer: BytesMut::new(),
        };
        let mut sizes = Vec::new();
        loop {
            let part = parts.next().await.unwrap();
            if part.is_empty() {
                break;
            }
            sizes.push(part.len());
        }
        let last = sizes.pop().unwrap();
        assert!(
            sizes.iter().all(|size| *size == PART_SIZE) && last <= PART_SIZE,
            "{sizes:?}"
        );
        assert_eq!(sizes.len() * PART_SIZE + last, 40 * 1_000_003);
    }
}
