//! The S3 operations on multipart uploads. Touches the database of names, and bodies through [`Service`].

use futures::StreamExt;
use s3s::{
    S3Error, S3ErrorCode, S3Request, StdError,
    dto::{
        AbortMultipartUploadInput, AbortMultipartUploadOutput, ChecksumAlgorithm, CompleteMultipartUploadInput,
        CompleteMultipartUploadOutput, CopyPartResult, CreateMultipartUploadInput, CreateMultipartUploadOutput, ETag,
        ListMultipartUploadsInput, ListMultipartUploadsOutput, ListPartsInput, ListPartsOutput, MultipartUpload, Part,
        Range, StorageClass, UploadPartCopyInput, UploadPartCopyOutput, UploadPartInput, UploadPartOutput,
    },
};
use uuid::Uuid;

use super::{
    attributes::Attributes,
    bodies::Received,
    checksums::Expected,
    conditions::{ReadConditions, WriteConditions},
    database::timestamp,
    fault::Result,
    listing,
    names::require_bucket,
    on_buckets::spelling,
    on_objects::{check_key, copy_source},
    refusals::Refusable,
    service::Service,
    sums::{SumsOf, put_sums, sums_of},
    uploads::{self, Promised, UploadName},
};

/// Part numbers go from 1 to this.
const MAX_PART: i32 = 10_000;

macro_rules! upload_name {
    ($input:expr) => {
        UploadName {
            bucket: $input.bucket.clone(),
            key: $input.key.clone(),
            id: $input.upload_id.clone(),
        }
    };
}

impl Service {
    pub(super) async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> Result<CreateMultipartUploadOutput> {
        let input = request.input;
        check_key(&input.key)?;
        input.refuse()?;
        let mut attributes = Attributes::from(&input);
        let algorithm = input.checksum_algorithm.as_ref().map(ChecksumAlgorithm::as_str);
        attributes.sums_of = SumsOf::asked(input.checksum_type.as_ref(), algorithm);
        let checksum_type = input.checksum_algorithm.as_ref().map(|_| attributes.sums_of.into());
        let name = UploadName {
            bucket: input.bucket,
            key: input.key,
            id: Uuid::new_v4().simple().to_string(),
        };
        let mut db = self.database().write().await?;
        uploads::create(&mut db, &name, &attributes).await?;
        db.commit().await?;
        Ok(CreateMultipartUploadOutput {
            bucket: Some(name.bucket),
            key: Some(name.key),
            upload_id: Some(name.id),
            checksum_algorithm: input.checksum_algorithm,
            checksum_type,
            ..Default::default()
        })
    }

    pub(super) async fn upload_part(&self, request: S3Request<UploadPartInput>) -> Result<UploadPartOutput> {
        let expected = Expected::of_part(&request)?;
        let mut input = request.input;
        input.refuse()?;
        let name = upload_name!(input);
        check_part_number(input.part_number)?;
        uploads::require_open(&mut *self.database().read().await?, &name).await?;
        let received = self.receive(input.body.take(), expected).await?;
        let mut output = UploadPartOutput {
            e_tag: Some(ETag::Strong(hex::encode(received.body.md5))),
            ..Default::default()
        };
        put_sums!(output, received.body.sums.clone());
        self.put_part(name, input.part_number, received).await?;
        Ok(output)
    }

    pub(super) async fn upload_part_copy(
        &self,
        request: S3Request<UploadPartCopyInput>,
    ) -> Result<UploadPartCopyOutput> {
        let input = request.input;
        input.refuse()?;
        let name = upload_name!(input);
        check_part_number(input.part_number)?;
        uploads::require_open(&mut *self.database().read().await?, &name).await?;
        let (bucket, key) = copy_source(&input.copy_source)?;
        let range = input.copy_source_range.as_deref().map(Range::parse).transpose();
        let range = range.map_err(|_| S3ErrorCode::InvalidArgument)?;
        let conditions = ReadConditions {
            matches: input.copy_source_if_match,
            none_match: input.copy_source_if_none_match,
            modified_since: input.copy_source_if_modified_since,
            unmodified_since: input.copy_source_if_unmodified_since,
        };
        let (_, _, _, stream) = self
            .open(&bucket, &key, |source, _| {
                conditions.check_source(&source.etag, source.modified_us)?;
                range.map_or(Ok(0..source.size), |range| {
                    Ok(range.check(source.size).map_err(S3Error::from)?)
                })
            })
            .await?;
        // The bytes have to be read anyway, for the part's MD5.
        let stream = stream.map(|chunk| chunk.map_err(|error| Box::new(error) as StdError));
        let received = self.bodies().receive(stream, Expected::default()).await?;
        let etag = hex::encode(received.body.md5);
        let modified_us = self.put_part(name, input.part_number, received).await?;
        Ok(UploadPartCopyOutput {
            copy_part_result: Some(CopyPartResult {
                e_tag: Some(ETag::Strong(etag)),
                last_modified: Some(timestamp(modified_us)),
                ..Default::default()
            }),
            ..Default::default()
        })
    }

