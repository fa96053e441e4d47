//! The sandboxes of jobs: the driver that has each, and what this process is starting or removing right now. It asks places
//! for their CPUs.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kiln_records::{Failure, JobId, Run, run::Needs};

use super::{
    claim::Claim,
    places::{Places, place_name},
};
use crate::sandbox::Driver;

/// The sandboxes that this process reaches.
#[derive(Debug)]
pub struct Sandboxes {
    pub(super) places: Arc<Places>,
    claim: Arc<Claim>,
    /// The most CPUs of a job.
    cpus_per_job: Option<u32>,
    busy: Arc<Mutex<HashSet<JobId>>>,
}

/// A job whose sandbox no other task starts or removes as long as this value lives.
#[derive(Debug)]
pub(super) struct Busy {
    job: JobId,
    all: Arc<Mutex<HashSet<JobId>>>,
}

fn lock(all: &Mutex<HashSet<JobId>>) -> MutexGuard<'_, HashSet<JobId>> {
    // Each change is complete before anything can panic.
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Busy {
    fn drop(&mut self) {
        lock(&self.all).remove(&self.job);
    }
}

impl Sandboxes {
    pub(super) fn new(places: Arc<Places>, claim: Arc<Claim>, cpus_per_job: Option<u32>) -> Self {
        Self {
            places,
            claim,
            cpus_per_job,
            busy: Arc::default(),
        }
    }

    /// The driver that makes a job's sandbox.
    pub(super) fn driver_of(&self, run: &Run) -> Arc<dyn Driver> {
        self.places.driver(run.plan.place.as_deref())
    }

    /// Whether this process reaches the sandbox of a job, or what it left.
    pub fn reaches(&self, run: &Run) -> bool {
        let place = run.plan.place.as_deref();
        run.owner == Some(self.claim.id()) || place.is_some_and(|place| self.places.is_shared(place))
    }

    /// Takes the sandbox of a job in hand. `None` while another task of this process has it.
    pub(super) fn take_in_hand(&self, job: JobId) -> Option<Busy> {
        lock(&self.busy).insert(job).then(|| Busy {
            job,
            all: Arc::clone(&self.busy),
        })
    }

    /// Whether a task of this process starts the sandbox of a job, or removes it.
    pub(super) fn is_in_hand(&self, job: JobId) -> bool {
        lock(&self.busy).contains(&job)
    }

    /// The CPUs of a job: all that its place has, or fewer if the settings say so. Its sandbox is limited to them, and
    /// its build counts on them.
    pub(super) async fn cpus_of(&self, run: &Run) -> Result<u32, Failure> {
        let there = match self.places.cpus(run.plan.place.as_deref()) {
            Some(cpus) => cpus,
            None => self.places.measure(place_name(run)).await?.cpus,
        };
        let most = self.cpus_per_job.unwrap_or(there);
        Ok(most.min(there).max(1))
    }

    /// The room that a job takes at its place: its own needs, plus those of its kind of sandbox.
    pub(super) fn takes(&self, run: &Run) -> Needs {
        let beside = self.driver_of(run).memory_beside(run.plan.driver.kernel());
        Needs {
            memory: run.plan.needs.memory + beside,
            ..run.plan.needs
        }
    }
}
