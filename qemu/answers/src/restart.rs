//! Restarts a program under the emulator, by `execve`, or ends it.
//!
//! A module without a twin, such as one that the recipe itself compiles or gets from outside its packages, can only be
//! loaded by the emulated program. Programs usually load modules before they do anything else; as long as this one has
//! changed and consumed nothing, its restart cannot be noticed. Otherwise the process is aborted: a program that went on
//! without its module could end as if all were well. The same is done for [`traps`](crate::traps).

use core::{
    ffi::c_char,
    ptr::null_mut,
    sync::atomic::{AtomicPtr, Ordering},
};

use rustix::fs::{Mode, OFlags, open};

use crate::{call::CommandHash, changes, facts, layout, next, paths::bytes_of, text::Text};

type List = *mut *mut c_char;

/// The process's arguments and variables where the kernel put them. Libraries may shorten the list of variables in
/// place; to extend it they copy it.
static ARGUMENTS: AtomicPtr<*mut c_char> = AtomicPtr::new(null_mut());
static VARIABLES: AtomicPtr<*mut c_char> = AtomicPtr::new(null_mut());

/// Stores the lists. For the constructor, which knows that the list has space for one more variable.
pub fn remember(arguments: List, variables: List) {
    ARGUMENTS.store(arguments, Ordering::Relaxed);
    VARIABLES.store(variables, Ordering::Relaxed);
    changes::remember();
}

/// Restarts the program because of `why`, whose parts are put together, or ends it if it would do something twice, or
/// would not find its standard input again.
pub fn emulated(why: &[&[u8]]) -> ! {
    // SAFETY: the list of the process's arguments.
    if changes::none() && unsafe { has_its_script(ARGUMENTS.load(Ordering::Relaxed)) } {
        restart();
    }
    give_up(why)
}

/// Ends the program because of `why`, whose parts are put together.
pub fn give_up(why: &[&[u8]]) -> ! {
    note();
    let begin = [b"kiln: ".as_slice()];
    let end = [
        b"; ".as_slice(),
        facts::EXE.get(),
        b" cannot begin anew under the emulator, since it has done something already. Set KILN_TWINS=off for it.\n",
    ];
    for part in begin.iter().chain(why).chain(&end) {
        // SAFETY: the descriptor is used for this call only.
        let _ = rustix::io::write(unsafe { rustix::stdio::stderr() }, part);
    }
    next::give_up()
}

/// Restarts the program if a twin gave up at this command in an earlier root. For the constructor: nothing has happened yet.
pub fn at_once_if_known() {
    let Ok(list) = open(
        layout::COMMANDS_EMULATED,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    ) else {
        return;
    };
    let Some(own) = command() else { return };
    let mut known = [0; size_of::<u64>()];
    while let Ok(8) = rustix::io::read(&list, &mut known) {
        if u64::from_ne_bytes(known) == own && !is_on_trial() {
            restart();
        }
    }
}

/// Notes that the twin gave up at this command.
fn note() {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC;
    if let Ok(list) = open(layout::COMMANDS_GIVEN_UP, flags, Mode::empty())
        && let Some(own) = command()
    {
        let _ = rustix::io::write(&list, &own.to_ne_bytes());
    }
}

/// The hash of this command.
fn command() -> Option<u64> {
    let arguments = ARGUMENTS.load(Ordering::Relaxed);
    if arguments.is_null() {
        return None;
    }
    // SAFETY: the list ends with a null pointer, at which the iterator ends.
    let words = (1..).map_while(|at| unsafe { bytes_of(*arguments.add(at)) });
    Some(CommandHash::of(facts::EXE.get(), words))
}

/// Whether the agent has started this process to compare its answers, and waits for it.
pub fn is_on_trial() -> bool {
    // SAFETY: the list of the process's variables, which ends with a null pointer.
    let mut next = unsafe { next::environ };
    while !next.is_null() {
        // SAFETY: as above; each is a text.
        let Some(variable) = (unsafe { bytes_of(*next) }) else {
            break;
        };
        if variable.strip_prefix(layout::SWITCH.as_bytes()) == Some(b"=now") {
            return true;
        }
        // SAFETY: the end is not reached.
        next = unsafe { next.add(1) };
    }
    false
}

/// Returns when the program cannot be restarted.
fn restart() {
    let (arguments, variables) = (ARGUMENTS.load(Ordering::Relaxed), VARIABLES.load(Ordering::Relaxed));
    let mut program = Text::new();
    if arguments.is_null() || variables.is_null() || program.push(facts::EXE.get()).is_none() {
        return;
    }
    let mut switch = Text::new();
    let parts = [layout::SWITCH.as_bytes(), b"=off"];
    if parts.into_iter().any(|part| switch.push(part).is_none()) {
        return;
    }
    // SAFETY: the list ends with a null pointer, after which there is space for another one, as the constructor
    // checked.
    unsafe {
        let mut end = variables;
        while !(*end).is_null() {
            end = end.add(1);
        }
        end.write(switch.as_ptr().cast_mut());
        end.add(1).write(null_mut());
        next::execve(program.as_ptr(), arguments.cast(), variables.cast());
        end.write(null_mut());
    }
}

/// Whether an argument may be a script or its text. An interpreter without one reads its script from standard input,
/// and has already read it.
///
/// # Safety
///
/// `arguments` is null or a list of texts that ends with a null pointer.
unsafe fn has_its_script(arguments: List) -> bool {
    if arguments.is_null() {
        return false;
    }
    for at in 1.. {
        // SAFETY: guaranteed by the caller; the loop ends at the list's end.
        let argument = unsafe { bytes_of(*arguments.add(at)) };
        match argument {
            None => return false,
            Some(text) if !text.starts_with(b"-") => return true,
            Some(_) => {}
        }
    }
    false
}
