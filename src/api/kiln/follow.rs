//! `/kiln/v1/jobs/{id}/log/stream`: a job's log as it grows, as server-sent events. Reads the database.

use std::{collections::VecDeque, convert::Infallible, time::Duration};

use axum::{
    extract::{RawQuery, State},
    http::{Extensions, HeaderMap},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures::stream;
use kiln_records::JobId;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{sync::watch, time::sleep};
use utoipa::ToSchema;

use super::{
    jobs::JobProgress,
    logs::{PlaceParameter, ShownLine, place},
};
use crate::{
    api::{
        Api,
        address::Path,
        lists,
        problem::{Problem, Result},
        turns::Turn,
        v3,
    },
    orchestrate::job_span,
    store,
};

/// Lines per query.
const PAGE: u32 = 1000;

/// The interval between checks for lines from another server.
const POLL: Duration = Duration::from_secs(1);

/// The longest silence. Proxies give up connections that are silent for a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The time that the server gets to report a job's result, once it has ended.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// The header in which a reconnecting client sends the number of its last line.
const LAST_EVENT: &str = "last-event-id";

/// An event of a log stream.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "documentation")]
struct LogEvent {
    /// The number of a line; absent in other events.
    #[schema(nullable = false)]
    id: Option<String>,
    // Without words of its own: they would make it an object in the description.
    #[schema(inline)]
    event: EventKind,
    /// JSON: a line as in a page, or the progress of the job.
    data: String,
}

/// The type of an event.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "documentation")]
#[schema(rename_all = "lowercase")]
enum EventKind {
    Log,
    Progress,
    End,
}

/// Follow a job's log. The events are `log` for each line (`id` is its number), `progress` whenever the job advances,
/// with the answer of `GET /kiln/v1/jobs/{id}` (only the `state` for a job that another system runs), and `end` after
/// the last line. A stream that ends without `end` was interrupted; `Last-Event-ID` resumes it.
#[utoipa::path(get, path = "/jobs/{id}/log/stream", tag = "jobs",
    params(("id" = String, Path, description = "The id of the record"), PlaceParameter),
    responses(
        (status = 200, body = LogEvent, content_type = "text/event-stream"),
        (status = 400, body = Problem), (status = 404, body = Problem),
    ))]
pub(super) async fn get(
    State(api): State<Api>,
    Path(text): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    extensions: Extensions,
) -> Result<Response> {
    let mut query = lists::pairs(query.as_deref())?;
    if let Some(last) = headers.get(LAST_EVENT).and_then(|value| value.to_str().ok()) {
        query.push(("after".to_owned(), last.to_owned()));
    }
    let after = place(&query)?;
    let job: JobId = v3::id(&text)?;
    let following = Following {
        news: api.feed.follow(job),
        progress: Value::Null,
        ready: VecDeque::new(),
        was_live: false,
        ended: false,
        _turn: api.streams.now(&extensions)?,
        api,
        job,
        after,
    };
    following.look().await?.ok_or_else(Problem::not_found)?;
    let events = stream::unfold(following, |mut following| async move {
        let event = following.next().await?;
        Some((Ok::<_, Infallible>(event), following))
    });
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    // Proxies that buffer answers would hold the events back.
    let unbuffered = [("x-accel-buffering", "no"), ("cache-control", "no-store")];
    Ok((unbuffered, Sse::new(events).keep_alive(keep_alive)).into_response())
}

/// A client that follows a job.
struct Following {
    api: Api,
    job: JobId,
    /// The number of the last line that was sent.
    after: Option<u64>,
    news: watch::Receiver<()>,
    /// The progress that was sent last.
    progress: Value,
    /// The events to be sent.
    ready: VecDeque<Event>,
    /// Whether the job was seen before it ended.
    was_live: bool,
    ended: bool,
    _turn: Turn,
}

impl Following {
    /// The next event. None after the end, and when the server stops or fails: the client then reconnects.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.ended || self.api.stop.is_cancelled() {
                return None;
            }
            if let Err(error) = self.gather().await {
                job_span(self.job).in_scope(|| tracing::warn!("a log cannot be followed further: {error}"));
                return None;
            }
            if self.ready.is_empty() {
                tokio::select! {
                    () = self.api.stop.cancelled() => return None,
                    _ = self.news.changed() => {}
                    () = sleep(POLL) => {}
                }
            }
        }
    }

    /// Reads the new lines and the progress.
    async fn gather(&mut self) -> store::Result<()> {
        self.news.mark_unchanged();
        // The state is read before the lines: once a job has ended, all of its lines are stored.
        let (progress, ended) = self.look().await?.unwrap_or((json!({ "state": "deleted" }), true));
        let page = self.api.store.log_page(self.job, self.after, PAGE).await?;
        let is_all = !page.more;
        for row in page.rows {
            self.after = Some(row.seq);
            let line = ShownLine::from(row);
            self.ready
                .extend(event("log", &line).map(|event| event.id(line.seq.to_string())));
        }
        if is_all && self.progress != progress {
            self.ready.extend(event("progress", &progress));
            self.progress = progress;
        }
        if !ended {
            self.was_live = true;
        } else if std::mem::take(&mut self.was_live) {
            sleep(LAST_WORDS).await;
        } else if is_all {
            self.ready.extend(event("end", &self.progress));
            self.ended = true;
        }
        Ok(())
    }

    /// The progress of the job, and whether it has ended; none when the job does not exist.
    async fn look(&self) -> store::Result<Option<(Value, bool)>> {
        let store = &self.api.store;
        if let Some(stored) = store.get_run(self.job).await? {
            let progress = JobProgress::of(&stored, self.api.orchestrator.as_deref());
            return Ok(Some((json!(progress), stored.run.state.is_final())));
        }
        let job = store.get_job(self.job).await?;
        Ok(job.map(|job| {
            let status = job.record.status;
            (json!({ "state": status.name() }), status.is_final())
        }))
    }
}

/// An event. Its data are texts and numbers, so serialising them cannot fail here.
fn event(name: &str, data: &impl Serialize) -> Option<Event> {
    Event::default().event(name).json_data(data).ok()
}
