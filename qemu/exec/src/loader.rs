//! Answers in place of the image's dynamic loader what `ldd` asks it before it lists libraries. Opens the file in
//! question, and writes to standard output.
//!
//! `ldd` starts the loader three times for each file: for its version, to see whether it can load the file, and for the
//! list. dracut starts `ldd` for each program of an initrd. The first two depend on nothing but the loader's file and the
//! one in question.

use core::{ffi::CStr, mem::MaybeUninit};

use rustix::{
    fd::BorrowedFd,
    fs::{FileType, OFlags, Stat, fstat},
    io::{Errno, write},
};

use crate::{
    kernel::{File, read_at},
    loadable,
    stack::{Stack, Text},
};

/// Longer texts are left to the loader; that of glibc 2.36 has 261 bytes.
const LONGEST_TEXT: usize = 4096;

/// The page size that the emulator shows for every architecture on a host that has it, too.
const PAGE: usize = 4096;

/// What a loader is asked.
pub enum Question {
    Version,
    Verify(Text),
}

/// The question in the program's arguments. `None` if there is another one, or if something else has a part in the
/// answer.
pub fn question(stack: &Stack, arguments: &[Text]) -> Option<Question> {
    let question = match arguments {
        [option] if option.equals(b"--version") => Question::Version,
        // A name without a slash is looked for in directories, and a dollar sign is replaced.
        [option, path] if option.equals(b"--verify") => {
            let has = |byte| path.bytes().any(|other| other == byte);
            (has(b'/') && !has(b'$')).then_some(Question::Verify(*path))?
        }
        _ => return None,
    };
    let is_tuned = stack
        .environment
        .iter()
        .any(|variable| variable.starts_with(b"GLIBC_TUNABLES="));
    (!is_tuned && stack.page_size() == Some(PAGE)).then_some(question)
}

/// Gives the loader's answer, and returns its exit status; `None` if it is not certain, with nothing done.
///
/// `version` is the path of what it says of its version, `head` the beginning of its file and `state` the state of it.
pub fn answer(question: &Question, version: &CStr, head: &[u8], state: &Stat) -> Option<u8> {
    let text = File::open(version, OFlags::RDONLY | OFlags::CLOEXEC)?;
    match question {
        Question::Version => {
            let mut room = [MaybeUninit::uninit(); LONGEST_TEXT];
            let text = read_at(text.descriptor(), 0, &mut room)?;
            (!text.is_empty() && text.len() < LONGEST_TEXT).then_some(())?;
            say(text).then_some(0)
        }
        Question::Verify(path) => {
            // A pipe must not be waited for.
            let file = File::open_text(*path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK)?;
            let of_file = fstat(file.descriptor()).ok()?;
            let is_loader = (of_file.st_dev, of_file.st_ino) == (state.st_dev, state.st_ino);
            if is_loader || FileType::from_raw_mode(of_file.st_mode) != FileType::RegularFile {
                return None;
            }
            let size = u64::try_from(of_file.st_size).ok()?;
            let has_interpreter = loadable::has_interpreter(file.descriptor(), size, head)?;
            Some(if has_interpreter { 0 } else { 2 })
        }
    }
}

/// Writes to standard output. Returns whether something was written: the loader looks at no error.
fn say(text: &[u8]) -> bool {
    // SAFETY: if it is closed, the kernel says so.
    let output = unsafe { BorrowedFd::borrow_raw(1) };
    let mut rest = text;
    while !rest.is_empty() {
        match write(output, rest) {
            Ok(written) if written > 0 => rest = rest.get(written..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            _ => break,
        }
    }
    rest.len() < text.len()
}
