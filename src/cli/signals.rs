//! Watches for the signals by which a user ends a command.

use kiln_records::Failure;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that fires at the first Ctrl-C or SIGTERM.
pub(super) fn cancel_on_signal() -> Result<CancellationToken, Failure> {
    let cancelled = CancellationToken::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let mut signals = signal(kind).map_err(|error| Failure::io("cannot watch for signals", &error))?;
        let cancelled = cancelled.clone();
        tokio::spawn(async move {
            signals.recv().await;
            cancelled.cancel();
        });
    }
    Ok(cancelled)
}
