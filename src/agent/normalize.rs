//! Takes out of a root what no two builds of it have in common, for an image that is to be reproducible. Changes and removes
//! files of the root, and follows no link of it.
//!
//! What a package or the recipe brought keeps its time. What the job itself wrote, which is all that has a time after the
//! job began, gets the image's date.

use std::{
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use fs_err::OpenOptions;
use jiff::Timestamp;
use nix::{
    fcntl::AT_FDCWD,
    sys::{
        stat::{UtimensatFlags, utimensat},
        time::TimeSpec,
    },
};

/// What is done with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// It is removed.
    Remove,
    /// It is emptied.
    Empty,
    /// Lines that begin with `#` are left out.
    Uncomment,
}

/// A pattern of paths, what is done with the files there, and why. The last part of a path may have one `*`.
pub(crate) type Rule = (&'static str, Treatment, &'static str);

/// Files that differ between any two builds, and that an image is right without, besides those that machines must not share.
const RULES: [Rule; 8] = [
    (
        "var/cache/ldconfig/aux-cache",
        Treatment::Remove,
        "removed, for it has numbers of inodes; ldconfig makes it anew",
    ),
    (
        "var/cache/apt/*.bin",
        Treatment::Remove,
        "removed, for it has times and padding; apt makes it anew",
    ),
    (
        "etc/.updated",
        Treatment::Remove,
        "removed, for it has the time of the build; systemd makes it anew (systemd-update-done.service(8))",
    ),
    (
        "var/.updated",
        Treatment::Remove,
        "removed, for it has the time of the build; systemd makes it anew (systemd-update-done.service(8))",
    ),
    (
        "var/lib/zypp/AutoInstalled",
        Treatment::Uncomment,
        "left without its comments, for they have the time of the build",
    ),
    (
        "var/lib/dnf/history.sqlite*",
        Treatment::Remove,
        "removed, for it has the time of each transaction; dnf then takes every package for one that its user asked for",
    ),
    (
        "var/lib/rpm/rpmdb.sqlite-shm",
        Treatment::Remove,
        "removed, for it is about a random number; SQLite makes it anew",
    ),
    (
        "usr/lib/sysimage/rpm/rpmdb.sqlite-shm",
        Treatment::Remove,
        "removed, for it is about a random number; SQLite makes it anew",
    ),
];

/// The directory of logs, which have times in every line.
const LOGS: &str = "var/log";

/// What was done to a root.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Normalized {
    /// Files that were changed or removed, by their paths in the root, and why.
    pub treated: Vec<(String, String)>,
    /// The number of files, directories and links that got the image's date.
    pub dated: u64,
    /// The number of those whose time had not come yet: the clock was behind.
    pub future: u64,
}

/// Normalizes a root in which nothing runs any more. What has a time since `begun` gets that of `epoch`, both in seconds since
/// 1970.
///
/// # Errors
///
/// A file cannot be changed.
pub fn normalize(root: &Path, begun: i64, epoch: u32) -> io::Result<Normalized> {
    let mut normalized = Normalized {
        treated: treat_all(root, &RULES, |_| true)?,
        ..Normalized::default()
    };
    let logs = empty_logs(root)?;
    if logs > 0 {
        normalized
            .treated
            .push((format!("/{LOGS}"), format!("{logs} files emptied, for logs have times")));
    }
    let now = Timestamp::now().as_second();
    let date = TimeSpec::new(i64::from(epoch), 0);
    walk(root, |path, found| {
        if found.mtime() < begun {
            return Ok(());
        }
        normalized.dated += 1;
        normalized.future += u64::from(found.mtime() > now);
        utimensat(AT_FDCWD, path, &date, &date, UtimensatFlags::NoFollowSymlink)?;
        Ok(())
    })?;
    Ok(normalized)
}

