//! One bell for each loop: rung by whatever leaves the loop something to do. Pure: no I/O.

use tokio::sync::Notify;

/// The bells of all loops.
#[derive(Debug, Default)]
pub(super) struct Bells {
    pub(super) life: Notify,
    pub(super) places: Notify,
    pub(super) launch: Notify,
    pub(super) watch: Notify,
    pub(super) commit: Notify,
    pub(super) settle: Notify,
    pub(super) sweep: Notify,
    pub(super) shells: Notify,
}
