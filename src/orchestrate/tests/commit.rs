//! Tests finished jobs with an S3 service that is overloaded or lacks their objects.

use std::time::{Duration, Instant};

use super::{s3_proxy::proxy, *};
use kiln_records::{
    ArtifactKind, TwinPair, Upload, UploadedArtifact,
    artifact::Digesting,
    run::{RunUpload, TwinsFallback},
};

/// Brings a job to its end: everything is in S3 except its log and its manifest.
async fn finished(site: &Site, server: &Server) -> JobId {
    let job = site.launched(server).await;
    finish(site, server, job).await;
    job
}

/// Brings a launched job to its end: everything is in S3 except its log and its manifest.
pub(super) async fn finish(site: &Site, server: &Server, job: JobId) {
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
    let done = server.orchestrator.jobs.change(job, |run, _| {
        run.start()?;
        run.uploads = vec![upload.clone()];
        run.finish()
    });
    done.await.unwrap().unwrap().unwrap();
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
    orchestrator.commit.pass().await.unwrap();
    assert_eq!(site.state(job).await, State::Committing);
    // Pretend that this was ten minutes ago.
    let begun = Instant::now().checked_sub(Duration::from_mins(10)).unwrap();
    let before = orchestrator.commit.held_up().since.insert(job, begun);
    assert!(before.is_some(), "it was not looked at");
    orchestrator.commit.pass().await.unwrap();
    assert_eq!(site.state(job).await, State::Committing);

    *fault.lock().unwrap() = None;
    orchestrator.commit.pass().await.unwrap();
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
async fn the_image_of_a_job_counts_for_its_caller() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let allowance = Allowance {
        caller: "one".to_owned(),
        most: None,
    };
    Box::pin(allowance.scope(finished(&site, &server))).await;
    server.orchestrator.commit.pass().await.unwrap();
    let counts = site.store.counts().await.unwrap();
    let images = counts.iter().find(|count| count.kind == "images").unwrap();
    assert_eq!((images.all, images.most.clone()), (1, Some(("one".to_owned(), 1))));
}

#[tokio::test]
async fn what_waiting_does_not_mend_ends_a_finished_job_at_once() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let job = finished(&site, &server).await;
    let image = site.store.get_run(job).await.unwrap().unwrap().run.image;
    site.artifacts.discard_image(image).await.unwrap();
    server.orchestrator.commit.pass().await.unwrap();
    let State::Failed(failure) = site.state(job).await else {
        panic!("{:?}", site.state(job).await);
    };
    assert_eq!(failure.code, Code::ArtifactMismatch);
}

#[tokio::test]
async fn the_log_beside_an_image_goes_with_the_image_also_when_its_job_went_before() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let job = finished(&site, &server).await;
    let image = site.store.get_run(job).await.unwrap().unwrap().run.image;
    server.orchestrator.commit.pass().await.unwrap();
    site.store.delete_job(job).await.unwrap();
    server.orchestrator.settle.pass().await.unwrap();
    let left = site
        .artifacts
        .list(site.artifacts.images_bucket(), &format!("{image}/"))
        .await
        .unwrap();
    let left: Vec<_> = left.into_iter().map(|object| object.key).collect();
    assert!(left.iter().any(|key| key.ends_with("build.log.zst")), "{left:?}");

    Collection::<Image>::purge(&*site.store, Side::Live, Some(image), false)
        .await
        .unwrap();
    let mut doomed = site.store.doomed(10).await.unwrap();
    doomed.retain(|object| object.own && site.artifacts.own_place(&object.path).is_some());
    for key in left {
        let path = format!("s3://{}/{key}", site.artifacts.images_bucket());
        assert!(doomed.iter().any(|object| object.path == path), "{path} stays for ever");
    }
}

#[tokio::test]
async fn a_twin_is_blamed_only_if_the_job_succeeds_without_it() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let failed = async |target: Arch| {
        let job = finished(&site, &server).await;
        let pair = TwinPair {
            package: "bash".to_owned(),
            version: "5.2".to_owned(),
            path: "/usr/bin/bash".to_owned(),
            target,
            host: Arch::Riscv64,
        };
        let failure = Failure {
            twin: Some(Box::new(pair.clone())),
            ..Failure::new(Code::EmulatorFault, "it died")
        };
        let falls_back = server.orchestrator.jobs.change(job, |run, _| {
            run.twins_fallback = Some(TwinsFallback {
                attempt: 1,
                failure: failure.clone(),
            });
            Ok(())
        });
        falls_back.await.unwrap().unwrap().unwrap();
        (job, pair)
    };
    let arch = site.store.get_job(failed(Arch::S390x).await.0).await.unwrap().unwrap();
    let (job, pair) = failed(arch.record.arch).await;
    assert_eq!(site.store.failed_twins(None).await.unwrap(), []);
    server.orchestrator.commit.pass().await.unwrap();
    assert_eq!(site.state(job).await, State::Success);
    // What names another architecture was not in this job.
    let known = site.store.failed_twins(None).await.unwrap();
    assert_eq!(known.len(), 1, "{known:?}");
    assert_eq!(
        (known[0].job, &known[0].pair, known[0].code),
        (job, &pair, Code::EmulatorFault)
    );
}
