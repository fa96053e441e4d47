//! The S3 operations on whole objects. Touches the database of names, and bodies through [`Service`].

use std::{io, ops::Range};

use bytes::Bytes;
use s3s::{
    S3Error, S3ErrorCode, S3Request,
    dto::{
        Checksum, ChecksumMode, CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopySource, DeleteObjectInput,
        DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject, ETag, GetObjectAttributesInput,
        GetObjectAttributesOutput, GetObjectAttributesParts, GetObjectInput, GetObjectOutput, HeadObjectInput,
        HeadObjectOutput, MetadataDirective, ObjectAttributes, ObjectPart, PutObjectInput, PutObjectOutput,
        StorageClass, StreamingBlob,
    },
};

use super::{
    attributes::Attributes,
    bodies::{BodyStream, Piece, Received},
    checksums::Expected,
    conditions::{ReadConditions, WriteConditions},
    database::{signed, timestamp},
    fault::Result,
    listing,
    names::{self, Content, NewObject, ONLY_VERSION, ObjectRecord, check_version, require_bucket, require_object},
    refusals::Refusable,
    service::Service,
    sums::put_sums,
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
        input.refuse()?;
        require_bucket(&mut *self.database().read().await?, &input.bucket).await?;
        let mut attributes = Attributes::from(&input);
        let conditions = WriteConditions {
            matches: input.if_match.take(),
            none_match: input.if_none_match.take(),
        };
        let received = self.receive(input.body.take(), expected).await?;
        let body = received.body.clone();
        attributes.sums = body.sums.clone();
        let mut output = PutObjectOutput::default();
        if !body.sums.is_empty() {
            output.checksum_type = Some(attributes.sums_of.into());
            put_sums!(output, body.sums.clone());
        }
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
            ..output
        })
    }

    pub(super) async fn get_object(&self, request: S3Request<GetObjectInput>) -> Result<GetObjectOutput> {
        let input = request.input;
        check_version(input.version_id.as_deref())?;
        let conditions = ReadConditions {
            matches: input.if_match,
            none_match: input.if_none_match,
            modified_since: input.if_modified_since,
            unmodified_since: input.if_unmodified_since,
        };
        let wanted = Wanted::of(input.range, input.part_number)?;
        let select = |object: &ObjectRecord, pieces: &[Piece]| {
            conditions.check(&object.etag, object.modified_us)?;
            wanted.range(object, pieces)
        };
        let (object, pieces, range, stream) = self.open(&input.bucket, &input.key, select).await?;
        let (content_range, etag) = (wanted.content_range(&range, &object), object.etag());
        let (parts_count, modified) = (wanted.parts_count(&object, pieces), timestamp(object.modified_us));
        let (sums, kind) = (object.attributes.sums.clone(), object.attributes.sums_of);
        let mut output = GetObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            body: Some(StreamingBlob::wrap(stream)),
            content_length: Some(signed(range.end - range.start)),
            content_range,
            e_tag: Some(etag),
            last_modified: Some(modified),
            parts_count,
            ..object.attributes.into()
        };
        if wanted == Wanted::Whole && is_enabled(input.checksum_mode.as_ref()) && !sums.is_empty() {
            output.checksum_type = Some(kind.into());
            put_sums!(output, sums);
        }
        Ok(output)
    }

    pub(super) async fn head_object(&self, request: S3Request<HeadObjectInput>) -> Result<HeadObjectOutput> {
        let input = request.input;
        check_version(input.version_id.as_deref())?;
        let (object, pieces) = {
            let mut db = self.database().read().await?;
            let object = require_object(&mut db, &input.bucket, &input.key).await?;
            let pieces = names::pieces(&mut db, object.id).await?;
            (object, pieces)
        };
        let conditions = ReadConditions {
            matches: input.if_match,
            none_match: input.if_none_match,
            modified_since: input.if_modified_since,
            unmodified_since: input.if_unmodified_since,
        };
        conditions.check(&object.etag, object.modified_us)?;
        let wanted = Wanted::of(input.range, input.part_number)?;
        let range = wanted.range(&object, &pieces)?;
        let (sums, kind) = (object.attributes.sums.clone(), object.attributes.sums_of);
        let mut output = HeadObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: Some(signed(range.end - range.start)),
            content_range: wanted.content_range(&range, &object),
            e_tag: Some(object.etag()),
            last_modified: Some(timestamp(object.modified_us)),
            parts_count: wanted.parts_count(&object, pieces.len()),
            ..object.attributes.into()
        };
        if wanted == Wanted::Whole && is_enabled(input.checksum_mode.as_ref()) && !sums.is_empty() {
            output.checksum_type = Some(kind.into());
            put_sums!(output, sums);
        }
        Ok(output)
    }

    pub(super) async fn get_object_attributes(
        &self,
        request: S3Request<GetObjectAttributesInput>,
    ) -> Result<GetObjectAttributesOutput> {
        let input = request.input;
        check_version(input.version_id.as_deref())?;
        let max = listing::limit(input.max_parts)?;
        let after = input.part_number_marker.unwrap_or_default();
        let mut db = self.database().read().await?;
        let object = require_object(&mut db, &input.bucket, &input.key).await?;
        let pieces = names::pieces(&mut db, object.id).await?;
        drop(db);
        // Some clients send one header with a list, which the library does not take apart.
        let lists = &input.object_attributes;
        let is_wanted = |name| {
            lists
                .iter()
                .any(|list| list.as_str().split(',').any(|wanted| wanted.trim() == name))
        };
        let mut output = GetObjectAttributesOutput {
            last_modified: Some(timestamp(object.modified_us)),
            ..Default::default()
        };
        if is_wanted(ObjectAttributes::ETAG) {
            output.e_tag = Some(object.etag());
        }
        if is_wanted(ObjectAttributes::OBJECT_SIZE) {
            output.object_size = Some(signed(object.size));
        }
        if is_wanted(ObjectAttributes::STORAGE_CLASS) {
            output.storage_class = Some(StorageClass::from_static(StorageClass::STANDARD));
        }
        if is_wanted(ObjectAttributes::CHECKSUM) && !object.attributes.sums.is_empty() {
            let mut checksum = Checksum {
                checksum_type: Some(object.attributes.sums_of.into()),
                ..Default::default()
            };
            put_sums!(checksum, object.attributes.sums.clone());
            output.checksum = Some(checksum);
        }
        if is_wanted(ObjectAttributes::OBJECT_PARTS) && object.came_in_parts() {
            let part = |piece: &Piece| ObjectPart {
                part_number: Some(piece.number),
                size: Some(signed(piece.size)),
                ..Default::default()
            };
            let mut parts: Vec<_> = pieces.iter().filter(|piece| piece.number > after).map(part).collect();
            let truncated = parts.len() > max.unsigned_abs() as usize;
            parts.truncate(max.unsigned_abs() as usize);
            output.object_parts = Some(GetObjectAttributesParts {
                is_truncated: Some(truncated),
                max_parts: Some(max),
                next_part_number_marker: parts.last().filter(|_| truncated).and_then(|last| last.part_number),
                part_number_marker: Some(after),
                parts: Some(parts),
                total_parts_count: i32::try_from(pieces.len()).ok(),
            });
        }
        Ok(output)
    }

    pub(super) async fn delete_object(&self, request: S3Request<DeleteObjectInput>) -> Result<DeleteObjectOutput> {
        let input = request.input;
        check_version(input.version_id.as_deref())?;
        self.delete(input.bucket, vec![input.key]).await?;
        Ok(DeleteObjectOutput::default())
    }

    pub(super) async fn delete_objects(&self, request: S3Request<DeleteObjectsInput>) -> Result<DeleteObjectsOutput> {
        let input = request.input;
        for object in &input.delete.objects {
            check_version(object.version_id.as_deref())?;
        }
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
        input.refuse()?;
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
                        attributes: if replace {
                            given.describing(source.attributes)
                        } else {
                            source.attributes
                        },
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

    /// An object, the number of its pieces, the range of it that `select` chooses, and that range as a stream.
    pub(super) async fn open(
        &self,
        bucket: &str,
        key: &str,
        select: impl Fn(&ObjectRecord, &[Piece]) -> Result<Range<u64>>,
    ) -> Result<(ObjectRecord, usize, Range<u64>, BodyStream)> {
        let mut attempt = 1;
        loop {
            let mut db = self.database().read().await?;
            let object = require_object(&mut db, bucket, key).await?;
            let pieces = names::pieces(&mut db, object.id).await?;
            let (range, count) = (select(&object, &pieces)?, pieces.len());
            drop(db);
            match self.bodies().read(pieces, range.clone()).await {
                Ok(stream) => return Ok((object, count, range, stream)),
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < OPEN_ATTEMPTS => attempt += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn delete(&self, bucket: String, keys: Vec<String>) -> Result<()> {
        self.remove(move |db| {
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
            version_id,
        } if version_id.as_deref().is_none_or(|version| version == ONLY_VERSION) => {
            Ok((bucket.to_string(), key.to_string()))
        }
        _ => Err(S3ErrorCode::NotImplemented.into()),
    }
}

/// What a client wants of an object.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Wanted {
    Whole,
    Range(s3s::dto::Range),
    /// The part of this number.
    Part(i32),
}

impl Wanted {
    fn of(range: Option<s3s::dto::Range>, part: Option<i32>) -> Result<Self> {
        match (range, part) {
            (None, None) => Ok(Self::Whole),
            (Some(range), None) => Ok(Self::Range(range)),
            (None, Some(part)) => Ok(Self::Part(part)),
            (Some(_), Some(_)) => {
                let message = "a range and a part number cannot be asked for together";
                Err(S3Error::with_message(S3ErrorCode::InvalidRequest, message).into())
            }
        }
    }

    fn range(self, object: &ObjectRecord, pieces: &[Piece]) -> Result<Range<u64>> {
        match self {
            Self::Whole => Ok(0..object.size),
            Self::Range(range) => Ok(range.check(object.size).map_err(S3Error::from)?),
            Self::Part(1) if !object.came_in_parts() => Ok(0..object.size),
            Self::Part(number) => {
                let at = pieces.iter().position(|piece| piece.number == number);
                let at = at.ok_or_else(|| {
                    let mut error = S3Error::from(S3ErrorCode::Custom("InvalidPartNumber".into()));
                    if let Ok(status) = 416.try_into() {
                        error.set_status_code(status);
                    }
                    error
                })?;
                let begin = pieces[..at].iter().map(|piece| piece.size).sum();
                Ok(begin..begin + pieces[at].size)
            }
        }
    }

    fn content_range(self, range: &Range<u64>, object: &ObjectRecord) -> Option<String> {
        // Nothing cannot be said as a range.
        let last = range
            .end
            .checked_sub(1)
            .filter(|_| self != Self::Whole && !range.is_empty())?;
        Some(format!("bytes {}-{last}/{}", range.start, object.size))
    }

    fn parts_count(self, object: &ObjectRecord, pieces: usize) -> Option<i32> {
        let is_asked = matches!(self, Self::Part(_)) && object.came_in_parts();
        is_asked.then(|| i32::try_from(pieces).ok()).flatten()
    }
}

fn is_enabled(mode: Option<&ChecksumMode>) -> bool {
    mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED)
}
