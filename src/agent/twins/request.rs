//! Defines the requests to the thread that makes twins. Pure: no I/O here.

use std::{io, path::PathBuf, sync::mpsc::Sender};

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
    /// The root is built. The reply confirms that no part of the twins is left in it.
    End {
        reply: Sender<io::Result<Option<(u64, u64)>>>,
    },
}
