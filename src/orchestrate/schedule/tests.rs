//! Tests the scheduler with a real store, a real S3 service, and a clock of the test's own. Jobs are records only: the
//! test ends them.

use super::*;
use kiln_records::{
    Job, JobStatus, Link, LinuxDistribution, Recipe, RecipeId, RecipeType,
    arch::Arch,
    job::JobOptions,
    schedule::{MissedRuns, Overlap, ScheduledRecipe, ScheduledSet},
    set::Requirement,
};
use kiln_s3::EmbeddedS3;

use crate::{
    config::{JobSettings, WebhookSettings},
    orchestrate::tests::s3_proxy::{Fault, proxy},
    store::{self, Allowance, Collection, Most, Query, Side},
    webhooks::Webhooks,
};

pub(super) fn moment(text: &str) -> Moment {
    text.parse().unwrap()
}

/// A schedule in Berlin whose next run is at the given moment.
pub(super) fn schedule(cron: &str, next: &str) -> Schedule {
    Schedule {
        id: ScheduleId::new(),
        created: moment("2026-01-01T00:00:00Z"),
        name: "s".to_owned(),
        recipe_id: Some(RecipeId::new()),
        cron: cron.to_owned(),
        timezone: "Europe/Berlin".to_owned(),
        image_root_archive_name: Some("{recipe}-{date}-{time}-{n}".to_owned()),
        image_set: None,
        public_key_id: None,
        options: JobOptions::default(),
        missed_runs: MissedRuns::Once,
        missed_runs_limit: 10,
        overlap: Overlap::Forbid,
        paused: false,
        next_run: Some(moment(next)),
        last_run: None,
        runs: 0,
    }
}

/// A schedule that makes image sets of this version, of one recipe.
fn sets(cron: &str, next: &str, version: &str) -> Schedule {
    Schedule {
        recipe_id: None,
        image_root_archive_name: None,
        image_set: Some(ScheduledSet {
            name: "compute".to_owned(),
            version: version.to_owned(),
            recipes: vec![ScheduledRecipe {
                recipe_id: RecipeId::new(),
                required: true,
                time_limit_s: Some(60),
            }],
            requires: vec![Requirement::Boot],
        }),
        ..schedule(cron, next)
    }
}

/// The first recipe of a schedule.
fn recipe_of(schedule: &Schedule) -> RecipeId {
    let of_set = schedule.image_set.as_ref().map(|set| set.recipes[0].recipe_id);
    schedule.recipe_id.or(of_set).unwrap()
}

struct Site {
    scheduler: Scheduler,
    store: SharedStore,
    /// The answer that S3 gives instead of the truth.
    fault: Fault,
    id: ScheduleId,
    _s3: EmbeddedS3,
    _dir: tempfile::TempDir,
}

impl Site {
    /// A site with one schedule, and the recipe `r` that it builds.
    async fn with(schedule: Schedule) -> Self {
        Self::within(schedule, Most::default()).await
    }

    /// The same, where callers may have so many records.
    async fn within(schedule: Schedule, most_records: Most) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let store = store::open(dir.path().join("records.sqlite").to_str().unwrap())
            .await
            .unwrap();
        let s3 = EmbeddedS3::start(&dir.path().join("s3"), ([127, 0, 0, 1], 0).into())
            .await
            .unwrap();
        let (artifacts, fault) = proxy(&s3).await;
        let bucket = artifacts.recipes_bucket();
        let etag = artifacts.put_bytes(bucket, "r", "a/b", "archive").await.unwrap();
        let recipe = Recipe {
            id: recipe_of(&schedule),
            created: schedule.created,
            link: Some(Link::s3(bucket, "r", &etag)),
            recipe_type: RecipeType::KiwiNg,
            linux_distribution: LinuxDistribution::Debian,
            name: "r".to_owned(),
            arch: Arch::Aarch64,
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
        store.insert_schedule(&schedule).await.unwrap();
        let asker = Asker {
            store: Arc::clone(&store),
            artifacts,
            webhooks: Arc::new(Webhooks::new(&WebhookSettings::default(), None, Arc::clone(&store))),
            met: crate::orchestrate::Met::default(),
            channels: Vec::new(),
            boots: None,
            jobs: JobSettings::default(),
            most_records,
            orchestrator: None,
        };
        Self {
            scheduler: Scheduler::new(Arc::new(asker), Arc::default()),
            store,
            fault,
            id: schedule.id,
            _s3: s3,
            _dir: dir,
        }
    }

    async fn pass(&self, now: &str) -> bool {
        self.scheduler.pass_once(moment(now)).await.unwrap()
    }

    /// The ticks, earliest first.
    async fn ticks(&self) -> Vec<Tick> {
        let mut ticks = self.store.ticks(self.id, 1_000).await.unwrap();
        ticks.reverse();
        ticks
    }

