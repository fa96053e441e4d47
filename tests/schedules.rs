//! One job for each time at which a schedule is due: through kill -9, and with two servers on one database.

use crate::support::postgres;
use crate::support::{eventually_async, server};

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use kiln::{
    artifacts::{ArtifactStore, S3Settings},
    config::{JobSettings, WebhookSettings},
    orchestrate::{Met, ask::Asker, schedule::Scheduler},
    store::{Most, Query, SharedStore, StoreError, Stored, open},
    webhooks::Webhooks,
};
use kiln_records::{
    Code, Job, JobStatus, Link, Moment, Recipe, RecipeId, RecipeType, Schedule, ScheduleId,
    job::JobOptions,
    schedule::{MissedRuns, Outcome, Overlap, ScheduledRecipe, ScheduledSet, Tick, Timing},
};
use kiln_s3::EmbeddedS3;
use serde_json::{Value, json};

use crate::schedules::server::{Server, id_of};

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

fn moment(text: &str) -> Moment {
    text.parse().unwrap()
}

fn schedule(recipe: RecipeId, cron: &str, next: Moment) -> Schedule {
    Schedule {
        id: ScheduleId::new(),
        created: moment("2026-01-01T00:00:00Z"),
        name: "s".to_owned(),
        recipe_id: Some(recipe),
        cron: cron.to_owned(),
        timezone: "UTC".to_owned(),
        image_root_archive_name: Some("{recipe}-{date}-{time}".to_owned()),
        image_set: None,
        public_key_id: None,
        options: JobOptions::default(),
        missed_runs: MissedRuns::Once,
        missed_runs_limit: 100,
        overlap: Overlap::Queue,
        paused: false,
        next_run: Some(next),
        last_run: None,
        runs: 0,
    }
}

/// The same schedule, that makes image sets of its own name.
fn of_sets(schedule: Schedule, recipe: RecipeId) -> Schedule {
    Schedule {
        recipe_id: None,
        image_root_archive_name: None,
        image_set: Some(ScheduledSet {
            name: schedule.id.to_string(),
            version: "{n}".to_owned(),
            recipes: vec![ScheduledRecipe {
                recipe_id: recipe,
                required: true,
                time_limit_s: None,
            }],
            requires: Vec::new(),
        }),
        ..schedule
    }
}

/// Rounds of the killing.
const ROUNDS: usize = 40;

/// Schedules that become due in each.
const EACH: usize = 25;

/// The remains of schedules after a server was killed.
#[derive(Debug, Default, Clone, Copy)]
struct Left {
    /// Runs whose tick is there, and whose job may be or not.
    open: usize,
    made: usize,
}

/// Adds due schedules to a store that no server uses. Returns the remains of the earlier ones.
async fn add_due(data: &Path, recipe: RecipeId, all: &mut Vec<ScheduleId>) -> Left {
    let store = open(data.join("records.sqlite").to_str().unwrap()).await.unwrap();
    let mut left = Left::default();
    for id in all.iter().rev().take(EACH) {
        for tick in store.ticks(*id, 10).await.unwrap() {
            match tick.outcome {
                Outcome::Made | Outcome::Ended => left.made += 1,
                _ => left.open += 1,
            }
        }
    }
    let last_year = moment("2025-11-21T00:00:00Z");
    for number in 0..EACH {
        // Once a year, so that the last missed run is the same for every server that looks.
        let mut schedule = schedule(recipe, "0 0 1 1 *", last_year);
        if number % 2 == 1 {
            schedule = of_sets(schedule, recipe);
        }
        store.insert_schedule(&schedule).await.unwrap();
        all.push(schedule.id);
    }
    store.close().await;
    left
}

