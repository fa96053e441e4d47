//! Answers `uname(2)` of the sandbox's programs: what the kernel itself says, with another release. Reads the kernel's files about
//! a program, and writes the memory of programs of the sandbox.
//!
//! What cannot be looked at, or be answered exactly, is left to the kernel, which also refuses pointers that lead nowhere.

use std::os::unix::fs::{FileExt, MetadataExt};

use nix::{errno::Errno, libc};

use super::{
    notify::{Answer, Asked, Listener, Program},
    release::{ROOM, Release},
};

/// The first kernel that goes on with a call that it has asked about.
const GOES_ON: (u32, u32) = (5, 5);

/// Personalities of programs that want to know of another kernel than there is (`linux/personality.h`).
const UNAME26: u32 = 0x0002_0000;
const LINUX32: u32 = 0x0008;
/// The part of a personality in which that one is.
const KIND: u32 = 0x00ff;

/// The numbers of older forms of the call, on those architectures that have them.
const OLD: i32 = 109;
const OLDEST: i32 = 59;

/// The length of a name in the oldest form, with the zero at its end.
const OLDEST_ROOM: usize = 9;

/// The names of a system, in the kernel's order: system, host, release, version, machine, domain.
type Texts = [[u8; ROOM]; 6];

/// The kernel's own names, as it said them before it was told to ask, and the release that programs are told instead.
#[derive(Debug)]
pub(super) struct Names {
    release: Release,
    usual: Texts,
    /// For a program that says that it is one for 32 bits.
    narrow: Texts,
    /// The names of host and domain, which a build can change.
    changing: [fs_err::File; 2],
    /// The namespace of these names.
    namespace: (u64, u64),
}

impl Names {
    /// Asks the kernel. None if it cannot be asked, or is too old for what is needed here.
    pub(super) fn of_kernel(release: Release) -> Option<Self> {
        let usual = ask().ok()?;
        if version(&usual[2])? < GOES_ON {
            return None;
        }
        let open = |name: &str| fs_err::File::open(format!("/proc/sys/kernel/{name}")).ok();
        Some(Self {
            release,
            // Where no program for 32 bits can run, none can ask as one.
            narrow: ask_as(LINUX32).unwrap_or(usual),
            usual,
            changing: [open("hostname")?, open("domainname")?],
            namespace: namespace("thread-self")?,
        })
    }

    /// Does one call.
    pub(super) fn answer(&self, listener: &Listener, asked: &Asked) -> Answer {
        let told = self.release.get();
        let written = told.and_then(|release| self.write(listener, asked, release));
        written.map_or(Answer::GoesOn, |()| Answer::Returns(0))
    }

    fn write(&self, listener: &Listener, asked: &Asked, release: [u8; ROOM]) -> Option<()> {
        let program = Program::that(listener, asked).ok()?;
        if namespace(&program.pid.to_string())? != self.namespace {
            return None;
        }
        let personality = fs_err::read_to_string(format!("/proc/{}/personality", program.pid)).ok()?;
        let personality = u32::from_str_radix(personality.trim(), 16).ok()?;
        let mut texts = match personality {
            old if old & UNAME26 != 0 => return None,
            narrow if narrow & KIND == LINUX32 => self.narrow,
            _ => self.usual,
        };
        texts[1] = self.now(0)?;
        texts[2] = release;
        texts[5] = self.now(1)?;
        program.write(asked.data.args[0], &in_form(asked.data.nr, &texts)).ok()
    }

    /// A name that may have changed.
    fn now(&self, which: usize) -> Option<[u8; ROOM]> {
        let mut text = [0; ROOM];
        let read = self.changing[which].file().read_at(&mut text[..ROOM - 1], 0).ok()?;
        let end = text[..read].iter().position(|byte| *byte == b'\n').unwrap_or(read);
        text[end..].fill(0);
        Some(text)
    }
}

/// The kernel's structure for a form of the call.
fn in_form(call: i32, texts: &Texts) -> Vec<u8> {
    match call {
        OLD => texts[..5].concat(),
        OLDEST => {
            let short = |text: &[u8; ROOM]| {
                let mut short = [0; OLDEST_ROOM];
                short[..OLDEST_ROOM - 1].copy_from_slice(&text[..OLDEST_ROOM - 1]);
                short
            };
            texts[..5].iter().flat_map(short).collect()
        }
        _ => texts.concat(),
    }
}

