//! The shells loop opens ports: one for each job whose shell is open, for as long as it is. It reads and writes rows of
//! the store, and listens on TCP ports.
//!
//! A sandbox accepts no connections. Its agent keeps a [line](kiln_records::protocol::shell) open, and a user who
//! connects to the job's port gets that line. So a shell is reached in the same way wherever the sandbox is, and the
//! traffic is between the user's ssh and the sandbox's sshd. A place may make another way to the port; until it has said
//! where, the record names the port itself.

use std::{collections::HashSet, sync::Arc, time::Duration};

use kiln_records::{Code, Failure, Run, ShellStatus, run::Refused, shell::Address};
use tokio::{net::TcpListener, time::timeout};
use tracing::Instrument;

use super::{
    claim::Claim,
    job_span,
    row::Jobs,
    sandboxes::Sandboxes,
    shell_ports::{ShellPlace, Shells},
};
use crate::{
    sandbox::ShellWay,
    settings::Ports,
    store::{SharedStore, StoredRun},
};

/// How long a place may take to make a way to a shell. An agent waits for that, and it is tried again.
const WAY_WAIT: Duration = Duration::from_secs(10);

/// Opens the ports of shells.
#[derive(Debug)]
pub struct ShellDoors {
    pub(super) store: SharedStore,
    pub(super) jobs: Arc<Jobs>,
    pub(super) claim: Arc<Claim>,
    pub(super) sandboxes: Arc<Sandboxes>,
    /// Ports that lead to sandboxes.
    pub(super) shells: Shells,
    /// The address and ports of jobs' shells.
    pub(super) place: ShellPlace,
}

impl ShellDoors {
    /// Makes one pass over the open shells.
    ///
    /// # Errors
    ///
    /// When the store does not answer, or no port can be listened on; the next pass starts afresh.
    pub async fn pass(&self) -> Result<(), Failure> {
        let open = self.store.open_runs().await?;
        let mut wanted = HashSet::new();
        let mut outcome = Ok(());
        for stored in open.iter().filter(|stored| self.claim.carries_out(&stored.run)) {
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

    /// Listens for logins to a job whose shell is about to be ready, and has its place make the way there.
    pub(super) async fn open_port(&self, stored: &StoredRun) -> Result<(), Failure> {
        let port = match self.shells.port_of(stored.job.id) {
            Some(port) => port,
            None => self.listen(stored).await?,
        };
        if self.shells.asks_for_way(stored.job.id) {
            self.make_way(stored, port).await?;
        }
        Ok(())
    }

    /// Listens on the port in a job's record if that is one of this server's and free, else on another one.
    async fn listen(&self, stored: &StoredRun) -> Result<u16, Failure> {
        let open = self.store.open_runs().await?;
        let taken = ports_of(open.iter().map(|stored| &stored.run));
        let said = stored.run.shell.as_ref().and_then(|shell| shell.at.as_ref());
        let own = said.filter(|at| at.host == self.place.host).map(|at| at.port);
        let Ports { first, last } = self.place.ports;
        let others = (first..=last).filter(|port| !taken.contains(port));
        for port in own.into_iter().chain(others) {
            if let Ok(listener) = TcpListener::bind((self.place.listen, port)).await {
                self.shells.serve(stored.job.id, port, listener);
                return Ok(port);
            }
        }
        let detail = format!("none of the ports {first} to {last} can be listened on for a job's shell");
        Err(Failure::new(Code::NoShellPort, detail).hint("`ports` in [shell] can name others"))
    }

    /// Has the place of a job make the way to its shell, and puts the address into the record: this server's own, as long
    /// as the place has not given another.
    async fn make_way(&self, stored: &StoredRun, port: u16) -> Result<(), Failure> {
        let job = stored.job.id;
        let Some(shell) = &stored.run.shell else { return Ok(()) };
        let own = self.address(port);
        let driver = self.sandboxes.driver_of(&stored.run);
        let way = timeout(WAY_WAIT, driver.shell_way(job, port)).await;
        let (at, inside, is_known) = match way.unwrap_or_else(|_| Err(late())) {
            Ok(ShellWay::Server) => (own, None, true),
            Ok(ShellWay::Elsewhere { outside, inside }) => {
                let is_known = outside.is_some();
                (outside.unwrap_or(own), Some(inside), is_known)
            }
            Err(failure) => {
                tracing::warn!("there is no way to the job's shell yet: {failure}");
                if shell.inside.is_some() {
                    // It was made before, and will lead here.
                    return Ok(());
                }
                (own, None, false)
            }
        };
        if shell.at.as_ref() != Some(&at) || shell.inside != inside {
            self.jobs
                .change(job, |run, _| move_shell(run, at.clone(), inside.clone()))
                .await?;
        }
        if is_known {
            self.shells.note_way(job);
        }
        Ok(())
    }

    /// Where the shell of a new job will be, if a port is left.
    pub(super) fn free_address<'a>(&self, runs: impl Iterator<Item = &'a Run>) -> Option<Address> {
        let Ports { first, last } = self.place.ports;
        let taken = ports_of(runs);
        let port = (first..=last).find(|port| !taken.contains(port) && !self.shells.has_port(*port))?;
        Some(self.address(port))
    }

    fn address(&self, port: u16) -> Address {
        let host = self.place.host.clone();
        Address { host, port }
    }
}

fn late() -> Failure {
    let detail = format!("its place took over {} s", WAY_WAIT.as_secs());
    Failure::new(Code::ClusterGone, detail)
}

#[expect(clippy::unnecessary_wraps, reason = "it is an arrow")]
fn move_shell(run: &mut Run, at: Address, inside: Option<Address>) -> Result<(), Refused> {
    if let Some(shell) = &mut run.shell {
        shell.at = Some(at);
        shell.inside = inside;
    }
    Ok(())
}

/// The ports that jobs have.
fn ports_of<'a>(runs: impl Iterator<Item = &'a Run>) -> HashSet<u16> {
    runs.filter_map(|run| Some(run.shell.as_ref()?.at.as_ref()?.port))
        .collect()
}
