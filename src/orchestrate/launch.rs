//! The launch loop gives waiting jobs their place, and has their sandboxes started. It reads and writes rows of the store.
//!
//! A job gets its place in the database before anything is made for it, so a burst of jobs cannot take more than there
//! is. A server that dies in between finds on its next pass what it had begun.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use kiln_records::{
    Code, Failure, JobId, Moment, Run,
    arch::Arch,
    run::{Refused, State},
};
use tracing::Instrument;

use super::{
    admit::Verdict,
    census::Census,
    claim::Claim,
    glance::Glance,
    job_span,
    place::Placement,
    places::Decision,
    placing::Placing,
    rooms::Rooms,
    row::Jobs,
    start::Start,
    waits::{Wait, WaitsFor},
};
use crate::store::{SharedStore, StoredRun};

/// Launches jobs.
#[derive(Debug)]
pub struct Launch {
    pub(super) store: SharedStore,
    pub(super) jobs: Arc<Jobs>,
    pub(super) claim: Arc<Claim>,
    pub(super) placing: Arc<Placing>,
    pub(super) rooms: Arc<Rooms>,
    pub(super) start: Arc<Start>,
    pub(super) glance: Arc<Glance>,
}

impl Launch {
    /// Makes one pass over everything that waits or is being launched.
    ///
    /// # Errors
    ///
    /// When the store or the place does not answer; the next pass starts afresh.
    pub async fn pass(&self) -> Result<(), Failure> {
        if !self.claim.holds_lease() {
            return Ok(());
        }
        let open = self.store.open_runs().await?;
        for stored in &*open {
            if stored.run.state == State::Launching && self.claim.carries_out(&stored.run) {
                self.start.begin(stored);
            }
        }
        let now = Moment::now();
        let (resting, ready): (Vec<_>, Vec<_>) = open
            .iter()
            .filter(|stored| stored.run.state == State::Queued && stored.run.plan.runner == self.claim.runner())
            // The files that a job resumes from are on one host only.
            .filter(|stored| {
                stored
                    .run
                    .resumes()
                    .is_none_or(|resume| resume.server == self.claim.id())
            })
            .partition(|stored| stored.run.rest(now).is_some());
        let (ready, held_back) = hold_back_verifications(ready, &open);
        // A resting job does not block the queue.
        let resting = resting.into_iter().filter_map(|stored| {
            let seconds = stored.run.rest(now)?.as_secs() + 1;
            Some((
                stored.job.id,
                WaitsFor::Rest.because(format!("its last try failed; the next one starts in {seconds} s")),
            ))
        });
        let mut waiting = Vec::new();
        let mut queues: BTreeMap<String, Vec<_>> = BTreeMap::new();
        let mut taken: HashMap<JobId, Placement> = HashMap::new();
        for stored in ready {
            if let Some(host) = self.placing.host_elsewhere(&stored.run.plan) {
                match self.placing.instead_of(host, stored) {
                    Some((placement, run)) => {
                        let queue = queues.entry(placement.place.clone()).or_default();
                        queue.push((stored.job.id, self.start.sandboxes.takes(&run)));
                        taken.insert(stored.job.id, placement);
                    }
                    None => waiting.push((stored.job.id, self.placing.turn_at(host))),
                }
                continue;
            }
            let at = match self.placing.equipment.of(Arch::host()) {
                Err(lack) => Err(WaitsFor::Toolbox.because(lack.to_string())),
                Ok(_) => self.place_of(stored).instrument(job_span(stored.job.id)).await?,
            };
            match at {
                Ok(run) => {
                    // No run means that the job has just ended.
                    if let Some((place, run)) = run.and_then(|run| Some((run.plan.place.clone()?, run))) {
                        let queue = queues.entry(place).or_default();
                        queue.push((stored.job.id, self.start.sandboxes.takes(&run)));
                    }
                }
                Err(wait) => waiting.push((stored.job.id, wait)),
            }
        }
        for (place, queue) in queues {
            let is_shared = self.placing.places.is_shared(&place);
            let Some(_room) = self.rooms.room_at(&place, is_shared).await? else {
                let wait = WaitsFor::Busy.because("another kiln process is giving its jobs room there");
                waiting.extend(queue.iter().map(|(job, _)| (*job, wait.clone())));
                continue;
            };
            // Another process may have taken room since.
            let open = self.store.open_runs().await?;
            if is_shared && !open.unread.is_empty() {
                let wait = WaitsFor::Version
                    .because("jobs of a server of another version are open, and the room they take there is not known");
                waiting.extend(queue.iter().map(|(job, _)| (*job, wait.clone())));
                continue;
            }
            let held = self.rooms.held_at(&place, is_shared, &open);
            match self.rooms.admit_at(&place, &queue, &held).await {
                Ok(mut verdicts) => {
                    self.rooms.end_starved(&place, &mut verdicts, &open);
                    for (job, verdict) in verdicts {
                        let span = job_span(job);
                        let waits = match taken.get(&job) {
                            Some(placement) => self.take(job, placement, verdict, &open).instrument(span).await?,
                            None => self.carry_out(job, verdict, &open).instrument(span).await?,
                        };
                        waiting.extend(waits);
                    }
                }
                Err(failure) => {
                    let wait = WaitsFor::PlaceFailed.because(failure.to_string());
                    waiting.extend(queue.iter().map(|(job, _)| (*job, wait.clone())));
                }
            }
        }
        waiting.extend(resting);
        waiting.extend(held_back);
        let census = Census::of(&open, &waiting);
        self.glance.publish_queue(census, waiting);
        Ok(())
    }

