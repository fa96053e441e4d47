//! Tests what the embedded server's directory survives.

use std::{
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use aws_sdk_s3::{Client, config::RequestChecksumCalculation, primitives::ByteStream};
use kiln::artifacts::{ArtifactStore, S3Settings};
use kiln_s3::{EmbeddedError, EmbeddedS3};

use crate::s3::target::{bytes, client, loopback};
use crate::support::eventually_async;

fn client_of(server: &EmbeddedS3) -> Client {
    client(&server.into(), RequestChecksumCalculation::WhenRequired)
}

async fn put(client: &Client, key: &str, body: &[u8]) {
    client
        .put_object()
        .bucket("data")
        .key(key)
        .body(ByteStream::from(body.to_vec()))
        .send()
        .await
        .unwrap();
}

async fn get(client: &Client, key: &str) -> Vec<u8> {
    let answer = client.get_object().bucket("data").key(key).send().await.unwrap();
    answer.body.collect().await.unwrap().to_vec()
}

fn mode(path: &Path) -> u32 {
    fs_err::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
async fn another_server_sees_all_without_the_first_having_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let first = EmbeddedS3::start(dir.path(), loopback()).await.unwrap();
    let one = client_of(&first);
    one.create_bucket().bucket("data").send().await.unwrap();
    put(&one, "k", &bytes(100_000)).await;
    let upload = one
        .create_multipart_upload()
        .bucket("data")
        .key("m")
        .send()
        .await
        .unwrap();
    let id = upload.upload_id().unwrap();
    let part = one.upload_part().bucket("data").key("m").upload_id(id).part_number(1);
    let part = part.body(ByteStream::from_static(b"part")).send().await.unwrap();

    // The copy is what a power cut now would leave.
    let copy = tempfile::tempdir().unwrap();
    let done = std::process::Command::new("cp")
        .arg("-r")
        .arg(dir.path().join("."))
        .arg(copy.path())
        .status();
    assert!(done.unwrap().success());
    let second = EmbeddedS3::start(copy.path(), loopback()).await.unwrap();
    assert_eq!(second.credentials().access_key, first.credentials().access_key);
    let two = client_of(&second);
    assert!(get(&two, "k").await == bytes(100_000));
    let parts = two
        .list_parts()
        .bucket("data")
        .key("m")
        .upload_id(id)
        .send()
        .await
        .unwrap();
    assert_eq!(parts.parts()[0].e_tag(), part.e_tag());
    second.shutdown().await;
    first.shutdown().await;
}

#[test]
async fn orphans_go_when_they_are_old() {
    let dir = tempfile::tempdir().unwrap();
    let server = EmbeddedS3::start(dir.path(), loopback()).await.unwrap();
    let client = client_of(&server);
    client.create_bucket().bucket("data").send().await.unwrap();
    put(&client, "k", b"kept").await;
    server.shutdown().await;

    let files = ["bodies/old", "bodies/new", "incoming/old", "incoming/new"].map(|name| dir.path().join(name));
    for file in &files {
        fs_err::write(file, "orphan").unwrap();
    }
    // Everything is made old but the orphans named `new`.
    for folder in ["bodies", "incoming"] {
        for entry in fs_err::read_dir(dir.path().join(folder)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() != "new" {
                let file = fs_err::OpenOptions::new().write(true).open(entry.path()).unwrap();
                file.file()
                    .set_modified(std::time::SystemTime::now() - Duration::from_hours(2))
                    .unwrap();
            }
        }
    }
    let server = EmbeddedS3::start(dir.path(), loopback()).await.unwrap();
    assert_eq!(files.map(|file| file.exists()), [false, true, false, true]);
    let client = client_of(&server);
    assert_eq!(get(&client, "k").await, b"kept");
    let list = client.list_objects_v2().bucket("data").send().await.unwrap();
    assert_eq!(list.contents().len(), 1);
}

#[test]
async fn two_servers_write_to_one_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = tokio::join!(
        EmbeddedS3::start(dir.path(), loopback()),
        EmbeddedS3::start(dir.path(), loopback())
    );
    let (first, second) = (first.unwrap(), second.unwrap());
    let clients = [client_of(&first), client_of(&second)];
    clients[0].create_bucket().bucket("data").send().await.unwrap();
    let mut writers = tokio::task::JoinSet::new();
    for (at, client) in clients.iter().enumerate() {
        for number in 0..20 {
            let client = client.clone();
            writers.spawn(async move {
                put(&client, &format!("{at}/{number}"), format!("{at}-{number}").as_bytes()).await;
                put(&client, "contended", &bytes(10_000 + number)).await;
            });
        }
    }
    writers.join_all().await;
    for client in &clients {
        let list = client.list_objects_v2().bucket("data").send().await.unwrap();
        assert_eq!(list.contents().len(), 41);
        assert_eq!(get(client, "0/7").await, b"0-7");
        assert_eq!(get(client, "1/19").await, b"1-19");
        let contended = get(client, "contended").await;
        assert!(contended == bytes(contended.len()));
    }
    first.shutdown().await;
    second.shutdown().await;
    assert_eq!(fs_err::read_dir(dir.path().join("bodies")).unwrap().count(), 41);
}

