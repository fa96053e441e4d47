//! Logs of jobs: page by page, and as they grow.

use reqwest::{
    Method, Response,
    header::{ACCEPT, HeaderValue},
};
use serde::{Deserialize, de::DeserializeOwned};

use super::{Client, Data, refusal, sse::Events};
use crate::records::{Failure, run::StepTime};

/// A part of a log.
#[derive(Debug, Deserialize)]
pub struct LogPage {
    /// The lines, in their order.
    pub lines: Vec<LogEntry>,
    /// Where the next page begins.
    pub next: Option<u64>,
    /// Whether there is more already.
    pub more: bool,
}

/// A line of a log.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct LogEntry {
    /// Its number, from 0.
    pub seq: u64,
    /// When it was said, as the server writes moments.
    pub time: String,
    /// The line, as it came: it may hold what a terminal obeys.
    pub text: String,
}

/// How far a job is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct JobProgress {
    /// Where it is.
    pub state: String,
    /// Which try this is, from 1.
    #[serde(default)]
    pub attempt: u32,
    /// The name of the step that it is in.
    #[serde(default)]
    pub step: Option<String>,
    /// The steps of this try that ended well.
    #[serde(default)]
    pub steps: Vec<StepTime>,
    /// What it waits for.
    #[serde(default)]
    pub reason: Option<String>,
    /// How far the step is.
    #[serde(default)]
    pub progress: Option<Share>,
}

/// A part of a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Share {
    /// Units done.
    pub done: u64,
    /// Units in all.
    pub total: u64,
}

/// What a server says of a job that is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// A line of its log.
    Line(LogEntry),
    /// It got on.
    Progress(JobProgress),
    /// It has ended, and every line was said.
    End,
}

/// A job that is followed, over one connection.
#[derive(Debug)]
pub struct Following {
    response: Response,
    events: Events,
}

impl Client {
    /// The lines of a job's log behind the one of the number `after`, as many as the server gives at a time.
    pub async fn log_page(&self, job: &str, after: Option<u64>) -> Result<LogPage, Failure> {
        let mut address = self.server.address(&["kiln", "v1", "jobs", job, "log"]);
        if let Some(after) = after {
            address.query_pairs_mut().append_pair("after", &after.to_string());
        }
        let response = self.respond(&self.http, self.http.get(address)).await?;
        let body = response.bytes().await;
        let body = body.map_err(|error| refusal::unreachable(&self.server, &error))?;
        serde_json::from_slice(&body).map_err(|_| refusal::no_such_server(&self.server))
    }

    /// Follows a job from behind the line of the number `after` on.
    pub async fn follow(&self, job: &str, after: Option<u64>) -> Result<Following, Failure> {
        let address = self.server.address(&["kiln", "v1", "jobs", job, "log", "stream"]);
        let mut request = self.http.get(address);
        request = request.header(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(after) = after {
            request = request.header("Last-Event-ID", after);
        }
        Ok(Following {
            response: self.respond(&self.http, request).await?,
            events: Events::default(),
        })
    }

    /// How a job of Kiln's is, in full.
    pub async fn job_status(&self, job: &str) -> Result<Data, Failure> {
        self.get(&["kiln", "v1", "jobs", job]).await
    }

    /// Asks for the end of a job.
    pub async fn cancel_job(&self, job: &str) -> Result<Data, Failure> {
        self.send(Method::POST, &["kiln", "v1", "jobs", job, "cancel"], &[], None)
            .await
    }

    /// Says what is to become of what was done in a job's shell: `complete` or `fail`.
    pub async fn judge_job(&self, job: &str, verdict: &str) -> Result<Data, Failure> {
        self.send(Method::POST, &["kiln", "v1", "jobs", job, verdict], &[], None)
            .await
    }

    /// Asks for a job like one that has ended; with `from`, one that goes on from what that left at this step.
    pub async fn retry_job(&self, job: &str, from: Option<&str>) -> Result<Data, Failure> {
        let body = from.map(|from| serde_json::json!({ "from": from }));
        self.send(Method::POST, &["kiln", "v1", "jobs", job, "retry"], &[], body.as_ref())
            .await
    }
}

impl Following {
    /// What came since the last time, in its order; none when the server has closed the connection, which it also does
    /// when it stops.
    ///
    /// # Errors
    ///
    /// `server_lost` or `server_timeout` when the connection broke.
    pub async fn next(&mut self, client: &Client) -> Result<Option<Vec<News>>, Failure> {
        loop {
            let chunk = self.response.chunk().await;
            let Some(chunk) = chunk.map_err(|error| refusal::unreachable(&client.server, &error))? else {
                return Ok(None);
            };
            let events = self.events.read(&chunk);
            let events = events.map_err(|_| refusal::no_such_server(&client.server))?;
            // A newer server may say more than is understood here.
            let news: Vec<_> = events.into_iter().filter_map(|event| event.news()).collect();
            if !news.is_empty() {
                return Ok(Some(news));
            }
        }
    }
}

impl super::sse::Event {
    fn news(&self) -> Option<News> {
        fn data<T: DeserializeOwned>(text: &str) -> Option<T> {
            serde_json::from_str(text).ok()
        }
        match self.name.as_str() {
            "log" => data(&self.data).map(News::Line),
            "progress" => data(&self.data).map(News::Progress),
            "end" => Some(News::End),
            _ => None,
        }
    }
}
