//! Drops rights of process 1 of a sandbox for good, for itself and everything it starts.

use kiln_records::Failure;
use rustix::thread::{CapabilitySet, capabilities, remove_capability_from_bounding_set, set_capabilities};

/// Drops the rights that could undo the network's limits: changing routes, and sending past them.
pub(super) fn drop_network() -> Result<(), Failure> {
    drop_rights(CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW)
}

/// Drops all rights of a sandbox's root.
pub(super) fn drop_all() -> Result<(), Failure> {
    drop_rights(CapabilitySet::all())
}

fn drop_rights(dropped: CapabilitySet) -> Result<(), Failure> {
    let failed = |error: rustix::io::Errno| Failure::io("cannot drop privileges", &error.into());
    for one in dropped.iter() {
        match remove_capability_from_bounding_set(one) {
            // This kernel does not know the right.
            Err(rustix::io::Errno::INVAL) => {}
            done => done.map_err(failed)?,
        }
    }
    let mut sets = capabilities(None).map_err(failed)?;
    sets.effective -= dropped;
    sets.permitted -= dropped;
    sets.inheritable -= dropped;
    set_capabilities(None, sets).map_err(failed)
}
