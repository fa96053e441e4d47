//! Makes the jobs and image sets of schedules when they are due. It reads and writes rows of the store; the `Asker` that
//! makes the jobs also touches S3.
//!
//! [`Scheduler::pass_once`] acts on rows, not on remembered events, in two steps:
//!
//! 1. For each schedule that is due, the ticks up to now and the next run are stored together, unless another writer
//!    has changed the schedule meanwhile. From here on each tick has the id of its job or set.
//! 2. Each open tick is carried on: it waits, is skipped, or its job or set is made, under that id.
//!
//! It is right when run twice, by two servers at the same time, and after a crash at any line: a tick exists once,
//! since schedule and time are its key, and a job or set is made once, since its id is the tick's.
//!
//! A clock that jumps forward leaves missed runs; a clock that is set back makes nothing twice.

mod due;
mod overlap;
mod work;

use std::{sync::Arc, time::Duration};

use jiff::SignedDuration;
use kiln_records::{
    Failure, JobId, Moment, Schedule, ScheduleId, SetId,
    schedule::{Outcome, Tick, Timing, Work},
};
use tokio::sync::Notify;

use self::work::Works;
use super::ask::Asker;
use crate::{
    metrics,
    store::{Maker, SharedStore, StoreError, Stored},
};

/// The longest time between two passes: another server may have made a schedule, and the clock may have been set.
const MOST_SLEEP: Duration = Duration::from_secs(30);

/// The time between two passes while a run waits for a job to end.
const WHILE_WAITING: Duration = Duration::from_secs(5);

/// The number of schedules read at once.
const PAGE: u32 = 100;

/// How long to keep trying to make a job or set while the database or S3 does not answer.
const TRIED_FOR: SignedDuration = SignedDuration::from_hours(1);

/// How often to try a change again when another writer was faster.
const TRIES: u32 = 10;

/// Makes the jobs of schedules.
#[derive(Debug)]
pub struct Scheduler {
    asker: Arc<Asker>,
    works: Works,
    woken: Arc<Notify>,
}

impl Scheduler {
    /// A scheduler whose jobs are made by this asker; the schedules are in the asker's store. `woken` is rung when a
    /// schedule was changed.
    pub fn new(asker: Arc<Asker>, woken: Arc<Notify>) -> Self {
        let works = Works { asker: asker.clone() };
        Self { asker, works, woken }
    }

    fn store(&self) -> &SharedStore {
        &self.asker.store
    }

    /// Makes a pass whenever a run is due; never ends.
    pub async fn run(&self) {
        let mut last = None;
        loop {
            let now = Moment::now();
            let was_set_back = last.is_none_or(|last| now < last);
            last = Some(now);
            let pause = match self.look(now, was_set_back).await {
                Ok(pause) => pause,
                Err(failure) => {
                    tracing::warn!(
                        code = failure.code.name(),
                        hint = failure.hint,
                        "schedules were not checked: {failure}"
                    );
                    MOST_SLEEP
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.woken.notified() => {}
            }
        }
    }

    async fn look(&self, now: Moment, was_set_back: bool) -> Result<Duration, Failure> {
        if was_set_back {
            self.realign(now).await?;
        }
        let is_waiting = self.pass_once(now).await?;
        let most = if is_waiting { WHILE_WAITING } else { MOST_SLEEP };
        let next = self.store().schedules_running_after(now, 1).await?;
        let next = next.first().and_then(|stored| stored.record.next_run);
        // The clock is read again: the pass may have taken a while.
        let until_next = next.map_or(i64::MAX, |next| next.micros().saturating_sub(Moment::now().micros()));
        Ok(most.min(Duration::from_micros(u64::try_from(until_next).unwrap_or(0))))
    }

    /// Takes every run that is due by now, and every earlier one that is unfinished, as far as it can get. Returns
    /// whether any run still waits.
    ///
    /// # Errors
    ///
    /// When the store does not answer. The work done so far stays done.
    pub async fn pass_once(&self, now: Moment) -> Result<bool, Failure> {
        loop {
            let due = self.store().due_schedules(now, PAGE).await?;
            for stored in &due {
                self.claim(stored, now).await?;
            }
            if due.len() < PAGE as usize {
                break;
            }
        }
        let open = self.store().open_ticks().await?;
        let mut is_waiting = false;
        for ticks in open.chunk_by(|one, other| one.schedule_id == other.schedule_id) {
            is_waiting |= self.carry_on(ticks, now).await?;
        }
        Ok(is_waiting)
    }

    /// Corrects schedules that wait for a later moment than their cron line gives, because the clock was wrong when
    /// that moment was chosen.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn realign(&self, now: Moment) -> Result<(), Failure> {
        for stored in self.store().schedules_running_after(now, u32::MAX).await? {
            let Ok(timing) = Timing::parse(&stored.record.cron, &stored.record.timezone) else {
                continue;
            };
            let next_run = timing.next_after(now);
            if next_run < stored.record.next_run {
                let schedule = Schedule {
                    next_run,
                    ..stored.record
                };
                unless_stale(self.store().replace_schedule(&schedule, stored.revision, &[]).await)?;
            }
        }
        Ok(())
    }