    /// Takes a job from another server if there is room for it here.
    async fn take(
        &self,
        job: JobId,
        placement: &Placement,
        verdict: Verdict,
        open: &[StoredRun],
    ) -> Result<Option<(JobId, Wait)>, Failure> {
        let host = open
            .iter()
            .find(|stored| stored.job.id == job)
            .and_then(|stored| stored.run.plan.host);
        if verdict == Verdict::Go {
            let arrow = |run: &mut Run, now| {
                if run.plan.host != host {
                    return Err(Refused {
                        from: "placed anew",
                        arrow: "be taken",
                    });
                }
                placement.note_in(run)?;
                run.launch(self.claim.id(), now)
            };
            if let Some(Ok(stored)) = self.jobs.change(job, arrow).await? {
                self.start.begin(&stored);
            }
            return Ok(None);
        }
        Ok(host.map(|host| (job, self.placing.turn_at(host))))
    }

    /// A waiting job, with its place; the place is decided anew if there is none or it is unusable now. `Ok(None)`: the
    /// job has just ended, since no place will ever do. `Err`: why there is no place yet.
    async fn place_of(&self, stored: &StoredRun) -> Result<Result<Option<Run>, Wait>, Failure> {
        let (job, plan) = (stored.job.id, &stored.run.plan);
        if self.placing.keeps(plan) {
            return Ok(Ok(Some(stored.run.clone())));
        }
        let _placing = self.placing.turn.lock().await;
        Ok(match self.placing.decide(&stored.job, plan).await? {
            Decision::Placed(placement) => {
                let placed = self.jobs.change(job, |run, _| placement.note_in(run)).await?;
                match placement.host {
                    Some(host) if host != self.claim.id() => Err(self.placing.turn_at(host)),
                    _ => Ok(placed.and_then(Result::ok).map(|placed| placed.run)),
                }
            }
            Decision::Later(reason) => Err(WaitsFor::UnknownPlaces.because(reason)),
            // It had a place, which may come back.
            Decision::Refused(failure) if plan.place.is_some() || stored.run.attempt > 1 => {
                Err(WaitsFor::NoPlace.because(failure.detail))
            }
            Decision::Refused(failure) => {
                self.jobs.fail(job, stored.run.attempt, failure).await?;
                Ok(None)
            }
        })
    }

    /// Carries out the decision on a waiting job. Returns the reason if it still waits.
    async fn carry_out(
        &self,
        job: JobId,
        verdict: Verdict,
        open: &[StoredRun],
    ) -> Result<Option<(JobId, Wait)>, Failure> {
        match verdict {
            Verdict::Go => {
                let launched = self
                    .jobs
                    .change(job, |run, now| run.launch(self.claim.id(), now))
                    .await?;
                if let Some(Ok(stored)) = launched {
                    self.start.begin(&stored);
                }
            }
            Verdict::Wait(wait) => return Ok(Some((job, wait))),
            Verdict::Never(reason) => {
                let failure = Failure::new(Code::NoCapacity, reason).hint(
                    "ask for less (`build_env_size`, `job_mem_size`, `capacity.first_disk`), or give this host more",
                );
                self.jobs.fail(job, attempt_of(open, job), failure).await?;
            }
        }
        Ok(None)
    }
}

/// Verifications take the capacity that is left: one at a time, when no other job waits. Returns the jobs that may go on,
/// and the others, with the reason.
fn hold_back_verifications<'a>(
    ready: Vec<&'a StoredRun>,
    open: &[StoredRun],
) -> (Vec<&'a StoredRun>, Vec<(JobId, Wait)>) {
    let verifies = |stored: &StoredRun| stored.run.plan.verifies.is_some();
    let others_wait = open
        .iter()
        .any(|stored| stored.run.state == State::Queued && !verifies(stored));
    let mut is_busy = open.iter().any(|stored| verifies(stored) && stored.run.holds_place());
    let mut held_back = Vec::new();
    let goes_on = |stored: &&StoredRun| {
        if !verifies(stored) {
            return true;
        }
        let is_next = !others_wait && !is_busy;
        is_busy = true;
        if !is_next {
            let why = "it verifies native twins, when no other job waits and one at a time";
            held_back.push((stored.job.id, WaitsFor::Verification.because(why)));
        }
        is_next
    };
    (ready.into_iter().filter(goes_on).collect(), held_back)
}

fn attempt_of(open: &[StoredRun], job: JobId) -> u32 {
    let of = open.iter().find(|stored| stored.job.id == job);
    of.map_or(1, |stored| stored.run.attempt)
}
