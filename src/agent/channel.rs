//! The agent's client of its server: calls that are repeated until they are answered, or until there is no hope. Talks
//! HTTP to the server only.

use std::{
    fmt,
    io::{self, Write},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kiln_records::{
    Account, Code, Failure, Installed, Verdict,
    protocol::{
        AgentFacts, EventBatch, EventsKept, FoundLayer, JobDescription, LayerInputs, LayerUrl, MOST_PACKAGES,
        NewUpload, OpenUpload, Outcome, PROTOCOL, PackageFile, PackageUrl, PackageUrls, Packages, PartNumbers,
        PartUrls, Reading, SentParts, SettledLayer, ToolboxName, ToolboxSource, shell, words,
    },
};
use reqwest::{Client, Method, StatusCode, Upgraded, header};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::watch, time::Instant};

use super::fetch;

/// How long an unreachable server is waited for, in seconds, until the job has its own value.
const FIRST_PATIENCE_S: u64 = 30 * 60;

/// The first and the longest pause before a call is repeated. Short, because a server that restarts is back soon.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How long the server may take for an answer.
const ANSWER: Duration = Duration::from_mins(1);

/// The same for calls in which S3 has to assemble a large object first.
const COMPLETED: Duration = Duration::from_mins(15);

/// Calls to the server. Cheap to clone.
#[derive(Clone)]
pub struct Channel(Arc<Shared>);

struct Shared {
    http: Client,
    /// As in the facts.
    server: String,
    /// Of the job; the routes are appended.
    address: String,
    token: String,
    patience_s: AtomicU64,
    /// The last trouble that was said on standard error.
    trouble: Mutex<String>,
    ending: watch::Sender<Option<Ending>>,
    verdict: watch::Sender<Option<Verdict>>,
}

/// Why an agent stops in the middle of its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The server no longer wants the job, for this reason. The agent exits without a report.
    Dismissed(Failure),
    /// The job fails, for this reason, which the server has to be told.
    Failed(Failure),
}

/// Why one attempt at a call failed.
enum Trouble {
    /// A repetition may succeed.
    Passing(Failure),
    /// A repetition would fail too.
    Lasting(Failure),
    /// The server has dismissed the agent.
    Dismissed(Failure),
}

impl Channel {
    /// A channel to the server in `facts`.
    ///
    /// # Errors
    ///
    /// `ca_bundle_invalid` when the sandbox's authorities cannot be read.
    pub fn new(facts: &AgentFacts) -> Result<Self, Failure> {
        let (client, server) = if let Some(path) = facts.server.strip_prefix("unix:") {
            // The host in the address does not matter on a socket.
            (fetch::client(None)?.unix_socket(path), "http://kiln")
        } else {
            (
                fetch::client(facts.ca_bundle.as_deref())?,
                facts.server.trim_end_matches('/'),
            )
        };
        // A line is a connection of HTTP/1.1 that is upgraded; a server with TLS would choose HTTP/2.
        let http = client
            .http1_only()
            .build()
            .map_err(|error| Failure::new(Code::Protocol, error))?;
        Ok(Self(Arc::new(Shared {
            http,
            server: facts.server.clone(),
            address: format!("{server}/agent/v1/jobs/{}", facts.job),
            token: facts.token.clone(),
            patience_s: AtomicU64::new(FIRST_PATIENCE_S),
            trouble: Mutex::default(),
            ending: watch::Sender::new(None),
            verdict: watch::Sender::new(None),
        })))
    }

    /// Asks for the job. From here on the job's own patience applies.
    pub async fn job(&self) -> Result<JobDescription, Failure> {
        let route = format!("?protocol={PROTOCOL}");
        let job: JobDescription = self.ask(Method::GET, &route, None::<&()>, ANSWER).await?;
        self.0.patience_s.store(job.patience_s, Ordering::Relaxed);
        Ok(job)
    }

    /// Reports events.
    pub async fn post_events(&self, batch: &EventBatch) -> Result<EventsKept, Failure> {
        self.ask(Method::POST, "/events", Some(batch), ANSWER).await
    }

    /// Opens an upload, or finds it if it is already open.
    pub async fn create_upload(&self, object: NewUpload) -> Result<OpenUpload, Failure> {
        self.ask(Method::POST, "/uploads", Some(&object), ANSWER).await
    }

    /// The address for uploading a part.
    pub async fn part_url(&self, upload: u32, number: u32) -> Result<String, Failure> {
        let route = format!("/uploads/{upload}/parts");
        let numbers = PartNumbers { numbers: vec![number] };
        let PartUrls { mut urls } = self.ask(Method::POST, &route, Some(&numbers), ANSWER).await?;
        urls.pop()
            .ok_or_else(|| Failure::new(Code::Protocol, "the server has no address for a part"))
    }

