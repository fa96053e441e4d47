//! Lines from agents: into the shells of jobs, and to the site's proxy. It reads rows of the store, and passes lines on to other
//! servers.

use std::sync::Arc;

use kiln_records::{JobId, ServerId};
use tracing::Instrument;

use super::{
    agents::Line, claim::Claim, job_span, network::JobNetwork, peers::Peers, places::Places, reach::rules,
    shells::ShellDoors,
};
use crate::store::{SharedStore, StoredRun};

/// Leads lines on.
#[derive(Debug)]
pub(super) struct Lines {
    pub(super) store: SharedStore,
    pub(super) claim: Arc<Claim>,
    pub(super) places: Arc<Places>,
    /// How this server and others on the same records reach each other, if they can.
    pub(super) peers: Option<Peers>,
    pub(super) shells: Arc<ShellDoors>,
    pub(super) network: Arc<JobNetwork>,
}

impl Lines {
    /// Takes a line into the shell of a job.
    pub(super) async fn take(&self, job: JobId, token: &str, line: Line, passed_on: bool) {
        let stored = self.store.get_run(job).await;
        let Ok(Some(StoredRun { run, .. })) = stored else {
            // The agent asks again.
            return;
        };
        match run.owner {
            Some(owner) if !self.claim.carries_out(&run) && !passed_on => self.pass_on(owner, job, token, line).await,
            _ => self.shells.shells.offer(job, line),
        }
    }

    /// Takes a line to the proxy.
    pub(super) async fn take_proxied(&self, job: JobId, line: Line) {
        let Some(gate) = &self.network.gate else { return };
        match rules(&self.network.settings, Some(gate)).await {
            Ok(rules) => Arc::clone(gate).serve(line, rules, None).await,
            // The caller sees a closed connection, and tries again.
            Err(failure) => tracing::warn!(job.id = %job, "nothing is asked of the site's proxy: {failure}"),
        }
    }

    /// Passes a line on to the server that carries its job out. A line that cannot be passed on is closed, and its agent opens
    /// another one.
    pub(super) async fn pass_on(&self, owner: ServerId, job: JobId, token: &str, line: Line) {
        let (Some(peers), Some(url)) = (&self.peers, self.places.url_of(owner)) else {
            tracing::warn!(
                job.id = %job, server = %owner,
                "nobody can log in to the job: its agent calls this server, and `peer_url` in [server] of the one that \
                 carries it out is not set"
            );
            return;
        };
        let passed_on = peers.pass_on(url, job, token, line).instrument(job_span(job)).await;
        if let Err(failure) = passed_on {
            tracing::warn!(job.id = %job, server = %owner, "a line into the job's shell is not passed on: {failure}");
        }
    }
}
