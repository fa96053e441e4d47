//! A database that is locked, or away.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use crate::faults::{
    invariants::{Observer, check},
    postgres,
    site::{Site, rank},
};
use crate::support::{self, Recipe};

/// How long somebody holds the database.
const HELD: Duration = Duration::from_secs(20);

/// How long the database server is away: longer than an agent may be silent, and than any client waits by itself.
const AWAY: Duration = Duration::from_mins(2);

/// Holds a database for itself, says so, and lets go after some seconds.
const HOLD: &str = "import sqlite3, sys, time\n\
    base = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)\n\
    base.execute('begin immediate')\n\
    print('held', flush=True)\n\
    time.sleep(float(sys.argv[2]))\n\
    base.execute('rollback')\n";

/// Jobs at different points of their lives.
async fn some_jobs(site: &Site) -> Vec<String> {
    let quick = site.small_recipe();
    let slow = site.recipe("slow", Recipe::with_script("sleep 10"));
    let jobs = vec![
        site.submit(&slow).await,
        site.submit(&quick).await,
        site.submit(&quick).await,
    ];
    for job in &jobs[..2] {
        site.wait_until(job, "building", |job| rank(job) >= 7).await;
    }
    jobs
}

async fn assert_all_succeed(site: &Site, jobs: &[String], attempts: u64) {
    for job in jobs {
        let ended = site.end_of(job).await;
        assert_eq!(ended["state"], "success", "{ended:#}");
        assert!(ended["attempt"].as_u64().unwrap() <= attempts, "{ended:#}");
    }
}

#[test(threads = 4)]
async fn jobs_outlive_a_database_that_somebody_holds() {
    needs!(support::no_namespaces());
    let site = Arc::new(Site::start(&[("KILN__CAPACITY__JOBS", "2")]).await);
    let observer = Observer::of(&site);
    let mut jobs = some_jobs(&site).await;
    let mut holder = Command::new("python3")
        .args(["-c", HOLD])
        .arg(site.kiln.data().join("records.sqlite"))
        .arg(HELD.as_secs().to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut held = String::new();
    BufReader::new(holder.stdout.take().unwrap())
        .read_line(&mut held)
        .unwrap();
    assert_eq!(held, "held\n");
    assert!(tokio::task::block_in_place(|| holder.wait()).unwrap().success());
    let recipe = site.small_recipe();
    jobs.push(site.submit(&recipe).await);
    assert_all_succeed(&site, &jobs, 1).await;
    check(&site, &observer).await;
}

#[test(threads = 4)]
async fn jobs_outlive_a_postgresql_that_is_away() {
    needs!(support::no_namespaces());
    let mut postgres = tokio::task::block_in_place(postgres::Server::start);
    let url = postgres.new_database();
    let settings = [
        ("KILN__CAPACITY__JOBS", "2"),
        ("KILN__STORE__URL", &url),
        ("KILN__WATCH__HEARTBEAT", "1m"),
    ];
    let site = Arc::new(Site::start(&settings).await);
    let observer = Observer::of(&site);
    let mut jobs = some_jobs(&site).await;
    tokio::task::block_in_place(|| postgres.stop());
    let body = site.job("nothing");
    let refused = site.ask("POST", "/v3/jobs", Some(&body)).await;
    assert!(!matches!(refused, Some((..400, _))), "{refused:?}");
    tokio::time::sleep(AWAY).await;
    tokio::task::block_in_place(|| postgres.run());
    let recipe = site.small_recipe();
    jobs.push(site.submit(&recipe).await);
    // A launch that could not be written down is made again.
    assert_all_succeed(&site, &jobs, 2).await;
    check(&site, &observer).await;
}
