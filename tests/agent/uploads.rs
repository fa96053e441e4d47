//! Uploads go on where they were: after refusals, after lost connections, and in another agent.

use std::{
    io::Write,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use kiln::{
    artifacts::{ArtifactStore, S3Settings},
    orchestrate::agents::{AgentCalls, Line, Refusal},
};
use kiln_agent::{events::Events, fetch, upload::Uploader};
use kiln_records::{
    ArtifactKind, ImageId, JobId, Upload, UploadedArtifact,
    protocol::{Answer, Call, EventsKept, OpenUpload, PartUrls},
};
use kiln_s3::EmbeddedS3;
use tempfile::{NamedTempFile, TempDir};

use crate::support::PATIENCE;

use crate::agent::server::{Server, TOKEN};

/// Parts of the objects here: two whole ones and a rest.
const SIZE: usize = 2 * 16 * 1024 * 1024 + 1_000;

/// A server with one open upload in a real S3 service.
#[derive(Debug)]
struct OneUpload {
    store: ArtifactStore,
    upload: Upload,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Part numbers that were asked for, in order.
    asked: Vec<u32>,
    /// So many addresses lead nowhere first.
    nowhere: usize,
    /// So many answers to the completion are lost.
    lost: usize,
    artifact: Option<UploadedArtifact>,
}

#[async_trait]
impl AgentCalls for OneUpload {
    async fn admit(&self, _: JobId, token: &str) -> Result<(), Refusal> {
        assert_eq!(token, TOKEN);
        Ok(())
    }

    async fn answer(&self, _: JobId, token: &str, call: Call) -> Result<Answer, Refusal> {
        assert_eq!(token, TOKEN);
        match call {
            Call::PostEvents(batch) => Ok(Answer::Events(EventsKept {
                next: batch.first + batch.events.len() as u64,
                stop: false,
                verdict: None,
            })),
            Call::CreateUpload(object) => {
                assert_eq!(object.size, SIZE as u64);
                Ok(Answer::Upload(OpenUpload {
                    upload: 3,
                    part_size: self.upload.part_size,
                    parts: self.store.stored_parts(&self.upload).await?,
                }))
            }
            Call::GetPartUrls { upload: 3, parts } => {
                let valid = Duration::from_mins(1);
                let mut urls = self.store.part_urls(&self.upload, &parts.numbers, valid).await?;
                let mut state = self.state.lock().unwrap();
                state.asked.extend(parts.numbers);
                if state.nowhere > 0 {
                    state.nowhere -= 1;
                    urls = vec!["http://127.0.0.1:1/".to_owned()];
                }
                Ok(Answer::PartUrls(PartUrls { urls }))
            }
            Call::CompleteUpload { upload: 3, sent } => {
                let artifact = self
                    .store
                    .complete_upload(&self.upload, &sent.parts, &sent.digests)
                    .await?;
                let mut state = self.state.lock().unwrap();
                state.artifact = Some(artifact);
                if state.lost > 0 {
                    state.lost -= 1;
                    return Err(Refusal::Later(kiln_records::Failure::new(
                        kiln_records::Code::S3Timeout,
                        "lost",
                    )));
                }
                Ok(Answer::Done)
            }
            other => panic!("{other:?}"),
        }
    }

    async fn take_line(&self, _: JobId, _: &str, _: Line, _: bool) {
        unreachable!("an upload needs no shell")
    }

    async fn take_registry(&self, _: JobId, _: &str, _: Line) {}

    async fn take_proxied(&self, _: JobId, _: Line) {
        unreachable!("an upload needs no shell")
    }
}

struct Scene {
    /// Serves as long as it lives.
    _s3: EmbeddedS3,
    data: TempDir,
    calls: Arc<OneUpload>,
    server: Server,
    file: NamedTempFile,
    content: Vec<u8>,
}

impl Scene {
    async fn new() -> Self {
        let data = tempfile::tempdir().unwrap();
        let s3 = EmbeddedS3::start(data.path(), "127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let store = ArtifactStore::connect(&settings(&s3)).await.unwrap();
        let content: Vec<u8> = (0..=250).cycle().take(SIZE).collect();
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(&content).unwrap();
        let job = JobId::new();
        let upload = store
            .open_upload(ImageId::new(), job, "test", ArtifactKind::Rootfs, SIZE as u64)
            .await
            .unwrap();
        let calls = Arc::new(OneUpload {
            store,
            upload,
            state: Mutex::default(),
        });
        Self {
            _s3: s3,
            data,
            server: Server::of(job, Arc::clone(&calls) as Arc<dyn AgentCalls>),
            calls,
            file,
            content,
        }
    }

    fn uploader(&self, patience: Duration) -> Uploader {
        let channel = self.server.channel();
        Uploader {
            http: fetch::http_client(None).unwrap(),
            events: Events::new(channel.clone()),
            channel,
            patience,
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.calls.state.lock().unwrap()
    }

    /// The object is in S3, byte for byte.
    async fn assert_whole(&self) {
        let artifact = self.state().artifact.clone().unwrap();
        let to = self.data.path().join("copy");
        self.calls
            .store
            .download(&artifact.bucket, &artifact.key, &to, Some(&artifact.digests))
            .await
            .unwrap();
        assert!(fs_err::read(&to).unwrap() == self.content);
    }
}

fn settings(s3: &EmbeddedS3) -> S3Settings {
    S3Settings::from(s3)
}

#[test(threads = 2)]
async fn what_s3_has_is_not_sent_again() {
    let scene = Scene::new().await;
    let part = bytes::Bytes::copy_from_slice(&scene.content[..16 << 20]);
    let urls = scene
        .calls
        .store
        .part_urls(&scene.calls.upload, &[1, 2], Duration::from_mins(1))
        .await
        .unwrap();
    let http = reqwest::Client::new();
    // Part 1 as it is to be, part 2 of the same size and wrong.
    for url in urls {
        assert!(
            http.put(url)
                .body(part.clone())
                .send()
                .await
                .unwrap()
                .status()
                .is_success()
        );
    }
    let uploader = scene.uploader(PATIENCE);
    uploader.upload(ArtifactKind::Rootfs, scene.file.path()).await.unwrap();
    let mut asked = scene.state().asked.clone();
    asked.sort_unstable();
    assert_eq!(asked, [2, 3]);
    scene.assert_whole().await;
}

#[test(threads = 2)]
async fn parts_and_the_completion_are_repeated_until_they_are_through() {
    let scene = Scene::new().await;
    {
        let mut state = scene.state();
        state.nowhere = 4;
        state.lost = 2;
    }
    let uploader = scene.uploader(PATIENCE);
    let digests = uploader.upload(ArtifactKind::Rootfs, scene.file.path()).await.unwrap();
    assert_eq!(digests.size, SIZE as u64);
    assert_eq!(scene.state().asked.len(), 3 + 4);
    scene.assert_whole().await;
}

#[test(threads = 2)]
async fn an_s3_that_stays_away_is_the_cause() {
    let scene = Scene::new().await;
    scene.state().nowhere = usize::MAX;
    let uploader = scene.uploader(Duration::from_secs(1));
    let failure = uploader
        .upload(ArtifactKind::Rootfs, scene.file.path())
        .await
        .unwrap_err();
    assert_eq!(failure.code.name(), "upload_failed");
    assert!(!failure.detail.contains("X-Amz-Signature"), "{failure}");
}
