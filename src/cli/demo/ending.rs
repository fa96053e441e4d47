//! Ends the jobs of a demonstration before its server ends, since the sandboxes of a server live on without it. Talks to the
//! server and reads the records.

use std::time::{Duration, Instant};

use kiln_records::{Failure, JobId};
use reqwest::Method;

use super::{SET, Session};
use crate::{
    client::collection::JOBS,
    site::Server,
    store::{SharedStore, StoredRun},
};

/// How long the server may take to clear away what jobs leave.
const LONGEST: Duration = Duration::from_secs(30);

/// How often the records are looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Ending {
    store: SharedStore,
    /// Whether nothing of any job may stay: neither its record, nor what a failed one keeps for another attempt.
    is_temporary: bool,
    /// How the names of the images begin.
    images: String,
}

impl Ending {
    pub(super) fn new(server: &Server, is_temporary: bool, version: &str) -> Self {
        Self {
            store: server.store().clone(),
            is_temporary,
            images: format!("{SET}-{version}."),
        }
    }

    /// Ends what is under way, and waits until it is cleared away.
    pub(super) async fn end(&self, session: &Session) -> Result<(), Failure> {
        if self.is_temporary {
            // A running job ends with its record, also one that was started in the dashboard.
            session.client.send(Method::DELETE, JOBS.path, &[], None).await?;
        } else {
            for job in self.remaining().await? {
                // One that has ended meanwhile may do so.
                let _ = session.client.cancel_job(&job.to_string()).await;
            }
        }
        let begun = Instant::now();
        while !self.remaining().await?.is_empty() {
            if begun.elapsed() > LONGEST {
                tracing::warn!("something that the jobs left is not cleared away yet");
                break;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// The jobs that run, or have left something.
    async fn remaining(&self) -> Result<Vec<JobId>, Failure> {
        let open = self.store.open_runs().await?;
        let deleted = self.store.deleted_runs().await?;
        let is_own = |stored: &&StoredRun| {
            self.is_temporary || !stored.run.settled && stored.job.image_root_archive_name.starts_with(&self.images)
        };
        let remaining = open.iter().chain(&deleted).filter(is_own);
        Ok(remaining.map(|stored| stored.job.id).collect())
    }
}