#[test]
async fn only_the_owner_gets_in() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("made/here");
    let server = EmbeddedS3::start(&data, loopback()).await.unwrap();
    assert_eq!(mode(&data), 0o700);
    assert_eq!(mode(&data.join("credentials.json")), 0o600);
    assert!(!format!("{server:?}").contains(server.credentials().secret_key.expose()));
    let refused = EmbeddedS3::start(&data, "0.0.0.0:0".parse().unwrap()).await;
    assert!(matches!(refused, Err(EmbeddedError::NotLoopback(_))));
}

#[test]
async fn a_stopped_server_is_unreachable() {
    let dir = tempfile::tempdir().unwrap();
    let server = EmbeddedS3::start(dir.path(), loopback()).await.unwrap();
    let settings = S3Settings::from(&server);
    ArtifactStore::connect(&settings).await.unwrap();
    server.shutdown().await;
    let failure = ArtifactStore::connect(&settings).await.unwrap_err();
    assert_eq!(failure.code.name(), "s3_unreachable", "{failure:?}");
    assert!(failure.hint.is_some());
}

/// Not a test: the process that the next one kills.
#[test]
#[ignore = "serves until it is killed"]
async fn serve_until_killed() {
    let Some(dir) = std::env::var_os(SERVED) else { return };
    let server = EmbeddedS3::start(dir.as_ref(), loopback()).await.unwrap();
    fs_err::write(Path::new(&dir).join("endpoint"), server.endpoint()).unwrap();
    std::future::pending::<()>().await;
}

const SERVED: &str = "KILN_TEST_SERVED_DIR";

#[test]
async fn what_was_answered_outlives_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let mut process = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "s3::durability::serve_until_killed"])
        // Killed, it would be listed as a test that did not end.
        .env_remove("KILN_TEST_TIMES")
        .env(SERVED, dir.path())
        .stdout(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let said = dir.path().join("endpoint");
    let endpoint = eventually_async(async || {
        let endpoint = fs_err::read_to_string(&said).ok();
        endpoint.filter(|endpoint| !endpoint.is_empty())
    })
    .await;
    // Shares the directory with the process, so it knows the key; its own address is not used.
    let helper = EmbeddedS3::start(dir.path(), loopback()).await.unwrap();
    let mut settings = S3Settings::from(&helper);
    settings.endpoint = Some(endpoint);
    helper.shutdown().await;
    let one = client(&settings, RequestChecksumCalculation::WhenRequired);
    one.create_bucket().bucket("data").send().await.unwrap();

    let mut writers = tokio::task::JoinSet::new();
    let count = Arc::new(AtomicUsize::new(0));
    for writer in 0..4 {
        let (client, count) = (one.clone(), Arc::clone(&count));
        writers.spawn(async move {
            let mut answered = Vec::new();
            for number in 0.. {
                let (key, body) = (format!("{writer}/{number}"), bytes(50_000 + number));
                let put = client
                    .put_object()
                    .bucket("data")
                    .key(&key)
                    .body(ByteStream::from(body));
                if put.send().await.is_err() {
                    break;
                }
                answered.push((key, 50_000 + number));
                count.fetch_add(1, Ordering::Relaxed);
            }
            answered
        });
    }
    eventually_async(async || count.load(Ordering::Relaxed) > 40).await;
    process.kill().await.unwrap();
    let answered: Vec<_> = writers.join_all().await.into_iter().flatten().collect();

    let server = EmbeddedS3::start(dir.path(), loopback()).await.unwrap();
    let two = client_of(&server);
    for (key, length) in answered {
        assert!(get(&two, &key).await == bytes(length), "{key}");
    }
    let mut pages = two.list_objects_v2().bucket("data").into_paginator().send();
    while let Some(page) = pages.next().await.transpose().unwrap() {
        for object in page.contents() {
            // A write whose answer got lost may be there too, but then whole.
            assert_eq!(
                get(&two, object.key().unwrap()).await.len().try_into().ok(),
                object.size()
            );
        }
    }
}
