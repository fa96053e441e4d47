//! Two servers that share their records and their S3.

use std::sync::Arc;

use kiln::artifacts::S3Settings;
use kiln_s3::EmbeddedS3;
use nix::sys::signal::Signal;

use crate::faults::{
    invariants::{Observer, check},
    postgres,
    site::Site,
};
use crate::support::{self, Kiln};

const JOBS: usize = 10;

/// The server's log message after making an image.
const MADE: &str = "the job has made its image";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_servers_share_the_jobs() {
    needs!(support::no_namespaces());
    let dir = tempfile::tempdir().unwrap();
    let embedded = EmbeddedS3::start(dir.path(), "127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    let settings = S3Settings::from(&embedded);
    let url = tokio::task::block_in_place(|| postgres::Server::shared().new_database());
    let variables = [
        ("KILN__STORE__URL", url.as_str()),
        ("KILN__S3__ENDPOINT", settings.endpoint.as_deref().unwrap()),
        ("KILN__S3__ACCESS_KEY", settings.access_key.as_deref().unwrap()),
        ("KILN__S3__SECRET_KEY", settings.secret_key.as_ref().unwrap().expose()),
        ("KILN__CAPACITY__JOBS", "1"),
    ];
    let first = Site::start_in(Kiln::new(), &variables)
        .await
        .with_s3(dir.path(), settings.clone());
    let ports = format!("[{}]", first.repository_port());
    let others = [&variables[..], &[("KILN__ISOLATION__LOOPBACK_PORTS", ports.as_str())]].concat();
    let second = Site::start_in(Kiln::new(), &others).await;
    let first = Arc::new(first);
    let observer = Observer::of(&first);
    let recipe = first.small_recipe();
    let mut jobs = Vec::new();
    for _ in 0..JOBS {
        jobs.push(first.submit(&recipe).await);
    }
    for job in &jobs {
        let ended = first.end_of(job).await;
        assert_eq!(ended["state"], "success", "{ended:#}");
        assert_eq!(ended["attempt"], 1, "{ended:#}");
    }
    let other = second.down(Signal::SIGTERM).unwrap();
    second.kiln.assert_clean();
    let by_second = other.stderr.matches(MADE).count();
    let ends = check(&first, &observer).await;
    assert_eq!(ends.success, JOBS, "{ends:?}");
    println!("the second server has made {by_second} of {JOBS} images");
    assert!((1..JOBS).contains(&by_second), "one server did everything: {by_second}");
    embedded.shutdown().await;
}
