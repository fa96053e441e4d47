//! Lists what differs between any two builds of the same recipe, natively or not. Pure: constants only.

use super::tree::Unlike;

/// The files whose content differs between any two builds of a recipe, each with its reason. Such a file must still
/// exist with the same type, mode, owner and attributes.
pub const UNLIKE: &[Unlike] = &[
    Unlike {
        path: "/var/cache/ldconfig/aux-cache",
        why: "has inode numbers and times of the libraries",
    },
    Unlike {
        path: "/var/lib/dbus/machine-id",
        why: "is a random number",
    },
    Unlike {
        path: "/var/log/alternatives.log",
        why: "has the time in each line",
    },
    Unlike {
        path: "/var/lib/rpm/rpmdb.sqlite",
        why: "has the time at which each package was installed",
    },
    Unlike {
        path: "/var/lib/rpm/rpmdb.sqlite-shm",
        why: "is about a journal with a random number",
    },
    Unlike {
        path: "/var/lib/dnf/history.sqlite",
        why: "has the time of each transaction",
    },
    Unlike {
        path: "/var/lib/dnf/history.sqlite-wal",
        why: "has a random number",
    },
    Unlike {
        path: "/var/lib/dnf/history.sqlite-shm",
        why: "is about a journal with a random number",
    },
    Unlike {
        path: "/var/log/dnf.log",
        why: "has the time in each line",
    },
    Unlike {
        path: "/var/log/dnf.librepo.log",
        why: "has the time in each line",
    },
    Unlike {
        path: "/var/log/dnf.rpm.log",
        why: "has the time in each line",
    },
    Unlike {
        path: "/var/log/hawkey.log",
        why: "has the time in each line",
    },
    Unlike {
        path: "/var/lib/zypp/AutoInstalled",
        why: "has the time in its first line",
    },
    Unlike {
        path: "/var/log/zypp/history",
        why: "has the time in each line",
    },
];
