//! Adds up, by program, what ran under the emulator. Pure: no I/O.

use std::collections::BTreeMap;

use kiln_records::{EmulatedProgram, Execs, GivenUp};
use serde::{Deserialize, Serialize};

/// The most programs listed separately. A build runs a few hundred; a recipe that invents names gets no more memory
/// for it.
const MOST_PROGRAMS: usize = 4096;

/// The programs that ran under the emulator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Programs {
    by_path: BTreeMap<String, Cost>,
    /// Processes of all programs together, including those not listed separately.
    processes: u64,
    /// The path of the first program that died, if it was a native twin.
    dead_twin: Option<String>,
    /// Commands, as hashes, whose twins were seen at their end not to have been equal.
    given_up: Vec<u64>,
    /// Whether some ran that nothing watched.
    unwatched: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Cost {
    processes: u64,
    /// Nanoseconds: most runs take a few milliseconds, and process clocks count in hundredths of a second.
    cpu_ns: u64,
}

impl Programs {
    /// Records the end of a program's thread; a process is counted with its first one.
    pub fn note(&mut self, program: &str, is_first_thread: bool, cpu_ns: u64) {
        let processes = u64::from(is_first_thread);
        self.add(program, Cost { processes, cpu_ns });
        self.processes += processes;
    }

    /// Adds the programs of another tool.
    pub fn merge(&mut self, other: Self) {
        for (program, cost) in other.by_path {
            self.add(&program, cost);
        }
        self.processes += other.processes;
        self.dead_twin = self.dead_twin.take().or(other.dead_twin);
        self.given_up.extend(other.given_up);
        self.unwatched |= other.unwatched;
    }

    /// Records that the twin of this command, a hash, was not equal.
    pub fn note_given_up(&mut self, command: u64) {
        if self.given_up.len() < GivenUp::MOST {
            self.given_up.push(command);
        }
    }

    /// The commands whose twins were seen at their end not to have been equal.
    pub fn given_up(&self) -> &[u64] {
        &self.given_up
    }

    /// Records that the kernel allowed nobody to watch programs.
    pub fn note_unwatched(&mut self) {
        self.unwatched = true;
    }

    /// Whether programs ran that nothing watched.
    pub fn are_unwatched(&self) -> bool {
        self.unwatched
    }

    /// Records that the program at `path` died as a native twin, before any other one died.
    pub fn note_dead_twin(&mut self, path: &str) {
        self.dead_twin = Some(path.to_owned());
    }

    /// The path of the first program that died, if it was a native twin.
    pub fn dead_twin(&self) -> Option<&str> {
        self.dead_twin.as_deref()
    }

    fn add(&mut self, program: &str, cost: Cost) {
        if !self.by_path.contains_key(program) {
            if self.by_path.len() == MOST_PROGRAMS {
                return;
            }
            self.by_path.insert(program.to_owned(), Cost::default());
        }
        if let Some(known) = self.by_path.get_mut(program) {
            known.processes += cost.processes;
            known.cpu_ns = known.cpu_ns.saturating_add(cost.cpu_ns);
        }
    }

    /// The figures for the job's record. `counted` are the execs of twins and of emulated programs, where those were
    /// counted; elsewhere only emulated processes are known, each of which counts as one exec.
    pub fn execs(self, counted: Option<(u64, u64)>) -> Execs {
        let (twins, emulated) = counted.unwrap_or((0, self.processes));
        let mut programs: Vec<_> = self.by_path.into_iter().collect();
        programs.sort_by(|(one, a), (other, b)| b.cpu_ns.cmp(&a.cpu_ns).then_with(|| one.cmp(other)));
        programs.truncate(Execs::MOST_EXPENSIVE);
        let told = |(program, cost): (String, Cost)| EmulatedProgram {
            program,
            runs: cost.processes,
            cpu_ms: cost.cpu_ns / 1_000_000,
        };
        Execs {
            twins,
            emulated,
            most_expensive: programs.into_iter().map(told).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_expensive_come_first_and_ten_at_most() {
        let mut kiwi = Programs::default();
        for number in 1..=30_u64 {
            kiwi.note(&format!("/bin/{number:02}"), true, number * 1_000_000);
        }
        // The second thread of a process is not another process.
        kiwi.note("/bin/02", false, 50_000_000);
        let mut script = Programs::default();
        script.note("/bin/02", true, 999_999);
        kiwi.merge(script);
        let execs = kiwi.clone().execs(None);
        assert_eq!((execs.twins, execs.emulated, execs.most_expensive.len()), (0, 31, 10));
        let [first, second, ..] = &execs.most_expensive[..] else {
            panic!("{execs:?}");
        };
        assert_eq!((first.program.as_str(), first.runs, first.cpu_ms), ("/bin/02", 2, 52));
        assert_eq!(
            (second.program.as_str(), second.runs, second.cpu_ms),
            ("/bin/30", 1, 30)
        );
        let counted = kiwi.execs(Some((7, 8)));
        assert_eq!((counted.twins, counted.emulated), (7, 8));
    }

    #[test]
    fn made_up_names_take_no_more_memory() {
        let mut programs = Programs::default();
        for number in 0..2 * MOST_PROGRAMS {
            programs.note(&number.to_string(), true, 1);
        }
        assert_eq!(programs.by_path.len(), MOST_PROGRAMS);
        assert_eq!(programs.execs(None).emulated, 2 * MOST_PROGRAMS as u64);
    }
}
