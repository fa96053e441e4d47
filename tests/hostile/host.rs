//! Compares the parts of the host and the toolbox that recipes must not change.

use std::{collections::HashSet, path::Path};

use crate::support::{Kiln, tool};

/// A look at the host.
#[derive(Debug, PartialEq)]
pub struct Host {
    /// Path, kind, mode, owner, size and time of every file of the toolbox.
    toolbox: String,
    /// The files beside the toolbox and beside the data directory.
    around: Vec<String>,
    mounts: Vec<String>,
    name: String,
}

impl Host {
    pub fn look(kiln: &Kiln) -> Self {
        let toolboxes = kiln.data().join("toolboxes");
        let toolboxes = fs_err::canonicalize(toolboxes).unwrap();
        let listing = tool(
            "find",
            &[
                toolboxes.to_str().unwrap(),
                "-path",
                "*/tree/*",
                "-printf",
                "%P %y %m %U %s %T@\n",
            ],
        );
        let mut lines: Vec<_> = listing.lines().collect();
        lines.sort_unstable();
        assert!(lines.len() > 1000, "the toolbox has {} files", lines.len());
        let mut around = names(&toolboxes);
        around.extend(names(kiln.data().parent().unwrap()));
        // Other programs may mount and unmount meanwhile. Kiln's own mounts name the data directory or have Kiln's
        // names.
        let data = kiln.data().display().to_string();
        let mounts = fs_err::read_to_string("/proc/self/mounts").unwrap();
        let ours = |line: &&str| line.contains(&data) || line.starts_with("kiln ");
        Self {
            toolbox: lines.join("\n"),
            around,
            mounts: mounts.lines().filter(ours).map(str::to_owned).collect(),
            name: fs_err::read_to_string("/proc/sys/kernel/hostname").unwrap(),
        }
    }

    #[track_caller]
    pub fn assert_same(&self, after: &Self) {
        let known: HashSet<_> = self.toolbox.lines().collect();
        let changed: Vec<_> = after.toolbox.lines().filter(|line| !known.contains(line)).collect();
        assert!(changed.is_empty(), "the toolbox was changed: {changed:#?}");
        assert!(self.toolbox == after.toolbox, "something is gone from the toolbox");
        assert_eq!(
            (&self.around, &self.mounts, &self.name),
            (&after.around, &after.mounts, &after.name)
        );
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs_err::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path().display().to_string())
        .collect();
    names.sort_unstable();
    names
}

/// Control groups, processes and loop devices of these jobs.
pub fn left_of(jobs: &[String]) -> Vec<String> {
    let names_job = |text: &str| jobs.iter().any(|job| text.contains(job.as_str()));
    let mut left = Vec::new();
    for group in tool("find", &["/sys/fs/cgroup", "-type", "d", "-name", "*-*"]).lines() {
        if names_job(group) {
            left.push(format!("control group {group}"));
        }
    }
    for entry in fs_err::read_dir("/proc").unwrap().flatten() {
        let read = |file: &str| fs_err::read(entry.path().join(file)).unwrap_or_default();
        let text = [read("cmdline"), read("cgroup"), read("mounts")].concat();
        if names_job(&String::from_utf8_lossy(&text)) {
            left.push(format!("process {}", entry.path().display()));
        }
    }
    for entry in fs_err::read_dir("/sys/block").unwrap().flatten() {
        let file = fs_err::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        if names_job(&file) {
            left.push(format!("loop device of {file}"));
        }
    }
    left
}