/// Treats the files of some rules, as far as they are `wanted` by their paths in the root. Returns the paths of those that were
/// changed or removed, and why.
pub(crate) fn treat_all(
    root: &Path,
    rules: &[Rule],
    mut wanted: impl FnMut(&Path) -> bool,
) -> io::Result<Vec<(String, String)>> {
    let mut treated = Vec::new();
    for (pattern, treatment, why) in rules {
        for file in matching(root, pattern)? {
            let path = file.strip_prefix(root).unwrap_or(&file).to_owned();
            if wanted(&path) && treat(&file, *treatment)? {
                treated.push((format!("/{}", path.display()), (*why).to_owned()));
            }
        }
    }
    Ok(treated)
}

/// The regular files at the paths of a pattern, in order.
pub(crate) fn matching(root: &Path, pattern: &str) -> io::Result<Vec<PathBuf>> {
    let (dir, name) = pattern.rsplit_once('/').unwrap_or(("", pattern));
    let Some(dir) = directory(root, dir) else {
        return Ok(Vec::new());
    };
    let is_file = |path: &PathBuf| path.symlink_metadata().is_ok_and(|found| found.is_file());
    let Some((begin, end)) = name.split_once('*') else {
        return Ok(Some(dir.join(name)).filter(is_file).into_iter().collect());
    };
    let mut files = Vec::new();
    for entry in fs_err::read_dir(dir)? {
        let entry = entry?;
        let found = entry.file_name();
        let found = found.to_string_lossy();
        if found.len() >= begin.len() + end.len() && found.starts_with(begin) && found.ends_with(end) {
            files.push(entry.path());
        }
    }
    files.retain(is_file);
    files.sort();
    Ok(files)
}

/// A directory of the root, unless there is a link on the way to it.
fn directory(root: &Path, path: &str) -> Option<PathBuf> {
    let mut at = root.to_owned();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        at.push(part);
        if !at.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            return None;
        }
    }
    Some(at)
}

/// Returns whether there was something to do.
fn treat(file: &Path, treatment: Treatment) -> io::Result<bool> {
    match treatment {
        Treatment::Remove => fs_err::remove_file(file)?,
        Treatment::Empty => {
            // systemd's word for a machine whose first boot is yet to come.
            if ["", "uninitialized"].contains(&fs_err::read_to_string(file).unwrap_or_default().trim()) {
                return Ok(false);
            }
            empty(file)?;
        }
        Treatment::Uncomment => {
            let text = fs_err::read(file)?;
            let kept: Vec<&[u8]> = text
                .split_inclusive(|byte| *byte == b'\n')
                .filter(|line| !line.starts_with(b"#"))
                .collect();
            let kept = kept.concat();
            if kept == text {
                return Ok(false);
            }
            fs_err::write(file, kept)?;
        }
    }
    Ok(true)
}

/// Empties the logs of a root, and removes journals, which are no journals without their headers. Returns how many.
fn empty_logs(root: &Path) -> io::Result<u64> {
    let Some(logs) = directory(root, LOGS) else {
        return Ok(0);
    };
    let mut count = 0;
    walk(&logs, |path, found| {
        if !found.is_file() || found.size() == 0 {
            return Ok(());
        }
        count += 1;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.contains(".journal") {
            fs_err::remove_file(path)
        } else {
            empty(path)
        }
    })?;
    Ok(count)
}

fn empty(file: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).truncate(true).open(file).map(drop)
}

