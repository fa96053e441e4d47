//! The request to end, as a container engine sends it to containers that it ends. Listens for a signal.

use kiln_records::{Code, Failure};
use tokio::signal::unix::{SignalKind, signal};

/// Listens from now on, not only once the answer is awaited: a signal that comes before would end this process without a
/// word. Returns the job's failure when this process is asked to end; the job is not at fault.
pub(super) fn asked() -> impl Future<Output = Failure> {
    let signals = signal(SignalKind::terminate());
    async {
        match signals {
            Ok(mut signals) => {
                signals.recv().await;
                Failure::new(Code::SandboxLost, "the sandbox was told to end")
                    .hint("its container engine or host was stopped or restarted, or the container was stopped by hand")
            }
            // A process without the handler ends at once when the signal comes.
            Err(_) => std::future::pending().await,
        }
    }
}
