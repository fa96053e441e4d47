//! Keeps what rpm said of scripts of packages that have failed, if that was no reason for it to end. Pure: no I/O.

use std::sync::{Mutex, MutexGuard, PoisonError};

use kiln_records::protocol::{LONGEST_FAILED_SCRIPT, MOST_FAILED_SCRIPTS};

/// The scripts of a root's packages that have failed, as rpm told them. Those beyond a bound are in the log only.
#[derive(Debug, Default)]
pub(crate) struct FailedScripts(Mutex<Vec<String>>);

impl FailedScripts {
    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        // A panic while the lock is held leaves nothing half-done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets those of an earlier root.
    pub(crate) fn forget(&self) {
        self.lock().clear();
    }

    /// Looks at a line of the package manager's.
    pub(crate) fn look(&self, line: &str) {
        if let Some(said) = failed_script(line) {
            self.add(said);
        }
    }

    /// Adds what was said of a script of a root that is used as it was then.
    pub(crate) fn add(&self, said: &str) {
        let said = &said[..said.floor_char_boundary(LONGEST_FAILED_SCRIPT)];
        let mut scripts = self.lock();
        if scripts.len() < MOST_FAILED_SCRIPTS && scripts.iter().all(|known| known != said) {
            scripts.push(said.to_owned());
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<String> {
        self.lock().clone()
    }
}

/// What rpm says in this line of a package's script that has failed, if that is no reason for it to end: scripts after the
/// installation, and triggers. The texts are those in librpm 4.20.
fn failed_script(line: &str) -> Option<&str> {
    let shell = || {
        let said = &line[line.find("warning: %")? + "warning: ".len()..];
        said.contains(") scriptlet failed").then_some(said)
    };
    let lua = || line.find("lua script failed: ").map(|at| &line[at..]);
    shell().or_else(lua).map(str::trim_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_that_fail_without_ending_anything_are_seen() {
        for (line, expected) in [
            (
                "[ DEBUG   ]: 07:40:20 | system: warning: %post(badpost-1-1.noarch) scriptlet failed, exit status 3",
                Some("%post(badpost-1-1.noarch) scriptlet failed, exit status 3"),
            ),
            (
                "warning: %transfiletriggerin(a-1-1.x86_64) scriptlet failed, signal 11\n",
                Some("%transfiletriggerin(a-1-1.x86_64) scriptlet failed, signal 11"),
            ),
            (
                "error: lua script failed: [string \"%post(badlua-1)\"]:1: no",
                Some("lua script failed: [string \"%post(badlua-1)\"]:1: no"),
            ),
            ("error: %prein(badpre-1-1.noarch) scriptlet failed, exit status 4", None),
            ("warning: %post of the day", None),
            ("a scriptlet failed", None),
        ] {
            assert_eq!(failed_script(line), expected, "{line}");
        }
    }

    #[test]
    fn their_number_and_length_have_bounds() {
        let scripts = FailedScripts::default();
        for number in 0..=MOST_FAILED_SCRIPTS {
            scripts.look(&format!(
                "warning: %post({number}) scriptlet failed, {}",
                "ä".repeat(LONGEST_FAILED_SCRIPT)
            ));
            scripts.add("again");
        }
        let all = scripts.all();
        assert_eq!(all.len(), MOST_FAILED_SCRIPTS);
        assert!(all.iter().all(|said| said.len() <= LONGEST_FAILED_SCRIPT));
        scripts.forget();
        assert!(scripts.all().is_empty());
    }
}