/// Calls `look` for a directory and everything below it. Links are not followed. A directory comes after its entries: to
/// change these changes its time.
pub(crate) fn walk(top: &Path, mut look: impl FnMut(&Path, &std::fs::Metadata) -> io::Result<()>) -> io::Result<()> {
    // Not by recursion: the root is a stranger's, and its directories may be deep.
    let mut open = vec![(top.to_owned(), false)];
    while let Some((path, are_entries_done)) = open.pop() {
        let found = fs_err::symlink_metadata(&path)?;
        if !found.is_dir() || are_entries_done {
            look(&path, &found)?;
            continue;
        }
        open.push((path.clone(), true));
        for entry in fs_err::read_dir(&path)? {
            open.push((entry?.path(), false));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const BEGUN: i64 = 1_700_000_000;
    const BEFORE: i64 = BEGUN - 1000;

    fn set_time(path: &Path, seconds: i64) {
        let time = TimeSpec::new(seconds, 0);
        utimensat(AT_FDCWD, path, &time, &time, UtimensatFlags::NoFollowSymlink).unwrap();
    }

    fn file(root: &Path, path: &str, content: &str) -> PathBuf {
        let path = root.join(path);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(&path, content).unwrap();
        path
    }

    fn time(path: &Path) -> i64 {
        path.symlink_metadata().unwrap().mtime()
    }

    #[test]
    fn files_of_the_job_get_the_date_and_those_of_packages_keep_theirs() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let (ours, theirs) = (file(root, "etc/ours", "x"), file(root, "usr/theirs", "x"));
        symlink("nowhere", root.join("etc/link")).unwrap();
        set_time(&theirs, BEFORE);
        set_time(&root.join("usr"), BEFORE);
        let normalized = normalize(root, BEGUN, 86400).unwrap();
        // The root, etc, and two in it.
        assert_eq!((normalized.dated, normalized.future), (4, 0));
        for path in [root, &root.join("etc"), &ours, &root.join("etc/link")] {
            assert_eq!(time(path), 86400, "{}", path.display());
        }
        assert_eq!((time(&theirs), time(&root.join("usr"))), (BEFORE, BEFORE));
    }

    #[test]
    fn what_two_builds_never_share_is_taken_out() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let (mark, config) = (
            file(root, "etc/.updated", "time"),
            file(root, "etc/ssh/sshd_config", "Port 22"),
        );
        let log = file(root, "var/log/apt/history.log", "Start-Date: today");
        let journal = file(root, "var/log/journal/0123/system.journal", "LPKSHHRH");
        let list = file(root, "var/lib/zypp/AutoInstalled", "# made today\nbash\n#\ntar\n");
        let normalized = normalize(root, BEGUN, 0).unwrap();
        assert_eq!(fs_err::read_to_string(list).unwrap(), "bash\ntar\n");
        assert_eq!(fs_err::read_to_string(log).unwrap(), "");
        assert!(!mark.exists() && !journal.exists() && config.exists());
        let paths: Vec<&str> = normalized.treated.iter().map(|(path, _)| &**path).collect();
        assert_eq!(paths, ["/etc/.updated", "/var/lib/zypp/AutoInstalled", "/var/log"]);
        // Once more changes nothing.
        assert_eq!(normalize(root, BEGUN, 0).unwrap(), Normalized::default());
    }

    #[test]
    fn links_of_the_root_lead_nowhere() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (root, outside) = (dir.path(), outside.path());
        let kept = [file(outside, "log/private", "text"), file(outside, "mark", "time")];
        fs_err::create_dir_all(root.join("var")).unwrap();
        fs_err::create_dir_all(root.join("etc")).unwrap();
        symlink(outside.join("log"), root.join("var/log")).unwrap();
        symlink(outside.join("mark"), root.join("etc/.updated")).unwrap();
        let before = kept.each_ref().map(|path| time(path));
        assert_eq!(normalize(root, BEGUN, 0).unwrap().treated, []);
        for (path, before) in kept.iter().zip(before) {
            assert_ne!(fs_err::read_to_string(path).unwrap(), "");
            assert_eq!(time(path), before);
        }
    }

    #[test]
    fn a_clock_that_is_behind_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let newer = file(dir.path(), "usr/newer", "x");
        set_time(&newer, Timestamp::now().as_second() + 1_000_000);
        assert_eq!(normalize(dir.path(), BEGUN, 0).unwrap().future, 1);
    }
}
