//! The S3 operations on whole objects. Touches the database of names, and bodies through [`Service`].

use std::{io, ops::Range};

use bytes::Bytes;
use s3s::{
    S3Error, S3ErrorCode, S3Request,
    dto::{
        CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopySource, DeleteObjectInput, DeleteObjectOutput,
        DeleteObjectsInput, DeleteObjectsOutput, DeletedObject, ETag, GetObjectInput, GetObjectOutput, HeadObjectInput,
        HeadObjectOutput, MetadataDirective, PutObjectInput, PutObjectOutput, StreamingBlob,
    },
};

use super::{
    attributes::Attributes,
    bodies::{BodyStream, Received},
    checksums::Expected,
    conditions::{ReadConditions, WriteConditions},
    database::{signed, timestamp},
    fault::Result,
    names::{self, Content, NewObject, ObjectRecord, require_bucket, require_object},
    service::Service,
};

/// How often a read is restarted because the object was replaced between the reading of its record and of its body.
const OPEN_ATTEMPTS: usize = 3;

/// The length of the longest key, in bytes.
const MAX_KEY: usize = 1024;

/// The most objects that one request deletes.
const MAX_DELETES: usize = 1000;

impl Service {
    pub(super) async fn put_object(&self, request: S3Request<PutObjectInput>) -> Result<PutObjectOutput> {
        let expected = Expected::of_put(&request)?;
        let mut input = request.input;
        check_key(&input.key)?;
        require_bucket(&mut *self.database().read().await?, &input.bucket).await?;
        let attributes = Attributes::from(&input);
        let conditions = WriteConditions {
            matches: input.if_match.take(),
            none_match: input.if_none_match.take(),
        };
        let received = self.receive(input.body.take(), expected).await?;
        let body = received.body.clone();
        let etag = hex::encode(body.md5);
        let object = NewObject {
            size: body.size,
            etag: etag.clone(),
            attributes,
        };
        self.change(Some(received), move |db| {
            Box::pin(async move {
                let to = (input.bucket.as_str(), input.key.as_str());
                names::put_object(db, to, &object, &Content::Body(body), &conditions).await
            })
        })
        .await?;
        Ok(PutObjectOutput {
            e_tag: Some(ETag::Strong(etag)),
            ..Default::default()
        })
    }

