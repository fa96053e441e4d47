//! Judges by the lines of a console whether an image came up, and why not. Pure: no I/O.

use std::collections::VecDeque;

use kiln_records::{Code, Failure};
use regex_automata::meta::Regex;
use serde::Serialize;

/// The most units, and modules, that are named.
const MOST_NAMED: usize = 50;

/// What a console has to say for the image to be up.
#[derive(Debug, Clone)]
pub enum Until {
    /// systemd's target for logins, or a prompt for a login.
    MultiUser,
    /// A text that matches.
    Matches(Box<Regex>),
}

/// The judgement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Verdict {
    /// It came up.
    Up {
        /// The line that shows it.
        seen: String,
    },
    /// It did not.
    Down {
        /// The kind of cause.
        cause: Cause,
        /// The cause in words.
        detail: String,
    },
}

/// Why an image did not come up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The kernel gave up.
    KernelPanic,
    /// The initrd, or the kernel, did not find the root file system.
    RootMissing,
    /// A kernel module is missing, and the boot ended in a shell.
    ModuleMissing,
    /// A unit failed, and the boot ended in a shell.
    UnitFailed,
    /// The boot ended in a shell for emergencies.
    EmergencyShell,
    /// The machine ended.
    Ended,
    /// The console said more than is read.
    Flooded,
    /// Nothing of this in the given time.
    Timeout,
}

impl Cause {
    /// Advice.
    pub const fn hint(self) -> &'static str {
        match self {
            Cause::RootMissing => {
                "the initrd must be able to boot a squashfs from a disk (dracut: `dmsquash-live`, virtio_blk, squashfs, \
                 overlay; package dracut-live on Debian); for another way to boot, see `--append`"
            }
            Cause::ModuleMissing => "add the module to the initrd, in the recipe's configuration of dracut",
            Cause::Timeout => "give it more time with `--timeout`, or another sign with `--until`; the console is kept",
            Cause::KernelPanic | Cause::UnitFailed | Cause::EmergencyShell | Cause::Ended | Cause::Flooded => {
                "the console is kept; its last lines tell more"
            }
        }
    }
}

/// A sign on a line that the boot has failed.
struct Sign {
    text: &'static str,
    cause: Cause,
}

/// What ends a boot: each needs a person at the console.
const ENDS: [Sign; 9] = [
    Sign::new("Kernel panic - not syncing", Cause::KernelPanic),
    Sign::new("You are in emergency mode", Cause::EmergencyShell),
    Sign::new("Entering emergency mode", Cause::EmergencyShell),
    Sign::new(
        "Cannot open access to console, the root account is locked",
        Cause::EmergencyShell,
    ),
    Sign::new("Give root password for maintenance", Cause::EmergencyShell),
    Sign::new("Press Enter for maintenance", Cause::EmergencyShell),
    Sign::new("dropping to emergency shell", Cause::EmergencyShell),
    // Debian's initramfs-tools.
    Sign::new("Dropping to a shell", Cause::EmergencyShell),
    Sign::new("(initramfs)", Cause::EmergencyShell),
];

/// What tells that the root file system was not found.
const NO_ROOT: [&str; 7] = [
    "VFS: Cannot open root device",
    "VFS: Unable to mount root fs",
    "Could not boot.",
    "No root device",
    "Can't mount root filesystem",
    "Don't know how to handle 'root=",
    "ALERT!",
];

/// What precedes the name of a module that is not there, and what ends that name.
const NO_MODULE: [(&str, &str); 3] = [
    ("modprobe: FATAL: Module ", " not found"),
    ("modprobe: module ", " not found"),
    ("Failed to find module '", "'"),
];

/// What precedes the name of a unit that did not start.
const FAILED_UNIT: [&str; 3] = [
    "[FAILED] Failed to start ",
    "[FAILED] Failed to mount ",
    "[FAILED] Failed to ",
];

impl Sign {
    const fn new(text: &'static str, cause: Cause) -> Self {
        Self { text, cause }
    }
}

impl Until {
    /// `multi-user`, or a regular expression.
    ///
    /// # Errors
    ///
    /// `usage` when it is not one.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        if text == "multi-user" {
            return Ok(Self::MultiUser);
        }
        let regex = Regex::new(text).map_err(|error| {
            let why = error
                .syntax_error()
                .map_or_else(|| error.to_string(), ToString::to_string);
            Failure::new(Code::Usage, format!("`--until {text}` is no regular expression: {why}"))
                .hint("`multi-user`, or a regular expression for a line of the console")
        })?;
        Ok(Self::Matches(Box::new(regex)))
    }

    fn is_seen_in(&self, line: &str) -> bool {
        match self {
            Self::MultiUser => {
                let target = line.contains("Reached target")
                    && (line.contains("multi-user.target") || line.contains("Multi-User"));
                target || is_login_prompt(line)
            }
            Self::Matches(regex) => regex.is_match(line),
        }
    }
}

