//! The kernel's interface for tracers, and what it tells of a stopped process. Traces, and reads `/proc`.
//!
//! `nix` is not used for it: its types know neither real-time signals nor the registers of every architecture.

use std::mem::size_of_val;

use nix::{
    errno::Errno,
    libc,
    unistd::{Pid, getpid},
};

/// The set of registers with those for floating point: `NT_PRFPREG` of elf(5).
const FLOATING_POINT: libc::c_int = 2;

/// Where those registers have the word in which the CPU keeps what operations met, until a program clears it: its place
/// in bytes, and the bit for an invalid operation.
#[cfg(target_arch = "x86_64")]
const INVALID: Option<(usize, u32)> = Some((24, 1)); // MXCSR in the area of FXSAVE: Intel SDM, volume 1, 10.2.3 and 10.5.1.
#[cfg(target_arch = "aarch64")]
const INVALID: Option<(usize, u32)> = Some((512, 1)); // FPSR behind 32 vectors, `struct user_fpsimd_state`: Arm ARM, C5.2.9.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const INVALID: Option<(usize, u32)> = None;

/// The next process that stopped or ended, and its status. `None` if `flags` say not to wait, and there is none.
#[expect(unsafe_code, reason = "waitpid as the kernel has it")]
pub(super) fn wait(flags: libc::c_int) -> Result<Option<(Pid, i32)>, Errno> {
    let mut status = 0;
    // SAFETY: `status` lives during the call.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | flags) };
    Errno::result(pid).map(|pid| (pid > 0).then(|| (Pid::from_raw(pid), status)))
}

/// Becomes the tracer of a process and all its future descendants, which die with this process.
#[expect(unsafe_code, reason = "ptrace as the kernel has it")]
pub(super) fn seize(pid: Pid) -> Result<(), Errno> {
    let options = libc::PTRACE_O_EXITKILL
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_TRACEEXIT;
    // SAFETY: the request takes no pointers.
    let done = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid.as_raw(), 0, options) };
    Errno::result(done).map(drop)
}

/// Resumes a stopped process, with a signal or without (0). A process that has been killed meanwhile does not matter.
#[expect(unsafe_code, reason = "ptrace as the kernel has it")]
pub(super) fn go_on(request: libc::c_uint, pid: Pid, signal: i32) {
    // SAFETY: the requests used here take no pointers.
    let _ = unsafe { libc::ptrace(request, pid.as_raw(), 0, signal) };
}

/// Has a process stop, if it has not ended yet.
#[expect(unsafe_code, reason = "ptrace as the kernel has it")]
pub(super) fn interrupt(pid: Pid) {
    // SAFETY: the request takes no pointers.
    let _ = unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, pid.as_raw(), 0, 0) };
}

/// The kernel's message about the event for which a process stopped.
#[expect(unsafe_code, reason = "ptrace as the kernel has it")]
pub(super) fn event_message(pid: Pid) -> Option<libc::c_ulong> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: the kernel writes one long to `message`, which lives during the call.
    let done = unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, pid.as_raw(), 0, &raw mut message) };
    (done == 0).then_some(message)
}

/// The status with which a process ends that stopped on its way out, as wait(2) has it.
pub(super) fn ending_status(pid: Pid) -> Option<i32> {
    i32::try_from(event_message(pid)?).ok()
}

/// Whether an operation of a stopped thread was invalid, since its program began: it had a result that no number stands
/// for, or a number too large for its integer. `None` if that cannot be read.
#[expect(unsafe_code, reason = "ptrace as the kernel has it")]
pub(super) fn was_invalid(thread: Pid) -> Option<bool> {
    let (place, bit) = INVALID?;
    let mut registers = [0_u32; 132];
    let mut area = libc::iovec {
        iov_base: registers.as_mut_ptr().cast(),
        iov_len: size_of_val(&registers),
    };
    // SAFETY: the kernel writes no more bytes than the area has, which lives during the call.
    let done = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, thread.as_raw(), FLOATING_POINT, &raw mut area) };
    let is_read = done == 0 && area.iov_len >= place + size_of::<u32>();
    let word = registers.get(place / size_of::<u32>()).filter(|_| is_read)?;
    Some(word & bit != 0)
}

/// The threads that this process traces.
pub(super) fn traced() -> Vec<Pid> {
    let tracer = format!("TracerPid:\t{}", getpid());
    let threads = numbers("/proc").flat_map(|process| numbers(&format!("/proc/{process}/task")));
    let is_traced = |thread: &i32| {
        let status = fs_err::read_to_string(format!("/proc/{thread}/status"));
        status.is_ok_and(|status| status.lines().any(|line| line == tracer))
    };
    threads.filter(is_traced).map(Pid::from_raw).collect()
}

/// The entries of a directory that are numbers.
fn numbers(dir: &str) -> impl Iterator<Item = i32> + use<> {
    let entries = fs_err::read_dir(dir).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}
