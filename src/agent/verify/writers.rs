//! Finds the programs that wrote a file, in the record that twins keep. Pure: no I/O.

use std::collections::{BTreeMap, HashMap};

/// The programs that changed each path last. A shell opens the file of a redirection and then starts the program that
/// writes it in the same process: both are named.
#[derive(Debug, Default)]
pub struct Writers(BTreeMap<String, String>);

impl Writers {
    /// Reads the record, see [`WRITERS`](crate::twins::layout::WRITERS). Lines that are cut off are passed over.
    pub fn read(record: &str) -> Self {
        let mut writers = BTreeMap::new();
        // The files that a process has opened since its program began.
        let mut opened: HashMap<&str, Vec<&str>> = HashMap::new();
        for line in record.lines() {
            let mut words = line.splitn(4, '\t');
            match (words.next(), words.next(), words.next(), words.next()) {
                (Some("change"), Some(process), Some(program), Some(path)) => {
                    writers.insert(path.to_owned(), program.to_owned());
                    opened.entry(process).or_default().push(path);
                }
                (Some("start"), Some(process), Some(program), None) => {
                    for path in opened.remove(process).into_iter().flatten() {
                        if let Some(before) = writers.get_mut(path) {
                            *before = format!("{before}, then {program}");
                        }
                    }
                }
                _ => {}
            }
        }
        Self(writers)
    }

    /// The programs that wrote the file at this path, if they are known.
    pub fn of(&self, path: &str) -> Option<&str> {
        self.0.get(path).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirection_names_the_shell_and_the_program() {
        let writers = Writers::read(
            "start\t7\t/bin/sh\nchange\t8\t/bin/sh\t/etc/sorted\nchange\t7\t/bin/sh\t/etc/said\nstart\t8\t/bin/sort\n\
             start\t9\t/bin/cp\nchange\t9\t/bin/cp\t/etc/a\tb\nchange\t9\t/bin/mv\nrubbish\nchange\t8\t/bin/sort\t/tmp/x\n",
        );
        for (path, program) in [
            ("/etc/sorted", Some("/bin/sh, then /bin/sort")),
            ("/etc/said", Some("/bin/sh")),
            ("/etc/a\tb", Some("/bin/cp")),
            ("/tmp/x", Some("/bin/sort")),
            ("/etc", None),
        ] {
            assert_eq!(writers.of(path), program, "{path}");
        }
    }

    #[test]
    fn the_last_one_counts() {
        let writers = Writers::read("change\t1\t/bin/a\t/x\nchange\t2\t/bin/b\t/x\n");
        assert_eq!(writers.of("/x"), Some("/bin/b"));
    }
}