/// `node1 login:`, as getty writes it.
fn is_login_prompt(line: &str) -> bool {
    let before = line.trim_end().strip_suffix(" login:");
    before.is_some_and(|host| !host.is_empty() && !host.trim().contains(' '))
}

/// The reader of a console.
#[derive(Debug)]
pub struct Judge {
    until: Until,
    most_last: usize,
    last: VecDeque<String>,
    no_root: Option<String>,
    /// Units that systemd could not start.
    pub failed_units: Vec<String>,
    /// Modules that programs asked for in vain.
    pub missing_modules: Vec<String>,
}

impl Judge {
    /// A reader that keeps so many of the last lines.
    pub fn new(until: Until, most_last: usize) -> Self {
        Self {
            until,
            most_last,
            last: VecDeque::new(),
            no_root: None,
            failed_units: Vec::new(),
            missing_modules: Vec::new(),
        }
    }

    /// Reads a line. Returns the verdict, if there is one now.
    pub fn line(&mut self, line: &str) -> Option<Verdict> {
        if line.trim().is_empty() {
            return None;
        }
        if self.last.len() == self.most_last {
            self.last.pop_front();
        }
        self.last.push_back(line.to_owned());
        if NO_ROOT.iter().any(|text| line.contains(text)) {
            self.no_root.get_or_insert_with(|| line.trim().to_owned());
        }
        for (before, after) in NO_MODULE {
            let name = line.split_once(before).and_then(|(_, rest)| rest.split_once(after));
            note(&mut self.missing_modules, name.map(|(name, _)| name));
        }
        let unit = FAILED_UNIT.iter().find_map(|before| Some(line.split_once(before)?.1));
        note(&mut self.failed_units, unit);
        self.judge(line)
    }

    /// Reads the part of a line that is there so far. Only a prompt for a login counts: the rest of any other line can
    /// change what it says, and messages of the kernel can follow a prompt at once, on its line.
    pub fn piece(&self, line: &str) -> Option<Verdict> {
        let is_up = matches!(self.until, Until::MultiUser) && is_login_prompt(line);
        is_up.then(|| Verdict::Up {
            seen: line.trim().to_owned(),
        })
    }

    /// Reads a line without an end to which nothing was added for a while, such as a prompt.
    pub fn unfinished(&mut self, line: &str) -> Option<Verdict> {
        self.judge(line)
    }

    fn judge(&self, line: &str) -> Option<Verdict> {
        if self.until.is_seen_in(line) {
            let seen = line.trim().to_owned();
            return Some(Verdict::Up { seen });
        }
        let sign = ENDS.iter().find(|sign| line.contains(sign.text))?;
        Some(self.down(sign.cause, line.trim()))
    }

    /// The verdict on a boot that ended with this line. What an emergency has led to is found in lines before it.
    fn down(&self, cause: Cause, line: &str) -> Verdict {
        let (cause, detail) = match (cause, &self.no_root, &self.failed_units[..], &self.missing_modules[..]) {
            (Cause::KernelPanic | Cause::EmergencyShell, Some(no_root), ..) => (
                Cause::RootMissing,
                format!("the root file system is not found: {no_root}"),
            ),
            (Cause::KernelPanic, ..) => (cause, format!("the kernel panicked: {}", from_sign(line))),
            (Cause::EmergencyShell, _, [first, ..], _) => (
                Cause::UnitFailed,
                format!("the unit {first} failed, and the boot ended in a shell"),
            ),
            (Cause::EmergencyShell, _, _, [first, ..]) => (
                Cause::ModuleMissing,
                format!("the kernel module {first} is missing, and the boot ended in a shell"),
            ),
            (Cause::EmergencyShell, ..) => (cause, format!("the boot ended in a shell for emergencies: {line}")),
            _ => (cause, line.to_owned()),
        };
        Verdict::Down { cause, detail }
    }

    /// The verdict on a machine that ended by itself.
    pub fn exited(&self, words: Option<&str>) -> Verdict {
        let detail = match (self.last.back(), words) {
            (_, Some(words)) => format!("the machine ended: {words}"),
            (Some(last), None) => format!("the machine ended by itself; the last line is `{last}`"),
            (None, None) => "the machine ended without a word".to_owned(),
        };
        self.down(Cause::Ended, &detail)
    }

    /// The verdict when the time is over.
    pub fn timed_out(&self, unfinished: &str) -> Verdict {
        let last = Some(unfinished.trim()).filter(|line| !line.is_empty());
        let last = last.or(self.last.back().map(String::as_str));
        let detail = match last {
            Some(last) => format!("the last line is `{last}`"),
            None => "the console is empty: the kernel may not be for this machine, or not write to it".to_owned(),
        };
        self.down(Cause::Timeout, &detail)
    }

