//! A server that is told to stop while jobs are under way.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;

use crate::faults::{
    invariants::{Observer, check},
    site::{Site, rank},
};
use crate::support::{self, Recipe};

/// How long a server may take to stop.
const STOPPED: Duration = Duration::from_secs(10);

/// How long the scripts take, and how long the server stays away: some builds end without it.
const SCRIPT: Duration = Duration::from_secs(6);

#[test(threads = 4)]
async fn builds_go_on_without_their_server() {
    needs!(support::no_namespaces());
    let site = Arc::new(Site::start(&[("KILN__CAPACITY__JOBS", "2")]).await);
    let observer = Observer::of(&site);
    let recipe = site.recipe("slow", Recipe::with_script(&format!("sleep {}", SCRIPT.as_secs())));
    let jobs = [site.submit(&recipe).await, site.submit(&recipe).await];
    for job in &jobs {
        site.wait_until(job, "building", |job| rank(job) >= 7).await;
    }
    let begun = Instant::now();
    let ran = site.down(Signal::SIGTERM).unwrap();
    let took = begun.elapsed();
    assert_eq!(ran.code, Some(0), "{}", ran.last());
    assert!(took < STOPPED, "it took {took:?}");
    println!("the server stopped in {took:.1?}");
    tokio::time::sleep(SCRIPT).await;
    site.up().await;
    for job in &jobs {
        let ended = site.end_of(job).await;
        assert_eq!(ended["state"], "success", "{ended:#}");
        assert_eq!(ended["attempt"], 1, "{ended:#}");
    }
    check(&site, &observer).await;
}
