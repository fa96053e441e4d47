//! With a real store, and a clock and jobs of the test's own.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use super::*;
use crate::{
    arch::Arch,
    records::{
        LinuxDistribution, RecipeId, RecipeType,
        job::JobOptions,
        schedule::{MissedRuns, Overlap},
    },
    store,
};

pub(super) fn moment(text: &str) -> Moment {
    text.parse().unwrap()
}

/// A schedule in Berlin that runs next at a moment.
pub(super) fn schedule(cron: &str, next: &str) -> Schedule {
    Schedule {
        id: ScheduleId::new(),
        created: moment("2026-01-01T00:00:00Z"),
        name: "s".to_owned(),
        recipe_id: RecipeId::new(),
        cron: cron.to_owned(),
        timezone: "Europe/Berlin".to_owned(),
        image_root_archive_name: "{recipe}-{date}-{time}-{n}".to_owned(),
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

/// Jobs: their image names, and whether they have ended.
#[derive(Debug, Default)]
struct Jobs {
    jobs: Mutex<HashMap<JobId, (String, bool)>>,
    /// What making a job answers.
    failure: Mutex<Option<Failure>>,
}

impl Jobs {
    fn jobs(&self) -> std::sync::MutexGuard<'_, HashMap<JobId, (String, bool)>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.jobs().values().map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }

    fn end_all(&self) {
        self.jobs().values_mut().for_each(|(_, has_ended)| *has_ended = true);
    }

    fn fail_with(&self, failure: Option<Failure>) {
        *self.failure.lock().unwrap() = failure;
    }
}

#[async_trait]
impl JobMaker for Jobs {
    async fn make(&self, id: JobId, request: &ScheduledJob) -> Result<(), Failure> {
        if let Some(failure) = self.failure.lock().unwrap().clone() {
            return Err(failure);
        }
        let name = request.image_root_archive_name.clone();
        self.jobs().entry(id).or_insert((name, false));
        Ok(())
    }

    async fn has_ended(&self, id: JobId) -> Result<bool, Failure> {
        Ok(self.jobs().get(&id).is_none_or(|(_, has_ended)| *has_ended))
    }

    async fn cancel(&self, id: JobId) -> Result<(), Failure> {
        if let Some((_, has_ended)) = self.jobs().get_mut(&id) {
            *has_ended = true;
        }
        Ok(())
    }
}

struct Site {
    scheduler: Scheduler,
    store: SharedStore,
    jobs: Arc<Jobs>,
    id: ScheduleId,
    _dir: tempfile::TempDir,
}

impl Site {
    /// With one schedule, and the recipe `r` that it builds.
    async fn with(schedule: Schedule) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = store::open(dir.path().join("records.sqlite").to_str().unwrap())
            .await
            .unwrap();
        let recipe = Recipe {
            id: schedule.recipe_id,
            created: schedule.created,
            link: None,
            recipe_type: RecipeType::KiwiNg,
            linux_distribution: LinuxDistribution::Debian,
            name: "r".to_owned(),
            arch: Arch::Aarch64,
            require_dkms: false,
            template_dictionary: None,
            twins: None,
            deleted: None,
        };
        store.insert(&recipe, &[]).await.unwrap();
        store.insert_schedule(&schedule).await.unwrap();
        let jobs = Arc::new(Jobs::default());
        Self {
            scheduler: Scheduler::new(store.clone(), jobs.clone(), Arc::default()),
            store,
            jobs,
            id: schedule.id,
            _dir: dir,
        }
    }

    async fn pass(&self, now: &str) -> bool {
        self.scheduler.pass_once(moment(now)).await.unwrap()
    }

    /// The ticks, the first first.
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
    assert_eq!(site.jobs.names(), ["r-2026-11-21-0200-1"]);
    let schedule = site.schedule().await;
    assert_eq!(schedule.next_run, Some(moment("2026-11-22T01:00:00Z")));
    assert_eq!(
        (schedule.last_run, schedule.runs),
        (Some(moment("2026-11-21T01:00:00.1Z")), 1)
    );
    site.jobs.end_all();
    site.pass("2026-11-21T01:01:00Z").await;
    assert_eq!(site.outcomes().await, [Outcome::Ended]);
}

#[tokio::test]
async fn a_clock_that_was_wrong_makes_nothing_twice_and_is_forgotten() {
    let site = Site::with(schedule("0 2 * * *", "2026-11-21T01:00:00Z")).await;
    site.pass("2026-11-21T01:00:00Z").await;
    site.jobs.end_all();
    // A year too far, for a moment; then back to before the run.
    site.pass("2027-11-21T12:00:00Z").await;
    assert_eq!(site.schedule().await.next_run, Some(moment("2027-11-22T01:00:00Z")));
    let before = site.jobs.names();
    site.jobs.end_all();
    site.scheduler.realign(moment("2026-11-21T00:30:00Z")).await.unwrap();
    for now in ["2026-11-21T00:30:00Z", "2026-11-21T01:00:00Z", "2026-11-21T01:00:10Z"] {
        site.pass(now).await;
    }
    assert_eq!(site.jobs.names(), before);
    site.pass("2026-11-22T01:00:00Z").await;
    assert_eq!(site.jobs.names().len(), before.len() + 1);
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
        site.jobs.end_all();
        site.pass("2026-11-21T01:02:30Z").await;
        assert_eq!(site.outcomes().await, expected);
    }
    assert_eq!(
        site.jobs.names(),
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
    site.jobs
        .fail_with(Some(Failure::new(Code::S3Unreachable, "S3 does not answer")));
    site.pass("2026-11-21T01:00:00Z").await;
    let ticks = site.ticks().await;
    assert_eq!(
        (ticks[0].outcome, ticks[0].why.as_deref()),
        (Outcome::Making, Some("S3 does not answer"))
    );
    site.jobs.fail_with(None);
    site.pass("2026-11-21T01:10:00Z").await;
    assert_eq!(site.ticks().await[0].job_id, ticks[0].job_id);
    assert_eq!(site.outcomes().await, [Outcome::Made]);
    site.jobs.end_all();

    site.jobs
        .fail_with(Some(Failure::new(Code::S3Unreachable, "S3 does not answer")));
    site.pass("2026-11-22T01:00:00Z").await;
    site.pass("2026-11-22T02:00:01Z").await;
    assert_eq!(site.outcomes().await, [Outcome::Ended, Outcome::Failed]);

    site.jobs
        .fail_with(Some(Failure::new(Code::JobRefused, "the recipe has no link")));
    site.pass("2026-11-23T01:00:00Z").await;
    let last = site.ticks().await.pop().unwrap();
    assert_eq!(
        (last.outcome, last.why.as_deref()),
        (Outcome::Failed, Some("the recipe has no link"))
    );
}

#[tokio::test]
async fn a_recipe_that_is_gone_fails_the_run() {
    let mut schedule = schedule("0 2 * * *", "2026-11-21T01:00:00Z");
    let site = Site::with(schedule.clone()).await;
    schedule.recipe_id = RecipeId::new();
    site.store.replace_schedule(&schedule, 1, &[]).await.unwrap();
    site.pass("2026-11-21T01:00:00Z").await;
    let ticks = site.ticks().await;
    assert_eq!(ticks[0].outcome, Outcome::Failed);
    assert!(ticks[0].why.as_ref().unwrap().contains("no recipe"), "{ticks:?}");
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
    assert_eq!(site.jobs.names().len(), 3);
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
    assert!(site.jobs.names().is_empty());
}
