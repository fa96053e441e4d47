//! The system calls that a sandbox may make: builds a seccomp filter and installs it in the calling process, for good.
//!
//! `seccomp.json` names the calls. It has the form that container engines read, so that every sandbox on a shared
//! kernel is held to one list. A call that is not named does not exist in the sandbox, or is refused. So is every call
//! by an entry of the kernel that the list does not cover, such as x32 on `x86_64`.
//!
//! Sockets are of a few families only. The others are not confined by a network namespace (vsock leads to the
//! hypervisor), or are parts of the kernel that no build needs.

use std::{collections::HashMap, fmt::Display, os::fd::RawFd};

use kiln_records::{Code, Failure};
use nix::{errno::Errno, libc};
use serde::Deserialize;

use super::{
    families::NETLINK,
    questions::{I386, Questions},
    socketcall::{MAKES_PAIR, MAKES_SOCKET},
    uname::Names,
};

/// The list, in the form that container engines read.
pub const PROFILE: &str = include_str!("seccomp.json");

/// Which calls a filter is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Every call: for a sandbox on the host's kernel without an engine that filters calls.
    AllCalls,
    /// Sockets only: for a sandbox in a container, whose engine has the list, or on a kernel of its own.
    Sockets,
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Allow,
    Refuse(Errno),
    /// Allowed for some families of sockets.
    Socket,
    /// The same, by a call whose arguments are in memory: who makes the filter is asked.
    Socketcall,
    /// Who makes the filter is asked.
    Ask,
}

/// The calls that say which kernel there is.
const UNAME: [&str; 3] = ["uname", "olduname", "oldolduname"];

