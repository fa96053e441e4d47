//! Finds the directory of a working container in buildah's storage. Reads the table of mounts.
//!
//! The root of a bundle is a mount in a namespace of buildah's own, which the agent does not see. It sees the storage.

use std::{
    io,
    path::{Path, PathBuf},
};

use kiln_inside::room::mounts::STORAGE;

/// The root of the working container that is mounted at `root`, as the agent sees it.
pub(super) fn place_of(root: &Path) -> io::Result<PathBuf> {
    let table = fs_err::read_to_string("/proc/self/mountinfo")?;
    let found = table.lines().rev().find_map(|line| in_line(line, root));
    found.ok_or_else(|| io::Error::other(format!("{} is no root of a working container", root.display())))
}

/// What a line of the table (proc_pid_mountinfo(5)) says, if it is the one of the mount at `root`. With the driver `overlay` the
/// changes are in `overlay/ID/diff` and the whole in `overlay/ID/merged`; with `vfs` there is `vfs/dir/ID`.
fn in_line(line: &str, root: &Path) -> Option<PathBuf> {
    let mut fields = line.split(' ');
    let (source, point) = (fields.nth(3)?, fields.next()?);
    if Path::new(point) != root {
        return None;
    }
    let storage = Path::new(STORAGE).join("storage");
    let id_after = |text: &str, parent: &str| {
        let (_, rest) = text.split_once(parent)?;
        let id = rest.split(['/', ',', ' ']).next()?;
        (!id.is_empty()).then(|| id.to_owned())
    };
    if let Some(options) = line.split("upperdir=").nth(1) {
        return Some(
            storage
                .join("overlay")
                .join(id_after(options, "/overlay/")?)
                .join("merged"),
        );
    }
    Some(storage.join("vfs/dir").join(id_after(source, "/vfs/dir/")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_storage_is_told_by_the_mount() {
        let root = Path::new("/var/tmp/buildah1/mnt/rootfs");
        let place = |line: &str| in_line(line, root).map(|place| place.display().to_string());
        let overlay = "168 143 0:53 / /var/tmp/buildah1/mnt/rootfs rw - overlay overlay rw,lowerdir=/var/lib/containers/storage/overlay/l/IOG,\
             upperdir=/var/lib/containers/storage/overlay/cac2/diff,workdir=/var/lib/containers/storage/overlay/cac2/work";
        assert_eq!(
            place(overlay).as_deref(),
            Some("/var/lib/containers/storage/overlay/cac2/merged")
        );
        let vfs =
            "9 1 8:1 /jobs/1/containers/storage/vfs/dir/ab12 /var/tmp/buildah1/mnt/rootfs rw - ext4 /dev/loop0 rw";
        assert_eq!(place(vfs).as_deref(), Some("/var/lib/containers/storage/vfs/dir/ab12"));
        assert_eq!(place("9 1 8:1 / /var/tmp rw - ext4 /dev/loop0 rw"), None);
    }
}