    async fn outcomes(&self) -> Vec<Outcome> {
        self.ticks().await.iter().map(|tick| tick.outcome).collect()
    }

    async fn schedule(&self) -> Schedule {
        self.store.get_schedule(self.id).await.unwrap().unwrap().record
    }

    async fn jobs(&self) -> Vec<Stored<Job>> {
        let all = Query {
            limit: u32::MAX,
            ..Query::default()
        };
        self.store.page_jobs(&all).await.unwrap()
    }

    /// Names of the images of all jobs.
    async fn names(&self) -> Vec<String> {
        let jobs = self.jobs().await.into_iter();
        let mut names: Vec<_> = jobs.map(|stored| stored.record.image_root_archive_name).collect();
        names.sort();
        names
    }

    /// Ends all jobs that have not ended.
    async fn end_all(&self) {
        for Stored {
            mut record, revision, ..
        } in self.jobs().await
        {
            if !record.status.is_final() {
                record.status = JobStatus::Success;
                self.store.replace_job(&record, revision).await.unwrap();
            }
        }
    }

    /// Makes S3 answer that it is overloaded, or stops that.
    fn overload_s3(&self, is_overloaded: bool) {
        *self.fault.lock().unwrap() = is_overloaded.then_some((429, "HEAD"));
    }

    /// Removes the recipe's link to its archive.
    async fn unlink_recipe(&self) {
        let recipe = recipe_of(&self.schedule().await);
        let stored = Collection::<Recipe>::get(&*self.store, Side::Live, recipe).await;
        let Stored {
            mut record, revision, ..
        } = stored.unwrap().unwrap();
        record.link = None;
        self.store.replace(&record, revision, &[]).await.unwrap();
    }
}

#[tokio::test]
async fn a_run_makes_one_job_however_often_one_looks() {
    let site = Site::with(schedule("0 2 * * *", "2026-11-21T01:00:00Z")).await;
    site.pass("2026-11-21T00:59:59Z").await;
    assert_eq!(site.ticks().await, []);
    for now in [
        "2026-11-21T01:00:00.1Z",
        "2026-11-21T01:00:00.1Z",
        "2026-11-21T01:00:30Z",
        "2026-11-21T00:30:00Z",
    ] {
        site.pass(now).await;
    }
    assert_eq!(site.names().await, ["r-2026-11-21-0200-1"]);
    let schedule = site.schedule().await;
    assert_eq!(schedule.next_run, Some(moment("2026-11-22T01:00:00Z")));
    assert_eq!(
        (schedule.last_run, schedule.runs),
        (Some(moment("2026-11-21T01:00:00.1Z")), 1)
    );
    site.end_all().await;
    site.pass("2026-11-21T01:01:00Z").await;
    assert_eq!(site.outcomes().await, [Outcome::Ended]);
}

#[tokio::test]
async fn what_a_schedule_makes_counts_for_whoever_made_it() {
    let most = Most {
        of_caller: 1,
        of_all: 0,
    };
    let first = schedule("* * * * *", "2026-11-21T01:00:00Z");
    let site = Site::within(first.clone(), most).await;
    let allowance = Allowance {
        caller: "one".to_owned(),
        most: Some(most),
    };
    let second = Schedule {
        id: ScheduleId::new(),
        ..first
    };
    let insert = site.store.insert_schedule(&second);
    allowance.clone().scope(insert).await.unwrap();
    for now in ["2026-11-21T01:00:00Z", "2026-11-21T01:01:00Z"] {
        site.pass(now).await;
        site.end_all().await;
    }
    for id in [site.id, second.id] {
        let ticks = site.store.ticks(id, 10).await.unwrap();
        assert_eq!(ticks[1].outcome, Outcome::Ended);
        let why = ticks[0].why.as_deref().unwrap();
        assert!(why.contains("as many jobs as one caller may have made"), "{why}");
    }
    let refused = allowance
        .scope(site.store.insert_job(&site.jobs().await[0].record))
        .await;
    assert!(matches!(refused, Err(StoreError::TooMany { .. })), "{refused:?}");
    // Nobody is known to have made the first one.
    let caller_of = async |id| site.store.caller_of(Maker::Schedule(id)).await.unwrap();
    assert_eq!(caller_of(site.id).await, None);
    assert_eq!(caller_of(second.id).await.as_deref(), Some("one"));
}

