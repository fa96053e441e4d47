//! The server's side of one agent's channel.

use std::{collections::BTreeMap, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
};

use crate::{
    artifacts::ArtifactStore,
    records::{
        Failure, ImageId, JobId, Upload, UploadedArtifact,
        protocol::{
            Answer, AnswerFrame, Call, CallFrame, Event, EventBatch, EventsKept, JobDescription, JobQuery, NewUpload,
            OpenUpload, Outcome, PROTOCOL, PartUrls,
        },
    },
};

/// How long a presigned part address is good for. The agent asks for one just before it uses it.
const URL_VALID: Duration = Duration::from_mins(15);

/// What the agent of one job may ask for, and what it did.
pub(super) struct JobServer<'a, OnEvent> {
    pub(super) job: JobId,
    pub(super) image: ImageId,
    pub(super) image_name: &'a str,
    pub(super) description: JobDescription,
    pub(super) store: &'a ArtifactStore,
    pub(super) on_event: OnEvent,
    /// Number of the next event.
    pub(super) next_event: u64,
    pub(super) open: BTreeMap<u32, Upload>,
    pub(super) uploaded: Vec<UploadedArtifact>,
}

impl<OnEvent: FnMut(Event) -> Result<(), Failure>> JobServer<'_, OnEvent> {
    /// Answers calls until the agent says that it is finished. `None` when it went away without a word.
    pub(super) async fn serve(&mut self, channel: UnixStream) -> Option<Result<(), Failure>> {
        let (reader, mut writer) = channel.into_split();
        let mut lines = BufReader::new(reader).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let CallFrame { id, call } = match serde_json::from_str(&line) {
                Ok(frame) => frame,
                Err(error) => {
                    return Some(Err(Failure::new(
                        "protocol",
                        format!("the agent said nonsense: {error}"),
                    )));
                }
            };
            let mut outcome = None;
            let answer = match call {
                Call::Finish(Outcome { failure }) => {
                    outcome = Some(failure.map_or(Ok(()), Err));
                    Ok(Answer::Done)
                }
                call => self.answer(call).await,
            };
            let mut line = serde_json::to_vec(&AnswerFrame { id, answer }).ok()?;
            line.push(b'\n');
            // An agent that went away cannot read it; the end of its lines tells.
            let _ = writer.write_all(&line).await;
            if outcome.is_some() {
                return outcome;
            }
        }
        None
    }

    async fn answer(&mut self, call: Call) -> Result<Answer, Failure> {
        match call {
            Call::GetJob(JobQuery { protocol: PROTOCOL }) => Ok(Answer::Job(Box::new(self.description.clone()))),
            Call::GetJob(_) => Err(
                Failure::new("agent_mismatch", "kiln and its agent were not built together")
                    .hint("`make build` builds both"),
            ),
            Call::PostEvents(EventBatch { first, events }) => {
                if first != self.next_event {
                    let expected = self.next_event;
                    return Err(Failure::new(
                        "protocol",
                        format!("event {first} came instead of {expected}"),
                    ));
                }
                for event in events {
                    self.next_event += 1;
                    (self.on_event)(event)?;
                }
                Ok(Answer::Events(EventsKept {
                    next: self.next_event,
                    stop: false,
                }))
            }
            Call::CreateUpload(NewUpload { kind, size }) => {
                let upload = self
                    .store
                    .open_upload(self.image, self.job, self.image_name, kind, size)
                    .await?;
                let part_size = upload.part_size;
                let number = u32::try_from(self.open.len() + self.uploaded.len()).unwrap_or(u32::MAX);
                self.open.insert(number, upload);
                Ok(Answer::Upload(OpenUpload {
                    upload: number,
                    part_size,
                    parts: Vec::new(),
                }))
            }
            Call::GetPartUrls { upload, parts } => self
                .store
                .part_urls(self.upload(upload)?, &parts.numbers, URL_VALID)
                .await
                .map(|urls| Answer::PartUrls(PartUrls { urls })),
            Call::CompleteUpload { upload, sent } => {
                let artifact = self
                    .store
                    .complete_upload(self.upload(upload)?, &sent.parts, &sent.digests)
                    .await?;
                self.open.remove(&upload);
                self.uploaded.push(artifact);
                Ok(Answer::Done)
            }
            Call::Finish(_) => Ok(Answer::Done),
        }
    }

    fn upload(&self, number: u32) -> Result<&Upload, Failure> {
        self.open
            .get(&number)
            .ok_or_else(|| Failure::new("protocol", format!("there is no open upload {number}")))
    }
}
