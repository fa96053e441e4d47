//! Reads logs of jobs, page by page or as they grow. Talks to the server.

use kiln_records::{Failure, LogStream, run::StepTime};
use reqwest::{
    Method, Response,
    header::{ACCEPT, HeaderValue},
};
use serde::{Deserialize, de::DeserializeOwned};

use super::{Client, Data, refusal, sse::Events};

/// A part of a log.
#[derive(Debug, Deserialize)]
pub struct LogPage {
    /// The lines, in order.
    pub lines: Vec<LogEntry>,
    /// The start of the next page.
    pub next: Option<u64>,
    /// Whether there already is more.
    pub more: bool,
}

/// A line of a log.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct LogEntry {
    /// Its number, counted from 0.
    pub seq: u64,
    /// When it was logged, in the server's format.
    pub time: String,
    /// The unfiltered text: it may contain control characters of terminals.
    pub text: String,
    /// The origin of the line.
    #[serde(default)]
    pub stream: Option<LogStream>,
}

/// The progress of a job.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct JobProgress {
    /// The job's state.
    pub state: String,
    /// The number of the attempt, counted from 1.
    #[serde(default)]
    pub attempt: u32,
    /// The name of the current step.
    #[serde(default)]
    pub step: Option<String>,
    /// The steps of this attempt that have succeeded.
    #[serde(default)]
    pub steps: Vec<StepTime>,
    /// The reason why it waits.
    #[serde(default)]
    pub reason: Option<String>,
    /// The progress of the step.
    #[serde(default)]
    pub progress: Option<Share>,
    /// The attempt that failed with native twins.
    #[serde(default)]
    pub twins_fallback: Option<Fallback>,
}

/// An attempt that failed with native twins, after which a job is tried without.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Fallback {
    /// Its number.
    pub attempt: u32,
    /// Why it failed.
    pub error: FallbackError,
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct FallbackError {
    /// The cause.
    pub detail: String,
}

/// A part of a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Share {
    /// Units done.
    pub done: u64,
    /// Units in total.
    pub total: u64,
}

/// A message about a followed job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// A line of its log.
    Line(LogEntry),
    /// The job made progress.
    Progress(JobProgress),
    /// The job has ended, and every line was sent.
    End,
}

/// A job that is followed, over one connection.
#[derive(Debug)]
pub struct Following {
    response: Response,
    events: Events,
}

impl Client {
    /// The lines of a job's log after the line `after`, as many as the server returns at a time.
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

    /// Follows a job from the line after `after`.
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

    /// The full status of a job that Kiln runs.
    pub async fn job_status(&self, job: &str) -> Result<Data, Failure> {
        self.get(&["kiln", "v1", "jobs", job]).await
    }

    /// How each program of a job's root was run, and why.
    pub async fn job_programs(&self, job: &str) -> Result<Data, Failure> {
        self.get(&["kiln", "v1", "jobs", job, "programs"]).await
    }

    /// The packages of an image: all, or those of a name, with lower versions than one.
    pub async fn image_packages(&self, image: &str, name: Option<&str>, below: Option<&str>) -> Result<Data, Failure> {
        let mut query = Vec::new();
        query.extend(name.map(|name| ("name", name)));
        query.extend(below.map(|below| ("below", below)));
        self.send(Method::GET, &["kiln", "v1", "images", image, "packages"], &query, None)
            .await
    }

    /// One page of the images that have a package, with lower versions than one, and of those that nobody has looked at.
    pub async fn find_package(&self, name: &str, below: Option<&str>, cursor: Option<&str>) -> Result<Data, Failure> {
        let mut query = vec![("name", name)];
        query.extend(below.map(|below| ("below", below)));
        query.extend(cursor.map(|cursor| ("cursor", cursor)));
        self.send(Method::GET, &["kiln", "v1", "packages"], &query, None).await
    }

    /// Cancels a job.
    pub async fn cancel_job(&self, job: &str) -> Result<Data, Failure> {
        self.send(Method::POST, &["kiln", "v1", "jobs", job, "cancel"], &[], None)
            .await
    }

    /// Gives the verdict on the work in a job's shell: `complete` or `fail`.
    pub async fn judge_job(&self, job: &str, verdict: &str) -> Result<Data, Failure> {
        self.send(Method::POST, &["kiln", "v1", "jobs", job, verdict], &[], None)
            .await
    }

    /// Asks for a job like an earlier one; with `from`, for one that continues from that step with the earlier one's
    /// files.
    pub async fn retry_job(&self, job: &str, from: Option<&str>) -> Result<Data, Failure> {
        let body = from.map(|from| serde_json::json!({ "from": from }));
        self.send(Method::POST, &["kiln", "v1", "jobs", job, "retry"], &[], body.as_ref())
            .await
    }
}

impl Following {
    /// The messages since the last call, in order; `None` when the server has closed the connection, which it also
    /// does when it stops.
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
            // A newer server may send messages that are unknown here.
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
