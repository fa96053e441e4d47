//! A server that is told to stop while jobs are under way.

use std::sync::Arc;

use nix::sys::signal::Signal;

use crate::faults::{
    invariants::{Observer, check},
    site::{Site, rank},
};
use crate::support::{self, Recipe, eventually_async};

#[test(threads = 4)]
async fn builds_go_on_without_their_server() {
    needs!(support::no_namespaces());
    let site = Arc::new(Site::start(&[("KILN__CAPACITY__JOBS", "2")]).await);
    let observer = Observer::of(&site);
    let recipe = site.recipe("slow", Recipe::with_script("sleep 10"));
    let jobs = [site.submit(&recipe).await, site.submit(&recipe).await];
    for job in &jobs {
        site.wait_until(job, "building", |job| rank(job) >= 7).await;
    }
    let processes = |name: &str| site.kiln.processes().values().filter(|found| *found == name).count();
    let ran = site.down(Signal::SIGTERM).unwrap();
    assert_eq!(ran.code, Some(0), "{}", ran.last());
    // It has not waited for the jobs, which need it for their ends.
    assert!(processes("kiln-supervisor") > 0);
    // The scripts end without it.
    eventually_async(async || processes("config.sh") == 0).await;
    site.up().await;
    for job in &jobs {
        let ended = site.end_of(job).await;
        assert_eq!(ended["state"], "success", "{ended:#}");
        assert_eq!(ended["attempt"], 1, "{ended:#}");
    }
    check(&site, &observer).await;
}