#[tokio::test]
async fn a_clock_that_was_wrong_makes_nothing_twice_and_is_forgotten() {
    let site = Site::with(schedule("0 2 * * *", "2026-11-21T01:00:00Z")).await;
    site.pass("2026-11-21T01:00:00Z").await;
    site.end_all().await;
    // The clock is a year ahead for a moment, then back to before the run.
    site.pass("2027-11-21T12:00:00Z").await;
    assert_eq!(site.schedule().await.next_run, Some(moment("2027-11-22T01:00:00Z")));
    let before = site.names().await;
    site.end_all().await;
    site.scheduler.realign(moment("2026-11-21T00:30:00Z")).await.unwrap();
    for now in ["2026-11-21T00:30:00Z", "2026-11-21T01:00:00Z", "2026-11-21T01:00:10Z"] {
        site.pass(now).await;
    }
    assert_eq!(site.names().await, before);
    site.pass("2026-11-22T01:00:00Z").await;
    assert_eq!(site.names().await.len(), before.len() + 1);
}

#[tokio::test]
async fn runs_that_wait_come_one_after_the_other() {
    use Outcome::{Ended, Made, Waiting};
    let site = Site::with(Schedule {
        overlap: Overlap::Queue,
        ..schedule("* * * * *", "2026-11-21T01:00:00Z")
    })
    .await;
    for now in ["2026-11-21T01:00:00Z", "2026-11-21T01:01:00Z", "2026-11-21T01:02:00Z"] {
        site.pass(now).await;
    }
    assert_eq!(site.outcomes().await, [Made, Waiting, Waiting]);
    let why = site.ticks().await[2].why.clone().unwrap();
    assert!(why.contains("has not ended"), "{why}");
    for expected in [[Ended, Made, Waiting], [Ended, Ended, Made]] {
        site.end_all().await;
        site.pass("2026-11-21T01:02:30Z").await;
        assert_eq!(site.outcomes().await, expected);
    }
    assert_eq!(
        site.names().await,
        ["r-2026-11-21-0200-1", "r-2026-11-21-0201-2", "r-2026-11-21-0202-3"]
    );
}

#[tokio::test]
async fn a_later_run_replaces_an_earlier_one() {
    let site = Site::with(Schedule {
        overlap: Overlap::Replace,
        ..schedule("* * * * *", "2026-11-21T01:00:00Z")
    })
    .await;
    site.pass("2026-11-21T01:00:00Z").await;
    assert!(
        site.pass("2026-11-21T01:01:00Z").await,
        "the later one waits for the end of the earlier one"
    );
    site.pass("2026-11-21T01:01:05Z").await;
    assert_eq!(site.outcomes().await, [Outcome::Ended, Outcome::Made]);
}

#[tokio::test]
async fn what_passes_is_tried_again_and_what_does_not_is_told() {
    let site = Site::with(schedule("0 2 * * *", "2026-11-21T01:00:00Z")).await;
    site.overload_s3(true);
    site.pass("2026-11-21T01:00:00Z").await;
    let ticks = site.ticks().await;
    assert_eq!(
        (ticks[0].outcome, ticks[0].why.as_deref()),
        (
            Outcome::Making,
            Some("cannot look at s3://ims/r: S3 answered with status 429")
        )
    );
    site.overload_s3(false);
    site.pass("2026-11-21T01:10:00Z").await;
    assert_eq!(site.ticks().await[0].job_id, ticks[0].job_id);
    assert_eq!(site.outcomes().await, [Outcome::Made]);
    site.end_all().await;

    site.overload_s3(true);
    site.pass("2026-11-22T01:00:00Z").await;
    site.pass("2026-11-22T02:00:01Z").await;
    assert_eq!(site.outcomes().await, [Outcome::Ended, Outcome::Failed]);

    site.overload_s3(false);
    site.unlink_recipe().await;
    site.pass("2026-11-23T01:00:00Z").await;
    let last = site.ticks().await.pop().unwrap();
    assert_eq!(
        (last.outcome, last.why.as_deref()),
        (
            Outcome::Failed,
            Some("The recipe has no link: nothing was uploaded for it yet.")
        )
    );
}

#[tokio::test]
async fn a_recipe_that_is_gone_fails_the_run() {
    let mut schedule = schedule("0 2 * * *", "2026-11-21T01:00:00Z");
    let site = Site::with(schedule.clone()).await;
    schedule.recipe_id = Some(RecipeId::new());
    site.store.replace_schedule(&schedule, 1, &[]).await.unwrap();
    site.pass("2026-11-21T01:00:00Z").await;
    let ticks = site.ticks().await;
    assert_eq!(ticks[0].outcome, Outcome::Failed);
    assert!(ticks[0].why.as_ref().unwrap().contains("no recipe"), "{ticks:?}");
}

