//! Records of objects: the object behind each key, and the bodies it consists of. Touches the database of names only.

use s3s::{S3ErrorCode, dto::ETag};
use sqlx::SqliteConnection;

use super::{
    attributes::Attributes,
    bodies::{Body, Piece},
    conditions::WriteConditions,
    database::{now_us, signed},
    fault::Result,
};

/// An object's record.
#[derive(Debug, Clone)]
pub(super) struct ObjectRecord {
    pub(super) id: i64,
    /// Size in bytes.
    pub(super) size: u64,
    /// Entity tag without quotes.
    pub(super) etag: String,
    pub(super) attributes: Attributes,
    /// Time of the last change, in microseconds since 1970.
    pub(super) modified_us: i64,
}

impl ObjectRecord {
    pub(super) fn etag(&self) -> ETag {
        ETag::Strong(self.etag.clone())
    }

    /// Whether it is the result of an upload in parts, or a copy of one.
    pub(super) fn came_in_parts(&self) -> bool {
        self.etag.contains('-')
    }
}

/// A new object for a key.
#[derive(Debug)]
pub(super) struct NewObject {
    pub(super) size: u64,
    pub(super) etag: String,
    pub(super) attributes: Attributes,
}

/// Where the bytes of a [`NewObject`] come from.
#[derive(Debug)]
pub(super) enum Content {
    /// A body that was just received.
    Body(Body),
    /// In the parts of an upload.
    Parts(String),
    /// The pieces of an existing object.
    Object(i64),
}

/// The version of every object, in S3's word for a bucket without versions.
pub(super) const ONLY_VERSION: &str = "null";

/// Fails with `NoSuchVersion` unless the version is the only one.
pub(super) fn check_version(version: Option<&str>) -> Result<()> {
    match version {
        None | Some(ONLY_VERSION) => Ok(()),
        Some(_) => Err(S3ErrorCode::NoSuchVersion.into()),
    }
}

/// Fails with `NoSuchBucket`.
pub(super) async fn require_bucket(db: &mut SqliteConnection, bucket: &str) -> Result<()> {
    let found: Option<i64> = sqlx::query_scalar("SELECT 1 FROM bucket WHERE name = $1")
        .bind(bucket)
        .fetch_optional(db)
        .await?;
    found.map(drop).ok_or_else(|| S3ErrorCode::NoSuchBucket.into())
}

/// The object behind a key. Fails with `NoSuchBucket` or `NoSuchKey`.
pub(super) async fn require_object(db: &mut SqliteConnection, bucket: &str, key: &str) -> Result<ObjectRecord> {
    require_bucket(db, bucket).await?;
    let row: Option<(i64, i64, String, String, i64)> =
        sqlx::query_as("SELECT id, size, etag, attributes, modified_us FROM object WHERE bucket = $1 AND key = $2")
            .bind(bucket)
            .bind(key.as_bytes())
            .fetch_optional(db)
            .await?;
    let (id, size, etag, attributes, modified_us) = row.ok_or(S3ErrorCode::NoSuchKey)?;
    Ok(ObjectRecord {
        id,
        size: size.unsigned_abs(),
        etag,
        attributes: serde_json::from_str(&attributes)?,
        modified_us,
    })
}

/// The pieces of an object in order.
pub(super) async fn pieces(db: &mut SqliteConnection, object: i64) -> Result<Vec<Piece>> {
    let pieces = "SELECT ordinal, body, size FROM piece WHERE object = $1 ORDER BY ordinal";
    let rows: Vec<(i32, String, i64)> = sqlx::query_as(pieces).bind(object).fetch_all(db).await?;
    let piece = |(number, body, size): (i32, String, i64)| Piece {
        number,
        body,
        size: size.unsigned_abs(),
    };
    Ok(rows.into_iter().map(piece).collect())
}

/// Replaces a key's object. Returns the time of the change and the bodies that are no longer needed.
pub(super) async fn put_object(
    db: &mut SqliteConnection,
    (bucket, key): (&str, &str),
    object: &NewObject,
    content: &Content,
    conditions: &WriteConditions,
) -> Result<(i64, Vec<String>)> {
    require_bucket(db, bucket).await?;
    let existing: Option<String> = sqlx::query_scalar("SELECT etag FROM object WHERE bucket = $1 AND key = $2")
        .bind(bucket)
        .bind(key.as_bytes())
        .fetch_optional(&mut *db)
        .await?;
    conditions.check(existing.as_deref())?;

    let modified_us = now_us();
    let id: i64 = sqlx::query_scalar(
        "INSERT INTO object (bucket, key, size, etag, attributes, modified_us) VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (bucket, key) DO UPDATE SET size = excluded.size, etag = excluded.etag,
             attributes = excluded.attributes, modified_us = excluded.modified_us
         RETURNING id",
    )
    .bind(bucket)
    .bind(key.as_bytes())
    .bind(signed(object.size))
    .bind(&object.etag)
    .bind(serde_json::to_string(&object.attributes)?)
    .bind(modified_us)
    .fetch_one(&mut *db)
    .await?;

    if matches!(content, Content::Object(source) if *source == id) {
        return Ok((modified_us, Vec::new()));
    }
    let replaced = take_pieces(db, id).await?;
    let query = match content {
        Content::Body(body) => sqlx::query("INSERT INTO piece (object, ordinal, body, size) VALUES ($1, 0, $2, $3)")
            .bind(id)
            .bind(&body.name)
            .bind(signed(body.size)),
        Content::Parts(upload) => sqlx::query(
            "INSERT INTO piece (object, ordinal, body, size)
             SELECT $1, number, body, size FROM part WHERE upload = $2",
        )
        .bind(id)
        .bind(upload),
        Content::Object(source) => sqlx::query(
            "INSERT INTO piece (object, ordinal, body, size)
             SELECT $1, ordinal, body, size FROM piece WHERE object = $2",
        )
        .bind(id)
        .bind(source),
    };
    query.execute(&mut *db).await?;
    Ok((modified_us, unneeded(db, replaced).await?))
}

/// Removes an object, if it exists. Returns the bodies that are no longer needed.
pub(super) async fn delete_object(db: &mut SqliteConnection, bucket: &str, key: &str) -> Result<Vec<String>> {
    let id: Option<i64> = sqlx::query_scalar("SELECT id FROM object WHERE bucket = $1 AND key = $2")
        .bind(bucket)
        .bind(key.as_bytes())
        .fetch_optional(&mut *db)
        .await?;
    let Some(id) = id else { return Ok(Vec::new()) };
    let bodies = take_pieces(db, id).await?;
    sqlx::query("DELETE FROM object WHERE id = $1")
        .bind(id)
        .execute(&mut *db)
        .await?;
    unneeded(db, bodies).await
}

/// The given bodies that no record names.
pub(super) async fn unneeded(db: &mut SqliteConnection, bodies: Vec<String>) -> Result<Vec<String>> {
    let mut unneeded = Vec::new();
    for body in bodies {
        let needed: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM piece WHERE body = $1) OR EXISTS (SELECT 1 FROM part WHERE body = $1)",
        )
        .bind(&body)
        .fetch_one(&mut *db)
        .await?;
        if !needed {
            unneeded.push(body);
        }
    }
    Ok(unneeded)
}

async fn take_pieces(db: &mut SqliteConnection, object: i64) -> Result<Vec<String>> {
    Ok(sqlx::query_scalar("DELETE FROM piece WHERE object = $1 RETURNING body")
        .bind(object)
        .fetch_all(db)
        .await?)
}
