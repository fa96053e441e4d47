//! Serves the agent of one job of `kiln build`: in memory, on a socket that only the job's sandbox sees. In S3 it
//! presigns addresses and completes uploads; it touches no database.

use std::{
    collections::BTreeMap,
    fmt,
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::{
    net::UnixListener,
    sync::{mpsc, oneshot},
};

use super::{
    agents::{AgentCalls, Line, Refusal},
    token,
};
use crate::{
    artifacts::ArtifactStore,
    records::{
        Code, Failure, ImageId, JobId, Upload, UploadedArtifact,
        protocol::{
            Answer, Call, Event, EventBatch, EventsKept, JobDescription, NewUpload, OpenUpload, PROTOCOL, PackageUrls,
            Packages, PartUrls, SentParts,
        },
    },
    sandbox::doors::{self, AGENT_SOCKET},
};

/// How long a presigned part address is valid. The agent asks for one just before using it.
const URL_VALID: Duration = Duration::from_mins(15);

/// A message from the agent, for the task that runs the job.
pub(super) enum Said {
    /// These events happened. The agent is answered once they are stored.
    Events(Vec<Event>, oneshot::Sender<Result<(), Failure>>),
    /// The agent finished: all artifacts, or why there are none.
    Finished(Result<Vec<UploadedArtifact>, Failure>),
}

/// Everything that the agent of one job may ask for, and its progress so far.
pub(super) struct JobServer {
    pub(super) job: JobId,
    pub(super) image: ImageId,
    pub(super) image_name: String,
    /// The digest of the agent's token, which is all that is kept of it.
    pub(super) token_digest: String,
    pub(super) description: JobDescription,
    pub(super) store: ArtifactStore,
    pub(super) said: mpsc::Sender<Said>,
    pub(super) progress: Progress,
}

/// How far the agent is.
#[derive(Default)]
pub(super) struct Progress {
    /// Number of the next event.
    next_event: tokio::sync::Mutex<u64>,
    uploads: Mutex<Uploads>,
    finished: AtomicBool,
}

#[derive(Default)]
struct Uploads {
    open: BTreeMap<u32, Upload>,
    completed: BTreeMap<u32, UploadedArtifact>,
}

/// Listens on a socket in `dir`. Returns the socket's address as seen from a sandbox that has `dir` at `inside`.
pub(super) fn listen(dir: &Path, inside: &str) -> Result<(String, UnixListener), Failure> {
    let listener = doors::listen(dir, AGENT_SOCKET)
        .and_then(UnixListener::from_std)
        .map_err(|error| Failure::io("cannot listen for the agent", &error))?;
    Ok((format!("unix:{inside}/{AGENT_SOCKET}"), listener))
}

#[async_trait]
impl AgentCalls for JobServer {
    async fn answer(&self, job: JobId, token: &str, call: Call) -> Result<Answer, Refusal> {
        if job != self.job || !token::fits(token, &self.token_digest) {
            return Err(Refusal::Unknown);
        }
        match call {
            // A repeat, since the answer was lost.
            Call::Finish(_) if self.progress.finished.load(Ordering::SeqCst) => Ok(Answer::Done),
            _ if self.progress.finished.load(Ordering::SeqCst) => Err(Refusal::Over),
            Call::GetJob(query) if query.protocol == PROTOCOL => Ok(Answer::Job(Box::new(self.description.clone()))),
            Call::GetJob(_) => Err(Refusal::Failed(
                Failure::new(Code::AgentMismatch, "kiln and its agent were not built together")
                    .hint("`make build` builds both"),
            )),
            Call::PostEvents(batch) => self.keep(batch).await.map(Answer::Events),
            Call::CreateUpload(object) => self.open(object).await.map(Answer::Upload),
            Call::GetPartUrls { upload, parts } => {
                let upload = self.upload(upload)?;
                let urls = self.store.part_urls(&upload, &parts.numbers, URL_VALID).await?;
                Ok(Answer::PartUrls(PartUrls { urls }))
            }
            Call::CompleteUpload { upload, sent } => self.complete(upload, sent).await.map(|()| Answer::Done),
            Call::FindPackages(Packages { packages }) => {
                let urls = self.store.package_urls(packages, URL_VALID).await?;
                Ok(Answer::Packages(PackageUrls { urls }))
            }
            Call::OpenLine => Err(Refusal::Over),
            Call::Finish(outcome) => {
                let artifacts = self.uploads().completed.values().cloned().collect();
                let ended = Said::Finished(outcome.failure.map_or(Ok(artifacts), Err));
                self.said.send(ended).await.map_err(|_| Refusal::Over)?;
                self.progress.finished.store(true, Ordering::SeqCst);
                Ok(Answer::Done)
            }
        }
    }

    /// There are no shells here, so nothing waits for a line.
    fn take_line(&self, _job: JobId, _line: Line) {}
}

impl JobServer {
    async fn keep(&self, EventBatch { first, mut events }: EventBatch) -> Result<EventsKept, Refusal> {
        let mut next = self.progress.next_event.lock().await;
        if first > *next {
            return Err(Refusal::Hole(*next));
        }
        let known = usize::try_from(*next - first).unwrap_or(usize::MAX);
        events.drain(..known.min(events.len()));
        if !events.is_empty() {
            let count = events.len() as u64;
            let (kept, answer) = oneshot::channel();
            self.said
                .send(Said::Events(events, kept))
                .await
                .map_err(|_| Refusal::Over)?;
            answer.await.map_err(|_| Refusal::Over)??;
            *next += count;
        }
        Ok(EventsKept {
            next: *next,
            stop: false,
            verdict: None,
        })
    }

    async fn open(&self, NewUpload { kind, size }: NewUpload) -> Result<OpenUpload, Refusal> {
        let same = |upload: &Upload| upload.kind == kind && upload.size == size;
        let known = self
            .uploads()
            .open
            .iter()
            .find(|(_, upload)| same(upload))
            .map(|(number, upload)| (*number, upload.clone()));
        if let Some((number, upload)) = known {
            return Ok(OpenUpload {
                upload: number,
                part_size: upload.part_size,
                parts: self.store.stored_parts(&upload).await?,
            });
        }
        let upload = self
            .store
            .open_upload(self.image, self.job, &self.image_name, kind, size)
            .await?;
        let part_size = upload.part_size;
        let mut uploads = self.uploads();
        let number = u32::try_from(uploads.open.len() + uploads.completed.len()).unwrap_or(u32::MAX);
        uploads.open.insert(number, upload);
        Ok(OpenUpload {
            upload: number,
            part_size,
            parts: Vec::new(),
        })
    }

    async fn complete(&self, number: u32, sent: SentParts) -> Result<(), Refusal> {
        if self.uploads().completed.contains_key(&number) {
            return Ok(());
        }
        let upload = self.upload(number)?;
        let artifact = self.store.complete_upload(&upload, &sent.parts, &sent.digests).await?;
        let mut uploads = self.uploads();
        uploads.open.remove(&number);
        uploads.completed.insert(number, artifact);
        Ok(())
    }

    fn upload(&self, number: u32) -> Result<Upload, Failure> {
        let upload = self.uploads().open.get(&number).cloned();
        upload.ok_or_else(|| Failure::new(Code::Protocol, format!("there is no open upload {number}")))
    }

    fn uploads(&self) -> MutexGuard<'_, Uploads> {
        // A panic while the lock is held leaves nothing half-changed: each change is one call.
        self.progress.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for JobServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobServer")
            .field("job", &self.job)
            .finish_non_exhaustive()
    }
}
