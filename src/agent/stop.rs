//! Being told to end, as a container engine tells whatever it ends.

use tokio::signal::unix::{SignalKind, signal};

use crate::records::{Code, Failure};

/// Returns when this process is told to end: what the job fails with, which is no fault of its own.
pub(super) async fn asked() -> Failure {
    match signal(SignalKind::terminate()) {
        Ok(mut signals) => {
            signals.recv().await;
            Failure::new(Code::SandboxLost, "the sandbox was told to end")
                .hint("its container engine or host was stopped or restarted, or somebody stopped the container")
        }
        // Who cannot hear it ends at once when it comes.
        Err(_) => std::future::pending().await,
    }
}
