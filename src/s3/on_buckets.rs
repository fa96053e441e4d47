//! The S3 operations on buckets and their listings. Touches the database of names, and bodies through [`Service`].

use s3s::{
    S3Error, S3ErrorCode, S3Request,
    dto::{
        Bucket, BucketLocationConstraint, CommonPrefix, CreateBucketInput, CreateBucketOutput, DeleteBucketInput,
        DeleteBucketOutput, ETag, EncodingType, GetBucketLocationInput, GetBucketLocationOutput, HeadBucketInput,
        HeadBucketOutput, ListBucketsInput, ListBucketsOutput, ListObjectVersionsInput, ListObjectVersionsOutput,
        ListObjectsInput, ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output, Object, ObjectStorageClass,
        ObjectVersion, ObjectVersionStorageClass,
    },
};

use super::{
    database::{Disk, now_us, timestamp},
    fault::Result,
    listing::{self, Page, Query, url_encoded},
    names::{ONLY_VERSION, require_bucket},
    on_settings::owner,
    refusals::Refusable,
    service::Service,
};

/// The region that Amazon's protocol expresses as "no constraint".
const UNCONSTRAINED: &str = "us-east-1";

impl Service {
    pub(super) async fn create_bucket(&self, request: S3Request<CreateBucketInput>) -> Result<CreateBucketOutput> {
        request.input.refuse()?;
        let bucket = request.input.bucket;
        let mut db = self.database().write().await?;
        let made = sqlx::query("INSERT INTO bucket (name, created_us) VALUES ($1, $2) ON CONFLICT DO NOTHING")
            .bind(&bucket)
            .bind(now_us())
            .execute(&mut *db)
            .await?;
        if made.rows_affected() == 0 {
            return Err(S3ErrorCode::BucketAlreadyOwnedByYou.into());
        }
        db.commit().await?;
        Ok(CreateBucketOutput {
            location: Some(format!("/{bucket}")),
        })
    }

    pub(super) async fn head_bucket(&self, request: S3Request<HeadBucketInput>) -> Result<HeadBucketOutput> {
        require_bucket(&mut *self.database().read().await?, &request.input.bucket).await?;
        Ok(HeadBucketOutput {
            bucket_region: Some(self.region().to_owned()),
            ..Default::default()
        })
    }

    pub(super) async fn list_buckets(&self, request: S3Request<ListBucketsInput>) -> Result<ListBucketsOutput> {
        let mut db = self.database().read().await?;
        let rows: Vec<(String, i64)> = sqlx::query_as("SELECT name, created_us FROM bucket ORDER BY name")
            .fetch_all(&mut *db)
            .await?;
        let prefix = request.input.prefix.unwrap_or_default();
        let buckets = rows
            .into_iter()
            .filter(|(name, _)| name.starts_with(&prefix))
            .map(|(name, created_us)| Bucket {
                name: Some(name),
                creation_date: Some(timestamp(created_us)),
                bucket_region: None,
            });
        Ok(ListBucketsOutput {
            buckets: Some(buckets.collect()),
            ..Default::default()
        })
    }

