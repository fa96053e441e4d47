//! Says which sockets a sandbox may have: one list for the filter of system calls, and for the sockets that are made on request.

use nix::libc;

/// The parts of netlink that a sandbox may talk to.
///
/// * Programs ask for their own addresses by `ROUTE`.
/// * `AUDIT` only has to open: `setfiles`, which labels every root with a policy of `SELinux`, gives up otherwise, and so do
///   programs that change accounts. The kernel answers nothing that comes from a user namespace but `ECONNREFUSED`, which they
///   all take for a system without audit.
/// * Whoever waits for devices opens `KOBJECT_UEVENT`, such as `udevadm` and what is linked with libudev. The kernel sends
///   events to networks of the first user namespace only.
///
/// The others stay out. A recipe can make networks of its own, in which it has all rights, and those lead into large parts of
/// the kernel: `NETFILTER` to its tables, `GENERIC` to each of its many families, `XFRM` and `SOCK_DIAG` to more, and asking for
/// one loads its module on the host. Nothing of an image is made by them: rules are files, and `ss` reads `/proc` instead.
pub(super) const NETLINK: [i32; 3] = [libc::NETLINK_ROUTE, libc::NETLINK_AUDIT, libc::NETLINK_KOBJECT_UEVENT];

/// Whether a sandbox may have sockets of a family, and of a protocol of netlink.
pub(super) fn allows(family: i32, protocol: i32) -> bool {
    match family {
        libc::AF_UNIX | libc::AF_INET | libc::AF_INET6 => true,
        libc::AF_NETLINK => NETLINK.contains(&protocol),
        _ => false,
    }
}
