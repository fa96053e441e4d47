//! Records which program changes which file, while Kiln looks for the cause of a difference. Appends to one file.
//!
//! Only what counts as a change anyway is recorded, after the fact: a process that has changed nothing must not be seen to
//! write. What a call returned is not known here for every function, so a call that failed may be recorded, too.

use core::{
    ffi::{c_char, c_int},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::{
    fs::{Access, CWD, Mode, OFlags, access, fstat, open, readlinkat_raw},
    io::write,
};

use crate::{
    facts, layout,
    paths::bytes_of,
    text::{LONGEST, Text},
};

/// The descriptor that stands for the current directory, for functions that take one.
pub const CURRENT: c_int = -100;

/// The size at which the record takes no more lines.
const MOST: i64 = 64 << 20;

/// Whether there is a record.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// Records that the program has started. For the constructor, once the program's path is known.
pub fn begin() {
    if access(layout::WRITERS, Access::WRITE_OK).is_ok() {
        IS_ON.store(true, Ordering::Relaxed);
        line(b"start", None);
    }
}

/// Records that this program has changed the file at a path, which starts at a directory.
pub fn changed(directory: c_int, path: Option<&[u8]>) {
    if IS_ON.load(Ordering::Relaxed) {
        line(b"change", path.map(|path| (directory, path)));
    }
}

/// Records a call of a function of this name, if it changes a file.
///
/// # Safety
///
/// The arguments are those of the function.
pub unsafe fn called(name: &str, [first, second, third, fourth]: [usize; 4]) {
    if !IS_ON.load(Ordering::Relaxed) {
        return;
    }
    let (directory, path) = match name {
        "mkdir" | "chmod" | "chown" | "lchown" | "truncate" | "truncate64" | "mknod" | "mkfifo" | "mkstemp"
        | "mkstemp64" | "mkostemp" | "mkostemp64" | "setxattr" | "lsetxattr" | "removexattr" | "lremovexattr" => {
            (None, first)
        }
        "rename" | "link" | "symlink" => (None, second),
        "mkdirat" | "fchmodat" | "fchownat" | "mknodat" | "mkfifoat" => (Some(first), second),
        "symlinkat" => (Some(second), third),
        "renameat" | "renameat2" | "linkat" => (Some(third), fourth),
        _ => return,
    };
    // The upper half of a register is not part of a descriptor.
    #[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "see above")]
    let directory = directory.map_or(CURRENT, |directory| directory as c_int);
    // SAFETY: guaranteed by the caller; in the functions above, this argument is a path.
    changed(directory, unsafe { bytes_of(path as *const c_char) });
}

/// Appends a line in one write, so that lines of several processes do not mix. One that is too long is left out.
#[cold]
#[inline(never)]
fn line(what: &[u8], path: Option<(c_int, &[u8])>) {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC;
    let Ok(file) = open(layout::WRITERS, flags, Mode::empty()) else {
        return;
    };
    if fstat(&file).is_ok_and(|found| found.st_size >= MOST) {
        return;
    }
    let mut text = Text::new();
    let mut put = || {
        text.push(what)?;
        text.push(b"\t")?;
        number(&mut text, rustix::process::getpid().as_raw_pid().unsigned_abs())?;
        text.push(b"\t")?;
        text.push(facts::EXE.get())?;
        if let Some((directory, path)) = path {
            text.push(b"\t")?;
            if !path.starts_with(b"/") {
                parent(&mut text, directory)?;
                text.push(b"/")?;
            }
            text.push(path)?;
        }
        text.push(b"\n")
    };
    if put().is_some() {
        let _ = write(&file, text.bytes());
    }
}

/// Appends the path of a directory: of the current one, or of an open one.
fn parent(text: &mut Text, directory: c_int) -> Option<()> {
    let mut link = Text::new();
    if directory == CURRENT {
        link.push(b"/proc/self/cwd")?;
    } else {
        link.push(b"/proc/self/fd/")?;
        number(&mut link, u32::try_from(directory).ok()?)?;
    }
    let mut place = [0; LONGEST];
    let length = readlinkat_raw(CWD, link.as_c_str()?, &mut place[..]).ok()?;
    text.push(place.get(..length)?)
}

/// Appends a number.
fn number(text: &mut Text, mut number: u32) -> Option<()> {
    let mut digits = [0; 10];
    let mut first = digits.len();
    loop {
        first -= 1;
        *digits.get_mut(first)? = b'0' + u8::try_from(number % 10).ok()?;
        number /= 10;
        if number == 0 {
            return text.push(digits.get(first..)?);
        }
    }
}
