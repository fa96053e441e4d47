//! Answers the kernel's questions about calls of the sandbox's programs, in a thread of the process that made the filter. Starts
//! a thread.

use std::{os::fd::RawFd, thread};

use kiln_records::{Code, Failure};

use super::{
    notify::{Answer, Asked, Listener},
    socketcall,
    uname::Names,
};

/// The kernel's number of i386, `AUDIT_ARCH_I386` of `linux/audit.h`.
pub(super) const I386: u32 = 0x4000_0003;

/// The number of `socketcall` there. Elsewhere the kernel does not ask about it.
const SOCKETCALL: i32 = 102;

/// The kernel's questions. While nobody answers them, the calls wait, and get `ENOSYS` when this is dropped.
#[derive(Debug)]
#[must_use = "programs for 32 bits have no sockets otherwise"]
pub struct Questions(Option<(Listener, Option<Names>)>);

impl Questions {
    pub(super) const fn none() -> Self {
        Self(None)
    }

    /// Those of a filter whose descriptor the kernel has just made.
    pub(super) fn of(listener: RawFd, names: Option<Names>) -> Self {
        Self(Some((Listener::of(listener), names)))
    }

    /// Answers them in a thread of this process, with the rights that it has now, for as long as it lives.
    ///
    /// # Errors
    ///
    /// `sandbox_start` when there can be no thread.
    pub fn answer(self) -> Result<(), Failure> {
        let Some((listener, names)) = self.0 else { return Ok(()) };
        let started = thread::Builder::new().name("kiln-questions".to_owned()).spawn(move || {
            while let Ok(asked) = listener.next() {
                let answer = answer(&listener, &asked, names.as_ref());
                listener.answer(&asked, answer);
            }
        });
        started
            .map(drop)
            .map_err(|error| Failure::new(Code::SandboxStart, format!("cannot answer system calls: {error}")))
    }
}

fn answer(listener: &Listener, asked: &Asked, names: Option<&Names>) -> Answer {
    let is_socketcall = asked.data.arch == I386 && asked.data.nr == SOCKETCALL;
    match names {
        _ if is_socketcall => socketcall::answer(listener, asked),
        Some(names) => names.answer(listener, asked),
        None => Answer::GoesOn,
    }
}
