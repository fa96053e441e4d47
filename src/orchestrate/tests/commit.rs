//! Tests finished jobs with an S3 service that is overloaded or lacks their objects.

use std::time::{Duration, Instant};

use super::{s3_proxy::proxy, *};
use kiln_records::{ArtifactKind, Upload, UploadedArtifact, artifact::Digesting, run::RunUpload};

/// Brings a job to its end: everything is in S3 except its log and its manifest.
async fn finished(site: &Site, server: &Server) -> JobId {
    let job = site.launched(server).await;
    let image = site.store.get_run(job).await.unwrap().unwrap().run.image;
    let kind = ArtifactKind::Rootfs;
    let (bucket, key) = (site.artifacts.images_bucket(), format!("{image}/{}", kind.key_name()));
    let mut digests = Digesting::default();
    digests.update(b"rootfs");
    let digests = digests.finish();
    let etag = site
        .artifacts
        .put_bytes(bucket, &key, kind.media_type(), "rootfs")
        .await;
    let upload = RunUpload {
        upload: Upload {
            kind,
            bucket: bucket.to_owned(),
            key: key.clone(),
            id: "upload".to_owned(),
            size: digests.size,
            part_size: digests.size,
        },
        done: Some(UploadedArtifact {
            kind,
            bucket: bucket.to_owned(),
            key,
            etag: etag.unwrap(),
            digests,
        }),
    };
    let done = server.orchestrator.change(job, |run, _| {
        run.start()?;
        run.uploads = vec![upload.clone()];
        run.finish()
    });
    done.await.unwrap().unwrap().unwrap();
    job
}

/// Makes at least two passes over a finished job, each with all the retries of the S3 client.
async fn commits_under(status: u16, target: &'static str) {
    let mut site = Site::new().await;
    let (artifacts, fault) = proxy(&site.s3).await;
    site.artifacts = artifacts;
    let server = site.server(WatchSettings::default());
    let orchestrator = &server.orchestrator;
    let job = finished(&site, &server).await;

    *fault.lock().unwrap() = Some((status, target));
    orchestrator.commit_once().await.unwrap();
    assert_eq!(site.state(job).await, State::Committing);
    // Pretend that this was ten minutes ago.
    let begun = Instant::now().checked_sub(Duration::from_mins(10)).unwrap();
    let before = orchestrator.state().committing.insert(job, begun);
    assert!(before.is_some(), "it was not looked at");
    orchestrator.commit_once().await.unwrap();
    assert_eq!(site.state(job).await, State::Committing);

    *fault.lock().unwrap() = None;
    orchestrator.commit_once().await.unwrap();
    let run = site.store.get_run(job).await.unwrap().unwrap().run;
    assert_eq!((run.state, run.attempt), (State::Success, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_job_waits_for_an_s3_that_is_overloaded() {
    let each = [
        (503, "build.log"),
        (429, "build.log"),
        (503, "manifest.json"),
        (429, "manifest.json"),
    ];
    join_all(each.map(|(status, target)| commits_under(status, target))).await;
}

#[tokio::test]
async fn what_waiting_does_not_mend_ends_a_finished_job_at_once() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let job = finished(&site, &server).await;
    let image = site.store.get_run(job).await.unwrap().unwrap().run.image;
    site.artifacts.discard_image(image).await.unwrap();
    server.orchestrator.commit_once().await.unwrap();
    let State::Failed(failure) = site.state(job).await else {
        panic!("{:?}", site.state(job).await);
    };
    assert_eq!(failure.code, Code::ArtifactMismatch);
}