/// A way into the kernel: a table of numbers and names.
struct Entry {
    /// The kernel's number for it, `AUDIT_ARCH_…` of `linux/audit.h`.
    audit: u32,
    table: Vec<(u32, &'static str)>,
}

/// Installs the filter in this process; whatever it starts inherits it. The process must have `CAP_SYS_ADMIN` in its
/// user namespace. With `names`, calls of `uname` are asked about, if the kernel and the engine let them be.
///
/// Without `no_new_privs`: programs that change their user, such as `sudo` or `ping`, work in a build as on any system.
/// They win nothing that root of the sandbox, which runs the recipe, has not got; and no program of the host can be run.
///
/// # Errors
///
/// `sandbox_start` when the kernel refuses the filter.
pub(super) fn install(scope: Scope, names: Option<Names>) -> Result<Questions, Failure> {
    // Without this flag older kernels slow down every process that has a filter.
    let plain = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let asks = plain | libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // With that one, signals that end nothing do not disturb a call whose answer is on its way.
    for flags in [asks | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, asks] {
        match set(flags, &program(scope, names.is_some())?) {
            Ok(listener) => return Ok(Questions::of(listener, names)),
            // A kernel that does not know the flag, or asks nobody, or an engine that answers its own questions.
            Err(Errno::EINVAL | Errno::EBUSY) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    set(plain, &program(scope, false)?).map_err(failed)?;
    Ok(Questions::none())
}

fn failed(why: impl Display) -> Failure {
    Failure::new(Code::SandboxStart, format!("cannot limit system calls: {why}"))
}

/// Installs a filter. Returns what the kernel does: a descriptor if it is to ask.
fn set(flags: libc::c_ulong, program: &[libc::sock_filter]) -> Result<RawFd, Errno> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::E2BIG)?,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies the program, which lives until the call returns.
    #[expect(unsafe_code, reason = "the call has no safe form")]
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    Errno::result(done).map(|done| RawFd::try_from(done).unwrap_or(-1))
}

/// The ways into the kernel of this architecture that programs use. Others get `ENOSYS` for every call.
fn entries() -> Vec<Entry> {
    macro_rules! entry {
        ($audit:expr, $table:ty) => {
            Entry {
                audit: $audit,
                table: <$table>::iter()
                    .map(|call| (call.id().cast_unsigned(), call.name()))
                    .collect(),
            }
        };
    }
    #[cfg(target_arch = "x86_64")]
    return vec![entry!(0xc000_003e, syscalls::Sysno), entry!(I386, syscalls::x86::Sysno)];
    #[cfg(target_arch = "aarch64")]
    return vec![
        entry!(0xc000_00b7, syscalls::Sysno),
        entry!(0x4000_0028, syscalls::arm::Sysno),
    ];
    #[cfg(target_arch = "powerpc64")]
    return vec![entry!(0xc000_0015, syscalls::Sysno)];
    #[cfg(target_arch = "s390x")]
    return vec![entry!(0x8000_0016, syscalls::Sysno)];
    #[cfg(target_arch = "riscv64")]
    return vec![entry!(0xc000_00f3, syscalls::Sysno)];
}

/// The parts of [`PROFILE`] that are read here; engines read the rest.
#[derive(Deserialize)]
struct Profile {
    syscalls: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    names: Vec<String>,
    action: String,
    errno_ret: Option<i32>,
}

/// The verdict on each call that is named. A profile's default is `EPERM`.
fn named() -> Result<HashMap<String, Verdict>, serde_json::Error> {
    let profile: Profile = serde_json::from_str(PROFILE)?;
    let rules = profile.syscalls.into_iter().flat_map(|rule| {
        let verdict = match (rule.action.as_str(), rule.errno_ret) {
            ("SCMP_ACT_ALLOW", _) => Verdict::Allow,
            (_, errno) => Verdict::Refuse(errno.map_or(Errno::EPERM, Errno::from_raw)),
        };
        rule.names.into_iter().map(move |name| (name, verdict))
    });
    Ok(rules.collect())
}

/// The filter; `asks` if it asks about `uname`.
fn program(scope: Scope, asks: bool) -> Result<Vec<libc::sock_filter>, Failure> {
    let named = named().map_err(failed)?;
    let by_name = |audit: u32, name: &str| match (name, scope) {
        ("socket" | "socketpair", _) => Verdict::Socket,
        ("socketcall", _) if audit == I386 => Verdict::Socketcall,
        // Nothing uses it there.
        ("socketcall", _) => Verdict::Refuse(Errno::ENOSYS),
        (_, Scope::Sockets) => Verdict::Allow,
        (name, Scope::AllCalls) => named.get(name).copied().unwrap_or(Verdict::Refuse(Errno::EPERM)),
    };
    let verdict_on = |audit: u32, name: &str| match by_name(audit, name) {
        Verdict::Allow if asks && UNAME.contains(&name) => Verdict::Ask,
        verdict => verdict,
    };
    let unknown = match scope {
        // Programs fall back when a call seems not to exist.
        Scope::AllCalls => Verdict::Refuse(Errno::ENOSYS),
        Scope::Sockets => Verdict::Allow,
    };
    let mut program = Vec::new();
    program.push(load(offset::ARCH));
    for entry in entries() {
        let block = block(&runs(entry.table, unknown, |name| verdict_on(entry.audit, name)));
        program.push(jump(libc::BPF_JEQ, entry.audit, 1, 0));
        program.push(statement(
            libc::BPF_JMP | libc::BPF_JA,
            u32::try_from(block.len()).unwrap_or(u32::MAX),
        ));
        program.extend(block);
    }
    program.push(answer(Verdict::Refuse(Errno::ENOSYS)));
    Ok(program)
}

/// The verdicts as runs of numbers, each from its own start to the start of the next.
fn runs(
    mut table: Vec<(u32, &'static str)>,
    unknown: Verdict,
    verdict_on: impl Fn(&str) -> Verdict,
) -> Vec<(u32, Verdict)> {
    /// The first number of x32, which no table has and no filter may let pass.
    const X32: u32 = 0x4000_0000;
    table.sort_unstable();
    let mut points = vec![(0, unknown)];
    for (number, name) in table {
        points.push((number, verdict_on(name)));
        points.push((number + 1, unknown));
    }
    points.push((X32, Verdict::Refuse(Errno::ENOSYS)));
    let mut runs: Vec<(u32, Verdict)> = Vec::new();
    for (start, verdict) in points {
        if runs.last().is_some_and(|last| last.0 == start) {
            runs.pop();
        }
        if runs.last().is_none_or(|last| last.1 != verdict) {
            runs.push((start, verdict));
        }
    }
    runs
}

/// Where the kernel puts what a filter can look at (`struct seccomp_data`).
mod offset {
    pub(super) const NUMBER: u32 = 0;
    pub(super) const ARCH: u32 = 4;

    /// The lower half of an argument, which is all that the kernel reads of an `int`.
    pub(super) const fn argument(index: u32) -> u32 {
        16 + 8 * index + if cfg!(target_endian = "big") { 4 } else { 0 }
    }
}

/// Instructions that decide on a call by its number. They always answer.
fn block(runs: &[(u32, Verdict)]) -> Vec<libc::sock_filter> {
    let mut block = vec![load(offset::NUMBER)];
    for (start, verdict) in runs.iter().rev() {
        let body = match verdict {
            Verdict::Socket => socket(),
            Verdict::Socketcall => socketcall(),
            verdict => vec![answer(*verdict)],
        };
        if *start > 0 {
            block.push(jump(
                libc::BPF_JGE,
                *start,
                0,
                u8::try_from(body.len()).unwrap_or(u8::MAX),
            ));
        }
        block.extend(body);
    }
    block
}

/// Instructions that decide on a socket by its family, and for netlink by its protocol. The error is that of a kernel without
/// the family, which programs such as `useradd` know.
fn socket() -> Vec<libc::sock_filter> {
    let number = |number: i32| number.cast_unsigned();
    let protocols = u8::try_from(NETLINK.len()).unwrap_or(u8::MAX);
    // From each jump to the answers at the end, which come after the protocols' own part.
    let mut part = vec![
        load(offset::argument(0)),
        jump(libc::BPF_JEQ, number(libc::AF_UNIX), protocols + 4, 0),
        jump(libc::BPF_JEQ, number(libc::AF_INET), protocols + 3, 0),
        jump(libc::BPF_JEQ, number(libc::AF_INET6), protocols + 2, 0),
        jump(libc::BPF_JEQ, number(libc::AF_NETLINK), 0, protocols + 2),
        load(offset::argument(2)),
    ];
    for (left, protocol) in (1..=protocols).rev().zip(NETLINK) {
        part.push(jump(libc::BPF_JEQ, number(protocol), left - 1, u8::from(left == 1)));
    }
    part.extend([answer(Verdict::Allow), answer(Verdict::Refuse(Errno::EAFNOSUPPORT))]);
    part
}

/// Instructions that decide on `socketcall` by the call behind it: those that make sockets are asked about.
fn socketcall() -> Vec<libc::sock_filter> {
    vec![
        load(offset::argument(0)),
        jump(libc::BPF_JEQ, MAKES_SOCKET, 2, 0),
        jump(libc::BPF_JEQ, MAKES_PAIR, 1, 0),
        answer(Verdict::Allow),
        answer(Verdict::Socketcall),
    ]
}

fn answer(verdict: Verdict) -> libc::sock_filter {
    let value = match verdict {
        Verdict::Allow => libc::SECCOMP_RET_ALLOW,
        Verdict::Refuse(errno) => libc::SECCOMP_RET_ERRNO | (errno as i32).cast_unsigned(),
        Verdict::Socketcall | Verdict::Ask => libc::SECCOMP_RET_USER_NOTIF,
        Verdict::Socket => libc::SECCOMP_RET_KILL_PROCESS,
    };
    statement(libc::BPF_RET | libc::BPF_K, value)
}

fn load(offset: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    instruction(code, 0, 0, k)
}

fn jump(comparison: u32, with: u32, if_true: u8, if_false: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | comparison | libc::BPF_K, if_true, if_false, with)
}

/// The kernel's codes have 16 bits, but the constants 32.
fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: u16::try_from(code).unwrap_or_default(),
        jt,
        jf,
        k,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::room::families;

