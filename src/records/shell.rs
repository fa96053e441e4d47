//! The shell of a job: where it is reached, how it is, how it ends.
//!
//! ```text
//!  Pending ──open──▶ Ready ──close──▶ Closed
//! ```
//!
//! It is open once. A job whose shell was open is not tried again: what its user did is gone.

use serde::{Deserialize, Serialize};

use super::Moment;

/// A shell, as the server keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shell {
    /// What the plan says of it.
    pub wish: ShellWish,
    /// Where it is reached; none until a server has the job.
    pub at: Option<Address>,
    /// How it is.
    pub status: ShellStatus,
    /// The public half of its host key, as in OpenSSH's `known_hosts`: type and key. Made for this job only.
    pub host_key: Option<String>,
    /// When it was opened.
    pub opened: Option<Moment>,
    /// When it ends by itself, unless it is used before.
    pub until: Option<Moment>,
    /// When it was closed.
    pub closed: Option<Moment>,
    /// What somebody said over the API that is to become of the work in it.
    pub verdict: Option<Verdict>,
}

/// What shell a job is to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellWish {
    /// The keys that may log in, as in OpenSSH's `authorized_keys`.
    pub keys: String,
    /// Whether whoever logs in sees the image's root and nothing else.
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
    /// To look at what was built, well or not.
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

/// How a shell is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
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

/// What is to become of what was done in a shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is kept.
    Complete,
    /// It is thrown away.
    Failed,
}

impl Verdict {
    /// The name of the file in the shell that says the same.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Failed => "failed",
        }
    }
}

impl Shell {
    /// One that is yet to be opened.
    pub fn new(wish: ShellWish) -> Self {
        Self {
            wish,
            at: None,
            status: ShellStatus::Pending,
            host_key: None,
            opened: None,
            until: None,
            closed: None,
            verdict: None,
        }
    }

    /// Whether it can be logged in to.
    pub fn is_ready(&self) -> bool {
        self.status == ShellStatus::Ready
    }

    /// Pending → Ready. Said again, nothing changes.
    pub fn open(&mut self, host_key: &str, until: Moment, now: Moment) {
        if self.status == ShellStatus::Pending {
            self.status = ShellStatus::Ready;
            self.host_key = Some(host_key.to_owned());
            self.until = Some(until);
            self.opened = Some(now);
        }
    }

    /// Any → Closed. Said again, nothing changes.
    pub fn close(&mut self, now: Moment) {
        if self.status != ShellStatus::Closed {
            self.status = ShellStatus::Closed;
            self.until = None;
            // One that never was open kept nobody waiting.
            self.closed = self.opened.map(|_| now);
        }
    }
}
