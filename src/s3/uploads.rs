//! Records of multipart uploads. Touches the database of names only.

use md5::{Digest, Md5};
use s3s::{
    S3Error, S3ErrorCode,
    dto::{CompletedPart, ETag},
};
use sqlx::SqliteConnection;

use super::{
    attributes::Attributes,
    bodies::Body,
    conditions::WriteConditions,
    database::{now_us, signed},
    fault::Result,
    names::{Content, NewObject, put_object, require_bucket, unneeded},
    sums::{Sums, SumsOf, sums_of},
};

/// The smallest size of every part except the last, in bytes (5 MiB).
const MIN_PART: i64 = 5 * 1024 * 1024;

/// The most uploads that are open at a time.
const MOST_OPEN: i64 = 10_000;

/// How long a completed upload is remembered, in microseconds (one day).
const REMEMBERED_US: i64 = 24 * 3600 * 1_000_000;

/// Identifies one upload: bucket, key and id must all match.
#[derive(Debug, Clone)]
pub(super) struct UploadName {
    pub(super) bucket: String,
    pub(super) key: String,
    pub(super) id: String,
}

/// A part's record.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub(super) struct PartRecord {
    pub(super) number: i32,
    pub(super) size: i64,
    pub(super) etag: String,
    pub(super) modified_us: i64,
    #[sqlx(try_from = "String")]
    pub(super) sums: Sums,
}

/// What a client promises of the whole.
#[derive(Debug, Default)]
pub(super) struct Promised {
    pub(super) size: Option<i64>,
    pub(super) sums: Sums,
}

/// An open upload, as listed.
#[derive(Debug, Clone, sqlx::FromRow)]
pub(super) struct OpenUpload {
    pub(super) key: Vec<u8>,
    pub(super) id: String,
    pub(super) initiated_us: i64,
}

/// Records a new upload.
pub(super) async fn create(db: &mut SqliteConnection, name: &UploadName, attributes: &Attributes) -> Result<()> {
    require_bucket(db, &name.bucket).await?;
    let open: i64 = sqlx::query_scalar("SELECT count(*) FROM upload WHERE completed_etag IS NULL")
        .fetch_one(&mut *db)
        .await?;
    if open >= MOST_OPEN {
        let message = format!("{open} uploads are open; complete or abort some of them");
        return Err(S3Error::with_message(S3ErrorCode::SlowDown, message).into());
    }
    sqlx::query("INSERT INTO upload (id, bucket, key, attributes, initiated_us) VALUES ($1, $2, $3, $4, $5)")
        .bind(&name.id)
        .bind(&name.bucket)
        .bind(name.key.as_bytes())
        .bind(serde_json::to_string(attributes)?)
        .bind(now_us())
        .execute(db)
        .await?;
    Ok(())
}

/// Fails with `NoSuchUpload` unless the upload exists and is neither completed nor aborted.
pub(super) async fn require_open(db: &mut SqliteConnection, name: &UploadName) -> Result<Attributes> {
    match find(db, name).await? {
        (_, Some(_)) => Err(S3ErrorCode::NoSuchUpload.into()),
        (attributes, None) => Ok(attributes),
    }
}

/// Attributes of the future object and, once completed, its entity tag.
async fn find(db: &mut SqliteConnection, name: &UploadName) -> Result<(Attributes, Option<String>)> {
    require_bucket(db, &name.bucket).await?;
    let row: Option<(String, Option<String>)> =
        sqlx::query_as("SELECT attributes, completed_etag FROM upload WHERE id = $1 AND bucket = $2 AND key = $3")
            .bind(&name.id)
            .bind(&name.bucket)
            .bind(name.key.as_bytes())
            .fetch_optional(db)
            .await?;
    let (attributes, etag) = row.ok_or(S3ErrorCode::NoSuchUpload)?;
    Ok((serde_json::from_str(&attributes)?, etag))
}

/// Records a part, replacing an earlier one of the same number. Returns its time and the bodies that are no longer
/// needed.
pub(super) async fn put_part(
    db: &mut SqliteConnection,
    name: &UploadName,
    number: i32,
    body: &Body,
) -> Result<(i64, Vec<String>)> {
    require_open(db, name).await?;
    let replaced = sqlx::query_scalar("DELETE FROM part WHERE upload = $1 AND number = $2 RETURNING body")
        .bind(&name.id)
        .bind(number)
        .fetch_all(&mut *db)
        .await?;
    let modified_us = now_us();
    let insert =
        "INSERT INTO part (upload, number, body, size, etag, modified_us, sums) VALUES ($1, $2, $3, $4, $5, $6, $7)";
    sqlx::query(insert)
        .bind(&name.id)
        .bind(number)
        .bind(&body.name)
        .bind(signed(body.size))
        .bind(hex::encode(body.md5))
        .bind(modified_us)
        .bind(serde_json::to_string(&body.sums)?)
        .execute(&mut *db)
        .await?;
    Ok((modified_us, unneeded(db, replaced).await?))
}