/// The namespace of a process's names.
fn namespace(process: &str) -> Option<(u64, u64)> {
    let found = fs_err::metadata(format!("/proc/{process}/ns/uts")).ok()?;
    Some((found.dev(), found.ino()))
}

fn ask() -> Result<Texts, Errno> {
    // SAFETY: the kernel fills in the structure, which consists of bytes.
    #[expect(unsafe_code, reason = "nix cuts the names at their ends")]
    let names = unsafe {
        let mut names: libc::utsname = std::mem::zeroed();
        Errno::result(libc::uname(&raw mut names))?;
        names
    };
    let texts = [
        names.sysname,
        names.nodename,
        names.release,
        names.version,
        names.machine,
        names.domainname,
    ];
    Ok(texts.map(|text| text.map(|letter| u8::from_ne_bytes(letter.to_ne_bytes()))))
}

/// What the kernel says to a program with another personality. This thread has its own again afterwards.
fn ask_as(personality: u32) -> Option<Texts> {
    let set = |personality: u32| {
        // SAFETY: the call takes a number only.
        #[expect(unsafe_code, reason = "the call has no safe form")]
        let before = unsafe { libc::personality(libc::c_ulong::from(personality)) };
        u32::try_from(before).ok()
    };
    let before = set(u32::MAX)?;
    set(before & !KIND | personality)?;
    let said = ask().ok();
    set(before)?;
    said
}

