//! How a twin is started: through the native loader, with a name, options and variables that no program is to see. Says
//! which those are, and takes them off again. Pure: no I/O.
//!
//! `kiln-exec` and `answers.so` share this file, so it needs only `core`.

use super::layout;

/// The variable with the path of the program that the twin stands for. It comes first.
pub const EXE: &str = "KILN_EXE=";
/// The variable with the name of the process. It comes second.
pub const COMM: &str = "KILN_COMM=";

/// Two parts of a list of words, each of which ends with a zero byte.
pub type Parts<'a> = (&'a [u8], &'a [u8]);

/// A hash (FNV-1a) of a command: its program, and its arguments up to the first that is no option, which is the script of an
/// interpreter.
#[derive(Debug, Clone, Copy)]
pub struct CommandHash(u64);

impl Default for CommandHash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl CommandHash {
    /// The hash of the command that has these arguments, without the name.
    pub fn of<'a>(program: &[u8], arguments: impl Iterator<Item = &'a [u8]>) -> u64 {
        let mut hash = Self::default().with(program);
        for argument in arguments {
            hash = hash.with(argument);
            if !argument.starts_with(b"-") {
                break;
            }
        }
        hash.0
    }

    fn with(self, word: &[u8]) -> Self {
        let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        Self(word.iter().chain(&[0]).fold(self.0, add))
    }
}

/// The hash of the command of a program and its arguments, each of which ends with a zero byte.
pub fn hash_of((program, arguments): Parts<'_>) -> u64 {
    let arguments = arguments.split_inclusive(|byte| *byte == 0);
    CommandHash::of(without_end(program), arguments.map(without_end))
}

fn without_end(word: &[u8]) -> &[u8] {
    word.strip_suffix(b"\0").unwrap_or(word)
}

/// The words before the program's arguments: the loader, its options, and the twin, which is to see `name` as its own.
pub const fn words<'a>(name: &'a str, twin: &'a str) -> [&'a str; 9] {
    [
        layout::LOADER,
        "--argv0",
        name,
        "--inhibit-cache",
        "--library-path",
        layout::LIB,
        "--preload",
        layout::ANSWERS,
        twin,
    ]
}

/// The name and the arguments of the program, from the words that its process was started with. `None` if they are not
/// those of a twin: a program may write over its words.
pub fn of_program(list: &[u8]) -> Option<Parts<'_>> {
    let mut rest = list;
    let mut name: &[u8] = &[];
    for (at, word) in words("", "").into_iter().enumerate() {
        let (found, behind) = next_word(rest)?;
        rest = behind;
        match at {
            NAME => name = found,
            TWIN => is_twin(found).then_some(())?,
            _ => (found.strip_suffix(b"\0")? == word.as_bytes()).then_some(())?,
        }
    }
    Some((name, rest))
}

/// The places of the name and of the twin among [`words`].
const NAME: usize = 2;
const TWIN: usize = 8;

/// The value of [`EXE`] and the program's own variables, from those that its process was started with.
pub fn variables_of_program(list: &[u8]) -> Parts<'_> {
    let (mut exe, mut rest): Parts<'_> = (&[], list);
    while let Some((word, behind)) = next_word(rest) {
        if let Some(path) = word.strip_prefix(EXE.as_bytes()) {
            exe = path;
        } else if !word.starts_with(COMM.as_bytes()) {
            break;
        }
        rest = behind;
    }
    (exe, rest)
}

/// A program may be on trial when it starts.
fn is_twin(word: &[u8]) -> bool {
    [layout::BIN, layout::TRIAL]
        .iter()
        .any(|place| word.starts_with(place.as_bytes()))
}

/// A word with the zero byte behind it, and what follows.
fn next_word(list: &[u8]) -> Option<Parts<'_>> {
    let end = list.iter().position(|byte| *byte == 0)?;
    list.split_at_checked(end + 1)
}