    const EPERM: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    const ENOSYS: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    const NO_FAMILY: u32 = libc::SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT as u32;
    const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;

    /// What the kernel would answer.
    fn ask(program: &[libc::sock_filter], audit: u32, number: u32, arguments: [u64; 3]) -> u32 {
        let mut data = [number.to_ne_bytes(), audit.to_ne_bytes()].concat();
        data.extend([0; 8]);
        data.extend(arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
        let (mut at, mut held) = (0, 0);
        loop {
            let one = program[at];
            at += 1;
            let choose = |is: bool| usize::from(if is { one.jt } else { one.jf });
            match u32::from(one.code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    let from = one.k as usize;
                    held = u32::from_ne_bytes(data[from..from + 4].try_into().unwrap());
                }
                code if code == libc::BPF_JMP | libc::BPF_JA => at += one.k as usize,
                code if code == libc::BPF_JMP | libc::BPF_JEQ => at += choose(held == one.k),
                code if code == libc::BPF_JMP | libc::BPF_JGE => at += choose(held >= one.k),
                code if code == libc::BPF_RET => return one.k,
                code => panic!("no such instruction: {code}"),
            }
        }
    }

    /// The answers on these calls, by every entry that has them.
    fn all(scope: Scope, name: &str, arguments: [u64; 3]) -> Vec<u32> {
        let program = program(scope, false).unwrap();
        let entries = entries().into_iter();
        let of_entry = entries.filter_map(|entry| {
            let number = entry.table.iter().find(|(_, known)| *known == name)?.0;
            Some(ask(&program, entry.audit, number, arguments))
        });
        of_entry.collect()
    }

