//! Packs a root while kiwi works on it, and puts a packed one in its place. What is mounted in the root stays untouched.
//! A layer is the squashfs of a root. A second one may follow it in the same file: the host's packages for its native twins.
//! Runs mksquashfs and unsquashfs, and changes the root.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    io::{self, Seek},
    path::{Path, PathBuf},
};

use kiln_inside::room::{mounted_below, remove_tree};
use kiln_records::{Code, Failure, protocol::JobDescription};
use tokio::process::Command;

use crate::{
    cause,
    events::Events,
    mksquashfs::{self, MEMORY_MIB, mksquashfs_args, parse_progress},
    process,
    squashfs::end_of_first,
    twins::{Root, layout},
};

/// Files of the sandbox. kiwi copies each into a new root, under this name with `.kiwi`, has a link lead there, and removes the copy
/// in the end (`kiwi/system/root_bind.py`).
const OF_SANDBOX: [&str; 3] = ["etc/resolv.conf", "etc/hosts", "etc/sysconfig/proxy"];

/// The largest of these files, in bytes.
const LARGEST_OF_SANDBOX: u64 = 1 << 20;

/// What does not belong to a layer of `root`: what is mounted in it, the recipe's own files, the mount point of twins, and kiwi's copies
/// of the sandbox's files.
///
/// # Errors
///
/// The mounts cannot be read.
pub(super) fn others(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut others: BTreeSet<PathBuf> = ["image", layout::MOUNT.trim_start_matches('/')]
        .map(PathBuf::from)
        .into();
    let mounts = mounted_below(root)?;
    let within = mounts.iter().filter_map(|point| point.strip_prefix(root).ok());
    others.extend(within.filter(|below| !below.as_os_str().is_empty()).map(Path::to_owned));
    let copies = OF_SANDBOX
        .iter()
        .flat_map(|file| [".kiwi", ".sha"].map(|end| PathBuf::from(format!("{file}{end}"))));
    others.extend(copies.filter(|copy| fs_err::symlink_metadata(root.join(copy)).is_ok()));
    Ok(others.into_iter().collect())
}

/// The first of kiwi's copies in `root` that is not as in the `sandbox`: scripts that run later would find what was changed.
///
/// # Errors
///
/// The root cannot be opened.
pub(super) fn changed_copy(root: &Path, sandbox: &Path) -> io::Result<Option<&'static str>> {
    let root = Root::open(root)?;
    let is_changed = |file: &&str| {
        let copy = PathBuf::from(format!("{file}.kiwi"));
        let is_gone = matches!(root.modified(&copy), Err(error) if error.kind() == io::ErrorKind::NotFound);
        let own = fs_err::read(sandbox.join(file)).ok();
        !is_gone && (own.is_none() || root.content(&copy, LARGEST_OF_SANDBOX) != own)
    };
    Ok(OF_SANDBOX.into_iter().find(is_changed))
}

/// Removes all of a root but these `others` and what they lie in.
///
/// # Errors
///
/// A file cannot be removed.
pub(super) fn clear(root: &Path, others: &[PathBuf]) -> io::Result<()> {
    clear_at(root, Path::new(""), others)
}