    /// Reports that every part was sent.
    pub async fn complete_upload(&self, upload: u32, sent: &SentParts) -> Result<(), Failure> {
        let route = format!("/uploads/{upload}/complete");
        self.call(Method::POST, &route, Some(sent), COMPLETED).await.map(drop)
    }

    /// The addresses for downloading or sharing packages, in the same order.
    pub async fn find_packages(&self, packages: Vec<PackageFile>) -> Result<Vec<PackageUrl>, Failure> {
        let mut urls = Vec::with_capacity(packages.len());
        for some in packages.chunks(MOST_PACKAGES) {
            let packages = some.to_vec();
            let found: PackageUrls = self
                .ask(Method::POST, "/packages", Some(&Packages { packages }), ANSWER)
                .await?;
            urls.extend(found.urls);
        }
        Ok(urls)
    }

    /// Asks where the toolbox is.
    pub async fn find_toolbox(&self, name: &ToolboxName) -> Result<ToolboxSource, Failure> {
        let route = format!("/toolboxes/{}/{}", name.toolbox, name.tag);
        self.ask(Method::GET, &route, None::<&()>, ANSWER).await
    }

    /// Reports the packages of the root.
    pub async fn keep_installed(&self, installed: &Installed) -> Result<(), Failure> {
        self.call(Method::POST, "/installed", Some(installed), ANSWER)
            .await
            .map(drop)
    }

    /// Reports what is understood of a recipe.
    pub async fn keep_reading(&self, reading: &Reading) -> Result<(), Failure> {
        self.call(Method::POST, "/reading", Some(reading), ANSWER)
            .await
            .map(drop)
    }

    /// Asks for a layer.
    pub async fn find_layer(&self, inputs: &LayerInputs) -> Result<FoundLayer, Failure> {
        self.ask(Method::POST, "/layers/find", Some(inputs), ANSWER).await
    }

    /// Reports what is done about a layer.
    pub async fn settle_layer(&self, settled: &SettledLayer) -> Result<LayerUrl, Failure> {
        self.ask(Method::POST, "/layers", Some(settled), ANSWER).await
    }

    /// Reports how programs of the root were run, and why.
    pub async fn keep_account(&self, account: &Account) -> Result<(), Failure> {
        self.call(Method::POST, "/programs", Some(account), ANSWER)
            .await
            .map(drop)
    }

    /// Reports the job's outcome.
    pub async fn finish(&self, outcome: &Outcome) -> Result<(), Failure> {
        self.call(Method::POST, "/finish", Some(outcome), ANSWER)
            .await
            .map(drop)
    }

    /// Opens a connection for a user who logs in to the job's shell. Makes one attempt: the caller repeats it.
    pub async fn open_line(&self) -> Result<Upgraded, Failure> {
        self.upgraded("shell").await
    }

    /// Opens a connection to the site's HTTP proxy. Makes one attempt: the caller repeats it.
    pub async fn open_proxy(&self) -> Result<Upgraded, Failure> {
        self.upgraded("proxy").await
    }

    /// The token by which the server knows this job's agent.
    pub fn token(&self) -> &str {
        &self.0.token
    }

    /// Opens a connection to the site's registries. Makes one attempt: the caller repeats it.
    pub async fn open_registry(&self) -> Result<Upgraded, Failure> {
        self.upgraded("registry").await
    }

    async fn upgraded(&self, route: &str) -> Result<Upgraded, Failure> {
        let lost = |error: reqwest::Error| Failure {
            code: Code::ServerLost,
            ..reason(&error)
        };
        let address = format!("{}/{route}", self.0.address);
        let request = self.0.http.get(address).bearer_auth(&self.0.token);
        let request = request
            .header(header::CONNECTION, "upgrade")
            .header(header::UPGRADE, shell::UPGRADE);
        let response = tokio::time::timeout(ANSWER, request.send()).await;
        let response = response.map_err(|_| Failure::new(Code::ServerLost, "the server does not answer"))?;
        response.map_err(lost)?.upgrade().await.map_err(lost)
    }

    /// Records the server's verdict on the shell's work.
    pub fn judge(&self, verdict: Option<Verdict>) {
        self.0.verdict.send_if_modified(|known| {
            let news = *known != verdict;
            *known = verdict;
            news
        });
    }

