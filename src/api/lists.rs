//! Lists: IMS's plain answer, streamed, and Kiln's optional parameters to narrow it. Reads the database.
//!
//! Without parameters a list of IMS contains everything, in the order of creation. Parameters narrow it down or sort it;
//! unknown ones are ignored, as in IMS. When `limit` cuts a list, or the size that an answer with a limit may have, the header
//! `Link` has the address of the rest (RFC 8288). Kiln's own lists always have a limit.

use std::{fmt::Write, future::Future, marker::PhantomData, str::FromStr};

use axum::{
    body::{Body, Bytes},
    extract::{FromRequestParts, OriginalUri, Query as QueryString},
    http::{HeaderName, HeaderValue, Uri, header, request::Parts},
    response::{IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use futures::stream;
use kiln_records::{Image, Job, JobStatus, JobType, PublicKey, Recipe, Schedule, arch::Arch, budget::LISTED, percent};
use serde::Serialize;

use super::problem::{Problem, Result};
use crate::store::{self, After, PageText, Query, Sort, Stored};

/// Records read from the store at a time while a list is streamed.
const CHUNK: u32 = 1_000;

/// The most records that `limit` can ask for.
const MAX_LIMIT: u32 = 10_000;

/// A kind of record with lists.
pub(super) trait Listed: Send + 'static {
    /// The parameters of lists of this kind, beside the common ones.
    const FILTERS: &'static [&'static str];

    fn id(&self) -> String;
    fn name(&self) -> &str;
}

macro_rules! listed {
    ($record:ty, $name:ident, $filters:expr) => {
        impl Listed for $record {
            const FILTERS: &'static [&'static str] = &$filters;

            fn id(&self) -> String {
                self.id.to_string()
            }
            fn name(&self) -> &str {
                &self.$name
            }
        }
    };
}

listed!(Recipe, name, ["arch"]);
listed!(Image, name, ["arch"]);
listed!(PublicKey, name, []);
listed!(Schedule, name, []);
listed!(Job, image_root_archive_name, ["arch", "status", "job_type"]);

/// The parameters of a request for a list.
#[derive(Debug, Clone)]
pub(super) struct ListQuery<R> {
    query: Query,
    limit: Option<u32>,
    path: String,
    others: Vec<(String, String)>,
    kind: PhantomData<fn() -> R>,
}

/// The parameters of every list, for the documentation; [`ListQuery`] reads them.
#[derive(Debug, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "documentation")]
pub(super) struct ListParameters {
    /// Only records with exactly this name.
    #[param(nullable = false, pattern = r"^[^\u0000]*$")]
    name: Option<String>,
    /// Only records whose id begins with this text.
    #[param(nullable = false, pattern = r"^[^\u0000]*$")]
    id_prefix: Option<String>,
    /// The sort order; the default, `created`, is that of IMS. A leading hyphen reverses it.
    #[param(nullable = false, inline)]
    sort: Option<SortParameter>,
    /// The maximum number of records; the header `Link` holds the address of the next ones. An answer may have fewer, if
    /// they are large. Without it, lists of IMS are whole, and those of Kiln's own have 1000.
    #[param(nullable = false, minimum = 1, maximum = 10_000)]
    limit: Option<u32>,
    /// The position to continue at, from the header `Link`.
    #[param(nullable = false, pattern = r"^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// The parameter of lists of what has an architecture.
#[derive(Debug, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "documentation")]
pub(super) struct ArchParameter {
    /// Only records of this architecture.
    #[param(nullable = false)]
    arch: Option<Arch>,
}

/// The parameters that only lists of jobs have.
#[derive(Debug, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "documentation")]
pub(super) struct JobListParameters {
    /// Only jobs in one of these states.
    #[param(nullable = false, explode)]
    status: Option<Vec<JobStatus>>,
    /// Only jobs of this type.
    #[param(nullable = false)]
    job_type: Option<JobType>,
}

#[derive(Debug, utoipa::ToSchema)]
#[expect(dead_code, reason = "documentation")]
pub(super) enum SortParameter {
    #[schema(rename = "created")]
    Created,
    #[schema(rename = "-created")]
    NewestFirst,
    #[schema(rename = "name")]
    Name,
    #[schema(rename = "-name")]
    NameDescending,
}

impl<R: Listed, S: Send + Sync> FromRequestParts<S> for ListQuery<R> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        let path = parts
            .extensions
            .get::<OriginalUri>()
            .map_or(parts.uri.path(), |uri| uri.path());
        Self::parse(path.to_owned(), &pairs(parts.uri.query())?)
    }
}