    #[track_caller]
    fn assert_all(scope: Scope, name: &str, arguments: [u64; 3], answer: u32) {
        let answers = all(scope, name, arguments);
        assert!(!answers.is_empty(), "no entry has {name}");
        assert!(answers.iter().all(|is| *is == answer), "{name}: {answers:#x?}");
    }

    #[test]
    fn what_is_shared_with_the_host_is_refused_by_every_entry_of_the_kernel() {
        for name in [
            "keyctl",
            "add_key",
            "request_key",
            "bpf",
            "perf_event_open",
            "userfaultfd",
            "open_by_handle_at",
            "init_module",
            "finit_module",
            "kexec_load",
            "setns",
            "swapon",
            "reboot",
            "quotactl",
            "fanotify_init",
        ] {
            assert_all(Scope::AllCalls, name, [0; 3], EPERM);
        }
        for name in ["io_uring_setup", "io_setup", "clone3", "fsopen", "move_mount"] {
            assert_all(Scope::AllCalls, name, [0; 3], ENOSYS);
        }
        for name in [
            "mount", "unshare", "chroot", "mknodat", "ptrace", "execve", "clone", "openat", "seccomp",
        ] {
            assert_all(Scope::AllCalls, name, [0; 3], ALLOWED);
        }
    }

    #[test]
    fn calls_and_entries_that_nobody_named_do_not_exist() {
        let program = program(Scope::AllCalls, false).unwrap();
        for entry in entries() {
            let last = entry.table.iter().map(|(number, _)| *number).max().unwrap();
            assert_eq!(ask(&program, entry.audit, last + 1, [0; 3]), ENOSYS);
            assert_eq!(ask(&program, entry.audit, u32::MAX, [0; 3]), ENOSYS);
        }
        // Big-endian MIPS, and a call of x32 that 64-bit programs may make.
        assert_eq!(ask(&program, 8, 1, [0; 3]), ENOSYS);
        #[cfg(target_arch = "x86_64")]
        for scope in [Scope::AllCalls, Scope::Sockets] {
            let program = super::program(scope, true).unwrap();
            assert_eq!(ask(&program, 0xc000_003e, 0x4000_0000 + 41, [1, 1, 0]), ENOSYS);
        }
    }

