//! Device nodes, which no sandbox can make: they pass from one squashfs to the next without ever existing in the root.
//! Only looks at metadata of files.

use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

/// A device node of a squashfs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Path in the root, without a leading slash.
    pub path: String,
    /// `c` or `b`.
    pub kind: char,
    /// Permissions, with set-id and sticky bits.
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// Major and minor.
    pub number: (u32, u32),
    /// Seconds since 1970.
    pub time: i64,
}

impl Device {
    /// Whether the node can be restored: its directory exists, and its name is free.
    pub fn belongs(&self, root: &Path) -> bool {
        let path = Path::new(&self.path);
        if !path.components().all(|part| matches!(part, Component::Normal(_))) {
            return false;
        }
        let is_dir = |dir: &Path| fs_err::symlink_metadata(root.join(dir)).is_ok_and(|found| found.is_dir());
        path.ancestors().skip(1).all(is_dir) && fs_err::symlink_metadata(root.join(path)).is_err()
    }
}
