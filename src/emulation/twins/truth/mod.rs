//! Answers that are compiled into programs: made the target's in the twin's file.
//!
//! `bash` knows its `$MACHTYPE`, perl its `@INC`, python its `sysconfig`, dpkg the architecture of packages. All of these
//! are strings that contain a name of the host. Which string stands in its place is read from the target's own build of
//! the file, so distributions may name things as they like, and what both builds say, such as a table of all
//! architectures, stays.
//!
//! A string that is not longer than the host's is written over it. A longer one goes into a segment of its own at the end
//! of the file, and everything that points to the old one is turned to it: instructions, relocations, and the length
//! that the compiler knew. Whether that was everything is not proved here but by asking the twin
//! ([`Table::probes`](super::table::Table::probes)).

mod image;
mod instructions;
mod moves;
mod references;
mod rules;
mod strings;

use crate::arch::Arch;
use {image::Image, rules::Answer, strings::Names};

/// Why a program cannot be made to say what its emulated original says. It then has no twin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Untold(String);

impl Untold {
    fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

/// Whether the file at `path` says something of its own that [`tell`] would change.
///
/// Files for which this is false can be linked into the directory of twins as they are.
pub fn concerns(path: &str) -> bool {
    !rules::answers_of(path).is_empty()
}

/// Makes `twin`, the host's build of the file at `path`, say what `original`, the target's build, says.
///
/// `path` is absolute, in the root. Programs, modules and libraries alike are given here. Returns how many strings and
/// constants were changed, which is zero for most files.
///
/// # Errors
///
/// When an answer is not where it is expected. `twin` is then half changed and must not be used.
pub fn tell(path: &str, twin: &mut Vec<u8>, original: &[u8], host: Arch, target: Arch) -> Result<usize, Untold> {
    let answers = rules::answers_of(path);
    if answers.is_empty() {
        return Ok(0);
    }
    let image = Image::read(twin)?;
    let mut told = 0;
    for answer in answers {
        told += match answer {
            Answer::Strings => {
                let changes = strings::find(twin, &image, original, &Names::new(host, target));
                strings::write(twin, &image, changes, host)?
            }
            Answer::Converters => strings::move_gconv(twin, &image)?,
            // These are x86_64 instructions.
            Answer::Operands | Answer::CpuLevel if host != Arch::X86_64 => 0,
            Answer::Operands => instructions::change_name(twin, &image, host, target)?,
            Answer::CpuLevel => instructions::hide_cpu_level(twin, &image),
        };
    }
    Ok(told)
}

/// The content of `/.kiln/target`, from which `answers.so` knows what to say: the target's machine name as `uname`
/// gives it, the host's name of multiarch directories, and the target's, a line each.
pub fn facts(host: Arch, target: Arch) -> String {
    format!("{}\n{}\n{}\n", target.name(), host.multiarch(), target.multiarch())
}
