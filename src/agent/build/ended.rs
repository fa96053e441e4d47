//! Says why kiwi failed, from its output and from what it noted at its end, and whether a native twin can be the cause.
//! Reads one file.

use std::{io, path::Path};

use kiln_records::{Code, Failure};
use serde::Deserialize;

use crate::{
    cause,
    process::Finished,
    watch::{Culprit, Failures},
};

/// The file with what kiwi noted. The program that runs kiwi writes it.
const ENDED: &str = "/run/kiln-kiwi-ended.json";

/// What kiwi notes when it fails.
#[derive(Debug, Deserialize)]
struct Ended {
    /// The kind of the failure: the name of kiwi's exception.
    error: String,
    /// Its text, which may have several lines.
    message: String,
    /// The program because of which kiwi failed, if one failed.
    program: Option<Program>,
}

/// A program that kiwi ran, and that failed.
#[derive(Debug, Deserialize)]
struct Program {
    words: Vec<String>,
    pid: i32,
    status: i32,
    /// What it said last; may be empty.
    said: String,
}

/// Programs that kiwi runs in the new root for what the description says of users, groups, the time zone, the locale and the
/// keymap, with the statuses by which they refuse that. None of them is a fault of theirs.
const OF_THE_DESCRIPTION: [(&str, &[i32]); 5] = [
    // useradd(8), usermod(8), groupadd(8): bad syntax or argument, an id or a name that is taken, a group that does not exist.
    ("useradd", &[2, 3, 4, 6, 9]),
    ("usermod", &[2, 3, 4, 6, 9]),
    ("groupadd", &[2, 3, 4, 9]),
    ("chown", &[1]),
    ("systemd-firstboot", &[1]),
];

/// The statuses of chroot(1) for a program that is not in the root, or cannot be run.
const NOT_THERE: [i32; 2] = [126, 127];

impl Program {
    /// The words without those that enter the new root, if it ran there.
    fn in_root(&self) -> Option<&[String]> {
        let (first, rest) = self.words.split_first()?;
        if base_name(first) != "chroot" {
            return None;
        }
        let mut words = rest.iter();
        let options = words.position(|word| !word.starts_with('-'))?;
        rest.get(options + 1..).filter(|words| !words.is_empty())
    }

    fn name(&self) -> &str {
        let words = self.in_root().unwrap_or(&self.words);
        words.first().map_or("", |word| base_name(word))
    }

    /// The name of the script, for a program that is one of the recipe's.
    fn script(&self) -> &str {
        let place = self.words.iter().find(|word| word.contains("/image/"));
        place.or(self.words.last()).map_or("", |word| base_name(word))
    }