    #[test]
    fn sockets_are_local_or_of_the_network_that_is_the_sandboxs_own() {
        for scope in [Scope::AllCalls, Scope::Sockets] {
            for (family, protocol, answer) in [
                (libc::AF_UNIX, 0, ALLOWED),
                (libc::AF_INET, 0, ALLOWED),
                (libc::AF_INET6, 6, ALLOWED),
                (libc::AF_NETLINK, libc::NETLINK_ROUTE, ALLOWED),
                (libc::AF_NETLINK, libc::NETLINK_AUDIT, ALLOWED),
                (libc::AF_NETLINK, libc::NETLINK_KOBJECT_UEVENT, ALLOWED),
                (libc::AF_NETLINK, libc::NETLINK_NETFILTER, NO_FAMILY),
                (libc::AF_NETLINK, libc::NETLINK_GENERIC, NO_FAMILY),
                (libc::AF_NETLINK, libc::NETLINK_SOCK_DIAG, NO_FAMILY),
                (libc::AF_NETLINK, libc::NETLINK_XFRM, NO_FAMILY),
                (libc::AF_VSOCK, 0, NO_FAMILY),
                (libc::AF_ALG, 0, NO_FAMILY),
                (libc::AF_PACKET, 0, NO_FAMILY),
                (libc::AF_UNSPEC, 0, NO_FAMILY),
            ] {
                let arguments = [
                    u64::from(family.cast_unsigned()),
                    1,
                    u64::from(protocol.cast_unsigned()),
                ];
                assert_all(scope, "socket", arguments, answer);
                assert_eq!(families::allows(family, protocol), answer == ALLOWED);
                assert_all(scope, "socketpair", arguments, answer);
                // The kernel does not look at the upper half either.
                let upper = [arguments[0] | 1 << 32, 1, arguments[2] | 1 << 40];
                assert_all(scope, "socket", upper, answer);
            }
            #[cfg(target_arch = "x86_64")]
            for (call, answer) in [
                (MAKES_SOCKET, libc::SECCOMP_RET_USER_NOTIF),
                (MAKES_PAIR, libc::SECCOMP_RET_USER_NOTIF),
                (3, ALLOWED),
            ] {
                assert_all(scope, "socketcall", [call.into(), 0, 0], answer);
            }
            #[cfg(target_arch = "aarch64")]
            assert!(all(scope, "socketcall", [1; 3]).iter().all(|is| *is == ENOSYS));
        }
        assert_all(Scope::Sockets, "keyctl", [0; 3], ALLOWED);
    }

    #[test]
    fn who_makes_the_filter_is_asked_about_uname_if_it_is_wanted() {
        for scope in [Scope::AllCalls, Scope::Sockets] {
            for (asks, answer) in [(false, ALLOWED), (true, libc::SECCOMP_RET_USER_NOTIF)] {
                let program = program(scope, asks).unwrap();
                for entry in entries() {
                    let number = |name| entry.table.iter().find(|(_, known)| *known == name).unwrap().0;
                    assert_eq!(ask(&program, entry.audit, number("uname"), [0; 3]), answer);
                    assert_eq!(ask(&program, entry.audit, number("getpid"), [0; 3]), ALLOWED);
                }
            }
        }
        // No library of this century makes it.
        #[cfg(target_arch = "x86_64")]
        assert_eq!(ask(&program(Scope::AllCalls, true).unwrap(), I386, 59, [0; 3]), EPERM);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_name_is_that_of_a_call() {
        let known: Vec<_> = entries().into_iter().flat_map(|entry| entry.table).collect();
        let named = named().unwrap();
        let is_known = |name: &String| known.iter().any(|(_, call)| call == name);
        let mut unknown: Vec<_> = named.keys().filter(|name| !is_known(name)).collect();
        unknown.sort_unstable();
        // Names of other architectures and of libraries, and calls younger than the table, which do not exist here.
        assert_eq!(
            unknown,
            [
                "arm_fadvise64_64",
                "arm_sync_file_range",
                "breakpoint",
                "cacheflush",
                "fstatat",
                "getxattrat",
                "listxattrat",
                "llseek",
                "mseal",
                "removexattrat",
                "set_tls",
                "setxattrat",
                "sync_file_range2",
            ]
        );
    }
}
