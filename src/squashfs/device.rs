//! Device nodes, which no sandbox can make: they go from one squashfs into the next without ever being in the root between
//! them.

use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

/// A device node of a squashfs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// In the root, without a slash before it.
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
    /// Whether it can be put back: the directory is there, and nothing else has its name now.
    pub fn belongs(&self, root: &Path) -> bool {
        let path = Path::new(&self.path);
        if !path.components().all(|part| matches!(part, Component::Normal(_))) {
            return false;
        }
        let is_dir = |dir: &Path| fs_err::symlink_metadata(root.join(dir)).is_ok_and(|found| found.is_dir());
        path.ancestors().skip(1).all(is_dir) && fs_err::symlink_metadata(root.join(path)).is_err()
    }
}
