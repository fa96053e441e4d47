//! The log of a job: windows of it by number, a search, its end as it grows, the whole as a file. Reads the database.
//!
//! A page holds a window of bounded size; the script asks for the lines around it. News come as events that only say how
//! long the log is: the script then fetches the lines at its own pace, so a slow reader costs no memory here.

use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Path, Query, State},
    http::{Extensions, header},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures::stream;
use kiln_records::{JobId, LogRow};
use maud::{Markup, html};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::{sync::watch, time::sleep};

use super::{Dashboard, text::plain, viewer::Viewer};
use crate::{
    api::{
        Api,
        problem::{Problem, Result},
        turns::Turn,
    },
    store::{self, LogRows, StoreError},
};

/// The lines of a page without a script, and of one answer.
pub(super) const WINDOW: u64 = 500;

/// Lines per read of a search, and of the whole.
const PAGE: u32 = 1000;

/// How long one request searches.
const SEARCHED: Duration = Duration::from_millis(500);

/// The longest text that is searched for, in bytes.
const LONGEST_SEARCH: usize = 200;

/// The interval between looks for lines from another server, and for a job that changed.
const POLL: Duration = Duration::from_secs(2);

/// The shortest time between two events.
const PAUSE: Duration = Duration::from_millis(250);

/// The longest silence. Proxies give up connections that are silent for a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Words that begin the line of an error. What stands before them in a line is no letter and no part of a name.
const ERRORS: [&str; 12] = [
    "error",
    "errors",
    "fatal",
    "failed",
    "failure",
    "panic",
    "panicked",
    "traceback",
    "no space left",
    "uncaught target signal",
    "segmentation fault",
    "out of memory",
];

/// The window that is asked for.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Asked {
    /// The number of its first line.
    pub(super) from: Option<u64>,
    /// The text to look for, from there on.
    #[serde(default)]
    pub(super) find: String,
    /// Whether errors are looked for instead.
    #[serde(default)]
    pub(super) errors: bool,
    /// Whether the page is asked for without its log, by the script.
    #[serde(default)]
    pub(super) head: bool,
}

/// A line for the script.
#[derive(Debug, Serialize)]
struct Line {
    n: u64,
    stream: &'static str,
    step: Option<&'static str>,
    time: String,
    text: String,
}

impl From<LogRow> for Line {
    fn from(row: LogRow) -> Self {
        Self {
            n: row.seq,
            stream: row.line.stream.name(),
            step: row.line.step.map(kiln_records::Step::name),
            time: row.kept.to_string(),
            text: plain(&row.line.text),
        }
    }
}

/// A window of a log on a page.
#[derive(Debug)]
pub(super) struct Window {
    lines: Vec<Line>,
    /// The lines of the whole log.
    length: u64,
    /// What the search found.
    found: Option<Found>,
}

/// The outcome of a search.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Found {
    /// The number of the line.
    line: Option<u64>,
    /// The number of the line to go on from, if the search has not come to the end.
    next: Option<u64>,
}

impl Window {
    /// The window that was asked for; without a wish, the end of the log.
    pub(super) async fn of(api: &Api, job: JobId, asked: &Asked) -> Result<Self> {
        let length = api.store.log_length(job).await?;
        let found = match Needle::of(asked) {
            Some(needle) => Some(search(api, job, asked.from.unwrap_or(0), &needle).await?),
            None => None,
        };
        let hit = found.as_ref().and_then(|found| found.line);
        let from = match hit {
            Some(line) => line.saturating_sub(10),
            None => asked.from.unwrap_or(length.saturating_sub(WINDOW)),
        };
        let lines = read(api, job, from, u32::try_from(WINDOW).unwrap_or(PAGE)).await?;
        Ok(Self { lines, length, found })
    }