/// The parameters of a request. A text with wrong percent-encoding is taken literally.
///
/// # Errors
///
/// 400: the query cannot be parsed.
pub(super) fn pairs(query: Option<&str>) -> Result<Vec<(String, String)>> {
    let uri: Uri = format!("/?{}", query.unwrap_or_default())
        .parse()
        .map_err(Problem::bad_request)?;
    let pairs = QueryString::<Vec<(String, String)>>::try_from_uri(&uri);
    Ok(pairs
        .map_err(|rejection| Problem::bad_request(rejection.body_text()))?
        .0)
}

impl<R: Listed> ListQuery<R> {
    fn parse(path: String, pairs: &[(String, String)]) -> Result<Self> {
        let mut list = Self {
            query: Query::default(),
            // No client of IMS's reads these.
            limit: path.contains("/kiln/v1/").then_some(LISTED),
            path,
            others: Vec::new(),
            kind: PhantomData,
        };
        let mut cursor = None;
        for (key, value) in pairs {
            let key = key.as_str();
            if matches!(key, "arch" | "status" | "job_type") && !R::FILTERS.contains(&key) {
                continue;
            }
            match key {
                "name" => list.query.name = Some(plain(key, value)?),
                "id_prefix" => list.query.id_prefix = Some(plain(key, value)?.to_ascii_lowercase()),
                "arch" => list.query.arch = Some(read("arch", value)?),
                "status" => list
                    .query
                    .jobs
                    .statuses
                    .push(one_of("status", value, &JobStatus::ALL, JobStatus::name)?),
                "job_type" => {
                    list.query.jobs.job_type = Some(one_of("job_type", value, &JobType::ALL, JobType::name)?);
                }
                "sort" => {
                    list.query.descending = value.starts_with('-');
                    list.query.sort = match value.strip_prefix('-').unwrap_or(value) {
                        "created" => Sort::Position,
                        "name" => Sort::Name,
                        _ => return Err(refused("sort", "created, -created, name, -name")),
                    };
                }
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
                    list.limit =
                        Some(limit.ok_or_else(|| refused("limit", format_args!("a number from 1 to {MAX_LIMIT}")))?);
                    continue;
                }
                "cursor" => {
                    cursor = Some(decode(value).ok_or_else(|| refused("cursor", "one that a list answered"))?);
                    continue;
                }
                _ => continue,
            }
            list.others.push((key.to_owned(), value.clone()));
        }
        let numeric = list.query.sort == Sort::Position;
        if cursor
            .as_ref()
            .is_some_and(|after: &After| numeric && after.key.parse::<i64>().is_err())
        {
            return Err(refused("cursor", "one that a list with this `sort` answered"));
        }
        list.query.after = cursor;
        Ok(list)
    }

    /// The same list with no more records than these in an answer.
    pub(super) fn at_most(mut self, most: u32) -> Self {
        self.limit = Some(self.limit.map_or(most, |limit| limit.min(most)));
        self
    }

    /// Answers with the records of `page`.
    ///
    /// # Errors
    ///
    /// The store's error on the first page. If a later page fails, the answer breaks off, so that no client takes a
    /// part for the whole.
    pub(super) async fn answer<F>(self, page: impl Fn(Query) -> F + Send + Sync + 'static) -> Result<Response>
    where
        F: Future<Output = store::Result<PageText<R>>> + Send,
    {
        let mut query = self.query.clone();
        query.limit = self.limit.unwrap_or(CHUNK);
        let first = page(query.clone()).await?;
        let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let next = place_after(&query, &first);

        if let (Some(limit), Some(next)) = (self.limit, &next) {
            let mut answer = ([kind], format!("[{}]", first.text)).into_response();
            let (name, value) = self.next_page(limit, next)?;
            answer.headers_mut().insert(name, value);
            return Ok(answer);
        }
        let Some(next) = next else {
            return Ok(([kind], format!("[{}]", first.text)).into_response());
        };
        query.after = Some(next);
        let begin = Streaming {
            page,
            query,
            text: format!("[{}", first.text),
        };
        let chunks = stream::try_unfold(Some(begin), |state| async move {
            let Some(mut state) = state else { return Ok(None) };
            let chunk = (state.page)(state.query.clone()).await.map_err(std::io::Error::other)?;
            let mut text = std::mem::take(&mut state.text);
            // The last record may have been deleted meanwhile.
            if chunk.count > 0 {
                state.text = format!(",{}", chunk.text);
            }
            state.query.after = place_after(&state.query, &chunk);
            let more = state.query.after.is_some();
            if !more {
                text.push_str(&state.text);
                text.push(']');
            }
            Ok::<_, std::io::Error>(Some((Bytes::from(text), more.then_some(state))))
        });
        Ok(([kind], Body::from_stream(chunks)).into_response())
    }

    fn next_page(&self, limit: u32, after: &After) -> Result<(HeaderName, HeaderValue)> {
        let mut address = format!("<{}?limit={limit}&cursor={}", self.path, encode(after));
        for (key, value) in &self.others {
            let value = percent::encode(value, |byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte));
            // Writing to a string cannot fail.
            let _ = write!(address, "&{key}={value}");
        }
        address.push_str(">; rel=\"next\"");
        let value = HeaderValue::from_str(&address).map_err(Problem::bad_request)?;
        Ok((header::LINK, value))
    }
}