#[test(threads = 2)]
async fn a_server_that_is_killed_makes_one_job_of_each_run() {
    let settings = [("KILN__JOBS__RUN", "false")];
    let mut server = Server::with(&settings);
    let recipe: RecipeId = id_of(&server.recipe(json!({})).await).parse().unwrap();
    let mut dice = Dice(4);
    let mut all = Vec::new();
    let (mut halfway, mut between) = (0, 0);
    for _ in 0..ROUNDS {
        tokio::time::sleep(Duration::from_millis(dice.below(400))).await;
        server = server.crashed_after(&settings, |data| {
            let left = tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(add_due(data, recipe, &mut all))
            });
            halfway += usize::from(left.made + left.open > 0 && left.made < EACH);
            between += left.open;
        });
    }
    println!("{halfway} of {ROUNDS} kills halfway, {between} runs between claim and job");
    assert!(halfway >= 3, "the kills met nothing");

    let mut jobs = BTreeSet::new();
    for id in &all {
        let path = format!("/kiln/v1/schedules/{id}/history");
        let tick = eventually_async(async || {
            let ticks = server.read(&path).await;
            let ticks: Vec<_> = ticks
                .as_array()
                .unwrap()
                .iter()
                .filter(|tick| tick["outcome"] != "skipped")
                .cloned()
                .collect();
            assert!(ticks.len() <= 1, "{ticks:?}");
            let is_made = |tick: &Value| tick["outcome"] == "made";
            ticks
                .first()
                .filter(|tick| is_made(tick))
                .cloned()
                .ok_or_else(|| format!("{ticks:?}"))
        })
        .await;
        assert_eq!(tick["due"], "2026-01-01T00:00:00+00:00");
        let job = match tick["set_id"].as_str() {
            Some(set) => server.read(&format!("/kiln/v1/sets/{set}")).await["arches"][0]["jobs"][0].clone(),
            None => tick["job_id"].clone(),
        };
        jobs.insert(job.as_str().unwrap().to_owned());
    }
    assert_eq!(jobs.len(), ROUNDS * EACH);
    let made: BTreeSet<_> = server.ids("/v3/jobs").await.into_iter().collect();
    assert_eq!(made, jobs, "a job for each run, and no other");
}

/// All jobs.
async fn jobs(store: &SharedStore) -> Vec<Stored<Job>> {
    let all = Query {
        limit: u32::MAX,
        ..Query::default()
    };
    store.page_jobs(&all).await.unwrap()
}

