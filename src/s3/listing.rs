//! Lists a bucket's keys, page by page. Reads the database of names only.

use s3s::{S3Error, S3ErrorCode};
use sqlx::SqliteConnection;

use super::fault::{Fault, Result};
use kiln_records::percent;

/// The largest page, and the default.
pub(super) const MAX_KEYS: i32 = 1000;

/// Rows fetched at a time.
const BATCH: i64 = 1000;

/// The keys to list.
#[derive(Debug)]
pub(super) struct Query<'a> {
    pub(super) bucket: &'a str,
    pub(super) prefix: &'a str,
    /// Keys that contain this after the prefix are rolled up into one entry. Not empty.
    pub(super) delimiter: Option<&'a str>,
    /// The first key to list, as bytes.
    pub(super) from: Vec<u8>,
    /// The most entries to return.
    pub(super) max: usize,
}

/// A run of keys in order.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) objects: Vec<Listed>,
    pub(super) prefixes: Vec<String>,
    /// The start of the next page; `None` on the last page.
    pub(super) next: Option<Vec<u8>>,
    /// The last key or common prefix of this page.
    pub(super) last: Option<String>,
}

/// One object in a listing.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) key: String,
    pub(super) size: i64,
    pub(super) etag: String,
    pub(super) modified_us: i64,
}

/// Reads one page.
pub(super) async fn page(db: &mut SqliteConnection, query: Query<'_>) -> Result<Page> {
    let mut page = Page::default();
    let end = after_prefix(query.prefix.as_bytes());
    let mut from = query.from.max(query.prefix.as_bytes().to_vec());
    loop {
        let rows: Vec<(Vec<u8>, i64, String, i64)> = sqlx::query_as(
            "SELECT key, size, etag, modified_us FROM object
             WHERE bucket = $1 AND key >= $2 AND ($3 IS NULL OR key < $3) ORDER BY key LIMIT $4",
        )
        .bind(query.bucket)
        .bind(&from)
        .bind(&end)
        .bind(BATCH)
        .fetch_all(&mut *db)
        .await?;
        let more = rows.len() == usize::try_from(BATCH).unwrap_or_default();
        for (key, size, etag, modified_us) in rows {
            // Already rolled up.
            if key < from {
                continue;
            }
            if page.objects.len() + page.prefixes.len() == query.max {
                page.next = (query.max > 0).then_some(from);
                return Ok(page);
            }
            let key = String::from_utf8(key).map_err(|error| Fault::Io(std::io::Error::other(error)))?;
            let rolled_up = query
                .delimiter
                .and_then(|delimiter| common_prefix(&key, query.prefix, delimiter));
            page.last = Some(rolled_up.clone().unwrap_or_else(|| key.clone()));
            if let Some(prefix) = rolled_up {
                // A successor always exists: a common prefix ends in the delimiter, so it is not empty.
                from = after_prefix(prefix.as_bytes()).unwrap_or_default();
                page.prefixes.push(prefix);
            } else {
                from = after_key(&key);
                page.objects.push(Listed {
                    key,
                    size,
                    etag,
                    modified_us,
                });
            }
        }
        if !more {
            return Ok(page);
        }
    }
}

/// The key at which a listing continues after `marker`. A marker that is a common prefix was listed already. An empty one
/// is before every key, since no key is empty.
pub(super) fn after_marker(marker: &str, prefix: &str, delimiter: Option<&str>) -> Vec<u8> {
    match delimiter.and_then(|delimiter| common_prefix(marker, prefix, delimiter)) {
        Some(rolled_up) if rolled_up == marker => after_prefix(marker.as_bytes()).unwrap_or_default(),
        _ => after_key(marker),
    }
}

/// The smallest key above `key`.
pub(super) fn after_key(key: &str) -> Vec<u8> {
    [key.as_bytes(), b"\0"].concat()
}

/// The smallest key above all that begin with `prefix`; `None` if there is no such key.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut next = prefix.to_vec();
    // UTF-8 has no byte 0xff, so this cannot overflow.
    *next.last_mut()? += 1;
    Some(next)
}

fn common_prefix(key: &str, prefix: &str, delimiter: &str) -> Option<String> {
    let rest = key.strip_prefix(prefix)?;
    let end = prefix.len() + rest.find(delimiter)? + delimiter.len();
    Some(key[..end].to_owned())
}

/// A continuation token for the key at which the next page starts.
pub(super) fn token(next: &[u8]) -> String {
    hex::encode(next)
}

/// The key at which a continuation token continues.
pub(super) fn from_token(token: &str) -> Result<Vec<u8>> {
    let refuse = |_| S3Error::with_message(S3ErrorCode::InvalidArgument, "the continuation token is not valid");
    Ok(hex::decode(token).map_err(refuse)?)
}

/// The most entries that a request asks for.
pub(super) fn limit(max_keys: Option<i32>) -> Result<i32> {
    match max_keys.unwrap_or(MAX_KEYS) {
        negative if negative < 0 => {
            Err(S3Error::with_message(S3ErrorCode::InvalidArgument, "the maximum must not be negative").into())
        }
        max => Ok(max.min(MAX_KEYS)),
    }
}

/// A key as encoded in a listing with `encoding-type=url`.
pub(super) fn url_encoded(text: &str) -> String {
    percent::encode(text, |byte| byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_that_is_a_common_prefix_is_skipped_whole() {
        assert_eq!(after_marker("a/", "", Some("/")), b"a0");
        assert_eq!(after_marker("a/b", "", Some("/")), b"a/b\0");
        assert_eq!(after_marker("a/", "", None), b"a/\0");
        assert_eq!(after_marker("", "", Some("/")), b"\0");
    }

    #[test]
    fn encodes_all_but_plain_characters() {
        assert_eq!(url_encoded("a b/ü+~"), "a%20b/%C3%BC%2B~");
    }
}