struct Streaming<P> {
    page: P,
    query: Query,
    /// The text that was read but not sent yet.
    text: String,
}

/// A page of records for which the store has no JSON; `records` may hold one more than requested.
pub(super) fn write<R: Serialize>(mut records: Vec<Stored<R>>, limit: u32) -> PageText<R> {
    let more = records.len() > limit as usize;
    records.truncate(limit as usize);
    let mut page = PageText {
        count: records.len(),
        more,
        ..PageText::default()
    };
    for stored in records {
        // Records consist of texts and numbers, which JSON can represent.
        let text = serde_json::to_string(&stored.record).unwrap_or_default();
        if !page.text.is_empty() {
            page.text.push(',');
        }
        page.text.push_str(&text);
        page.last = Some((stored.record, stored.position));
    }
    page
}

/// The place at which a list continues after a page; none after the last page.
fn place_after<R: Listed>(query: &Query, page: &PageText<R>) -> Option<After> {
    let (last, position) = page.last.as_ref().filter(|_| page.more)?;
    Some(After {
        key: match query.sort {
            Sort::Position => position.to_string(),
            Sort::Name => last.name().to_owned(),
        },
        id: last.id(),
    })
}

/// The id comes first: it has no `/`.
pub(super) fn encode(after: &After) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(format!("{}/{}", after.id, after.key))
}

/// The place that [`encode`] wrote.
pub(super) fn decode(cursor: &str) -> Option<After> {
    let text = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
    let (id, key) = text.split_once('/')?;
    (!text.contains('\0')).then(|| After {
        key: key.to_owned(),
        id: id.to_owned(),
    })
}

/// A text that databases accept.
fn plain(name: &str, value: &str) -> Result<String> {
    if value.contains('\0') {
        return Err(refused(name, "a text without null characters"));
    }
    Ok(value.to_owned())
}

fn read<T: FromStr>(name: &str, value: &str) -> Result<T>
where
    T::Err: std::fmt::Display,
{
    value
        .parse()
        .map_err(|error| Problem::bad_request(format_args!("`{name}`: {error}.")))
}

pub(super) fn one_of<T: Copy>(parameter: &str, value: &str, all: &[T], name: fn(T) -> &'static str) -> Result<T> {
    let found = all.iter().copied().find(|item| name(*item) == value);
    found.ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|item| name(*item)).collect();
        refused(parameter, names.join(", "))
    })
}

fn refused(parameter: &str, wanted: impl std::fmt::Display) -> Problem {
    Problem::bad_request(format_args!("`{parameter}` has to be: {wanted}."))
}

#[cfg(test)]
mod tests;
