//! Follows which process has started which, to tell whose failure a failed process passed on. Pure: no I/O.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

/// The most failed processes that were started by the watched program itself and are told of.
const MOST_TOLD: usize = 200;

/// How many of the children that ended last a shell's status may be from: those of a pipeline end in any order.
const RECENT: usize = 2;

/// Whose failure a process passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Culprit {
    /// A native twin's.
    Twin,
    /// That of a program under the emulator.
    Emulated,
    /// That of a program of the sandbox.
    Outside,
    /// That of no program: a shell ended itself, by a script's `exit`, or for a command that is not there.
    Script,
}

impl Culprit {
    /// Whether a program that runs in place of the image's may have caused it.
    pub const fn may_be_a_twin(self) -> bool {
        matches!(self, Self::Twin)
    }
}

/// Processes that have failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures {
    /// The watched program, if it did.
    pub own: Option<Culprit>,
    /// Those that it started itself, by their numbers, the latest last.
    pub children: VecDeque<(i32, Culprit)>,
}

impl Failures {
    /// Whose failure the latest child with this number passed on.
    pub fn of_child(&self, pid: i32) -> Option<Culprit> {
        let of_it = self.children.iter().rev().find(|(child, _)| *child == pid)?;
        Some(of_it.1)
    }
}

/// The program of a process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Program {
    /// How it ran.
    pub(super) ran: Culprit,
    /// Whether it is a shell, which ends with the status of a program that it ran, or one of its own.
    pub(super) is_shell: bool,
}

/// A process that has not ended, and what is known of its children that have.
#[derive(Debug, Default)]
struct Living {
    parent: i32,
    /// The status of the latest, and whose failure it was.
    recent: VecDeque<(i32, Option<Culprit>)>,
    /// Whose failure one of them passed on: a twin's, if any did.
    failed: Option<Culprit>,
}

impl Living {
    fn note(&mut self, status: i32, culprit: Option<Culprit>) {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((status, culprit));
        if !self.failed.is_some_and(Culprit::may_be_a_twin) {
            self.failed = culprit.or(self.failed);
        }
    }

    /// Whose failure this process passes on by ending with this status.
    fn culprit(&self, status: i32, program: Program) -> Culprit {
        if program.is_shell {
            let same = self.recent.iter().rev().find(|(of_child, _)| *of_child == status);
            same.and_then(|(_, culprit)| *culprit).unwrap_or(Culprit::Script)
        } else {
            // Other programs have statuses of their own for the failures of their children.
            self.failed.unwrap_or(program.ran)
        }
    }
}

/// The processes that are watched.
#[derive(Debug)]
pub(super) struct Family {
    main: i32,
    living: BTreeMap<i32, Living>,
    /// The processes of threads that are not the first of theirs.
    threads: BTreeMap<i32, i32>,
    failures: Failures,
}

impl Family {
    /// That of the watched program.
    pub(super) fn of(main: i32) -> Self {
        Self {
            main,
            living: BTreeMap::from([(main, Living::default())]),
            threads: BTreeMap::new(),
            failures: Failures::default(),
        }
    }

    /// A thread has created another one in its process.
    pub(super) fn has_thread(&mut self, maker: i32, made: i32) {
        self.threads.insert(made, self.process_of(maker));
    }

    /// A thread has started a process.
    pub(super) fn has_child(&mut self, maker: i32, child: i32) {
        let parent = self.process_of(maker);
        self.living.entry(child).or_default().parent = parent;
    }

    /// A process goes on with another program, which has not heard of the children of the one before.
    pub(super) fn becomes_another(&mut self, process: i32) {
        if let Some(living) = self.living.get_mut(&process) {
            living.recent.clear();
            living.failed = None;
        }
    }

    /// Whether this is a process or a thread of the family.
    pub(super) fn knows(&self, thread: i32) -> bool {
        self.living.contains_key(&thread) || self.threads.contains_key(&thread)
    }

    /// A thread ends. Only the end of a process has consequences; `program` is asked if it has failed.
    pub(super) fn ends(&mut self, thread: i32, status: i32, program: impl FnOnce() -> Program) {
        self.threads.remove(&thread);
        let Some(process) = self.living.remove(&thread) else {
            return;
        };
        let culprit = (status != 0).then(|| process.culprit(status, program()));
        if let Some(parent) = self.living.get_mut(&process.parent) {
            parent.note(status, culprit);
        }
        if thread == self.main {
            self.failures.own = culprit;
        } else if let Some(culprit) = culprit
            && process.parent == self.main
        {
            if self.failures.children.len() == MOST_TOLD {
                self.failures.children.pop_front();
            }
            self.failures.children.push_back((thread, culprit));
        }
    }

