//! Requests to the thread that makes twins.

use std::{io, path::PathBuf, sync::mpsc::Sender};

/// What is asked of the thread.
#[derive(Debug)]
pub(super) enum Request {
    /// Somebody is about to enter `root`, or to let scripts of packages do so, and waits for the directory of twins to
    /// mount there.
    Enter {
        root: PathBuf,
        /// Whether what is on its way is to be waited for.
        wait: bool,
        reply: Sender<Option<PathBuf>>,
    },
    /// The root is built. The answer says that nothing of the twins is in it.
    End {
        reply: Sender<io::Result<Option<(u64, u64)>>>,
    },
}