    pub(super) async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> Result<CompleteMultipartUploadOutput> {
        let input = request.input;
        let name = upload_name!(input);
        let promised = Promised {
            size: input.mpu_object_size,
            sums: sums_of!(input),
        };
        let parts = input
            .multipart_upload
            .and_then(|upload| upload.parts)
            .unwrap_or_default();
        let conditions = WriteConditions {
            matches: input.if_match,
            none_match: input.if_none_match,
        };
        let (etag, sums, kind) = self
            .change(None, move |db| {
                Box::pin(async move { uploads::complete(db, &name, &parts, &promised, &conditions).await })
            })
            .await?;
        let mut output = CompleteMultipartUploadOutput::default();
        if !sums.is_empty() {
            output.checksum_type = Some(kind.into());
            put_sums!(output, sums);
        }
        Ok(CompleteMultipartUploadOutput {
            location: Some(format!("/{}/{}", input.bucket, listing::url_encoded(&input.key))),
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: Some(ETag::Strong(etag)),
            ..output
        })
    }

    pub(super) async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> Result<AbortMultipartUploadOutput> {
        let name = upload_name!(request.input);
        self.remove(move |db| Box::pin(async move { Ok(((), uploads::abort(db, &name).await?)) }))
            .await?;
        Ok(AbortMultipartUploadOutput::default())
    }

    pub(super) async fn list_parts(&self, request: S3Request<ListPartsInput>) -> Result<ListPartsOutput> {
        let input = request.input;
        let name = upload_name!(input);
        let max = listing::limit(input.max_parts)?;
        let after = input.part_number_marker.unwrap_or_default();
        let mut db = self.database().read().await?;
        uploads::require_open(&mut db, &name).await?;
        let mut parts = uploads::parts(&mut db, &name.id, after, i64::from(max) + 1).await?;
        let truncated = cut(&mut parts, max);
        let part = |part: &uploads::PartRecord| {
            let mut listed = Part {
                part_number: Some(part.number),
                e_tag: Some(ETag::Strong(part.etag.clone())),
                size: Some(part.size),
                last_modified: Some(timestamp(part.modified_us)),
                ..Default::default()
            };
            put_sums!(listed, part.sums.clone());
            listed
        };
        Ok(ListPartsOutput {
            bucket: Some(name.bucket),
            key: Some(name.key),
            upload_id: Some(name.id),
            max_parts: Some(max),
            part_number_marker: Some(after),
            is_truncated: Some(truncated),
            next_part_number_marker: parts.last().filter(|_| truncated).map(|last| last.number),
            parts: Some(parts.iter().map(part).collect()),
            storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
            ..Default::default()
        })
    }

    pub(super) async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> Result<ListMultipartUploadsOutput> {
        let input = request.input;
        if input
            .delimiter
            .as_deref()
            .is_some_and(|delimiter| !delimiter.is_empty())
        {
            return Err(S3ErrorCode::NotImplemented.into());
        }
        let max = listing::limit(input.max_uploads)?;
        let prefix = input.prefix.unwrap_or_default();
        let key_marker = input.key_marker.unwrap_or_default();
        // Without an id, all uploads of the marker's key are skipped. No id sorts after `~`.
        let id_marker = input.upload_id_marker.clone().filter(|id| !id.is_empty());
        let after = (key_marker.as_str(), id_marker.as_deref().unwrap_or("~"));
        let mut db = self.database().read().await?;
        require_bucket(&mut db, &input.bucket).await?;
        let mut open = uploads::open_uploads(&mut db, &input.bucket, &prefix, after, i64::from(max) + 1).await?;
        let truncated = cut(&mut open, max);
        let spell = spelling(input.encoding_type.as_ref());
        let key = |upload: &uploads::OpenUpload| spell(&String::from_utf8_lossy(&upload.key));
        let upload = |upload: &uploads::OpenUpload| MultipartUpload {
            key: Some(key(upload)),
            upload_id: Some(upload.id.clone()),
            initiated: Some(timestamp(upload.initiated_us)),
            storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
            ..Default::default()
        };
        let last = open.last().filter(|_| truncated);
        Ok(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            prefix: Some(spell(&prefix)),
            key_marker: Some(spell(&key_marker)),
            upload_id_marker: input.upload_id_marker,
            max_uploads: Some(max),
            is_truncated: Some(truncated),
            next_key_marker: last.map(key),
            next_upload_id_marker: last.map(|upload| upload.id.clone()),
            uploads: Some(open.iter().map(upload).collect()),
            encoding_type: input.encoding_type,
            ..Default::default()
        })
    }

    async fn put_part(&self, name: UploadName, number: i32, received: Received) -> Result<i64> {
        let body = received.body.clone();
        self.change(Some(received), move |db| {
            Box::pin(async move { uploads::put_part(db, &name, number, &body).await })
        })
        .await
    }
}

/// Truncates a list that was fetched with one extra entry. Returns whether there is more.
fn cut<T>(list: &mut Vec<T>, max: i32) -> bool {
    let max = max.unsigned_abs() as usize;
    let more = list.len() > max && max > 0;
    list.truncate(max);
    more
}

fn check_part_number(number: i32) -> Result<()> {
    if (1..=MAX_PART).contains(&number) {
        return Ok(());
    }
    let message = format!("part numbers go from 1 to {MAX_PART}");
    Err(S3Error::with_message(S3ErrorCode::InvalidArgument, message).into())
}
