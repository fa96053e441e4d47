//! The shell of a job: its address, its state, its end. Pure: no I/O.
//!
//! ```text
//!  Pending ──open──▶ Ready ──close──▶ Closed
//! ```
//!
//! A shell opens once. A job whose shell was open is not retried: its user's work is lost.

use serde::{Deserialize, Serialize};

use super::Moment;

/// A shell, as the server keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shell {
    /// The shell that the plan asks for.
    pub wish: ShellWish,
    /// Its address; none until a server has the job.
    pub at: Option<Address>,
    /// Its address within the cluster in which the job runs, if that is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<Address>,
    /// Its state.
    pub status: ShellStatus,
    /// The public half of its host key, as in OpenSSH's `known_hosts`: type and key. Made for this job only.
    pub host_key: Option<String>,
    /// When it was opened.
    pub opened: Option<Moment>,
    /// The time at which it ends by itself, unless it is used before.
    pub until: Option<Moment>,
    /// When it was closed.
    pub closed: Option<Moment>,
    /// The verdict on the work in it that a user gave over the API.
    pub verdict: Option<Verdict>,
}

/// The shell that a job should have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellWish {
    /// The keys that may log in, as in OpenSSH's `authorized_keys`.
    pub keys: String,
    /// Whether a login sees only the image's root.
    pub jail: bool,
    /// When it is opened.
    pub when: ShellTime,
}

/// When a job opens its shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShellTime {
    /// To change the image by hand.
    Customize,
    /// To inspect the result, whether the build succeeded or not.
    Debug,
}

/// A TCP address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// Name or IP address, as users reach it.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// The status of a shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ShellStatus {
    /// It is yet to be opened.
    Pending,
    /// It can be logged in to.
    Ready,
    /// It is over.
    Closed,
}

impl ShellStatus {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Ready => "ready",
            Self::Closed => "closed",
        }
    }
}

/// The verdict on the work in a shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The work is kept.
    Complete,
    /// The work is discarded.
    Failed,
}

impl Verdict {
    /// The name of the file in the shell that gives the same verdict.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Failed => "failed",
        }
    }
}

impl Shell {
    /// A shell that is not open yet.
    pub fn new(wish: ShellWish) -> Self {
        Self {
            wish,
            at: None,
            inside: None,
            status: ShellStatus::Pending,
            host_key: None,
            opened: None,
            until: None,
            closed: None,
            verdict: None,
        }
    }

    /// Whether it accepts logins.
    pub fn is_ready(&self) -> bool {
        self.status == ShellStatus::Ready
    }

    /// Pending → Ready. A repeated call changes nothing.
    pub fn open(&mut self, host_key: &str, until: Moment, now: Moment) {
        if self.status == ShellStatus::Pending {
            self.status = ShellStatus::Ready;
            self.host_key = Some(host_key.to_owned());
            self.until = Some(until);
            self.opened = Some(now);
        }
    }

    /// Any → Closed. A repeated call changes nothing.
    pub fn close(&mut self, now: Moment) {
        if self.status != ShellStatus::Closed {
            self.status = ShellStatus::Closed;
            self.until = None;
            // A shell that was never open delayed no job.
            self.closed = self.opened.map(|_| now);
        }
    }
}
