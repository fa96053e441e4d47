//! Wakes the tasks of this process that wait for news of a job. In memory only: no I/O.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use kiln_records::JobId;
use tokio::sync::watch;

/// Wakes the followers of a job when something was written about it. Only a hint: another server may have written, so
/// followers also look for themselves now and then.
#[derive(Debug, Default)]
pub struct LogFeed(Mutex<HashMap<JobId, watch::Sender<()>>>);

impl LogFeed {
    /// After this call, [`watch::Receiver::changed`] returns after each [`LogFeed::wake`], at once if one was missed.
    pub fn follow(&self, job: JobId) -> watch::Receiver<()> {
        let mut followed = self.followed();
        followed.retain(|_, sender| sender.receiver_count() > 0);
        followed.entry(job).or_default().subscribe()
    }

    /// Announces that something was written about the job: lines of its log, or a new state.
    pub fn wake(&self, job: JobId) {
        if let Some(sender) = self.followed().get(&job) {
            sender.send_replace(());
        }
    }

    fn followed(&self) -> MutexGuard<'_, HashMap<JobId, watch::Sender<()>>> {
        // The table is consistent at every moment, so poisoning does not matter.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_follows_is_woken_also_when_late() {
        let feed = LogFeed::default();
        let (job, other) = (JobId::new(), JobId::new());
        let (mut one, mut two) = (feed.follow(job), feed.follow(job));
        let mut elsewhere = feed.follow(other);
        feed.wake(job);
        feed.wake(job);
        one.changed().await.unwrap();
        two.changed().await.unwrap();
        assert!(!one.has_changed().unwrap());
        assert!(!elsewhere.has_changed().unwrap());
        feed.wake(other);
        elsewhere.changed().await.unwrap();
    }

    #[test]
    fn nothing_is_kept_of_those_who_left() {
        let feed = LogFeed::default();
        for _ in 0..10 {
            let job = JobId::new();
            drop(feed.follow(job));
            feed.wake(job);
        }
        let _last = feed.follow(JobId::new());
        assert_eq!(feed.followed().len(), 1);
    }
}