/// The first two numbers of a release.
fn version(release: &[u8]) -> Option<(u32, u32)> {
    let text = std::str::from_utf8(release).ok()?;
    let mut numbers = text.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::{
        os::fd::{AsFd, IntoRawFd},
        thread,
        time::Instant,
    };

    use super::super::{Scope, confine};
    use super::*;

    const TOLD: &str = "6.1.0-99-of-the-image";

    /// The names up to their ends.
    fn plain(texts: &Texts) -> [String; 6] {
        texts.map(|text| {
            let end = text.iter().position(|byte| *byte == 0).unwrap();
            String::from_utf8(text[..end].to_vec()).unwrap()
        })
    }

    /// Does something in a thread whose calls are asked about; it has the channel by which the agent says the release.
    fn confined(scope: Scope, work: impl FnOnce(&Release) + Send + 'static) {
        let done = thread::spawn(move || {
            let release = Release::new().unwrap();
            let copy = release.as_fd().try_clone_to_owned().unwrap().into_raw_fd();
            // Only who has all rights may install a filter.
            confine(scope, Some(release)).ok()?.answer().ok()?;
            work(&Release::inherited(copy).unwrap());
            Some(())
        });
        if done.join().unwrap().is_none() {
            eprintln!("skipped: no filters without root");
        }
    }

    #[test]
    fn programs_are_told_the_release_and_apart_from_that_what_the_kernel_says() {
        confined(Scope::AllCalls, |release| {
            let own = plain(&ask().unwrap());
            let narrow = plain(&ask_as(LINUX32).unwrap());
            release.set(Some(TOLD)).unwrap();
            for (own, told) in [(&own, ask().unwrap()), (&narrow, ask_as(LINUX32).unwrap())] {
                let mut expected = own.clone();
                expected[2] = TOLD.to_owned();
                assert_eq!(plain(&told), expected);
            }
            // What asks for a kernel of long ago means that.
            let of_long_ago = plain(&ask_as(UNAME26).unwrap());
            assert!(of_long_ago[2].starts_with("2.6."), "{of_long_ago:?}");
            release.set(None).unwrap();
            assert_eq!(plain(&ask().unwrap()), own);
        });
    }

    #[test]
    fn a_pointer_that_leads_nowhere_is_the_callers_mistake() {
        confined(Scope::AllCalls, |release| {
            let page = page();
            for told in [None, Some(TOLD)] {
                release.set(told).unwrap();
                // One that leads nowhere, and one to the page's last bytes, with nothing behind it.
                for pointer in [std::ptr::null_mut(), page.wrapping_byte_add(4096 - 100)] {
                    // SAFETY: the kernel writes nothing, or less than the page has.
                    #[expect(unsafe_code, reason = "a wrong pointer is what is tried here")]
                    let done = unsafe { libc::syscall(libc::SYS_uname, pointer) };
                    assert_eq!(Errno::result(done), Err(Errno::EFAULT));
                }
            }
            assert_eq!(plain(&ask().unwrap())[2], TOLD);
        });
    }

    #[test]
    fn a_caller_that_is_ended_leaves_the_others_their_answers() {
        confined(Scope::AllCalls, |release| {
            release.set(Some(TOLD)).unwrap();
            let mut callers: Vec<_> = (0..3)
                .map(|_| {
                    let mut caller = std::process::Command::new("sh");
                    caller.args(["-c", "while :; do uname -r; done"]);
                    caller.stdout(std::process::Stdio::null()).spawn().unwrap()
                })
                .collect();
            for _ in 0..20 {
                assert_eq!(plain(&ask().unwrap())[2], TOLD);
            }
            for caller in &mut callers {
                caller.kill().unwrap();
                caller.wait().unwrap();
            }
            assert_eq!(plain(&ask().unwrap())[2], TOLD);
        });
    }

    /// A page that programs for 32 bits can reach, with nothing behind it.
    fn page() -> *mut u8 {
        let (rights, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | if cfg!(target_arch = "x86_64") { 0x40 } else { 0 },
        );
        // SAFETY: the calls make new memory, and take half of that away.
        #[expect(unsafe_code, reason = "memory with a known end")]
        unsafe {
            let memory = libc::mmap(std::ptr::null_mut(), 8192, rights, flags, -1, 0);
            assert_ne!(memory, libc::MAP_FAILED);
            libc::munmap(memory.byte_add(4096), 4096);
            memory.cast()
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn programs_for_32_bits_are_told_in_every_form() {
        if !std::path::Path::new("/proc/sys/abi/vsyscall32").exists() {
            eprintln!("skipped: this kernel runs no programs for 32 bits");
            return;
        }
        confined(Scope::Sockets, |release| {
            release.set(Some(TOLD)).unwrap();
            for (number, room) in [(122, ROOM), (OLD, ROOM), (OLDEST, OLDEST_ROOM)] {
                let page = page();
                let returned: i32;
                // SAFETY: the page is this test's, has room for each form, and the kernel changes no other memory.
                #[expect(unsafe_code, reason = "a way into the kernel that no library has")]
                let text = unsafe {
                    std::arch::asm!(
                        // The compiler keeps this register for itself.
                        "xchg rbx, {page}",
                        "int 0x80",
                        "xchg rbx, {page}",
                        page = inout(reg) page => _,
                        inlateout("eax") number => returned,
                        out("r8") _, out("r9") _, out("r10") _, out("r11") _,
                    );
                    std::slice::from_raw_parts(page.add(2 * room), room).to_vec()
                };
                assert_eq!(returned, 0, "{number}");
                let text: Vec<u8> = text.into_iter().take_while(|byte| *byte != 0).collect();
                assert_eq!(text, TOLD.as_bytes()[..TOLD.len().min(room - 1)], "{number}");
            }
        });
    }

    /// Not a test: what it costs. `cargo test -p kiln-inside -- --ignored --nocapture cost_of_uname`.
    #[test]
    #[ignore = "a measurement"]
    fn cost_of_uname() {
        let loops = |what: &str| {
            let begun = Instant::now();
            for _ in 0..100_000 {
                let mut names = [0_u8; 6 * ROOM];
                // SAFETY: the kernel fills in the structure, for which there is room.
                #[expect(unsafe_code, reason = "a measurement of the call alone")]
                let done = unsafe { libc::syscall(libc::SYS_uname, names.as_mut_ptr()) };
                assert_eq!(done, 0);
            }
            println!("{what}: {:?}", begun.elapsed());
        };
        loops("without a filter");
        confined(Scope::AllCalls, move |release| {
            loops("without a release");
            release.set(Some(TOLD)).unwrap();
            loops("with a release");
        });
    }
}
