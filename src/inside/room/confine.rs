//! The last step before anything of a recipe runs: takes away what this process would hand down. Changes the calling
//! process, for good.

use kiln_records::{Code, Failure};
use nix::{errno::Errno, libc};

pub use super::filter::Scope;
use super::{filter::install, questions::Questions, release::Release, uname::Names};

/// Leaves the session keyring of whoever started Kiln, and limits the system calls of this process and of everything it
/// starts. What the kernel asks afterwards is to be answered once this process has given up its own rights. With a
/// `release`, it asks about `uname` as well, if it can, and no program has an answer until then.
///
/// # Errors
///
/// `sandbox_start` when the kernel refuses.
pub fn confine(scope: Scope, release: Option<Release>) -> Result<Questions, Failure> {
    leave_keyring()?;
    install(scope, release.and_then(Names::of_kernel))
}

/// Joins a new session keyring, without content and without a name.
fn leave_keyring() -> Result<(), Failure> {
    let (unnamed, nothing) = (std::ptr::null::<libc::c_char>(), 0);
    // SAFETY: the call reads no memory when it is given no name.
    #[expect(unsafe_code, reason = "the call has no safe form")]
    let joined = unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            libc::KEYCTL_JOIN_SESSION_KEYRING,
            unnamed,
            nothing,
            nothing,
            nothing,
        )
    };
    match Errno::result(joined) {
        // A kernel without keyrings, or an engine that forbids the call to everything here, so that nothing here can
        // read a key either.
        Ok(_) | Err(Errno::ENOSYS | Errno::EPERM) => Ok(()),
        Err(errno) => Err(Failure::new(
            Code::SandboxStart,
            format!("cannot leave the keyring of this session: {errno}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `keyctl(2)` and its like, with what they return.
    fn call(number: libc::c_long, arguments: [libc::c_long; 5]) -> Result<libc::c_long, Errno> {
        let [first, second, third, fourth, last] = arguments;
        // SAFETY: pointers among the arguments are to constant strings.
        #[expect(unsafe_code, reason = "the calls have no safe form")]
        Errno::result(unsafe { libc::syscall(number, first, second, third, fourth, last) })
    }

    #[test]
    fn the_session_keyring_of_whoever_started_kiln_is_left_behind() {
        let (kind, name) = (c"user".as_ptr() as libc::c_long, c"kiln-test".as_ptr() as libc::c_long);
        let session = libc::c_long::from(libc::KEY_SPEC_SESSION_KEYRING);
        let search = libc::c_long::from(libc::KEYCTL_SEARCH);
        // A keyring is a thread's.
        let found = std::thread::spawn(move || {
            leave_keyring().unwrap();
            if call(libc::SYS_add_key, [kind, name, name, 4, session]).is_err() {
                return None;
            }
            let look = || call(libc::SYS_keyctl, [search, session, kind, name, 0]);
            let before = look();
            leave_keyring().unwrap();
            Some((before.is_ok(), look()))
        });
        match found.join().unwrap() {
            Some(found) => assert_eq!(found, (true, Err(Errno::ENOKEY))),
            None => eprintln!("skipped: no keyrings here"),
        }
    }

    #[test]
    fn a_confined_thread_has_neither_keyrings_nor_vsock() {
        let said = std::thread::spawn(|| {
            // Only who has all rights may install a filter.
            confine(Scope::AllCalls, None).ok()?.answer().ok()?;
            let keyctl = call(
                libc::SYS_keyctl,
                [0, libc::c_long::from(libc::KEY_SPEC_SESSION_KEYRING), 0, 0, 0],
            );
            let socket = |family: i32| call(libc::SYS_socket, [family.into(), libc::SOCK_STREAM.into(), 0, 0, 0]).err();
            Some((keyctl, socket(libc::AF_VSOCK), socket(libc::AF_UNIX)))
        });
        match said.join().unwrap() {
            Some(said) => assert_eq!(said, (Err(Errno::EPERM), Some(Errno::EAFNOSUPPORT), None)),
            None => eprintln!("skipped: no filters without root"),
        }
    }
}