#[tokio::test]
async fn a_run_makes_one_image_set_and_ends_with_its_jobs() {
    let site = Site::with(sets("0 2 * * *", "2026-11-21T01:00:00Z", "{date}.{n}")).await;
    for now in ["2026-11-21T01:00:00Z", "2026-11-21T01:00:10Z"] {
        site.pass(now).await;
    }
    assert_eq!(site.names().await, ["compute-2026-11-21.1.aarch64"]);
    let tick = site.ticks().await.pop().unwrap();
    assert_eq!((tick.outcome, tick.job_id), (Outcome::Made, None));
    let set = site.store.get_set(tick.set_id.unwrap()).await.unwrap().unwrap().record;
    assert_eq!((&*set.name, &*set.version), ("compute", "2026-11-21.1"));
    assert_eq!(set.by.as_deref(), Some("schedule s"));
    let member = &set.members[0];
    assert_eq!(
        (member.arch, member.required, member.time_limit_s),
        (Arch::Aarch64, true, Some(60))
    );
    site.end_all().await;
    site.pass("2026-11-21T01:01:00Z").await;
    assert_eq!(site.outcomes().await, [Outcome::Ended]);

    // A set that is deleted has no more to do, whatever became of its jobs.
    site.pass("2026-11-22T01:00:00Z").await;
    let made = site.ticks().await.pop().unwrap().set_id.unwrap();
    site.store.delete_set(made).await.unwrap();
    site.pass("2026-11-22T01:01:00Z").await;
    assert_eq!(site.outcomes().await, [Outcome::Ended, Outcome::Ended]);
}

#[tokio::test]
async fn an_image_set_is_replaced_with_its_jobs() {
    let site = Site::with(Schedule {
        overlap: Overlap::Replace,
        ..sets("* * * * *", "2026-11-21T01:00:00Z", "{time}")
    })
    .await;
    site.pass("2026-11-21T01:00:00Z").await;
    assert!(
        site.pass("2026-11-21T01:01:00Z").await,
        "the jobs of the set have not ended"
    );
    let why = site.ticks().await.pop().unwrap().why.unwrap();
    assert!(why.starts_with("The image set "), "{why}");
    site.pass("2026-11-21T01:01:05Z").await;
    assert_eq!(site.outcomes().await, [Outcome::Ended, Outcome::Made]);
    assert_eq!(site.names().await, ["compute-0200.aarch64", "compute-0201.aarch64"]);
}

#[tokio::test]
async fn an_image_set_that_is_there_already_fails_the_run() {
    let site = Site::with(sets("0 2,3 * * *", "2026-11-21T01:00:00Z", "{date}")).await;
    site.pass("2026-11-21T01:00:00Z").await;
    site.end_all().await;
    site.pass("2026-11-21T02:00:00Z").await;
    let last = site.ticks().await.pop().unwrap();
    assert_eq!((last.outcome, last.set_id), (Outcome::Failed, None));
    assert!(
        last.why.as_ref().unwrap().contains("compute@2026-11-21 already"),
        "{last:?}"
    );
    assert_eq!(site.names().await.len(), 1);

    let site = Site::with(sets("0 2 * * *", "2026-11-21T01:00:00Z", "{date}")).await;
    site.unlink_recipe().await;
    let tick = site.scheduler.run_now(site.id, moment("2026-11-21T00:00:00Z")).await;
    let tick = tick.unwrap().unwrap();
    assert_eq!(tick.outcome, Outcome::Failed);
    assert!(tick.why.as_ref().unwrap().contains("no link"), "{tick:?}");
    assert!(site.names().await.is_empty());
}

#[tokio::test]
async fn running_now_makes_a_job_each_time() {
    let mut paused = schedule("0 2 * * *", "2026-11-21T01:00:00Z");
    (paused.paused, paused.next_run) = (true, None);
    let site = Site::with(paused).await;
    let now = moment("2026-11-21T00:00:00Z");
    for _ in 0..3 {
        let tick = site.scheduler.run_now(site.id, now).await.unwrap().unwrap();
        assert_eq!(tick.outcome, Outcome::Made);
    }
    assert_eq!(site.names().await.len(), 3);
    assert_eq!(site.outcomes().await, [Outcome::Made; 3]);
    assert_eq!(site.schedule().await.next_run, None);
    assert_eq!(site.scheduler.run_now(ScheduleId::new(), now).await.unwrap(), None);
}

#[tokio::test]
async fn a_zone_that_is_gone_pauses_the_schedule_and_says_so() {
    let mut gone = schedule("0 2 * * *", "2026-11-21T01:00:00Z");
    "Europe/Atlantis".clone_into(&mut gone.timezone);
    let site = Site::with(gone).await;
    site.pass("2026-11-21T01:00:00Z").await;
    let ticks = site.ticks().await;
    assert_eq!(ticks[0].outcome, Outcome::Failed);
    assert!(ticks[0].why.as_ref().unwrap().contains("is paused"), "{ticks:?}");
    assert!(site.schedule().await.paused);
    assert!(site.names().await.is_empty());
}