    /// Makes a job or set of a schedule now, whether or not the schedule is paused and whichever of its other jobs are
    /// running. `None` when there is no such schedule.
    ///
    /// # Errors
    ///
    /// When the store does not answer. If the job or set could not be made, the tick says so.
    pub async fn run_now(&self, id: ScheduleId, now: Moment) -> Result<Option<Tick>, Failure> {
        for _ in 0..TRIES {
            let Some(stored) = self.store().get_schedule(id).await? else {
                return Ok(None);
            };
            let mut schedule = stored.record;
            // Two requests at the same time make two jobs.
            let after_last = schedule
                .last_run
                .map_or(now, |last| Moment::from_micros(last.micros() + 1));
            let due = now.max(after_last);
            schedule.runs += 1;
            schedule.last_run = Some(due);
            let tick = Tick {
                schedule_id: id,
                due,
                fired: due,
                number: schedule.runs,
                outcome: Outcome::Making,
                job_id: schedule.image_set.is_none().then(JobId::new),
                set_id: schedule.image_set.is_some().then(SetId::new),
                why: None,
            };
            let claimed = self
                .store()
                .replace_schedule(&schedule, stored.revision, std::slice::from_ref(&tick));
            if unless_stale(claimed.await)? {
                return self.make(&schedule, tick, now).await.map(Some);
            }
        }
        Err(StoreError::Stale.into())
    }

    async fn claim(&self, stored: &Stored<Schedule>, now: Moment) -> Result<(), Failure> {
        let schedule = &stored.record;
        let claim = match Timing::parse(&schedule.cron, &schedule.timezone) {
            Ok(timing) => due::claim(schedule, &timing, now),
            Err(why) => Some(due::unreadable(schedule, &why, now)),
        };
        if let Some(claim) = claim {
            let stored = self
                .store()
                .replace_schedule(&claim.schedule, stored.revision, &claim.ticks);
            if unless_stale(stored.await)? {
                for tick in &claim.ticks {
                    count(tick);
                    if due::is_missed(tick) {
                        metrics::schedule_run("missed");
                    }
                }
            }
        }
        Ok(())
    }

    /// Carries on the open ticks of one schedule. Returns whether any of them still waits.
    async fn carry_on(&self, ticks: &[Tick], now: Moment) -> Result<bool, Failure> {
        let Some(id) = ticks.first().map(|tick| tick.schedule_id) else {
            return Ok(false);
        };
        let Some(stored) = self.store().get_schedule(id).await? else {
            return Ok(false);
        };
        let schedule = stored.record;
        let (mut unfinished, mut waiting) = (Vec::new(), Vec::new());
        for tick in ticks.iter().cloned() {
            let tick = match tick.outcome {
                Outcome::Making => self.make(&schedule, tick, now).await?,
                _ => tick,
            };
            match (tick.outcome, tick.work()) {
                (Outcome::Waiting, _) => waiting.push(tick),
                (Outcome::Made, Some(work)) if self.is_over(work).await => {
                    self.store().settle_tick(&tick.now(Outcome::Ended)).await?;
                }
                (Outcome::Making | Outcome::Made, Some(work)) => unfinished.push(work),
                _ => {}
            }
        }
        let verdict = overlap::decide(schedule.overlap, &waiting, &unfinished);
        for work in verdict.cancel {
            if let Err(failure) = self.works.cancel(work).await {
                tracing::warn!(
                    schedule.id = %schedule.id, code = failure.code.name(), hint = failure.hint,
                    "the {work} was not cancelled, which is to be replaced: {failure}"
                );
            }
        }
        for tick in verdict.ticks {
            let is_settled = self.store().settle_tick(&tick).await?;
            if is_settled {
                count(&tick);
            }
            if is_settled && tick.outcome == Outcome::Making {
                self.make(&schedule, tick, now).await?;
            }
        }
        Ok(!waiting.is_empty())
    }

    /// Makes the job or set of a tick, and notes the outcome.
    async fn make(&self, schedule: &Schedule, tick: Tick, now: Moment) -> Result<Tick, Failure> {
        let Some(work) = tick.work() else { return Ok(tick) };
        let making = self.works.make(schedule, &tick, work);
        let made = self.asker.on_behalf_of(Maker::Schedule(schedule.id), making).await;
        let tick = match made.unwrap_or_else(|error| Err(error.into())) {
            Ok(()) => tick.now(Outcome::Made),
            Err(failure) => {
                let tried = now.micros().saturating_sub(tick.fired.micros());
                let is_worth_it = failure.code.is_of_the_place() && i128::from(tried) < TRIED_FOR.as_micros();
                tracing::warn!(
                    schedule.id = %schedule.id, code = failure.code.name(), hint = failure.hint,
                    "the {work} was not created: {failure}"
                );
                if is_worth_it {
                    tick.waiting(failure.detail)
                } else {
                    tick.failed(failure.detail)
                }
            }
        };
        if self.store().settle_tick(&tick).await? {
            count(&tick);
        }
        Ok(tick)
    }

    /// Whether a run's work has ended, as far as that can be known now.
    async fn is_over(&self, work: Work) -> bool {
        self.works.has_ended(work).await.unwrap_or_else(|error| {
            let failure = Failure::from(error);
            tracing::warn!(
                code = failure.code.name(),
                hint = failure.hint,
                "it is unknown whether the {work} has ended: {failure}"
            );
            false
        })
    }
}

/// Counts a tick that has just got its outcome.
fn count(tick: &Tick) {
    match tick.outcome {
        Outcome::Made | Outcome::Skipped | Outcome::Failed => metrics::schedule_run(tick.outcome.name()),
        Outcome::Waiting | Outcome::Making | Outcome::Ended => {}
    }
}

/// Whether the write went through, rather than losing to another writer.
fn unless_stale(done: Result<(), StoreError>) -> Result<bool, Failure> {
    match done {
        Ok(()) => Ok(true),
        Err(StoreError::Stale) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
