//! Decides whether the program has a twin that may run in its place. Looks at files, and waits for trials.

use core::{ffi::CStr, mem::MaybeUninit};

use rustix::{
    fd::BorrowedFd,
    fs::{Access, AtFlags, CWD, accessat, fstat},
};

use crate::{
    kernel::{read_head, sleep},
    key::{HEAD, LONGEST_KEY, build_id, write_key},
    layout,
    stack::{Stack, Text},
};

/// Length of the path of a twin, or of its trial, including the zero at its end.
pub const LONGEST_PATH: usize = layout::TRIAL.len() + LONGEST_KEY + 1;

/// Nanoseconds between checks of a trial.
const PAUSE: u32 = 10_000_000;

/// The most checks: half a minute. A trial takes one or two seconds, on a busy machine ten.
const LOOKS: usize = 3000;

/// Libraries that a root's owner wants in every process are the target's, so they need the emulator.
const PRELOAD: &CStr = c"/etc/ld.so.preload";

/// A twin that may run.
pub struct Choice<'a> {
    /// Descriptor of the program's file.
    pub program: BorrowedFd<'static>,
    /// The program's path, as it was called.
    pub path: Text,
    /// The name that the program gets as its own.
    pub name: Text,
    /// The program's other arguments.
    pub arguments: &'static [Text],
    /// The twin's path.
    pub twin: &'a CStr,
}

/// The twin to run; `path` takes its path.
pub fn twin_of<'a>(stack: &Stack, path: &'a mut [u8; LONGEST_PATH]) -> Option<Choice<'a>> {
    let [_, program_path, name, arguments @ ..] = stack.arguments else {
        return None;
    };
    if !stack.keeps_name() || stack.is_secure() || stack.environment.iter().any(|variable| forbids(*variable)) {
        return None;
    }
    let program = stack.program()?;
    let twin = find(program, path, stack)?;
    if accessat(CWD, PRELOAD, Access::EXISTS, AtFlags::empty()).is_ok() {
        return None;
    }
    Some(Choice {
        program,
        path: *program_path,
        name: *name,
        arguments,
        twin,
    })
}

/// Whether an environment variable needs the target's loader or the emulator. Kiln sets `QEMU_CPU` for all programs.
fn forbids(variable: Text) -> bool {
    variable.starts_with(b"LD_")
        || (variable.starts_with(b"QEMU_") && !variable.starts_with(b"QEMU_CPU="))
        || variable.is(layout::SWITCH, b"off")
}

/// The path of the twin of exactly this file, if it exists and may be executed. Modules, which are there too, may not.
///
/// While a twin is on trial, starts of the program wait: under the emulator it would take longer than the trial does,
/// and an interpreter several times as long. Programs started in a trial do not wait: they might wait for themselves.
fn find<'a>(program: BorrowedFd<'_>, path: &'a mut [u8; LONGEST_PATH], stack: &Stack) -> Option<&'a CStr> {
    let mut room = [MaybeUninit::uninit(); HEAD];
    let id = build_id(read_head(program, &mut room)?)?;
    let state = fstat(program).ok()?;
    let key = (id, u64::try_from(state.st_size).ok()?, state.st_mtime);

    let twin = write_path::<false>(path, key)?;
    let is_there = |twin: &CStr| accessat(CWD, twin, Access::EXEC_OK, AtFlags::empty()).is_ok();
    if !is_there(twin) {
        let mut other = [0; LONGEST_PATH];
        // A twin is published before its trial ends.
        if is_in_trial(stack) || !outlasts(write_path::<true>(&mut other, key)?) || !is_there(twin) {
            return None;
        }
    }
    Some(twin)
}

/// Whether a trial started the program.
fn is_in_trial(stack: &Stack) -> bool {
    let mut variables = stack.environment.iter();
    variables.any(|variable| variable.is(layout::SWITCH, b"now"))
}

/// Waits for the end of a trial. Returns false if there is no trial, or it takes too long.
fn outlasts(trial: &CStr) -> bool {
    let goes_on = || accessat(CWD, trial, Access::EXISTS, AtFlags::empty()).is_ok();
    if !goes_on() {
        return false;
    }
    (0..LOOKS).any(|_| {
        sleep(PAUSE);
        !goes_on()
    })
}

/// Writes the path of the twin, or of its trial, with this key: build-id, size and modification time.
fn write_path<'a, const IS_TRIAL: bool>(
    path: &'a mut [u8; LONGEST_PATH],
    (id, size, modified): (&[u8], u64, i64),
) -> Option<&'a CStr> {
    // Not an argument: copying an unknown number of bytes would call a function that does not exist here.
    let place = if IS_TRIAL { layout::TRIAL } else { layout::BIN };
    let (directory, name) = path.split_at_mut_checked(place.len())?;
    for (to, from) in directory.iter_mut().zip(place.bytes()) {
        *to = from;
    }
    // The array is longer than the longest key and was full of zeros, so a zero ends it.
    write_key(name, id, size, modified)?;
    CStr::from_bytes_until_nul(path).ok()
}