    /// The log on the page of a job.
    pub(super) fn show(&self, job: JobId, asked: &Asked, is_over: bool) -> Markup {
        let address = format!("/ui/jobs/{job}");
        let (first, last) = (
            self.lines.first().map(|line| line.n),
            self.lines.last().map(|line| line.n),
        );
        let hit = self.found.as_ref().and_then(|found| found.line);
        html! {
            form.inline #log-tools method="get" action={ (address) "#log" } role="search" {
                label for="find" { "Find" }
                input #find name="find" type="search" value=(asked.find) maxlength=(LONGEST_SEARCH);
                button type="submit" { "Find next" }
                a.button #first-error href={ (address) "?from=0&errors=true#log" } { "First error" }
                label for="line" { "Line" }
                input #line name="from" type="number" min="0" max=(self.length.saturating_sub(1)) value=[asked.from];
                button #go type="submit" { "Go" }
                a.button #log-end href={ (address) "#log" } { "End" }
                a.button href={ (address) "/log.txt" } download { "Download" }
            }
            p #log-news.dim role="status" {
                (self.length) " lines. "
                @if let (Some(first), Some(last)) = (first, last) { "Shown: " (first) " to " (last) ". " }
                @match &self.found {
                    Some(Found { line: Some(line), .. }) => { "Found in line " (line) "." }
                    Some(Found { next: Some(next), .. }) => {
                        "Nothing up to line " (next) ". "
                        a href={ (address) "?" (again(asked, *next)) "#log" } { "Search on" }
                    }
                    Some(_) => { "Nothing found from there on." }
                    None => {}
                }
            }
            div #log-box.log tabindex="0" role="region" aria-label="Log" data-job=(job) data-length=(self.length)
                data-over=[is_over.then_some("yes")] data-tail=[(asked.from.is_none() && hit.is_none()).then_some("yes")] data-hit=[hit] {
                ol #lines {
                    @for line in &self.lines { (row(&address, line, hit)) }
                }
            }
            nav.inline aria-label="Parts of the log" #log-pages {
                @if let Some(first) = first.filter(|first| *first > 0) {
                    a href={ (address) "?from=" (first.saturating_sub(WINDOW)) "#log" } { "Earlier lines" }
                }
                @if let Some(last) = last.filter(|last| last + 1 < self.length) {
                    a href={ (address) "?from=" (last + 1) "#log" } { "Later lines" }
                }
            }
        }
    }
}

fn again(asked: &Asked, next: u64) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("from", &next.to_string());
    if asked.errors {
        query.append_pair("errors", "true");
    } else {
        query.append_pair("find", &asked.find);
    }
    query.finish()
}

/// The script makes rows of the same form.
fn row(address: &str, line: &Line, hit: Option<u64>) -> Markup {
    let class = if hit == Some(line.n) {
        format!("{} hit", line.stream)
    } else {
        line.stream.to_owned()
    };
    html! {
        li id={ "L" (line.n) } class=(class) {
            a href={ (address) "?from=" (line.n) "#L" (line.n) } title={ (line.time) "Z" @if let Some(step) = line.step { " · " (step) } } { (line.n) }
            span { (line.text) }
        }
    }
}

/// What is looked for.
enum Needle {
    Text(String),
    Error,
}

impl Needle {
    fn of(asked: &Asked) -> Option<Self> {
        let text = asked.find.trim();
        match text {
            _ if asked.errors => Some(Self::Error),
            "" => None,
            text => Some(Self::Text(
                text[..text.floor_char_boundary(LONGEST_SEARCH)].to_lowercase(),
            )),
        }
    }

    fn is_in(&self, line: &str) -> bool {
        let line = line.to_lowercase();
        match self {
            Self::Text(text) => line.contains(text.as_str()),
            Self::Error => ERRORS.iter().any(|word| says(&line, word)),
        }
    }
}

/// Whether a line has a word that is no part of another one or of the name of a package.
fn says(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let joins = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
        let counted_none = line[..at].ends_with("0 ") || line[..at].ends_with("no ");
        !before.is_some_and(joins)
            && !after.is_some_and(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '/'))
            && !counted_none
    })
}

/// Searches from a line on, for a bounded time.
async fn search(api: &Api, job: JobId, from: u64, needle: &Needle) -> Result<Found> {
    let until = Instant::now() + SEARCHED;
    let mut after = from.checked_sub(1);
    loop {
        let LogRows { rows, more } = api.store.log_page(job, after, PAGE).await?;
        let hit = rows.iter().find(|row| needle.is_in(&row.line.text));
        let last = rows.last().map(|row| row.seq);
        if let Some(hit) = hit {
            return Ok(Found {
                line: Some(hit.seq),
                next: Some(hit.seq + 1),
            });
        }
        if !more {
            return Ok(Found::default());
        }
        after = last.or(after);
        if Instant::now() > until {
            return Ok(Found {
                line: None,
                next: after.map(|after| after + 1),
            });
        }
    }
}

async fn read(api: &Api, job: JobId, from: u64, limit: u32) -> store::Result<Vec<Line>> {
    let page = api.store.log_page(job, from.checked_sub(1), limit).await?;
    Ok(page.rows.into_iter().map(Line::from).collect())
}

/// The lines that are asked for.
#[derive(Debug, Deserialize)]
pub(super) struct Lines {
    #[serde(default)]
    from: u64,
    limit: Option<u32>,
}

pub(super) async fn lines(
    State(web): State<Dashboard>,
    _: Viewer,
    Path(job): Path<JobId>,
    Query(asked): Query<Lines>,
) -> Result<Response> {
    let limit = asked.limit.unwrap_or(PAGE).clamp(1, PAGE);
    let length = web.api.store.log_length(job).await?;
    let lines = read(&web.api, job, asked.from.min(i64::MAX.unsigned_abs()), limit).await?;
    Ok(Json(json!({ "length": length, "lines": lines })).into_response())
}