    /// The verdict on the shell's work that was given over the API.
    pub fn verdict(&self) -> Option<Verdict> {
        *self.0.verdict.borrow()
    }

    /// Stops the agent. Only the first reason counts.
    pub fn end(&self, ending: Ending) {
        self.0.ending.send_if_modified(|known| {
            let first = known.is_none();
            known.get_or_insert(ending);
            first
        });
    }

    /// Returns when the agent has to stop.
    pub async fn ended(&self) -> Ending {
        let mut endings = self.0.ending.subscribe();
        match endings.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(ending)) => ending.clone(),
            // `self` holds the sender, so this cannot happen.
            _ => std::future::pending().await,
        }
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        route: &str,
        body: Option<&impl Serialize>,
        limit: Duration,
    ) -> Result<T, Failure> {
        let answer = self.call(method, route, body, limit).await?;
        serde_json::from_slice(&answer)
            .map_err(|error| Failure::new(Code::Protocol, format!("the server gave an unexpected answer: {error}")))
    }

    /// Repeats a call until there is a final answer.
    ///
    /// # Errors
    ///
    /// The server's own refusal, or `server_lost` when it did not answer for too long. After that, and after a
    /// dismissal, the agent stops.
    async fn call(
        &self,
        method: Method,
        route: &str,
        body: Option<&impl Serialize>,
        limit: Duration,
    ) -> Result<bytes::Bytes, Failure> {
        let body = body.map(serde_json::to_vec).transpose();
        let body = body.map_err(|error| Failure::new(Code::Protocol, error))?;
        let begun = Instant::now();
        let mut pause = PAUSE.0;
        loop {
            let failure = match self.attempt(method.clone(), route, body.clone(), limit).await {
                Ok(answer) => return Ok(answer),
                Err(Trouble::Lasting(failure)) => return Err(failure),
                Err(Trouble::Dismissed(failure)) => failure,
                Err(Trouble::Passing(why)) => {
                    self.say_once(&why);
                    let patience = Duration::from_secs(self.0.patience_s.load(Ordering::Relaxed));
                    if begun.elapsed() + pause < patience {
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(PAUSE.1);
                        continue;
                    }
                    let waited = begun.elapsed().as_secs();
                    Failure::new(Code::ServerLost, format!("no server for {waited} s: {}", why.detail))
                }
            };
            self.end(Ending::Dismissed(failure.clone()));
            return Err(failure);
        }
    }

    /// Says on standard error why the server cannot be reached, when that is news: it does not hear it otherwise, and
    /// whoever made the sandbox keeps what is said there.
    fn say_once(&self, why: &Failure) {
        let mut said = self.0.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if *said != why.detail {
            why.detail.clone_into(&mut said);
            let detail = format!("the server at {} cannot be reached: {}", self.0.server, why.detail);
            let failure = Failure::new(why.code, detail);
            let _ = writeln!(std::io::stderr(), "{}", words::say(&failure));
        }
    }

    async fn attempt(
        &self,
        method: Method,
        route: &str,
        body: Option<Vec<u8>>,
        limit: Duration,
    ) -> Result<bytes::Bytes, Trouble> {
        let lost = |error: reqwest::Error| Trouble::Passing(reason(&error));
        let mut request = self.0.http.request(method, format!("{}{route}", self.0.address));
        request = request.bearer_auth(&self.0.token).timeout(limit);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        let response = request.send().await.map_err(lost)?;
        let status = response.status();
        let answer = response.bytes().await.map_err(lost)?;
        if status.is_success() {
            return Ok(answer);
        }
        let failure = serde_json::from_slice(&answer)
            .unwrap_or_else(|_| Failure::new(Code::Protocol, format!("the server answered with status {status}")));
        Err(match status {
            StatusCode::UNAUTHORIZED | StatusCode::GONE => Trouble::Dismissed(failure),
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
                Trouble::Passing(unreachable(failure.detail))
            }
            _ if status.is_server_error() => Trouble::Passing(unreachable(failure.detail)),
            _ => Trouble::Lasting(failure),
        })
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("address", &self.0.address)
            .finish_non_exhaustive()
    }
}

fn unreachable(why: String) -> Failure {
    Failure::new(Code::AgentUnreachable, why)
}

/// An error's innermost cause, which is the informative one, as the failure of a server that cannot be reached.
fn reason(error: &reqwest::Error) -> Failure {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let of_network = cause.downcast_ref::<io::Error>().map(io::Error::kind);
    match of_network {
        Some(io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown) => Failure::new(Code::AgentOffline, cause),
        _ => unreachable(cause.to_string()),
    }
}
