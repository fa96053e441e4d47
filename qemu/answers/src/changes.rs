//! Notes whether this process has changed or consumed anything. Reads the process's own state in `/proc`.
//!
//! A process that has done neither can be replaced by another one that begins anew, and nobody can tell. Functions of
//! the C library that change something are wrapped, and what they would miss is seen in the kernel's counters: writes,
//! children, threads.

use core::{
    ffi::{c_char, c_int, c_void},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use rustix::{
    fs::{FileType, Mode, OFlags, fstat, open, tell},
    io::{Errno, read},
    process::{WaitId, WaitIdOptions, waitid},
};

use crate::{
    next::{Next, stdin_was_read},
    paths::bytes_of,
    writers,
};

/// Whether a wrapped function was called.
static CHANGED: AtomicBool = AtomicBool::new(false);

/// What the kernel said when the program began. The process may have run another program before.
static WRITES: AtomicU64 = AtomicU64::new(UNKNOWN);
static FAULTS_OF_CHILDREN: AtomicU64 = AtomicU64::new(UNKNOWN);
static INPUT: AtomicU64 = AtomicU64::new(UNKNOWN);

/// The kernel does not report it.
const UNKNOWN: u64 = u64::MAX;

/// Standard input is no file with a position.
const NO_POSITION: u64 = u64::MAX - 1;

/// For the constructor.
pub fn remember() {
    WRITES.store(writes(), Ordering::Relaxed);
    FAULTS_OF_CHILDREN.store(status(CHILDREN), Ordering::Relaxed);
    INPUT.store(input(), Ordering::Relaxed);
    look_up();
}

/// Says that this library has written for itself.
pub fn forgive_write() {
    if WRITES.load(Ordering::Relaxed) != UNKNOWN {
        WRITES.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether this process is known to have changed and consumed nothing since the program began.
pub fn none() -> bool {
    let is_same = |before: &AtomicU64, now: u64| now != UNKNOWN && before.load(Ordering::Relaxed) == now;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !CHANGED.load(Ordering::Relaxed)
        && is_same(&WRITES, writes())
        && is_same(&FAULTS_OF_CHILDREN, status(CHILDREN))
        && matches!(waitid(WaitId::All, options), Err(Errno::CHILD))
        && status(THREADS) == 1
        && is_same(&INPUT, input())
        && !stdin_was_read()
}

/// Something that tells how a file is to be opened.
pub trait Opens {
    /// Notes it if the file may be created or emptied. Returns whether it may.
    fn note(self) -> bool;
}

impl Opens for c_int {
    fn note(self) -> bool {
        let flags = OFlags::from_bits_retain(self.cast_unsigned());
        let changes = flags.intersects(OFlags::CREATE | OFlags::TRUNC);
        if changes {
            CHANGED.store(true, Ordering::Relaxed);
        }
        changes
    }
}

impl Opens for *const c_char {
    fn note(self) -> bool {
        // SAFETY: the caller of `fopen` passes a text.
        let mode = unsafe { bytes_of(self) };
        let changes = mode.is_none_or(|mode| !mode.starts_with(b"r"));
        if changes {
            CHANGED.store(true, Ordering::Relaxed);
        }
        changes
    }
}

/// Defines functions that note that they were called. Arguments are in registers on every architecture that twins run
/// on, so a function may pass on more of them than it has.
macro_rules! changing {
    ($($static:ident = $name:ident;)*) => {
        $(
            static $static: Next = Next::called(concat!(stringify!($name), "\0"));

            /// Like the C library's function.
            ///
            /// # Safety
            ///
            /// As for the C library's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                first: usize, second: usize, third: usize, fourth: usize, fifth: usize,
            ) -> usize {
                type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize) -> usize;
                CHANGED.store(true, Ordering::Relaxed);
                // SAFETY: the type is that of the C library's function of this name.
                let Some(next) = (unsafe { $static.function::<Function>() }) else {
                    return usize::MAX;
                };
                // SAFETY: guaranteed by the caller.
                let result = unsafe { next(first, second, third, fourth, fifth) };
                // SAFETY: the caller passes what the function of this name takes.
                unsafe { writers::called(stringify!($name), [first, second, third, fourth]) };
                result
            }
        )*

        /// Looks up every function that is called here. Later would be too late: the loader takes locks for it.
        fn look_up() {
            for next in [$(&$static,)* &READ] {
                next.address();
            }
        }
    };
}

changing! {
    MKDIR = mkdir;
    MKDIRAT = mkdirat;
    RMDIR = rmdir;
    RENAME = rename;
    RENAMEAT = renameat;
    RENAMEAT2 = renameat2;
    UNLINK = unlink;
    UNLINKAT = unlinkat;
    LINK = link;
    LINKAT = linkat;
    SYMLINK = symlink;
    SYMLINKAT = symlinkat;
    CHMOD = chmod;
    FCHMOD = fchmod;
    FCHMODAT = fchmodat;
    CHOWN = chown;
    FCHOWN = fchown;
    LCHOWN = lchown;
    FCHOWNAT = fchownat;
    UTIME = utime;
    UTIMES = utimes;
    LUTIMES = lutimes;
    FUTIMES = futimes;
    FUTIMENS = futimens;
    UTIMENSAT = utimensat;
    TRUNCATE = truncate;
    TRUNCATE64 = truncate64;
    FTRUNCATE = ftruncate;
    FTRUNCATE64 = ftruncate64;
    FALLOCATE = posix_fallocate;
    FALLOCATE64 = posix_fallocate64;
    MKNOD = mknod;
    MKNODAT = mknodat;
    MKFIFO = mkfifo;
    MKFIFOAT = mkfifoat;
    MKSTEMP = mkstemp;
    MKSTEMP64 = mkstemp64;
    MKOSTEMP = mkostemp;
    MKOSTEMP64 = mkostemp64;
    MKDTEMP = mkdtemp;
    SETXATTR = setxattr;
    LSETXATTR = lsetxattr;
    FSETXATTR = fsetxattr;
    REMOVEXATTR = removexattr;
    LREMOVEXATTR = lremovexattr;
    FREMOVEXATTR = fremovexattr;
    MOUNT = mount;
    UMOUNT = umount;
    UMOUNT2 = umount2;
    CHROOT = chroot;
    CHDIR = chdir;
    FCHDIR = fchdir;
    UMASK = umask;
    KILL = kill;
    SOCKET = socket;
    FLOCK = flock;
    DUP = dup;
    DUP2 = dup2;
    DUP3 = dup3;
    SETUID = setuid;
    SETGID = setgid;
    SETREUID = setreuid;
    SETREGID = setregid;
    SETRESUID = setresuid;
    SETRESGID = setresgid;
    SETGROUPS = setgroups;
    SETSID = setsid;
    SETPGID = setpgid;
    SETRLIMIT = setrlimit;
    SETRLIMIT64 = setrlimit64;
    ALARM = alarm;
    SETITIMER = setitimer;
}

static READ: Next = Next::new(c"read");

/// Like the C library's function.
///
/// # Safety
///
/// As for the C library's function.
#[unsafe(export_name = "read")]
pub unsafe extern "C" fn read_noted(descriptor: c_int, buffer: *mut c_void, size: usize) -> isize {
    type Function = unsafe extern "C" fn(c_int, *mut c_void, usize) -> isize;
    if descriptor == 0 {
        CHANGED.store(true, Ordering::Relaxed);
    }
    // SAFETY: the type is that of the C library's function of this name.
    let Some(next) = (unsafe { READ.function::<Function>() }) else {
        return -1;
    };
    // SAFETY: guaranteed by the caller.
    unsafe { next(descriptor, buffer, size) }
}

/// How often this process, and the children that it waited for, have written.
fn writes() -> u64 {
    let mut bytes = [0; 512];
    let text = contents("/proc/self/io", &mut bytes);
    let mut lines = text.split(|byte| *byte == b'\n');
    let number = lines.find_map(|line| number(line.strip_prefix(b"syscw: ")?));
    number.unwrap_or(UNKNOWN)
}

/// Fields of `/proc/self/stat` behind the name, counted from zero: proc_pid_stat(5) counts from one, and the name is
/// the second.
const CHILDREN: usize = 11 - 3;
const THREADS: usize = 20 - 3;

/// A field of `/proc/self/stat`: page faults of children that were waited for, or the number of threads.
fn status(field: usize) -> u64 {
    let mut bytes = [0; 1024];
    let text = contents("/proc/self/stat", &mut bytes);
    let behind_name = text
        .iter()
        .rposition(|byte| *byte == b')')
        .and_then(|end| text.get(end + 2..));
    let mut fields = behind_name.unwrap_or_default().split(|byte| *byte == b' ');
    fields.nth(field).and_then(number).unwrap_or(UNKNOWN)
}

/// The position of standard input.
fn input() -> u64 {
    // SAFETY: the number stands for a descriptor only during this call; if nothing is open there, the kernel says so.
    let input = unsafe { rustix::fd::BorrowedFd::borrow_raw(0) };
    match fstat(input) {
        Err(Errno::BADF) => NO_POSITION,
        Err(_) => UNKNOWN,
        Ok(status) if FileType::from_raw_mode(status.st_mode) == FileType::RegularFile => {
            tell(input).unwrap_or(UNKNOWN)
        }
        Ok(_) => NO_POSITION,
    }
}

fn contents<'a>(path: &str, bytes: &'a mut [u8]) -> &'a [u8] {
    let Ok(file) = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return &[];
    };
    let length = read(&file, &mut *bytes).unwrap_or(0);
    bytes.get(..length).unwrap_or_default()
}

fn number(text: &[u8]) -> Option<u64> {
    core::str::from_utf8(text).ok()?.parse().ok()
}
