//! Remembers answers about sandboxes for some seconds, so that a look at each job is not a call of the API. Pure apart from
//! the clock.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use kiln_records::JobId;

/// The latest answer for each sandbox.
#[derive(Debug)]
pub(super) struct Recent<T> {
    valid: Duration,
    answers: Mutex<HashMap<JobId, (Instant, T)>>,
}

impl<T: Clone> Recent<T> {
    /// Answers that are valid for this long.
    pub(super) fn for_some(valid: Duration) -> Self {
        Self {
            valid,
            answers: Mutex::default(),
        }
    }

    /// The answer for a sandbox, if it is still valid.
    pub(super) fn get(&self, job: JobId) -> Option<T> {
        let mut answers = self.answers();
        answers.retain(|_, (when, _)| when.elapsed() < self.valid);
        answers.get(&job).map(|(_, answer)| answer.clone())
    }

    /// Takes an answer.
    pub(super) fn put(&self, job: JobId, answer: T) {
        self.answers().insert(job, (Instant::now(), answer));
    }

    /// Forgets a sandbox: another try has the same job.
    pub(super) fn forget(&self, job: JobId) {
        self.answers().remove(&job);
    }

    fn answers(&self) -> MutexGuard<'_, HashMap<JobId, (Instant, T)>> {
        // Each change is one call.
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_forgotten() {
        let (one, two) = (JobId::new(), JobId::new());
        let recent = Recent::for_some(Duration::from_mins(1));
        recent.put(one, 1);
        assert_eq!((recent.get(one), recent.get(two)), (Some(1), None));
        recent.forget(one);
        assert_eq!(recent.get(one), None);
        let none = Recent::for_some(Duration::ZERO);
        none.put(one, 1);
        assert_eq!(none.get(one), None);
        assert!(none.answers().is_empty());
    }
}