    pub(super) async fn delete_bucket(&self, request: S3Request<DeleteBucketInput>) -> Result<DeleteBucketOutput> {
        let bucket = request.input.bucket;
        let mut db = self.database().write_to(Disk::Reserve).await?;
        require_bucket(&mut db, &bucket).await?;
        let occupied: Option<&str> = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM object WHERE bucket = $1)
             + 2 * EXISTS (SELECT 1 FROM upload WHERE bucket = $1 AND completed_etag IS NULL)",
        )
        .bind(&bucket)
        .fetch_one(&mut *db)
        .await
        .map(|occupied: i64| match occupied {
            0 => None,
            2 => Some("the bucket has uploads in progress"),
            _ => Some("the bucket has objects"),
        })?;
        if let Some(message) = occupied {
            return Err(S3Error::with_message(S3ErrorCode::BucketNotEmpty, message).into());
        }
        sqlx::query("DELETE FROM bucket WHERE name = $1")
            .bind(&bucket)
            .execute(&mut *db)
            .await?;
        db.commit().await?;
        Ok(DeleteBucketOutput {})
    }

    pub(super) async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> Result<GetBucketLocationOutput> {
        require_bucket(&mut *self.database().read().await?, &request.input.bucket).await?;
        let region = Some(self.region()).filter(|region| *region != UNCONSTRAINED);
        Ok(GetBucketLocationOutput {
            location_constraint: region.map(|region| BucketLocationConstraint::from(region.to_owned())),
        })
    }

    pub(super) async fn list_objects(&self, request: S3Request<ListObjectsInput>) -> Result<ListObjectsOutput> {
        let input = request.input;
        let max_keys = listing::limit(input.max_keys)?;
        let prefix = input.prefix.unwrap_or_default();
        let delimiter = input.delimiter.filter(|delimiter| !delimiter.is_empty());
        let marker = input.marker.unwrap_or_default();
        let from = listing::after_marker(&marker, &prefix, delimiter.as_deref());
        let page = self
            .page(&input.bucket, &prefix, delimiter.as_deref(), from, max_keys)
            .await?;
        let spell = spelling(input.encoding_type.as_ref());
        Ok(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: Some(spell(&prefix)),
            marker: Some(spell(&marker)),
            max_keys: Some(max_keys),
            is_truncated: Some(page.next.is_some()),
            next_marker: page.next.as_ref().and(page.last.as_deref()).map(&spell),
            contents: Some(contents(&page, &spell)),
            common_prefixes: Some(common_prefixes(&page, &spell)),
            delimiter: delimiter.as_deref().map(&spell),
            encoding_type: input.encoding_type,
            ..Default::default()
        })
    }

    pub(super) async fn list_objects_v2(&self, request: S3Request<ListObjectsV2Input>) -> Result<ListObjectsV2Output> {
        let input = request.input;
        let max_keys = listing::limit(input.max_keys)?;
        let prefix = input.prefix.unwrap_or_default();
        let delimiter = input.delimiter.filter(|delimiter| !delimiter.is_empty());
        let from = match (&input.continuation_token, &input.start_after) {
            (Some(token), _) => listing::from_token(token)?,
            (None, Some(key)) if !key.is_empty() => listing::after_key(key),
            _ => Vec::new(),
        };
        let page = self
            .page(&input.bucket, &prefix, delimiter.as_deref(), from, max_keys)
            .await?;
        let spell = spelling(input.encoding_type.as_ref());
        let count = page.objects.len() + page.prefixes.len();
        Ok(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(spell(&prefix)),
            max_keys: Some(max_keys),
            key_count: i32::try_from(count).ok(),
            continuation_token: input.continuation_token,
            is_truncated: Some(page.next.is_some()),
            next_continuation_token: page.next.as_deref().map(listing::token),
            contents: Some(contents(&page, &spell)),
            common_prefixes: Some(common_prefixes(&page, &spell)),
            delimiter: delimiter.as_deref().map(&spell),
            start_after: input.start_after.as_deref().map(&spell),
            encoding_type: input.encoding_type,
            ..Default::default()
        })
    }

    /// Every object is the only version of itself.
    pub(super) async fn list_object_versions(
        &self,
        request: S3Request<ListObjectVersionsInput>,
    ) -> Result<ListObjectVersionsOutput> {
        let input = request.input;
        let max_keys = listing::limit(input.max_keys)?;
        let prefix = input.prefix.unwrap_or_default();
        let delimiter = input.delimiter.filter(|delimiter| !delimiter.is_empty());
        let marker = input.key_marker.unwrap_or_default();
        let from = listing::after_marker(&marker, &prefix, delimiter.as_deref());
        let page = self
            .page(&input.bucket, &prefix, delimiter.as_deref(), from, max_keys)
            .await?;
        let spell = spelling(input.encoding_type.as_ref());
        let version = |listed: &listing::Listed| ObjectVersion {
            key: Some(spell(&listed.key)),
            version_id: Some(ONLY_VERSION.to_owned()),
            is_latest: Some(true),
            size: Some(listed.size),
            e_tag: Some(ETag::Strong(listed.etag.clone())),
            last_modified: Some(timestamp(listed.modified_us)),
            owner: Some(owner()),
            storage_class: Some(ObjectVersionStorageClass::from_static(
                ObjectVersionStorageClass::STANDARD,
            )),
            ..Default::default()
        };
        let next = page.next.as_ref().and(page.last.as_deref()).map(&spell);
        Ok(ListObjectVersionsOutput {
            name: Some(input.bucket),
            prefix: Some(spell(&prefix)),
            key_marker: Some(spell(&marker)),
            version_id_marker: input.version_id_marker,
            max_keys: Some(max_keys),
            is_truncated: Some(page.next.is_some()),
            next_version_id_marker: next.as_ref().map(|_| ONLY_VERSION.to_owned()),
            next_key_marker: next,
            versions: Some(page.objects.iter().map(version).collect()),
            common_prefixes: Some(common_prefixes(&page, &spell)),
            delimiter: delimiter.as_deref().map(&spell),
            encoding_type: input.encoding_type,
            ..Default::default()
        })
    }

    async fn page(
        &self,
        bucket: &str,
        prefix: &str,
        delimiter: Option<&str>,
        from: Vec<u8>,
        max_keys: i32,
    ) -> Result<Page> {
        let mut db = self.database().read().await?;
        require_bucket(&mut db, bucket).await?;
        let query = Query {
            bucket,
            prefix,
            delimiter,
            from,
            max: max_keys.unsigned_abs() as usize,
        };
        listing::page(&mut db, query).await
    }
}

/// The encoding of keys in an answer.
pub(super) fn spelling(encoding: Option<&EncodingType>) -> impl Fn(&str) -> String + use<> {
    let url = encoding.is_some_and(|encoding| encoding.as_str() == EncodingType::URL);
    move |text| if url { url_encoded(text) } else { text.to_owned() }
}

fn contents(page: &Page, spell: impl Fn(&str) -> String) -> Vec<Object> {
    let object = |listed: &listing::Listed| Object {
        key: Some(spell(&listed.key)),
        size: Some(listed.size),
        e_tag: Some(ETag::Strong(listed.etag.clone())),
        last_modified: Some(timestamp(listed.modified_us)),
        storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
        ..Default::default()
    };
    page.objects.iter().map(object).collect()
}

fn common_prefixes(page: &Page, spell: impl Fn(&str) -> String) -> Vec<CommonPrefix> {
    let common_prefix = |prefix: &String| CommonPrefix {
        prefix: Some(spell(prefix)),
    };
    page.prefixes.iter().map(common_prefix).collect()
}