/// Carries all jobs out that have not ended, as another program would.
async fn end_all(store: &SharedStore) {
    for Stored {
        mut record, revision, ..
    } in jobs(store).await
    {
        if !record.status.is_final() {
            record.status = JobStatus::Success;
            match store.replace_job(&record, revision).await {
                // A run that takes its place has ended it.
                Ok(()) | Err(StoreError::Stale) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

async fn add_recipe(store: &SharedStore, artifacts: &ArtifactStore) -> RecipeId {
    let bucket = artifacts.recipes_bucket();
    let etag = artifacts.put_bytes(bucket, "r", "a/b", "archive").await.unwrap();
    let recipe = Recipe {
        id: RecipeId::new(),
        created: moment("2026-01-01T00:00:00Z"),
        link: Some(Link::s3(bucket, "r", &etag)),
        recipe_type: RecipeType::KiwiNg,
        linux_distribution: kiln_records::LinuxDistribution::Debian,
        name: "r".to_owned(),
        arch: kiln_records::arch::Arch::X86_64,
        require_dkms: false,
        template_dictionary: None,
        twins: None,
        cache: None,
        reproducible: None,
        source_date_epoch: None,
        locked: None,
        profiles: None,
        deleted: None,
    };
    store.insert(&recipe, &[]).await.unwrap();
    recipe.id
}

/// Two servers look at the same time, by clocks that differ, and are cut off in the middle of it.
#[test(threads = 2)]
async fn two_servers_on_one_database_make_one_job_of_each_run() {
    let url = postgres::Server::shared().new_database();
    let stores = [open(&url).await.unwrap(), open(&url).await.unwrap()];
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let dir = tempfile::tempdir().unwrap();
    let s3 = EmbeddedS3::start(dir.path(), ([127, 0, 0, 1], 0).into()).await.unwrap();
    let artifacts = ArtifactStore::connect(&S3Settings::from(&s3)).await.unwrap();
    let start = moment("2026-11-21T00:00:00Z");
    let recipe = add_recipe(&stores[0], &artifacts).await;
    let mut schedules = Vec::new();
    for overlap in Overlap::ALL {
        for _ in 0..4 {
            let schedule = Schedule {
                overlap,
                missed_runs: MissedRuns::All,
                ..schedule(recipe, "* * * * *", moment("2026-11-21T00:01:00Z"))
            };
            stores[0].insert_schedule(&schedule).await.unwrap();
            schedules.push(schedule);
        }
    }
    let servers: Vec<_> = stores
        .iter()
        .map(|store| {
            let asker = Asker {
                store: Arc::clone(store),
                artifacts: artifacts.clone(),
                met: Met::default(),
                channels: Vec::new(),
                webhooks: Arc::new(Webhooks::new(&WebhookSettings::default(), None, Arc::clone(store))),
                boots: None,
                jobs: JobSettings::default(),
                most_records: Most::default(),
                orchestrator: None,
            };
            Arc::new(Scheduler::new(Arc::new(asker), Arc::default()))
        })
        .collect();
    let mut dice = Dice(7);
    let mut now = start;
    for round in 0..80 {
        now = Moment::from_micros(now.micros() + 20_000_000 + i64::try_from(dice.below(40_000_000)).unwrap());
        let passes: Vec<_> = (0..4)
            .map(|n| {
                let server = servers[n % 2].clone();
                let clock = Moment::from_micros(now.micros() - i64::try_from(dice.below(3_000_000)).unwrap());
                // A pass that waits too long for the locks of one that was cut off is cut off itself: the next one goes on.
                tokio::spawn(async move {
                    match server.pass_once(clock).await {
                        Ok(_) => {}
                        Err(failure) => assert_eq!(failure.code, Code::StoreUnavailable, "{failure}"),
                    }
                })
            })
            .collect();
        if round % 2 == 0 {
            tokio::time::sleep(Duration::from_micros(dice.below(8_000))).await;
            passes.iter().for_each(tokio::task::JoinHandle::abort);
        }
        for pass in passes {
            if let Err(error) = pass.await {
                assert!(error.is_cancelled(), "{error}");
            }
        }
        end_all(&stores[0]).await;
    }
    while servers[0].pass_once(now).await.unwrap() {
        end_all(&stores[0]).await;
    }

    let timing = Timing::parse("* * * * *", "UTC").unwrap();
    let expected: Vec<Moment> = timing.after(start).take_while(|due| *due <= now).collect();
    let mut of_ticks = BTreeSet::new();
    for schedule in &schedules {
        let mut ticks: Vec<Tick> = stores[1].ticks(schedule.id, 1_000).await.unwrap();
        ticks.reverse();
        let due: Vec<_> = ticks.iter().map(|tick| tick.due).collect();
        assert_eq!(due, expected);
        for tick in ticks {
            let has_job = matches!(tick.outcome, Outcome::Made | Outcome::Ended);
            assert!(has_job || tick.outcome == Outcome::Skipped, "{tick:?}");
            assert!(has_job || schedule.overlap != Overlap::Queue, "{tick:?}");
            of_ticks.extend(tick.job_id.map(|id| id.to_string()));
        }
    }
    let made = jobs(&stores[1])
        .await
        .into_iter()
        .map(|stored| stored.record.id.to_string());
    let made: BTreeSet<_> = made.collect();
    assert_eq!(made, of_ticks, "a job for each run that was not skipped, and no other");
    println!("{} runs, {} jobs", schedules.len() * expected.len(), made.len());
}
