//! Replaces this process's program by the twin. Maps memory, and calls `execve`.

use core::{ffi::CStr, ptr};

use rustix::{
    fd::AsRawFd,
    fs::{CWD, readlinkat_raw},
    io::{FdFlags, fcntl_getfd, fcntl_setfd},
    mm::{MapFlags, ProtFlags, mmap_anonymous, munmap},
};

use crate::{
    call,
    decide::Twin,
    kernel::{self, LONGEST_NAME},
    stack::Stack,
    text,
};

/// The words before the program's arguments, but for its name and the twin.
const WORDS: [&str; 9] = call::words("", "");

/// A word in the kernel's form.
macro_rules! word {
    ($at:literal) => {{
        const WORD: &CStr = text::terminated(&text::with_end::<{ WORDS[$at].len() + 1 }>(WORDS[$at]));
        WORD
    }};
}

/// Variables before the program's own, which the library of answers removes again: the program's file, and its
/// process's name.
const OWN_VARIABLES: usize = 2;

const EXE: &[u8] = call::EXE.as_bytes();
const COMM: &[u8] = call::COMM.as_bytes();

/// `PATH_MAX`; a longer path can be neither opened nor read.
const LONGEST_PATH: usize = 4096;

/// `/proc/self/fd/` and a number.
const LONGEST_LINK: usize = 32;

/// The strings made here.
#[repr(C)]
struct Strings {
    exe: [u8; EXE.len() + LONGEST_PATH + 1],
    /// Its two parts are adjacent.
    comm: ([u8; COMM.len()], [u8; LONGEST_NAME]),
    link: [u8; LONGEST_LINK],
}

/// Executes the twin. Returns only on failure, with everything as before.
pub fn become_it(stack: &Stack, twin: &Twin<'_>) {
    // The pointers to arguments and environment follow the strings; each list ends with a null pointer. The kernel's
    // memory is zeroed.
    let words = WORDS.len() + twin.arguments.len() + 1 + OWN_VARIABLES + stack.environment.len() + 1;
    let size = size_of::<Strings>().next_multiple_of(align_of::<*const u8>()) + words * size_of::<*const u8>();
    // SAFETY: new memory at an address of the kernel's choice.
    let Ok(memory) = (unsafe {
        mmap_anonymous(
            ptr::null_mut(),
            size,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }) else {
        return;
    };
    // SAFETY: the memory is large enough for both, zeroed, page-aligned and not shared; zeros are valid values.
    let (strings, lists) = unsafe {
        let lists = memory
            .byte_add(size_of::<Strings>().next_multiple_of(align_of::<*const u8>()))
            .cast::<*const u8>();
        (
            &mut *memory.cast::<Strings>(),
            core::slice::from_raw_parts_mut(lists, words),
        )
    };
    describe(twin, strings);
    let mut slots = lists.iter_mut();
    let mut put = |pointer: *const u8| {
        if let Some(slot) = slots.next() {
            *slot = pointer;
        }
    };

    for word in [word!(0), word!(1)] {
        put(word.as_ptr().cast());
    }
    put(twin.name.as_ptr());
    for word in [word!(3), word!(4), word!(5), word!(6), word!(7), twin.file] {
        put(word.as_ptr().cast());
    }
    twin.arguments.iter().for_each(|argument| put(argument.as_ptr()));
    put(ptr::null());
    put(strings.exe.as_ptr());
    put((&raw const strings.comm).cast());
    stack.environment.iter().for_each(|variable| put(variable.as_ptr()));

    let environment = WORDS.len() + twin.arguments.len() + 1;
    if let Ok(flags) = fcntl_getfd(twin.program)
        && fcntl_setfd(twin.program, flags | FdFlags::CLOEXEC).is_ok()
    {
        // SAFETY: both lists end with a null pointer, and all strings with a zero.
        unsafe { kernel::execve(word!(0), lists.as_ptr(), lists.as_ptr().add(environment)) };
        // The emulator reads the program through this descriptor.
        let _ = fcntl_setfd(twin.program, flags);
    }
    // SAFETY: nothing refers to the memory any more. The emulator must find as much free memory as usual.
    let _ = unsafe { munmap(memory, size) };
}

/// Writes the twin's description of itself: not its own file and name, but those of the program that it replaces.
fn describe(twin: &Twin<'_>, strings: &mut Strings) {
    let Strings { exe, comm, link } = strings;
    write(exe, EXE.iter().copied());
    write(
        link,
        b"/proc/self/fd/"
            .iter()
            .copied()
            .chain(digits(twin.program.as_raw_fd())),
    );
    let path = exe.get_mut(EXE.len()..EXE.len() + LONGEST_PATH).unwrap_or_default();
    let link = CStr::from_bytes_until_nul(link).unwrap_or_default();
    if readlinkat_raw(CWD, link, &mut *path).is_err() {
        // Without /proc, only the caller's path is known.
        write(path, twin.path.bytes());
    }
    write(&mut comm.0, COMM.iter().copied());
    kernel::process_name(&mut comm.1);
}

fn write(to: &mut [u8], bytes: impl Iterator<Item = u8>) {
    to.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
}

/// A descriptor's number in decimal.
fn digits(number: i32) -> impl Iterator<Item = u8> {
    let number = number.unsigned_abs();
    (0..10_u32)
        .rev()
        .map(move |place| (place, number.checked_div(10_u32.pow(place)).unwrap_or(0)))
        .skip_while(|(place, rest)| *rest == 0 && *place > 0)
        .map(|(_, rest)| b'0' + (rest % 10) as u8)
}
