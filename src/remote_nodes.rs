//! Examines remote build nodes over SSH. Starts OpenSSH's client.
//!
//! The site's `ssh_config`, jump hosts and certificates thus apply. Host keys are always checked: a host with an
//! unknown key cannot run jobs.

use std::{path::PathBuf, time::Duration};

use kiln_records::{arch::Arch, remote_build_node::RemoteBuildNodeStatus};
use openssh::{KnownHosts, Session, SessionBuilder};

/// The login to hosts.
#[derive(Debug, Clone)]
pub struct RemoteNodeSettings {
    /// The user on the host.
    pub user: String,
    /// The private key; none means the SSH client's default.
    pub identity_file: Option<PathBuf>,
    /// The file of known host keys; none means the SSH client's own.
    pub known_hosts: Option<PathBuf>,
    /// A configuration for the SSH client; none means its own.
    pub ssh_config: Option<PathBuf>,
    /// The longest time for connecting.
    pub connect_timeout: Duration,
}

impl RemoteNodeSettings {
    /// The builder of a connection that rejects hosts with unknown keys.
    pub(crate) fn session(&self) -> SessionBuilder {
        let mut builder = SessionBuilder::default();
        builder
            .user(self.user.clone())
            .known_hosts_check(KnownHosts::Strict)
            .connect_timeout(self.connect_timeout);
        if let Some(file) = &self.identity_file {
            builder.keyfile(file);
        }
        if let Some(file) = &self.known_hosts {
            builder.user_known_hosts_file(file);
        }
        if let Some(file) = &self.ssh_config {
            builder.config_file(file);
        }
        builder
    }
}

impl Default for RemoteNodeSettings {
    fn default() -> Self {
        Self {
            user: "root".to_owned(),
            identity_file: None,
            known_hosts: None,
            ssh_config: None,
            connect_timeout: Duration::from_secs(10),
        }
    }
}

/// Asks a host for its architecture, the paths of Podman and of Docker, and the number of jobs. One line each. The
/// engine's own program is not on every user's path, and its client need not be installed.
const QUESTIONS: &str = "uname -m; command -v podman || echo none; \
     PATH=$PATH:/usr/sbin; command -v docker || command -v dockerd || echo none; \
     find /tmp -maxdepth 1 -name 'ims_*' | wc -l";

/// Examines a host. Every error is part of the answer.
pub async fn look_at(xname: String, settings: &RemoteNodeSettings) -> RemoteBuildNodeStatus {
    let mut status = RemoteBuildNodeStatus {
        xname,
        ssh_status: "Unknown".to_owned(),
        podman_status: "Unknown".to_owned(),
        node_arch: "Unknown".to_owned(),
        num_current_jobs: -1,
        able_to_run_jobs: false,
    };
    // A host that accepts the connection and then stays silent cannot run jobs either.
    let limit = settings.connect_timeout * 2;
    match tokio::time::timeout(limit, ask(&status.xname, settings)).await {
        Ok(Ok(answers)) => read(&answers, &mut status),
        Ok(Err(error)) => status.ssh_status = format!("Cannot log in: {error}"),
        Err(_) => status.ssh_status = format!("Cannot log in: no answer within {} s", limit.as_secs()),
    }
    status
}

async fn ask(host: &str, settings: &RemoteNodeSettings) -> Result<String, String> {
    let session = settings
        .session()
        .connect(host)
        .await
        .map_err(|error| describe(&error))?;
    let answer = answer(&session).await;
    // An error at the end of the connection does not matter.
    let _ = session.close().await;
    answer
}

async fn answer(session: &Session) -> Result<String, String> {
    let output = session
        .shell(QUESTIONS)
        .output()
        .await
        .map_err(|error| describe(&error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!(
        "the host did not answer: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    ))
}

/// An error with its causes, in one line.
pub(crate) fn describe(error: &openssh::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text.trim().replace(['\n', '\r'], " ")
}

fn read(answers: &str, status: &mut RemoteBuildNodeStatus) {
    let mut lines = answers.lines();
    "SSH connection established.".clone_into(&mut status.ssh_status);
    let machine = lines.next().unwrap_or_default();
    let arch = Arch::ALL.into_iter().find(|arch| arch.name() == machine);
    status.node_arch = match arch {
        Some(arch) => arch.name().to_owned(),
        None => format!("Not an architecture that images are built for: {machine}"),
    };
    let mut path = || lines.next().filter(|path| path.starts_with('/'));
    let (podman, docker) = (path(), path());
    status.podman_status = match (podman, docker) {
        (Some(podman), _) => format!("Podman present at {podman}"),
        (None, Some(docker)) => format!("Podman is not installed. Docker present at {docker}"),
        (None, None) => "Podman is not installed.".to_owned(),
    };
    status.num_current_jobs = lines.next().and_then(|count| count.trim().parse().ok()).unwrap_or(-1);
    status.able_to_run_jobs = arch.is_some() && (podman.is_some() || docker.is_some());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(answers: &str) -> RemoteBuildNodeStatus {
        let mut status = RemoteBuildNodeStatus {
            xname: "x".to_owned(),
            ssh_status: String::new(),
            podman_status: String::new(),
            node_arch: String::new(),
            num_current_jobs: -1,
            able_to_run_jobs: false,
        };
        read(answers, &mut status);
        status
    }

    #[test]
    fn a_host_is_able_with_a_known_arch_and_an_engine() {
        let status = of("aarch64\n/usr/bin/podman\nnone\n3\n");
        assert!(status.able_to_run_jobs);
        assert_eq!((status.node_arch.as_str(), status.num_current_jobs), ("aarch64", 3));
        assert_eq!(status.podman_status, "Podman present at /usr/bin/podman");
        assert!(!of("armv7l\n/usr/bin/podman\nnone\n0\n").able_to_run_jobs);
        assert!(!of("x86_64\nnone\nnone\n0\n").able_to_run_jobs);
        let status = of("x86_64\nnone\n/usr/sbin/dockerd\n2\n");
        assert!(status.able_to_run_jobs);
        assert_eq!(status.num_current_jobs, 2);
        let said = "Podman is not installed. Docker present at /usr/sbin/dockerd";
        assert_eq!(status.podman_status, said);
    }

    #[test]
    fn a_count_that_failed_disqualifies_nobody() {
        let status = of("x86_64\n/usr/bin/podman\nnone\n\n");
        assert!(status.able_to_run_jobs);
        assert_eq!(status.num_current_jobs, -1);
    }
}
