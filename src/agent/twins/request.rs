//! Defines the requests to the thread that makes twins. Pure: no I/O here.

use std::{io, path::PathBuf, sync::mpsc::Sender};

use kiln_records::Account;

use super::Counted;

/// A request to the thread.
#[derive(Debug)]
pub(super) enum Request {
    /// A process is about to enter `root`, or to let scripts of packages do so, and waits for the directory of twins to
    /// mount there.
    Enter {
        root: PathBuf,
        /// Whether to wait for twins that are still being made.
        wait: bool,
        reply: Sender<Option<PathBuf>>,
    },
    /// All packages are installed. The reply is the directory with what another root with these packages can begin with,
    /// if there is anything.
    Keep { reply: Sender<Option<PathBuf>> },
    /// The root was replaced by one in which all packages are installed.
    Restored,
    /// Nothing runs in the root for the moment. The reply confirms that the mount point is not in it.
    Leave { reply: Sender<io::Result<()>> },
    /// The root is built. The reply confirms that no part of the twins is left in it.
    End { reply: Sender<Ended> },
}

/// What twins were, once they are removed from the root.
#[derive(Debug)]
pub(super) struct Ended {
    /// How each program was run, and why.
    pub(super) account: Account,
    /// How often.
    pub(super) counted: io::Result<Counted>,
}