/// Up to `limit` parts with numbers above `after`.
pub(super) async fn parts(db: &mut SqliteConnection, upload: &str, after: i32, limit: i64) -> Result<Vec<PartRecord>> {
    let parts = sqlx::query_as(
        "SELECT number, size, etag, modified_us, sums FROM part WHERE upload = $1 AND number > $2 ORDER BY number LIMIT $3",
    );
    Ok(parts.bind(upload).bind(after).bind(limit).fetch_all(db).await?)
}

/// Turns the named parts into the object, without touching their bytes. Returns its entity tag and checksums, and the
/// bodies that are no longer needed. Repeating a completed call returns the same.
pub(super) async fn complete(
    db: &mut SqliteConnection,
    name: &UploadName,
    wanted: &[CompletedPart],
    promised: &Promised,
    conditions: &WriteConditions,
) -> Result<((String, Sums, SumsOf), Vec<String>)> {
    let (mut attributes, completed) = find(db, name).await?;
    if let Some(etag) = completed {
        return Ok(((etag, attributes.sums, attributes.sums_of), Vec::new()));
    }
    let present = parts(db, &name.id, 0, i64::MAX).await?;
    let chosen = choose(&present, wanted)?;
    let total: i64 = chosen.iter().map(|part| part.size).sum();
    if promised.size.is_some_and(|size| size != total) {
        let message = format!("the parts have {total} bytes together");
        return Err(S3Error::with_message(S3ErrorCode::InvalidRequest, message).into());
    }
    let etag = multipart_etag(&chosen)?;
    let sums: Vec<_> = chosen
        .iter()
        .map(|part| (part.sums.clone(), part.size.unsigned_abs()))
        .collect();
    let sums = Sums::of_parts(&sums, attributes.sums_of);
    if let Some(header) = sums.differs_from(&promised.sums) {
        let message = format!("the parts together do not match {header}");
        return Err(S3Error::with_message(S3ErrorCode::BadDigest, message).into());
    }
    attributes.sums = sums.clone();
    let kind = attributes.sums_of;

    let mut dropped: Vec<String> = Vec::new();
    for part in present.iter().filter(|part| !chosen.contains(part)) {
        let body = sqlx::query_scalar("DELETE FROM part WHERE upload = $1 AND number = $2 RETURNING body");
        dropped.push(body.bind(&name.id).bind(part.number).fetch_one(&mut *db).await?);
    }
    let object = NewObject {
        size: total.unsigned_abs(),
        etag: etag.clone(),
        attributes,
    };
    let content = Content::Parts(name.id.clone());
    let (modified_us, replaced) = put_object(db, (&name.bucket, &name.key), &object, &content, conditions).await?;
    sqlx::query("DELETE FROM part WHERE upload = $1")
        .bind(&name.id)
        .execute(&mut *db)
        .await?;
    sqlx::query("UPDATE upload SET completed_etag = $2, completed_us = $3, attributes = $4 WHERE id = $1")
        .bind(&name.id)
        .bind(&etag)
        .bind(modified_us)
        .bind(serde_json::to_string(&object.attributes)?)
        .execute(&mut *db)
        .await?;
    dropped.extend(replaced);
    Ok(((etag, sums, kind), unneeded(db, dropped).await?))
}

/// Removes an upload and its parts. Returns the bodies that are no longer needed.
pub(super) async fn abort(db: &mut SqliteConnection, name: &UploadName) -> Result<Vec<String>> {
    require_open(db, name).await?;
    let bodies = sqlx::query_scalar("DELETE FROM part WHERE upload = $1 RETURNING body")
        .bind(&name.id)
        .fetch_all(&mut *db)
        .await?;
    sqlx::query("DELETE FROM upload WHERE id = $1")
        .bind(&name.id)
        .execute(&mut *db)
        .await?;
    unneeded(db, bodies).await
}

