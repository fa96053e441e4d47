//! Drops rights of the container's first process for good.

use kiln_records::{Code, Failure};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

/// Keeps only the rights to map ids. With "no new privileges" set, as in all of Kiln's containers, no program started
/// from here on regains any other right (`capabilities(7)`, `prctl(2)`).
///
/// # Errors
///
/// `sandbox_start` when the kernel refuses.
pub(super) fn keep_only_ids() -> Result<(), Failure> {
    let ids = CapabilitySet::SETUID | CapabilitySet::SETGID;
    let kept = CapabilitySets {
        effective: ids,
        permitted: ids,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, kept).map_err(|errno| {
        Failure::new(
            Code::SandboxStart,
            format!("cannot give up the container's rights: {errno}"),
        )
    })
}