    pub(super) async fn get_object(&self, request: S3Request<GetObjectInput>) -> Result<GetObjectOutput> {
        let input = request.input;
        refuse_part_number(input.part_number)?;
        let conditions = ReadConditions {
            matches: input.if_match,
            none_match: input.if_none_match,
            modified_since: input.if_modified_since,
            unmodified_since: input.if_unmodified_since,
        };
        let select = |object: &ObjectRecord| {
            conditions.check(&object.etag, object.modified_us)?;
            select_range(input.range, object.size)
        };
        let (object, range, stream) = self.open(&input.bucket, &input.key, select).await?;
        Ok(GetObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            body: Some(StreamingBlob::wrap(stream)),
            content_length: Some(signed(range.end - range.start)),
            content_range: input.range.map(|_| content_range(&range, object.size)),
            e_tag: Some(object.etag()),
            last_modified: Some(timestamp(object.modified_us)),
            ..object.attributes.into()
        })
    }

    pub(super) async fn head_object(&self, request: S3Request<HeadObjectInput>) -> Result<HeadObjectOutput> {
        let input = request.input;
        refuse_part_number(input.part_number)?;
        let object = require_object(&mut *self.database().read().await?, &input.bucket, &input.key).await?;
        let conditions = ReadConditions {
            matches: input.if_match,
            none_match: input.if_none_match,
            modified_since: input.if_modified_since,
            unmodified_since: input.if_unmodified_since,
        };
        conditions.check(&object.etag, object.modified_us)?;
        let range = select_range(input.range, object.size)?;
        Ok(HeadObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: Some(signed(range.end - range.start)),
            content_range: input.range.map(|_| content_range(&range, object.size)),
            e_tag: Some(object.etag()),
            last_modified: Some(timestamp(object.modified_us)),
            ..object.attributes.into()
        })
    }

    pub(super) async fn delete_object(&self, request: S3Request<DeleteObjectInput>) -> Result<DeleteObjectOutput> {
        let input = request.input;
        self.delete(input.bucket, vec![input.key]).await?;
        Ok(DeleteObjectOutput::default())
    }

    pub(super) async fn delete_objects(&self, request: S3Request<DeleteObjectsInput>) -> Result<DeleteObjectsOutput> {
        let input = request.input;
        let keys: Vec<String> = input.delete.objects.into_iter().map(|object| object.key).collect();
        if keys.is_empty() || keys.len() > MAX_DELETES {
            return Err(S3ErrorCode::MalformedXML.into());
        }
        self.delete(input.bucket, keys.clone()).await?;
        let deleted = |key| DeletedObject {
            key: Some(key),
            ..Default::default()
        };
        let quiet = input.delete.quiet.unwrap_or_default();
        Ok(DeleteObjectsOutput {
            deleted: (!quiet).then(|| keys.into_iter().map(deleted).collect()),
            ..Default::default()
        })
    }

    pub(super) async fn copy_object(&self, request: S3Request<CopyObjectInput>) -> Result<CopyObjectOutput> {
        let input = request.input;
        check_key(&input.key)?;
        let given = Attributes::from(&input);
        let (source_bucket, source_key) = copy_source(&input.copy_source)?;
        let replace = input
            .metadata_directive
            .as_ref()
            .is_some_and(|it| it.as_str() == MetadataDirective::REPLACE);
        let same = (&source_bucket, &source_key) == (&input.bucket, &input.key);
        if same && !replace {
            let message = "a copy onto itself has to replace the metadata";
            return Err(S3Error::with_message(S3ErrorCode::InvalidRequest, message).into());
        }
        let conditions = ReadConditions {
            matches: input.copy_source_if_match,
            none_match: input.copy_source_if_none_match,
            modified_since: input.copy_source_if_modified_since,
            unmodified_since: input.copy_source_if_unmodified_since,
        };
        let (etag, modified_us) = self
            .change(None, move |db| {
                Box::pin(async move {
                    let source = require_object(db, &source_bucket, &source_key).await?;
                    conditions.check_source(&source.etag, source.modified_us)?;
                    let object = NewObject {
                        size: source.size,
                        etag: source.etag.clone(),
                        attributes: if replace { given } else { source.attributes },
                    };
                    let (to, content) = ((input.bucket.as_str(), input.key.as_str()), Content::Object(source.id));
                    let put = names::put_object(db, to, &object, &content, &WriteConditions::default()).await;
                    put.map(|(modified_us, unneeded)| ((source.etag, modified_us), unneeded))
                })
            })
            .await?;
        Ok(CopyObjectOutput {
            copy_object_result: Some(CopyObjectResult {
                e_tag: Some(ETag::Strong(etag)),
                last_modified: Some(timestamp(modified_us)),
                ..Default::default()
            }),
            ..Default::default()
        })
    }

    /// Receives a request's body.
    pub(super) async fn receive(&self, body: Option<StreamingBlob>, expected: Expected) -> Result<Received> {
        let body = body.unwrap_or_else(|| StreamingBlob::wrap(futures::stream::empty::<io::Result<Bytes>>()));
        self.bodies().receive(body, expected).await
    }

    /// An object, the range of it that `select` chooses, and that range as a stream.
    pub(super) async fn open(
        &self,
        bucket: &str,
        key: &str,
        select: impl Fn(&ObjectRecord) -> Result<Range<u64>>,
    ) -> Result<(ObjectRecord, Range<u64>, BodyStream)> {
        let mut attempt = 1;
        loop {
            let mut db = self.database().read().await?;
            let object = require_object(&mut db, bucket, key).await?;
            let range = select(&object)?;
            let pieces = names::pieces(&mut db, object.id).await?;
            drop(db);
            match self.bodies().read(pieces, range.clone()).await {
                Ok(stream) => return Ok((object, range, stream)),
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < OPEN_ATTEMPTS => attempt += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn delete(&self, bucket: String, keys: Vec<String>) -> Result<()> {
        self.change(None, move |db| {
            Box::pin(async move {
                require_bucket(db, &bucket).await?;
                let mut unneeded = Vec::new();
                for key in keys {
                    unneeded.extend(names::delete_object(db, &bucket, &key).await?);
                }
                Ok(((), unneeded))
            })
        })
        .await
    }
}

/// Fails with `KeyTooLongError`.
pub(super) fn check_key(key: &str) -> Result<()> {
    if key.len() > MAX_KEY {
        Err(S3ErrorCode::KeyTooLongError.into())
    } else {
        Ok(())
    }
}

/// Bucket and key of a copy's source.
pub(super) fn copy_source(source: &CopySource) -> Result<(String, String)> {
    match source {
        CopySource::Bucket {
            bucket,
            key,
            version_id: None,
        } => Ok((bucket.to_string(), key.to_string())),
        _ => Err(S3ErrorCode::NotImplemented.into()),
    }
}

fn refuse_part_number(number: Option<i32>) -> Result<()> {
    number.map_or(Ok(()), |_| Err(S3ErrorCode::NotImplemented.into()))
}

fn select_range(range: Option<s3s::dto::Range>, size: u64) -> Result<Range<u64>> {
    range.map_or(Ok(0..size), |range| Ok(range.check(size).map_err(S3Error::from)?))
}

fn content_range(range: &Range<u64>, size: u64) -> String {
    // A requested range is never empty.
    format!("bytes {}-{}/{size}", range.start, range.end.saturating_sub(1))
}