fn clear_at(root: &Path, dir: &Path, others: &[PathBuf]) -> io::Result<()> {
    for entry in fs_err::read_dir(root.join(dir))? {
        let entry = entry?;
        let path = dir.join(entry.file_name());
        if others.contains(&path) {
            continue;
        }
        if others.iter().any(|other| other.starts_with(&path)) {
            clear_at(root, &path, others)?;
        } else if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        } else {
            fs_err::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Packs `root` without `left_out` into the file `to`.
///
/// # Errors
///
/// `squashfs_failed`, or a more specific code.
pub(super) async fn pack(
    job: &JobDescription,
    root: &Path,
    left_out: &[PathBuf],
    to: &Path,
    events: &Events,
) -> Result<(), Failure> {
    let mut args = mksquashfs_args(root, to, &job.squashfs, job.cpus, MEMORY_MIB);
    if !left_out.is_empty() {
        // Up to the end of the arguments.
        args.push("-e".into());
        args.extend(left_out.iter().map(OsString::from));
    }
    mksquashfs::run(args, events).await
}

/// Puts a second squashfs behind the one in `layer`, and removes it.
///
/// # Errors
///
/// A file cannot be read or written; the layer then is as it was.
pub(super) fn append(second: &Path, layer: &Path) -> io::Result<()> {
    let end = end_of_first(layer)?;
    let mut file = fs_err::OpenOptions::new().write(true).open(layer)?;
    file.seek(io::SeekFrom::Start(end))?;
    let appended = fs_err::File::open(second).and_then(|mut second| io::copy(&mut second, &mut file));
    if appended.is_err() {
        file.set_len(end)?;
    }
    fs_err::remove_file(second)?;
    appended.map(drop)
}

/// The offset of the second squashfs in `layer`, if it has one.
pub(super) fn second(layer: &Path) -> io::Result<Option<u64>> {
    let end = end_of_first(layer)?;
    Ok((fs_err::metadata(layer)?.len() > end).then_some(end))
}

/// Unpacks the squashfs at `offset` of a layer over the directory `to`.
///
/// # Errors
///
/// `image_corrupt`, or a more specific code. The directory then is neither the old one nor the layer's.
pub(super) async fn unpack(layer: &Path, offset: u64, to: &Path, events: &Events) -> Result<(), Failure> {
    let mut command = Command::new("unsquashfs");
    command.args(["-strict-errors", "-no-wildcards", "-force", "-offset"]);
    command.arg(offset.to_string()).arg("-dest").arg(to).arg(layer);
    let finished = process::run(command, None, events, |line| parse_progress(line).is_some()).await?;
    finished.check_own(|tool| {
        cause::known_cause(&tool.tail).unwrap_or_else(|| {
            let last = tool.last_words().unwrap_or("it printed nothing");
            Failure::new(Code::ImageCorrupt, format!("the layer cannot be unpacked: {last}"))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_may_have_a_second_squashfs() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let layer = path("layer");
        for (tree, packed) in [("one", &layer), ("two", &path("second"))] {
            fs_err::create_dir(path(tree)).unwrap();
            fs_err::write(path(tree).join("file"), tree).unwrap();
            let packed = std::process::Command::new("mksquashfs")
                .arg(path(tree))
                .arg(packed)
                .args(["-quiet", "-no-progress"])
                .status();
            assert!(packed.unwrap().success());
        }
        assert_eq!(second(&layer).unwrap(), None);
        let first = fs_err::read(&layer).unwrap();
        append(&path("second"), &layer).unwrap();
        assert!(!path("second").exists() && fs_err::read(&layer).unwrap().starts_with(&first));
        let offset = second(&layer).unwrap().unwrap();
        for (offset, content) in [(0, "one"), (offset, "two")] {
            let text = std::process::Command::new("unsquashfs")
                .args(["-cat", "-offset", &offset.to_string()])
                .arg(&layer)
                .arg("file")
                .output();
            assert_eq!(String::from_utf8(text.unwrap().stdout).unwrap(), content);
        }
        fs_err::write(path("other"), "no squashfs").unwrap();
        assert!(second(&path("other")).is_err());
    }

    #[test]
    fn the_sandboxs_own_files_are_no_part_of_a_layer() {
        let (root, sandbox) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (top, path, text) in [
            (&sandbox, "etc/hosts", "127.0.0.1 one\n"),
            (&sandbox, "etc/resolv.conf", "nameserver 10.0.0.1\n"),
            (&root, "etc/hosts.kiwi", "127.0.0.1 one\n"),
            (&root, "etc/hosts.sha", "0123"),
            (&root, "etc/resolv.conf.kiwi", "nameserver 10.0.0.1\n"),
            (&root, "etc/other", ""),
        ] {
            let path = top.path().join(path);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, text).unwrap();
        }
        let found = others(root.path()).unwrap();
        let of_etc: Vec<_> = found.iter().filter(|path| path.starts_with("etc")).collect();
        assert_eq!(
            of_etc,
            ["etc/hosts.kiwi", "etc/hosts.sha", "etc/resolv.conf.kiwi"].map(Path::new)
        );
        let changed = || changed_copy(root.path(), sandbox.path()).unwrap();
        assert_eq!(changed(), None);
        fs_err::write(root.path().join("etc/hosts.kiwi"), "127.0.0.1 one two\n").unwrap();
        assert_eq!(changed(), Some("etc/hosts"));
        // What is not to be looked at is not as it was.
        fs_err::remove_file(root.path().join("etc/hosts.kiwi")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", root.path().join("etc/hosts.kiwi")).unwrap();
        assert_eq!(changed(), Some("etc/hosts"));
    }

    #[test]
    fn all_but_mounts_is_cleared() {
        let root = tempfile::tempdir().unwrap();
        for path in [
            "proc/1/x",
            "var/cache/kiwi/lists",
            "var/cache/other/x",
            "usr/bin/y",
            "image/config.sh",
        ] {
            let path = root.path().join(path);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, "").unwrap();
        }
        std::os::unix::fs::symlink("usr/bin", root.path().join("bin")).unwrap();
        clear(root.path(), &["proc", "var/cache/kiwi", "image"].map(PathBuf::from)).unwrap();
        let mut left: Vec<_> = walk(root.path(), Path::new(""));
        left.sort();
        assert_eq!(left, ["image/config.sh", "proc/1/x", "var/cache/kiwi/lists"]);
    }

    fn walk(root: &Path, dir: &Path) -> Vec<String> {
        let mut found = Vec::new();
        for entry in fs_err::read_dir(root.join(dir)).unwrap() {
            let entry = entry.unwrap();
            let path = dir.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                found.extend(walk(root, &path));
            } else {
                found.push(path.to_string_lossy().into_owned());
            }
        }
        found
    }
}
