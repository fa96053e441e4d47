//! The shells loop opens ports: one for each job whose shell is open, for as long as it is. It reads and writes rows of
//! the store, and listens on TCP ports.
//!
//! A sandbox accepts no connections. Its agent keeps a [line](kiln_records::protocol::shell) open, and a user who
//! connects to the job's port gets that line. So a shell is reached in the same way wherever the sandbox is, and the
//! traffic is between the user's ssh and the sandbox's sshd.

use std::collections::HashSet;

use kiln_records::{Code, Failure, JobId, Run, ShellStatus, run::Refused, shell::Address};
use tokio::net::TcpListener;
use tracing::Instrument;

use super::{job_span, orchestrator::Orchestrator};
use crate::{settings::Ports, store::StoredRun};

impl Orchestrator {
    /// Makes one pass over the open shells.
    ///
    /// # Errors
    ///
    /// When the store does not answer, or no port can be listened on; the next pass starts afresh.
    pub async fn shells_once(&self) -> Result<(), Failure> {
        let open = self.store.open_runs().await?;
        let mut wanted = HashSet::new();
        let mut outcome = Ok(());
        for stored in open.iter().filter(|stored| self.carries_out(&stored.run)) {
            let Some(shell) = &stored.run.shell else { continue };
            // A shell that is about to be ready has its port already.
            if shell.status != ShellStatus::Closed {
                wanted.insert(stored.job.id);
            }
            if shell.is_ready() {
                let opened = self.open_port(stored).instrument(job_span(stored.job.id)).await;
                outcome = outcome.and(opened);
            }
        }
        self.shells.keep_only(&wanted);
        outcome
    }

    /// Listens for logins to a job whose shell is about to be ready.
    pub(super) async fn open_port(&self, stored: &StoredRun) -> Result<(), Failure> {
        if self.shells.port_of(stored.job.id).is_some() {
            return Ok(());
        }
        let open = self.store.open_runs().await?;
        let said = stored.run.shell.as_ref().and_then(|shell| shell.at.as_ref());
        let taken = ports_of(open.iter().map(|stored| &stored.run));
        self.listen(stored.job.id, said, &taken).await
    }

    /// Listens for logins to a job: on the port in its record if that port is free, else on another one, which is then
    /// put into the record.
    async fn listen(&self, job: JobId, said: Option<&Address>, taken: &HashSet<u16>) -> Result<(), Failure> {
        let Ports { first, last } = self.shell_place.ports;
        let said = said.filter(|at| at.host == self.shell_place.host).map(|at| at.port);
        let others = (first..=last).filter(|port| !taken.contains(port));
        for port in said.into_iter().chain(others) {
            let Ok(listener) = TcpListener::bind((self.shell_place.listen, port)).await else {
                continue;
            };
            self.shells.serve(job, port, listener);
            if said != Some(port) {
                let at = self.address(port);
                self.change(job, |run, _| move_shell(run, at.clone())).await?;
            }
            return Ok(());
        }
        let detail = format!("none of the ports {first} to {last} can be listened on for a job's shell");
        Err(Failure::new(Code::NoShellPort, detail).hint("`ports` in [shell] can name others"))
    }

    /// Where the shell of a new job will be, if a port is left.
    pub(super) fn shell_address<'a>(&self, runs: impl Iterator<Item = &'a Run>) -> Option<Address> {
        let Ports { first, last } = self.shell_place.ports;
        let taken = ports_of(runs);
        let port = (first..=last).find(|port| !taken.contains(port))?;
        Some(self.address(port))
    }

    fn address(&self, port: u16) -> Address {
        let host = self.shell_place.host.clone();
        Address { host, port }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "it is an arrow")]
fn move_shell(run: &mut Run, at: Address) -> Result<(), Refused> {
    if let Some(shell) = &mut run.shell {
        shell.at = Some(at);
    }
    Ok(())
}

/// The ports that jobs have.
fn ports_of<'a>(runs: impl Iterator<Item = &'a Run>) -> HashSet<u16> {
    runs.filter_map(|run| Some(run.shell.as_ref()?.at.as_ref()?.port))
        .collect()
}
