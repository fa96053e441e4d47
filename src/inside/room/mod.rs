//! The parts that all sandboxes on a shared kernel have in common: ids, file systems, process 1, and measurement.
//! Drivers use them from outside, and the agent uses them as the first process in a container.

use std::os::fd::{AsFd, OwnedFd};

use kiln_records::{Code, Failure};
use nix::{
    errno::Errno,
    sys::{prctl, signal::Signal},
};

pub use confine::{Scope, confine};
pub use counters::Counters;
pub use idmap::{Beyond, IdMap};
pub use meter::{DiskGauge, Meter, Usage};
pub use mounted::mounted_below;
pub use release::Release;
pub use remove::{empty, remove_tree};
pub use userns::make as make_user_namespace;
pub use walk::Walker;

mod confine;
mod counters;
mod families;
pub mod filter;
mod idmap;
pub mod kernel;
mod meter;
mod mounted;
pub mod mounts;
mod notify;
pub mod order;
pub mod process1;
mod questions;
mod read_only;
mod release;
mod remove;
mod socketcall;
mod uname;
mod userns;
mod walk;

/// Has this process killed when its parent dies. Must be repeated after each change of user, which clears it.
pub fn die_with_parent() {
    // This cannot fail with a valid signal (prctl(2)).
    let _ = prctl::set_pdeathsig(Signal::SIGKILL);
}

/// Writes a failure to the pipe.
pub fn report_failure(pipe: &OwnedFd, failure: &Failure) {
    if let Ok(text) = serde_json::to_string(failure) {
        let _ = nix::unistd::write(pipe.as_fd(), text.as_bytes());
    }
}

/// The failure for a user namespace that cannot be made, with advice.
pub fn user_namespace_failure(errno: Errno) -> Failure {
    let failure = Failure::new(
        Code::NoUserNamespace,
        format!("this host does not allow user namespaces: {errno}"),
    );
    failure.hint(match errno {
        Errno::ENOSPC | Errno::EUSERS => "raise the sysctl user.max_user_namespaces",
        Errno::EPERM => {
            "allow unprivileged user namespaces: sysctl kernel.unprivileged_userns_clone=1 (Debian), \
             kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), or the container's seccomp profile"
        }
        _ => "the kernel needs CONFIG_USER_NS",
    })
}