    /// Whether it said that the description is wrong.
    fn refused_the_description(&self) -> bool {
        let is_row = |(program, statuses): &(&str, &[i32])| *program == self.name() && statuses.contains(&self.status);
        self.in_root().is_some() && (NOT_THERE.contains(&self.status) || OF_THE_DESCRIPTION.iter().any(is_row))
    }
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Forgets how an earlier kiwi ended.
pub(super) fn forget() -> io::Result<()> {
    match fs_err::remove_file(ENDED) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Why kiwi failed.
pub(super) fn cause(finished: &Finished) -> Failure {
    let noted = fs_err::read(Path::new(ENDED)).ok();
    let ended = noted.and_then(|noted| serde_json::from_slice(&noted).ok());
    why(&finished.tail, ended.as_ref(), &finished.failures)
}

fn why(said: &[String], ended: Option<&Ended>, failures: &Failures) -> Failure {
    let Some(ended) = ended else {
        return cause::known_cause(said).unwrap_or_else(|| of_output(said));
    };
    let culprit = ended.program.as_ref().map(|program| failures.of_child(program.pid));
    let failure = match &ended.program {
        Some(program) if ended.error == "KiwiScriptFailed" => script_failed(program, said),
        Some(program) => {
            let own = since_start_of(program.name(), said);
            cause::cause_of_program(said, own).unwrap_or_else(|| program_failed(program))
        }
        None => {
            let own = lines_of(&format!("{}: {}", ended.error, ended.message));
            let known = cause::cause_of_program(said, &own);
            // A row without a code of its own has its hint, and kiwi the words around that line.
            let mut failure = refused(ended);
            match known {
                Some(known) if known.code != failure.code => known,
                known => {
                    failure.hint = known.and_then(|known| known.hint).or(failure.hint);
                    failure
                }
            }
        }
    };
    let cleared = match (&ended.program, culprit.flatten()) {
        // kiwi itself is no program of the image.
        (None, _) => true,
        (Some(program), _) if program.refused_the_description() => true,
        (Some(_), None) => false,
        (Some(_), Some(culprit)) => is_cleared(culprit, failure.code),
    };
    failure.beyond_twins(cleared)
}

/// Whether twins did not cause a failure with this code, for which this is to blame.
pub(crate) fn is_cleared(culprit: Culprit, code: Code) -> bool {
    // A package's script, or dracut, ends itself when one of its programs has failed. Its author knows what it needs.
    let is_of_a_package = matches!(code, Code::ScriptletFailed | Code::InitrdFailed);
    !(culprit.may_be_a_twin() || is_of_a_package && culprit == Culprit::Script)
}

/// A script of the recipe has failed. The cause is what it said last.
fn script_failed(program: &Program, said: &[String]) -> Failure {
    let name = program.script();
    if let Some(known) = cause::cause_of_script(since_start_of(name, said)) {
        return known;
    }
    let detail = told(name, program.status, &program.said);
    Failure::new(Code::ScriptFailed, detail).hint("the script's own output precedes this line in the log")
}

/// How a program ended, with what it said last.
pub(crate) fn told(name: &str, status: i32, said: &str) -> String {
    let how = match (status, said) {
        (..0, _) => format!("{name} was killed by signal {}", -status),
        (_, "") => format!("{name} failed with status {status}, and said nothing"),
        _ => format!("{name} failed with status {status}"),
    };
    if said.is_empty() { how } else { format!("{how}: {said}") }
}

/// A program that kiwi ran has failed.
fn program_failed(program: &Program) -> Failure {
    let detail = format!("kiwi: {}", told(program.name(), program.status, &program.said));
    Failure::new(Code::BuildFailed, detail).hint("the log has the whole output of kiwi")
}

/// kiwi itself does not go on.
fn refused(ended: &Ended) -> Failure {
    let text = cause::first_sentence(&ended.message);
    let detail = format!("kiwi: {}: {text}", ended.error);
    Failure::new(Code::BuildFailed, detail.trim_end_matches([':', ' '])).hint("the log has the whole output of kiwi")
}

/// Whether kiwi says in this line that it runs a command.
fn is_command(line: &str) -> bool {
    cause::text_of(line).starts_with("EXEC: [")
}

fn lines_of(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// What was said since kiwi started a program with this name last, or all.
fn since_start_of<'a>(name: &str, said: &'a [String]) -> &'a [String] {
    let begun = said.iter().rposition(|line| is_command(line) && line.contains(name));
    &said[begun.map_or(0, |at| at + 1)..]
}

/// Why kiwi failed, if it noted nothing: its last error, or its last words.
fn of_output(said: &[String]) -> Failure {
    let error = said.iter().rposition(|line| line.starts_with("[ ERROR"));
    let error = error.map(|at| match (cause::text_of(&said[at]), said.get(at + 1)) {
        // Only the error's name is in its line.
        (name, Some(text)) if name.ends_with(':') && !name.contains(' ') => format!("{name} {text}"),
        (text, _) => text.to_owned(),
    });
    let Some(error) = error.or_else(|| cause::last_words(said).map(str::to_owned)) else {
        return Failure::new(Code::BuildFailed, "kiwi failed without a message");
    };
    Failure::new(Code::BuildFailed, format!("kiwi: {error}")).hint("the log has the whole output of kiwi")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(error: &str, message: &str) -> Ended {
        Ended {
            error: error.to_owned(),
            message: message.to_owned(),
            program: None,
        }
    }

    /// kiwi's failure because of a program with the number 7.
    fn by_program(error: &str, words: &str, status: i32, said: &str) -> Ended {
        Ended {
            program: Some(Program {
                words: words.split(' ').map(str::to_owned).collect(),
                pid: 7,
                status,
                said: said.to_owned(),
            }),
            ..ended(error, "")
        }
    }

    fn of(culprit: Option<Culprit>) -> Failures {
        Failures {
            own: None,
            children: culprit.map(|culprit| (7, culprit)).into_iter().collect(),
        }
    }

    #[test]
    fn without_a_note_the_cause_is_kiwis_last_error() {
        for (said, detail) in [
            (
                "[ ERROR   ]: 07:40:20 | KiwiRuntimeError: something new\nthe end\n",
                "kiwi: KiwiRuntimeError: something new",
            ),
            (
                "[ ERROR   ]: 07:40:20 | KiwiPackagesDeletePhaseFailed: \nSystem package deletion failed: why\nFurther details\n",
                "kiwi: KiwiPackagesDeletePhaseFailed: System package deletion failed: why",
            ),
            ("Traceback:\nTypeError: oops\n\n", "kiwi: TypeError: oops"),
            ("", "kiwi failed without a message"),
        ] {
            let failure = why(&lines_of(said), None, &of(None));
            assert_eq!((failure.code, &*failure.detail), (Code::BuildFailed, detail));
            assert!(failure.may_be_of_twins());
        }
    }

    #[test]
    fn a_script_is_told_by_its_last_words() {
        let chroot = "chroot /scratch/root bash /image/config.sh";
        for (status, said, detail) in [
            (
                1,
                "install: cannot change owner",
                "config.sh failed with status 1: install: cannot change owner",
            ),
            (3, "", "config.sh failed with status 3, and said nothing"),
            (-9, "", "config.sh was killed by signal 9"),
        ] {
            let output = lines_of(
                "[ DEBUG   ]: 10:00:00 | EXEC: [chroot /scratch/root useradd x]\n\
                 [ DEBUG   ]: 10:00:00 | system: E: Unable to locate package of-another-command\n\
                 [ DEBUG   ]: 10:00:00 | EXEC: [chroot /scratch/root bash /image/config.sh]\n\
                 [ DEBUG   ]: 10:00:01 | useradd warning: svc's uid 1234567 outside of the UID_MIN 1000\n\
                 [ ERROR   ]: 10:00:02 | KiwiScriptFailed: config.sh failed with: useradd warning",
            );
            let failed = by_program("KiwiScriptFailed", chroot, status, said);
            let failure = why(&output, Some(&failed), &of(None));
            assert_eq!((failure.code, &*failure.detail), (Code::ScriptFailed, detail));
        }
    }

    #[test]
    fn what_an_earlier_program_said_is_not_the_cause() {
        let output = lines_of(
            "[ DEBUG   ]: 10:00:00 | EXEC: [chroot /scratch/root zypper install kernel]\n\
             [ DEBUG   ]: 10:00:01 | system: dracut-install: ERROR: installing 'nologin'\n\
             [ DEBUG   ]: 10:00:02 | EXEC: [chroot /scratch/root systemd-firstboot --locale=x]\n\
             [ DEBUG   ]: 10:00:02 | EXEC: [umount -l /scratch/root]",
        );
        let locale = "Locale x is not installed.";
        let failed = by_program(
            "KiwiCommandError",
            "chroot /scratch/root systemd-firstboot --locale=x",
            1,
            locale,
        );
        let detail = format!("kiwi: systemd-firstboot failed with status 1: {locale}");
        let of_program = why(&output, Some(&failed), &of(None));
        assert_eq!((of_program.code, of_program.detail), (Code::BuildFailed, detail));
        let of_kiwi = why(&output, Some(&ended("KiwiRuntimeError", "no")), &of(None));
        assert_eq!(
            (of_kiwi.code, &*of_kiwi.detail),
            (Code::BuildFailed, "kiwi: KiwiRuntimeError: no")
        );
        // A disk that is full makes everything fail.
        let full = [vec!["tar: x: No space left on device".to_owned()], output].concat();
        assert_eq!(why(&full, Some(&failed), &of(None)).code, Code::DiskFull);
    }

    #[test]
    fn twins_are_suspected_where_one_can_be_the_cause() {
        use Culprit::{Emulated, Outside, Script, Twin};
        let script = |culprit| {
            let failed = by_program("KiwiScriptFailed", "chroot /r /image/config.sh", 1, "why");
            why(&[], Some(&failed), &of(culprit)).may_be_of_twins()
        };
        let by_culprit = [Some(Twin), None, Some(Script), Some(Emulated), Some(Outside)].map(script);
        assert_eq!(by_culprit, [true, true, false, false, false]);

        let program = |words: &str, status, culprit| {
            let failed = by_program("KiwiCommandError", words, status, "why");
            why(&[], Some(&failed), &of(Some(culprit))).may_be_of_twins()
        };
        assert!(program("chroot /r useradd x", 1, Twin));
        // A name that is taken, and one that the root has not.
        assert!(!program("/usr/sbin/chroot /r useradd x", 9, Twin));
        assert!(!program("chroot /r /usr/bin/systemd-firstboot --locale=x", 1, Twin));
        assert!(!program("chroot /r no-such-program", 127, Twin));
        assert!(!program("rsync -a / /r", 23, Outside));
        assert!(!program("useradd x", 9, Outside));

        // A script of a package, of which only that it ended itself is known.
        let scriptlet = |culprit| {
            let failed = by_program(
                "KiwiInstallPhaseFailed",
                "chroot /r apt-get install x",
                100,
                "E: Sub-process",
            );
            let said = lines_of("dpkg: error processing package x (--configure):");
            why(&said, Some(&failed), &of(Some(culprit))).may_be_of_twins()
        };
        assert_eq!([Twin, Script, Emulated].map(scriptlet), [true, true, false]);
    }

    #[test]
    fn what_kiwi_itself_says_is_no_twins_fault() {
        let keymap = "\n\n        keyboard setup skipped because `systemd-firstboot --keymap` failed (code 1):\n        Keymap us \
                      is not installed.\n\n\n        This can happen for example if the specified keytable (us) is not";
        let failure = why(&[], Some(&ended("KiwiCommandError", keymap)), &of(Some(Culprit::Twin)));
        assert_eq!(
            failure.detail,
            "kiwi: KiwiCommandError: keyboard setup skipped because `systemd-firstboot --keymap` failed (code 1): Keymap us is not installed."
        );
        assert!(!failure.may_be_of_twins());
        let silent = why(&[], Some(&ended("KiwiRuntimeError", "")), &of(None));
        assert_eq!(silent.detail, "kiwi: KiwiRuntimeError");
    }
}