    /// A thread is gone, whether or not its end was seen.
    pub(super) fn is_gone(&mut self, thread: i32) {
        self.threads.remove(&thread);
        self.living.remove(&thread);
    }

    /// The processes that have failed.
    pub(super) fn failures(&mut self) -> Failures {
        std::mem::take(&mut self.failures)
    }

    fn process_of(&self, thread: i32) -> i32 {
        self.threads.get(&thread).copied().unwrap_or(thread)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Culprit::{Emulated, Outside, Script, Twin},
        *,
    };

    const TOOL: i32 = 1;
    const SHELL: i32 = 2;

    fn program(ran: Culprit) -> Program {
        Program { ran, is_shell: false }
    }

    fn shell(ran: Culprit) -> Program {
        Program { ran, is_shell: true }
    }

    /// What a script of the tool passes on that ends with `status`, after programs that ended so.
    fn script(programs: &[(i32, Culprit)], status: i32) -> Culprit {
        let mut family = Family::of(TOOL);
        family.has_child(TOOL, SHELL);
        for (at, (status, ran)) in (10..).zip(programs) {
            family.has_child(SHELL, at);
            family.ends(at, *status, || program(*ran));
        }
        family.ends(SHELL, status, || shell(Twin));
        family.ends(TOOL, 1, || program(Outside));
        let failures = family.failures();
        assert_eq!(failures.own, failures.of_child(SHELL));
        failures.of_child(SHELL).unwrap()
    }

    #[test]
    fn a_script_passes_on_the_failure_of_the_program_that_ended_it() {
        for (programs, status, culprit) in [
            // Its own `exit`, a command that is not there, and a test of the shell's own.
            (&[][..], 3, Script),
            (&[(0, Twin), (0, Emulated)], 127, Script),
            // `grep -q … || exit 3`
            (&[(1, Twin)], 3, Script),
            (&[(1, Twin)], 1, Twin),
            (&[(1, Emulated)], 1, Emulated),
            (&[(2, Outside)], 2, Outside),
            // Of a pipeline, any may end last.
            (&[(1, Twin), (0, Twin)], 1, Twin),
            // Long before.
            (&[(1, Twin), (0, Twin), (0, Twin)], 1, Script),
            (&[(1, Twin), (1, Emulated)], 1, Emulated),
        ] {
            assert_eq!(script(programs, status), culprit, "{programs:?} {status}");
        }
    }

    #[test]
    fn another_program_passes_on_any_failure_of_its_children() {
        let mut family = Family::of(TOOL);
        family.has_child(TOOL, 2);
        // By a thread of it.
        family.has_thread(2, 3);
        family.has_child(3, 4);
        family.ends(4, 1, || program(Twin));
        family.has_child(2, 5);
        family.ends(5, 7, || program(Emulated));
        family.ends(3, 0, || panic!("no process"));
        family.ends(2, 100, || program(Emulated));
        family.has_child(TOOL, 6);
        family.ends(6, 1, || program(Emulated));
        family.has_child(TOOL, 7);
        family.ends(7, 0, || panic!("it has not failed"));
        family.ends(TOOL, 0, || panic!("it has not failed"));
        let failures = family.failures();
        assert_eq!(failures.own, None);
        assert_eq!(
            [2, 6, 7, 4].map(|pid| failures.of_child(pid)),
            [Some(Twin), Some(Emulated), None, None]
        );
    }

    #[test]
    fn a_program_that_a_shell_becomes_fails_by_itself() {
        let mut family = Family::of(TOOL);
        family.has_child(TOOL, SHELL);
        family.has_child(SHELL, 3);
        family.ends(3, 1, || program(Emulated));
        family.becomes_another(SHELL);
        family.ends(SHELL, 2, || program(Twin));
        assert_eq!(family.failures().of_child(SHELL), Some(Twin));
    }

    #[test]
    fn a_number_is_that_of_the_latest_process() {
        let mut family = Family::of(TOOL);
        for ran in [Twin, Outside] {
            family.has_child(TOOL, 2);
            family.ends(2, 1, || program(ran));
        }
        for other in (3..).take(MOST_TOLD - 1) {
            family.has_child(TOOL, other);
            family.ends(other, 1, || program(Twin));
        }
        family.has_child(TOOL, 5000);
        family.is_gone(5000);
        assert!(!family.knows(5000) && family.knows(TOOL));
        let failures = family.failures();
        assert_eq!(failures.of_child(2), Some(Outside));
        assert_eq!(failures.children.len(), MOST_TOLD);
    }
}
