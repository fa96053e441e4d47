//! Finished jobs, and an S3 service that has no time for them.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::records::{ArtifactKind, Upload, UploadedArtifact, artifact::Digesting, run::RunUpload};

/// What is answered instead of S3: a status, to requests that have this in their first line.
type Fault = Arc<Mutex<Option<(u16, &'static str)>>>;

/// Stands in front of S3.
async fn proxy(to: SocketAddr) -> (SocketAddr, Fault) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, fault) = (listener.local_addr().unwrap(), Fault::default());
    let shared = Arc::clone(&fault);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let fault = Arc::clone(&shared);
            tokio::spawn(async move { pass(client, to, &fault).await });
        }
    });
    (address, fault)
}

/// Passes one request on, or answers it.
async fn pass(mut client: TcpStream, to: SocketAddr, fault: &Fault) -> std::io::Result<()> {
    let mut head = Vec::new();
    let end = loop {
        if let Some(at) = head.windows(2).position(|window| window == b"\r\n") {
            break at + 2;
        }
        if client.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    };
    let line = String::from_utf8_lossy(&head[..end]).into_owned();
    let fault = *fault.lock().unwrap();
    if let Some((status, _)) = fault.filter(|(_, target)| line.contains(target)) {
        let body = "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>";
        let length = body.len();
        let answer = format!("HTTP/1.1 {status} No\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
        client.write_all(answer.as_bytes()).await?;
        client.shutdown().await?;
        // An answer is lost when what is still being sent is not read.
        tokio::io::copy(&mut client, &mut tokio::io::sink()).await?;
        return Ok(());
    }
    let mut server = TcpStream::connect(to).await?;
    server.write_all(&head[..end]).await?;
    server.write_all(b"connection: close\r\n").await?;
    server.write_all(&head[end..]).await?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

/// Lets a job be done: everything is in S3 but its log and its manifest.
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

/// Two looks at a finished job at the least, each of them with all tries of the client of S3.
async fn commits_under(status: u16, target: &'static str) {
    let mut site = Site::new().await;
    let settings = site.s3.settings();
    let endpoint = settings.endpoint.as_ref().unwrap().strip_prefix("http://").unwrap();
    let (address, fault) = proxy(endpoint.parse().unwrap()).await;
    let settings = crate::artifacts::S3Settings {
        endpoint: Some(format!("http://{address}")),
        ..settings
    };
    site.artifacts = ArtifactStore::connect(&settings).await.unwrap();
    let server = site.server(WatchSettings::default());
    let orchestrator = &server.orchestrator;
    let job = finished(&site, &server).await;

    *fault.lock().unwrap() = Some((status, target));
    orchestrator.commit_once().await.unwrap();
    assert_eq!(site.state(job).await, State::Committing);
    // As if that had been ten minutes ago.
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
