//! `/kiln/v1/jobs/{id}/log`: a job's log, page by page or as one text. Reads the database.

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{RawQuery, State},
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use futures::stream;
use kiln_records::{JobId, LogRow, LogStream, Moment};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    api::{
        Api,
        address::Path,
        lists,
        problem::{Problem, Result},
        v3,
    },
    store::{self, LogRows, StoreError},
};

/// Lines of a page by default.
const PAGE: u32 = 1000;

/// The most lines of a page.
const LARGEST_PAGE: u32 = 10_000;

/// A part of a job's log.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LogPage {
    /// The lines, in order.
    lines: Vec<ShownLine>,
    /// The value of `after` for the next page; null before the first line.
    next: Option<u64>,
    /// Whether later lines exist already.
    more: bool,
    /// Whether the job has ended. If it has and `more` is false, the log is complete.
    ended: bool,
}

/// A line of a log.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ShownLine {
    /// Its number: from 0 without gaps.
    pub(super) seq: u64,
    /// The time of the line, by the clock of its origin.
    #[schema(value_type = String)]
    time: Moment,
    /// The step of the job at that time, if any.
    step: Option<&'static str>,
    /// The origin of the line.
    stream: LogStream,
    /// The line. It may contain control sequences of terminals.
    text: String,
}

impl From<LogRow> for ShownLine {
    fn from(row: LogRow) -> Self {
        Self {
            seq: row.seq,
            time: Moment::from_micros(row.line.time.as_microsecond()),
            step: row.line.step.map(kiln_records::Step::name),
            stream: row.line.stream,
            text: row.line.text,
        }
    }
}

/// The place in a log to go on from.
#[derive(Debug, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "documentation; place() reads it")]
pub(super) struct PlaceParameter {
    /// Only lines after the line with this number.
    #[param(nullable = false)]
    after: Option<u64>,
}

/// The size of a page.
#[derive(Debug, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "documentation; limit() reads it")]
struct LimitParameter {
    /// The maximum number of lines; for JSON only. A page of long lines has fewer.
    #[param(nullable = false, minimum = 1, maximum = 10_000, default = 1000)]
    limit: Option<u32>,
}

/// Read a page of a job's log, or all of it if the header `Accept` asks for `text/plain`.
#[utoipa::path(get, path = "/jobs/{id}/log", tag = "jobs",
    params(("id" = String, Path, description = "The id of the record"), PlaceParameter, LimitParameter),
    responses(
        (status = 200, content((LogPage = "application/json"), (String = "text/plain"))),
        (status = 400, body = Problem), (status = 404, body = Problem),
    ))]
pub(super) async fn get(
    State(api): State<Api>,
    Path(text): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response> {
    let query = lists::pairs(query.as_deref())?;
    let (after, limit) = (place(&query)?, limit(&query)?);
    let job: JobId = v3::id(&text)?;
    // The state is read before the lines: once a job has ended, all of its lines are stored.
    let ended = api.store.get_job(job).await?.ok_or_else(Problem::not_found)?;
    let ended = ended.record.status.is_final();
    if wants_text(&headers) {
        return whole(&api, job, after).await;
    }
    let LogRows { rows, more } = api.store.log_page(job, after, limit).await?;
    Ok(Json(LogPage {
        next: rows.last().map(|row| row.seq).or(after),
        lines: rows.into_iter().map(ShownLine::from).collect(),
        more,
        ended,
    })
    .into_response())
}

/// All lines as text. If the store fails on the way the answer breaks off, so that no client takes a part for the
/// whole.
async fn whole(api: &Api, job: JobId, after: Option<u64>) -> Result<Response> {
    let first = text_page(api, job, after).await?;
    let api = api.clone();
    let pages = stream::try_unfold(Some(first), move |page| {
        let api = api.clone();
        async move {
            let Some((text, last)) = page else { return Ok(None) };
            let next = match last {
                Some(last) => Some(text_page(&api, job, Some(last)).await?),
                None => None,
            };
            Ok::<_, StoreError>(Some((Bytes::from(text), next)))
        }
    });
    let kind = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    Ok((kind, Body::from_stream(pages)).into_response())
}

/// Some lines as text, and the number of the last one if there may be more.
async fn text_page(api: &Api, job: JobId, after: Option<u64>) -> store::Result<(String, Option<u64>)> {
    let LogRows { rows, more } = api.store.log_page(job, after, PAGE).await?;
    let last = rows.last().map(|row| row.seq).filter(|_| more);
    let mut text = String::new();
    for row in rows {
        text.push_str(&row.line.text);
        text.push('\n');
    }
    Ok((text, last))
}

/// Whether the request prefers plain text to JSON.
fn wants_text(headers: &HeaderMap) -> bool {
    let kinds = headers.get_all(header::ACCEPT).into_iter();
    let kinds = kinds
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    let mut kinds = kinds.map(|kind| kind.split(';').next().unwrap_or_default().trim());
    kinds.find(|kind| matches!(*kind, "application/json" | "text/plain")) == Some("text/plain")
}

/// The parameter `after`.
pub(super) fn place(query: &[(String, String)]) -> Result<Option<u64>> {
    number(query, "after", 0..=i64::MAX.unsigned_abs())
}

fn limit(query: &[(String, String)]) -> Result<u32> {
    let limit = number(query, "limit", 1..=u64::from(LARGEST_PAGE))?;
    Ok(limit.and_then(|limit| u32::try_from(limit).ok()).unwrap_or(PAGE))
}

fn number(query: &[(String, String)], name: &str, range: std::ops::RangeInclusive<u64>) -> Result<Option<u64>> {
    let Some((_, value)) = query.iter().rev().find(|(key, _)| key == name) else {
        return Ok(None);
    };
    let number = value.parse().ok().filter(|number| range.contains(number));
    number.map(Some).ok_or_else(|| {
        Problem::bad_request(format_args!(
            "`{name}` has to be: a number from {} to {}.",
            range.start(),
            range.end()
        ))
    })
}