/// Open uploads of a bucket after a key and an id, sorted by both.
pub(super) async fn open_uploads(
    db: &mut SqliteConnection,
    bucket: &str,
    prefix: &str,
    after: (&str, &str),
    limit: i64,
) -> Result<Vec<OpenUpload>> {
    let uploads = sqlx::query_as(
        "SELECT key, id, initiated_us FROM upload
         WHERE bucket = $1 AND completed_etag IS NULL AND substr(key, 1, length($2)) = $2 AND (key, id) > ($3, $4)
         ORDER BY key, id LIMIT $5",
    );
    let (key, id) = after;
    let uploads = uploads
        .bind(bucket)
        .bind(prefix.as_bytes())
        .bind(key.as_bytes())
        .bind(id)
        .bind(limit);
    Ok(uploads.fetch_all(db).await?)
}

/// Removes the records of uploads that were completed long ago.
pub(super) async fn forget_completed(db: &mut SqliteConnection) -> Result<()> {
    sqlx::query("DELETE FROM upload WHERE completed_us < $1")
        .bind(now_us() - REMEMBERED_US)
        .execute(db)
        .await?;
    Ok(())
}

/// The parts that the client names, checked against those that exist.
fn choose(present: &[PartRecord], wanted: &[CompletedPart]) -> Result<Vec<PartRecord>> {
    if wanted.is_empty() {
        return Err(S3Error::with_message(S3ErrorCode::MalformedXML, "no part is named").into());
    }
    let mut chosen: Vec<PartRecord> = Vec::with_capacity(wanted.len());
    for part in wanted {
        let number = part.part_number.ok_or(S3ErrorCode::InvalidPart)?;
        if chosen.last().is_some_and(|last| last.number >= number) {
            return Err(S3ErrorCode::InvalidPartOrder.into());
        }
        let at = present
            .binary_search_by_key(&number, |part| part.number)
            .map_err(|_| S3ErrorCode::InvalidPart)?;
        let has_other_sums = present[at].sums.differs_from(&sums_of!(part)).is_some();
        if part.e_tag.as_ref().map(ETag::value) != Some(&present[at].etag) || has_other_sums {
            let message = format!("part {number} has another entity tag or checksum");
            return Err(S3Error::with_message(S3ErrorCode::InvalidPart, message).into());
        }
        chosen.push(present[at].clone());
    }
    let (_, all_but_last) = chosen.split_last().ok_or(S3ErrorCode::InvalidPart)?;
    if let Some(small) = all_but_last.iter().find(|part| part.size < MIN_PART) {
        let message = format!("part {} is smaller than {MIN_PART} bytes", small.number);
        return Err(S3Error::with_message(S3ErrorCode::EntityTooSmall, message).into());
    }
    Ok(chosen)
}

/// The MD5 of the parts' MD5s, followed by their number.
fn multipart_etag(parts: &[PartRecord]) -> Result<String> {
    let mut md5 = Md5::new();
    for part in parts {
        md5.update(hex::decode(&part.etag).map_err(std::io::Error::other)?);
    }
    Ok(format!("{}-{}", hex::encode(md5.finalize()), parts.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(number: i32, size: i64) -> PartRecord {
        PartRecord {
            number,
            size,
            etag: hex::encode(Md5::digest([number.to_le_bytes()[0]])),
            modified_us: 0,
            sums: Sums::default(),
        }
    }

    fn wanted(parts: &[PartRecord]) -> Vec<CompletedPart> {
        let wanted = |part: &PartRecord| CompletedPart {
            part_number: Some(part.number),
            e_tag: Some(ETag::Strong(part.etag.clone())),
            ..Default::default()
        };
        parts.iter().map(wanted).collect()
    }

    fn code(result: Result<Vec<PartRecord>>) -> S3ErrorCode {
        S3Error::from(result.unwrap_err()).code().clone()
    }

    #[test]
    fn parts_may_be_left_out_and_have_gaps() {
        let present = [part(2, MIN_PART), part(5, MIN_PART), part(9, 1)];
        assert_eq!(choose(&present, &wanted(&present)).unwrap(), present);
        assert_eq!(choose(&present, &wanted(&present[1..])).unwrap(), present[1..]);
    }

    #[test]
    fn parts_must_be_present_ordered_and_large_enough() {
        let present = [part(1, MIN_PART - 1), part(2, 1)];
        assert_eq!(code(choose(&present, &wanted(&present))), S3ErrorCode::EntityTooSmall);
        let backwards = [part(2, 1), part(1, 1)];
        assert_eq!(
            code(choose(&present, &wanted(&backwards))),
            S3ErrorCode::InvalidPartOrder
        );
        assert_eq!(code(choose(&present, &wanted(&[part(3, 1)]))), S3ErrorCode::InvalidPart);
        assert_eq!(code(choose(&present, &[])), S3ErrorCode::MalformedXML);
    }
}