    /// The verdict on a console with too much text.
    pub fn flooded(&self, most: usize) -> Verdict {
        let detail = format!(
            "the console has more than {} MiB, and still no sign of success",
            most >> 20
        );
        self.down(Cause::Flooded, &detail)
    }

    /// The end of the console.
    pub fn last_lines(&self, unfinished: &str) -> Vec<String> {
        let unfinished = Some(unfinished.to_owned()).filter(|line| !line.trim().is_empty());
        self.last.iter().cloned().chain(unfinished).collect()
    }
}

/// The line without the kernel's time before the sign.
fn from_sign(line: &str) -> &str {
    line.find("Kernel panic").map_or(line, |at| &line[at..])
}

fn note(names: &mut Vec<String>, name: Option<&str>) {
    if let Some(name) = name.map(|name| name.trim().trim_end_matches('.'))
        && names.len() < MOST_NAMED
        && !names.iter().any(|known| known == name)
    {
        names.push(name.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(lines: &str) -> (Option<Verdict>, Judge) {
        let mut judge = Judge::new(Until::MultiUser, 20);
        let verdict = lines.lines().find_map(|line| judge.line(line));
        (verdict, judge)
    }

    fn down(lines: &str) -> (Cause, String) {
        match judged(lines).0 {
            Some(Verdict::Down { cause, detail }) => (cause, detail),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn targets_and_prompts_are_signs_of_success() {
        for line in [
            "[  OK  ] Reached target multi-user.target - Multi-User System.",
            "[   12.345678] systemd[1]: Reached target Multi-User System.",
            "node1 login:",
            "localhost login: ",
        ] {
            assert!(Until::MultiUser.is_seen_in(line), "{line}");
        }
        for line in [
            "[  OK  ] Reached target sysinit.target - System Initialization.",
            "Starting getty for login:",
            " login:",
            "Last login: today",
            "",
        ] {
            assert!(!Until::MultiUser.is_seen_in(line), "{line}");
        }
    }

    #[test]
    fn causes_are_named() {
        insta::assert_debug_snapshot!([
            down("[ 1.0] VFS: Cannot open root device \"\"\n[ 1.1] Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)"),
            down("[    4.2] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100"),
            down("dracut Warning: Could not boot.\nEntering emergency mode. Exit the shell to continue."),
            down("modprobe: FATAL: Module overlay not found in directory /lib/modules/6.1\nEntering emergency mode."),
            down("[FAILED] Failed to mount sysroot.mount - /sysroot.\n[DEPEND] Dependency failed for x\nYou are in emergency mode."),
            down("ALERT!  live:/dev/vda does not exist.  Dropping to a shell!"),
            down("Give root password for maintenance"),
        ], @r#"
        [
            (
                RootMissing,
                "the root file system is not found: [ 1.0] VFS: Cannot open root device \"\"",
            ),
            (
                KernelPanic,
                "the kernel panicked: Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100",
            ),
            (
                RootMissing,
                "the root file system is not found: dracut Warning: Could not boot.",
            ),
            (
                ModuleMissing,
                "the kernel module overlay is missing, and the boot ended in a shell",
            ),
            (
                UnitFailed,
                "the unit sysroot.mount - /sysroot failed, and the boot ended in a shell",
            ),
            (
                RootMissing,
                "the root file system is not found: ALERT!  live:/dev/vda does not exist.  Dropping to a shell!",
            ),
            (
                EmergencyShell,
                "the boot ended in a shell for emergencies: Give root password for maintenance",
            ),
        ]
        "#);
    }

    #[test]
    fn a_failed_unit_does_not_end_a_boot() {
        let (verdict, judge) =
            judged("[FAILED] Failed to start a.service - A.\n[FAILED] Failed to start a.service - A.\nn login:");
        assert_eq!(
            verdict,
            Some(Verdict::Up {
                seen: "n login:".to_owned()
            })
        );
        assert_eq!(judge.failed_units, ["a.service - A"]);
    }

    #[test]
    fn a_part_of_a_line_is_no_line() {
        let until = Until::parse("ready$").unwrap();
        assert_eq!(Judge::new(until, 20).piece("not ready"), None);
        let mut judge = Judge::new(Until::MultiUser, 20);
        assert_eq!(judge.piece("Kernel panic - not syncing"), None);
        assert!(judge.unfinished("Kernel panic - not syncing").is_some());
        assert!(judge.piece("n login: ").is_some());
    }

    #[test]
    fn expressions_are_checked() {
        assert_eq!(Until::parse("(").unwrap_err().code, Code::Usage);
        assert!(Until::parse("read[yY]$").unwrap().is_seen_in("all ready"));
    }
}
