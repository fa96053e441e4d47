//! The sockets by which the sandbox of a job reaches this process: a directory for each job, so that a job that uses up
//! its connections leaves those of the others alone. Makes directories and sockets, and listens on them.

use std::{
    collections::HashMap,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kiln_records::{Failure, JobId};
use tokio::{
    net::UnixListener,
    sync::{Semaphore, mpsc},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::sandbox::doors::{self, AGENT_SOCKET, Doors};

/// The socket on which the agent of one job calls.
#[derive(Debug)]
pub struct AgentSocket {
    /// The job.
    pub job: JobId,
    /// The socket.
    pub listener: UnixListener,
    /// Fires when the job has no sandbox any more.
    pub closed: CancellationToken,
}

/// Where new sockets for agents go, to be served.
pub type AgentSockets = mpsc::UnboundedSender<AgentSocket>;

/// The doors of all jobs of this process.
#[derive(Debug)]
pub struct JobDoors {
    root: PathBuf,
    ports: Vec<u16>,
    relays: Arc<Semaphore>,
    agents: AgentSockets,
    open: Mutex<HashMap<JobId, Open>>,
}

/// The doors of one job. Dropping them closes them.
#[derive(Debug)]
struct Open {
    _ports: Doors,
    _agent: DropGuard,
}

impl JobDoors {
    /// Doors to `ports` of this host's loopback, with directories below `root`, which only this user may enter. All
    /// jobs together have at most `relays` connections through them.
    pub fn new(root: PathBuf, ports: Vec<u16>, relays: usize, agents: AgentSockets) -> Self {
        Self {
            root,
            ports,
            relays: Arc::new(Semaphore::new(relays)),
            agents,
            open: Mutex::default(),
        }
    }

    /// The ports.
    pub(super) fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// Opens the doors of a job, unless they are open, and returns their directory. A sandbox that an earlier process
    /// started has the same directory and finds the new sockets there.
    ///
    /// # Errors
    ///
    /// When the directory or a socket cannot be made.
    pub(super) fn open(&self, job: JobId) -> Result<PathBuf, Failure> {
        let dir = self.dir_of(job);
        let mut open = self.lock();
        if open.contains_key(&job) {
            return Ok(dir);
        }
        let failed = |error: std::io::Error| Failure::io("cannot make the sockets of a job", &error);
        fs_err::create_dir_all(&dir).map_err(failed)?;
        // Access is controlled by the directory above; the sandbox's ids differ from this user's.
        fs_err::set_permissions(&dir, PermissionsExt::from_mode(0o755)).map_err(failed)?;
        let ports = Doors::open(&dir, &self.ports, &self.relays)?;
        let listener = doors::listen(&dir, AGENT_SOCKET)
            .and_then(UnixListener::from_std)
            .map_err(failed)?;
        let closed = CancellationToken::new();
        // Without a receiver this process is about to end.
        let _ = self.agents.send(AgentSocket {
            job,
            listener,
            closed: closed.clone(),
        });
        let way = Open {
            _ports: ports,
            _agent: closed.drop_guard(),
        };
        open.insert(job, way);
        Ok(dir)
    }

    /// Closes the doors of a job whose sandbox is gone, and removes their directory.
    ///
    /// # Errors
    ///
    /// When the directory cannot be removed.
    pub(super) fn close(&self, job: JobId) -> Result<(), Failure> {
        drop(self.lock().remove(&job));
        match fs_err::remove_dir_all(self.dir_of(job)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Failure::io("cannot remove the sockets of a job", &error))
            }
            _ => Ok(()),
        }
    }

    /// The jobs that have a directory, those of earlier processes included.
    ///
    /// # Errors
    ///
    /// When the directories cannot be listed.
    pub(super) fn jobs(&self) -> Result<Vec<JobId>, Failure> {
        let failed = |error: std::io::Error| Failure::io("cannot list the sockets of jobs", &error);
        let mut jobs = Vec::new();
        for entry in fs_err::read_dir(&self.root).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            jobs.extend(name.to_str().and_then(|name| name.parse::<JobId>().ok()));
        }
        Ok(jobs)
    }

    fn dir_of(&self, job: JobId) -> PathBuf {
        self.root.join(job.to_string())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, Open>> {
        // Each change is complete before anything can panic.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the root of [`JobDoors`] below `outer`, which only this user may enter.
///
/// # Errors
///
/// When it cannot be made.
pub fn make_root(outer: &Path) -> Result<PathBuf, Failure> {
    let inner = outer.join("doors");
    let failed = |error: std::io::Error| Failure::io("cannot make the agents' directory", &error);
    fs_err::create_dir_all(&inner).map_err(failed)?;
    fs_err::set_permissions(&inner, PermissionsExt::from_mode(0o755)).map_err(failed)?;
    Ok(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_job_has_sockets_of_its_own_until_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let (agents, mut opened) = mpsc::unbounded_channel();
        let doors = JobDoors::new(dir.path().to_owned(), vec![9], 10, agents.clone());
        let (one, two) = (JobId::new(), JobId::new());
        let (at_one, at_two) = (doors.open(one).unwrap(), doors.open(two).unwrap());
        assert_eq!(doors.open(one).unwrap(), at_one);
        let (socket, other) = (opened.recv().await.unwrap(), opened.recv().await.unwrap());
        assert_eq!((socket.job, other.job), (one, two));
        assert!(opened.try_recv().is_err(), "opened twice");

        doors.close(one).unwrap();
        doors.close(one).unwrap();
        assert!(socket.closed.is_cancelled() && !at_one.try_exists().unwrap());
        assert!(!other.closed.is_cancelled() && at_two.join(AGENT_SOCKET).try_exists().unwrap());

        // The next process finds the directory of a job that goes on.
        drop(doors);
        let doors = JobDoors::new(dir.path().to_owned(), vec![9], 10, agents);
        assert_eq!(doors.jobs().unwrap(), [two]);
        assert_eq!(doors.open(two).unwrap(), at_two);
    }
}