pub(super) async fn find(
    State(web): State<Dashboard>,
    _: Viewer,
    Path(job): Path<JobId>,
    Query(asked): Query<Asked>,
) -> Result<Json<Found>> {
    let Some(needle) = Needle::of(&asked) else {
        return Ok(Json(Found::default()));
    };
    search(&web.api, job, asked.from.unwrap_or(0), &needle).await.map(Json)
}

/// The whole log as a file. If the store fails on the way the answer breaks off.
pub(super) async fn whole(State(web): State<Dashboard>, _: Viewer, Path(job): Path<JobId>) -> Result<Response> {
    if web.api.store.get_job(job).await?.is_none() {
        return Err(Problem::not_found());
    }
    let api = web.api.clone();
    let pages = stream::try_unfold(Some(None), move |state: Option<Option<u64>>| {
        let api = api.clone();
        async move {
            let Some(after) = state else { return Ok(None) };
            let LogRows { rows, more } = api.store.log_page(job, after, PAGE).await?;
            let next = rows.last().map(|row| Some(row.seq)).filter(|_| more);
            let mut text = String::new();
            for row in rows {
                text.push_str(&row.line.text);
                text.push('\n');
            }
            Ok::<_, StoreError>(Some((Bytes::from(text), next)))
        }
    });
    let headers = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8".to_owned()),
        (
            header::CONTENT_DISPOSITION,
            format!("attachment; filename=\"{job}.log\""),
        ),
    ];
    Ok((headers, Body::from_stream(pages)).into_response())
}

/// A reader that follows a job.
struct Following {
    api: Api,
    job: JobId,
    news: watch::Receiver<()>,
    /// What was sent last.
    sent: Option<News>,
    is_over: bool,
    _turn: Turn,
}

/// The news of a job: the length of its log, and a number that changes with the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct News {
    length: u64,
    revision: i64,
    over: bool,
}

pub(super) async fn events(
    State(web): State<Dashboard>,
    _: Viewer,
    Path(job): Path<JobId>,
    extensions: Extensions,
) -> Result<Response> {
    let api = web.api.clone();
    let mut following = Following {
        news: api.feed.follow(job),
        sent: None,
        is_over: false,
        _turn: api.streams.now(&extensions)?,
        api,
        job,
    };
    following.look().await?.ok_or_else(Problem::not_found)?;
    let events = stream::unfold(following, |mut following| async move {
        let news = following.next().await?;
        let event = Event::default().event("news").json_data(news).ok()?;
        Some((Ok::<_, Infallible>(event), following))
    });
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    // Proxies that buffer answers would hold the events back.
    let unbuffered = [("x-accel-buffering", "no"), ("cache-control", "no-store")];
    Ok((unbuffered, Sse::new(events).keep_alive(keep_alive)).into_response())
}

impl Following {
    /// The next news. None after the job's end, and when the server stops or fails: the browser then connects again.
    async fn next(&mut self) -> Option<News> {
        while !self.is_over && !self.api.stop.is_cancelled() {
            self.news.mark_unchanged();
            let news = self.look().await.ok()?;
            let news = news.unwrap_or(News {
                length: 0,
                revision: -1,
                over: true,
            });
            if self.sent != Some(news) {
                // The last lines may come a moment after the end, and the file of the log with the clearing away.
                self.is_over = news.over;
                self.sent = Some(news);
                return Some(news);
            }
            tokio::select! {
                () = self.api.stop.cancelled() => return None,
                _ = self.news.changed() => sleep(PAUSE).await,
                () = sleep(POLL) => {}
            }
        }
        None
    }

    async fn look(&mut self) -> store::Result<Option<News>> {
        let store = &self.api.store;
        let (revision, over) = match store.get_run(self.job).await? {
            Some(stored) => (stored.revision, stored.run.state.is_final() && stored.run.settled),
            None => match store.get_job(self.job).await? {
                Some(job) => (job.revision, job.record.status.is_final()),
                None => return Ok(None),
            },
        };
        let length = store.log_length(self.job).await?;
        Ok(Some(News { length, revision, over }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_no_part_of_a_name() {
        for line in [
            "ERROR: x",
            "kiwi.KiwiError: error",
            "dpkg: error processing package",
            "12 errors",
            "qemu: uncaught target signal 11",
            "cp: write failed, No space left on device",
        ] {
            assert!(Needle::Error.is_in(line), "{line}");
        }
        for line in [
            "Unpacking libgpg-error0:amd64",
            "installing perl-Error",
            "0 errors, 3 warnings",
            "no error",
            "terror",
            "/usr/share/errors/failed-x",
            "all is well",
        ] {
            assert!(!Needle::Error.is_in(line), "{line}");
        }
    }
}
