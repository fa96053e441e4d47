//! Makes the sockets that programs for 32 bits ask for by `socketcall`. The family is in the program's memory, where no filter
//! sees it and where other threads could change it after a look, so the kernel asks here, and the socket is made here. Reads and
//! writes the memory of programs of the sandbox, and gives them sockets.
//!
//! The C libraries of distributions for i386 know no other way, since they are built for kernels that have none.

use std::os::fd::RawFd;

use nix::{errno::Errno, libc};

use super::{
    families,
    notify::{Answer, Asked, Listener, Program, owned},
};

/// The calls behind `socketcall` that make sockets (`linux/net.h`). The others are about sockets that are there.
pub(super) const MAKES_SOCKET: u32 = 1;
/// The one for two that are connected.
pub(super) const MAKES_PAIR: u32 = 8;

/// The bits of a socket's type that are its type, and not flags (`SOCK_TYPE_MASK`).
const TYPE: i32 = 0xf;

/// `CAP_NET_RAW` of `linux/capability.h`.
const NET_RAW: u32 = 13;

/// Does one call.
pub(super) fn answer(listener: &Listener, asked: &Asked) -> Answer {
    make(listener, asked).map_or_else(Answer::Fails, Answer::Returns)
}

/// Returns what the call returns.
fn make(listener: &Listener, asked: &Asked) -> Result<i32, Errno> {
    let [call, arguments, ..] = asked.data.args;
    // A program for 32 bits has no more in its registers.
    let arguments = arguments & u64::from(u32::MAX);
    let program = Program::that(listener, asked)?;
    let [family, kind, protocol, pair] = words(&program, arguments, call)?;
    if !families::allows(family, protocol) {
        return Err(Errno::EAFNOSUPPORT);
    }
    may(&program, family, kind)?;
    let inherited = kind | libc::SOCK_CLOEXEC;
    let flags = kind & libc::SOCK_CLOEXEC;
    if u32::try_from(call) == Ok(MAKES_SOCKET) {
        // SAFETY: the call takes numbers only.
        #[expect(unsafe_code, reason = "nix has an enumeration for each number, and not all of them")]
        let made = Errno::result(unsafe { libc::socket(family, inherited, protocol) })?;
        return listener.give(asked, &owned(made), flags);
    }
    let mut both: [RawFd; 2] = [0; 2];
    // SAFETY: the call writes two numbers into the array.
    #[expect(unsafe_code, reason = "nix has an enumeration for each number, and not all of them")]
    Errno::result(unsafe { libc::socketpair(family, inherited, protocol, both.as_mut_ptr()) })?;
    let both = both.map(owned);
    let numbers = [
        listener.give(asked, &both[0], flags)?,
        listener.give(asked, &both[1], flags)?,
    ];
    let bytes = numbers.map(i32::to_ne_bytes).concat();
    program.write(u64::from(pair.cast_unsigned()), &bytes)?;
    Ok(0)
}

/// The arguments of the call; the last one only where there are two sockets.
fn words(program: &Program, at: u64, call: u64) -> Result<[i32; 4], Errno> {
    let mut bytes = [0; 16];
    let count = if u32::try_from(call) == Ok(MAKES_PAIR) { 16 } else { 12 };
    program.read(at, &mut bytes[..count])?;
    let word = |at: usize| i32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Ok([word(0), word(4), word(8), word(12)])
}

/// Succeeds if a program may have such a socket: in the network of this process, and a raw one only with the right to it.
fn may(program: &Program, family: i32, kind: i32) -> Result<(), Errno> {
    let is_ours = |namespace: &str| {
        let of = |process: &str| fs_err::read_link(format!("/proc/{process}/ns/{namespace}")).ok();
        let own = of("thread-self");
        own.is_some() && own == of(&program.pid.to_string())
    };
    if !is_ours("net") {
        return Err(Errno::ENOSYS);
    }
    let is_raw = kind & TYPE == libc::SOCK_RAW && family != libc::AF_NETLINK && family != libc::AF_UNIX;
    if !is_raw {
        return Ok(());
    }
    let status = fs_err::read_to_string(format!("/proc/{}/status", program.pid)).unwrap_or_default();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = rights.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    match rights {
        Some(rights) if rights & (1 << NET_RAW) != 0 && is_ours("user") => Ok(()),
        _ => Err(Errno::EPERM),
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::{path::Path, thread};

    use super::super::{Scope, confine};
    use super::*;

    /// `socketcall` as programs for 32 bits make it. `memory` is where these reach it.
    fn socketcall(memory: *mut i32, call: u32, words: [i32; 4]) -> i32 {
        const NUMBER: i32 = 102;
        let returned: i32;
        // SAFETY: the memory is this test's, has room for the words, and lives; the kernel changes no other.
        #[expect(unsafe_code, reason = "a way into the kernel that no library has")]
        unsafe {
            memory.cast::<[i32; 4]>().write_volatile(words);
            std::arch::asm!(
                // The compiler keeps this register for itself.
                "xchg rbx, {call}",
                "int 0x80",
                "xchg rbx, {call}",
                call = inout(reg) u64::from(call) => _,
                inlateout("eax") NUMBER => returned,
                in("ecx") memory,
                out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            );
        }
        returned
    }

    #[test]
    fn programs_for_32_bits_get_the_sockets_of_others() {
        if !Path::new("/proc/sys/abi/vsyscall32").exists() {
            eprintln!("skipped: this kernel runs no programs for 32 bits");
            return;
        }
        let said = thread::spawn(|| {
            confine(Scope::AllCalls, None).ok()?.answer().ok()?;
            // SAFETY: the call makes new memory.
            #[expect(unsafe_code, reason = "memory that a program for 32 bits can reach")]
            let memory = unsafe {
                let (rights, flags) = (
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT,
                );
                libc::mmap(std::ptr::null_mut(), 4096, rights, flags, -1, 0)
            };
            assert_ne!(memory, libc::MAP_FAILED);
            let memory: *mut i32 = memory.cast();
            let at = i32::try_from(memory as usize).unwrap();
            let socket = |family, kind, protocol| socketcall(memory, MAKES_SOCKET, [family, kind, protocol, 0]);
            let refused = -(Errno::EAFNOSUPPORT as i32);
            let stream = socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
            let pair = socketcall(memory, MAKES_PAIR, [libc::AF_UNIX, libc::SOCK_STREAM, 0, at + 64]);
            // SAFETY: the memory lives, and has room for the numbers.
            #[expect(unsafe_code, reason = "memory that a program for 32 bits can reach")]
            let numbers: [i32; 2] = unsafe { memory.add(16).cast::<[i32; 2]>().read_volatile() };
            let link = |number: i32| fs_err::read_link(format!("/proc/self/fd/{number}")).unwrap();
            for number in [stream, numbers[0], numbers[1]] {
                assert!(link(number).to_string_lossy().starts_with("socket:"), "{number}");
                drop(owned(number));
            }
            assert_eq!(pair, 0);
            assert_eq!(socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0), refused);
            assert_eq!(
                socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER),
                refused
            );
            drop(owned(socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_AUDIT)));
            // About a socket that is none: the kernel's own answer.
            assert_eq!(socketcall(memory, 4, [-1, 1, 0, 0]), -(Errno::EBADF as i32));
            Some(())
        });
        if said.join().unwrap().is_none() {
            eprintln!("skipped: no filters without root");
        }
    }
}
