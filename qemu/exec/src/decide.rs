//! Decides whether the program has a twin that may run in its place, or is a loader whose answer is known. Looks at
//! files, and waits for trials.

use core::{ffi::CStr, mem::MaybeUninit};

use rustix::{
    fd::BorrowedFd,
    fs::{Access, AtFlags, CWD, accessat, fstat},
};

use crate::{
    kernel::{read_at, sleep},
    key::{HEAD, LONGEST_KEY, build_id, u16_at, u32_at, u64_at, write_key},
    layout, loader,
    stack::{Stack, Text},
};

/// Length of the longest path of what is under a key, including the zero at its end.
pub const LONGEST_PATH: usize = layout::LOADERS.len() + LONGEST_KEY + 1;

/// Nanoseconds between checks of a trial.
const PAUSE: u32 = 10_000_000;

/// The most checks: half a minute. A trial takes one or two seconds, on a busy machine ten.
const LOOKS: usize = 3000;

/// Libraries that a root's owner wants in every process are the target's, so they need the emulator.
const PRELOAD: &CStr = c"/etc/ld.so.preload";

/// The segment of a program that names its loader.
const PT_INTERP: u32 = 3;

/// What takes the emulator's place.
pub enum Native<'a> {
    Twin(Twin<'a>),
    /// The loader has said what it had to; its exit status is left.
    Answered(u8),
}

/// A twin that may run.
pub struct Twin<'a> {
    /// Descriptor of the program's file.
    pub program: BorrowedFd<'static>,
    /// The program's path, as it was called.
    pub path: Text,
    /// The name that the program gets as its own.
    pub name: Text,
    /// The program's other arguments.
    pub arguments: &'static [Text],
    /// The twin's path.
    pub file: &'a CStr,
}

/// A program's file: build-id, size and modification time.
type Key<'a> = (&'a [u8], u64, i64);

/// What takes the emulator's place, if anything does; `path` takes the path of a twin.
pub fn native<'a>(stack: &Stack, path: &'a mut [u8; LONGEST_PATH]) -> Option<Native<'a>> {
    let [_, program_path, name, arguments @ ..] = stack.arguments else {
        return None;
    };
    if !stack.keeps_name() || stack.is_secure() || stack.environment.iter().any(|variable| forbids(*variable)) {
        return None;
    }
    let program = stack.program()?;
    let mut room = [MaybeUninit::uninit(); HEAD];
    let head = read_at(program, 0, &mut room)?;
    let state = fstat(program).ok()?;
    let key = (build_id(head)?, u64::try_from(state.st_size).ok()?, state.st_mtime);
    let Some(file) = find(key, path, stack) else {
        let question = loader::question(stack, arguments)?;
        let mut path = [0; LONGEST_PATH];
        let version = write_path(&mut path, layout::LOADERS, key)?;
        return loader::answer(&question, version, head, &state).map(Native::Answered);
    };
    if exists(PRELOAD) || !has_loader(head) {
        return None;
    }
    Some(Native::Twin(Twin {
        program,
        path: *program_path,
        name: *name,
        arguments,
        file,
    }))
}

/// Whether the root has the loader that the program names. Where it does not, nobody else can start the program either, so its
/// twin must not hide that.
fn has_loader(head: &[u8]) -> bool {
    let Some(name) = loader_name(head) else { return true };
    CStr::from_bytes_until_nul(name).map_or(true, exists)
}

/// The path of the loader, with the zero at its end, if the program names one, and it is in its first bytes.
fn loader_name(head: &[u8]) -> Option<&[u8]> {
    let table = usize::try_from(u64_at(head, 32)?).ok()?;
    let (entry_size, count) = (usize::from(u16_at(head, 54)?), usize::from(u16_at(head, 56)?));
    (0..count).find_map(|index| {
        let entry = head.get(table.checked_add(index.checked_mul(entry_size)?)?..)?;
        if u32_at(entry, 0)? != PT_INTERP {
            return None;
        }
        let begin = usize::try_from(u64_at(entry, 8)?).ok()?;
        let size = usize::try_from(u64_at(entry, 32)?).ok()?;
        head.get(begin..begin.checked_add(size)?)
    })
}

fn exists(path: &CStr) -> bool {
    accessat(CWD, path, Access::EXISTS, AtFlags::empty()).is_ok()
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
fn find<'a>(key: Key<'_>, path: &'a mut [u8; LONGEST_PATH], stack: &Stack) -> Option<&'a CStr> {
    let twin = write_path(path, layout::BIN, key)?;
    let is_there = |twin: &CStr| accessat(CWD, twin, Access::EXEC_OK, AtFlags::empty()).is_ok();
    if !is_there(twin) {
        let mut other = [0; LONGEST_PATH];
        // A twin is published before its trial ends.
        if is_in_trial(stack) || !outlasts(write_path(&mut other, layout::TRIAL, key)?) || !is_there(twin) {
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

/// Writes the path of what is in `place` under this key.
#[inline(always)]
#[allow(
    clippy::inline_always,
    reason = "copying an unknown number of bytes would call a function that does not exist here"
)]
fn write_path<'a>(
    path: &'a mut [u8; LONGEST_PATH],
    place: &'static str,
    (id, size, modified): Key<'_>,
) -> Option<&'a CStr> {
    let (directory, name) = path.split_at_mut_checked(place.len())?;
    for (to, from) in directory.iter_mut().zip(place.bytes()) {
        *to = from;
    }
    // The array is longer than the longest key and was full of zeros, so a zero ends it.
    write_key(name, id, size, modified)?;
    CStr::from_bytes_until_nul(path).ok()
}
