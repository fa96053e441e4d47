//! Many jobs at once.

use std::{collections::BTreeSet, sync::Arc, time::Instant};

use futures::future::join_all;
use serde_json::Value;

use crate::faults::{
    invariants::{Observer, check},
    site::{Site, rank},
};
use crate::support::{self, eventually_async};

const JOBS: usize = 200;

/// As many as the server may run at once.
const AT_ONCE: usize = 2;

/// How many come to their end by themselves.
const RUN: usize = 4;

#[test(threads = 4)]
async fn two_hundred_jobs_at_once_take_their_turns() {
    needs!(support::no_namespaces());
    let site = Arc::new(Site::start(&[("KILN__CAPACITY__JOBS", &AT_ONCE.to_string())]).await);
    let recipe = site.small_recipe();
    let observer = Observer::of(&site);
    let begun = Instant::now();
    let body = site.job(&recipe);
    let answers = join_all((0..JOBS).map(|_| site.ask("POST", "/v3/jobs", Some(&body)))).await;
    println!("{JOBS} jobs were taken in {:.1?}", begun.elapsed());
    let ids: BTreeSet<String> = answers
        .into_iter()
        .map(|answer| match answer {
            Some((201, job)) => job["id"].as_str().unwrap().to_owned(),
            refused => panic!("{refused:?}"),
        })
        .collect();
    assert_eq!(ids.len(), JOBS);
    let listed = site.asked("GET", "/v3/jobs", None).await;
    assert_eq!(listed.as_array().unwrap().len(), JOBS);

    eventually_async(async || {
        let all = join_all(ids.iter().map(|id| site.progress(id))).await;
        let busy = all.iter().filter(|job| (1..=10).contains(&rank(job))).count();
        // Jobs are read one after the other: between two looks as many may have followed those that ended.
        let ended = all.iter().filter(|job| rank(job) == 11).count();
        assert!(busy <= AT_ONCE + ended.min(AT_ONCE), "{busy} jobs at once");
        for job in all.iter().filter(|job| rank(job) == 0 && job["position"].is_null()) {
            assert_explained(&site, job).await;
        }
        if ended >= RUN {
            Ok(())
        } else {
            Err(format!("{ended} have ended"))
        }
    })
    .await;

    // Half of the rest is cancelled, half deleted, whatever each is doing.
    let end = async |number: usize, id: &String| {
        let (method, path) = match number % 2 {
            0 => ("POST", format!("/kiln/v1/jobs/{id}/cancel")),
            _ => ("DELETE", format!("/v3/jobs/{id}")),
        };
        let answer = site.ask(method, &path, None).await;
        assert!(
            matches!(answer, Some((200 | 204 | 409, _))),
            "{method} {path}: {answer:?}"
        );
    };
    join_all(ids.iter().enumerate().map(|(number, id)| end(number, id))).await;
    let ends = check(&site, &observer).await;
    println!("{ends:?}");
    let left = ends.success + ends.errors.values().sum::<usize>();
    assert_eq!(left, JOBS / 2, "{ends:?}");
    assert!(ends.errors.keys().eq(["cancelled"]), "{ends:?}");
}

/// A job that waits says why, and what its turn is, as soon as the queue was looked at.
async fn assert_explained(site: &Site, job: &Value) {
    let id = job["id"].as_str().unwrap();
    eventually_async(async || {
        let job = site.progress(id).await;
        let is_explained = rank(&job) > 0 || (job["position"].is_u64() && job["reason"].is_string());
        if is_explained { Ok(()) } else { Err(job) }
    })
    .await;
}
