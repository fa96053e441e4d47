//! Rewrites the answers that are compiled into a twin to those of the target. Works on the bytes of the files: no I/O.
//!
//! `bash` knows its `$MACHTYPE`, perl its `@INC`, python its `sysconfig`, dpkg the architecture of packages. All of
//! these are strings that contain a name of the host. The replacement of each string is read from the target's build
//! of the file, so distributions may name things as they like, and strings of both builds, such as a table of all
//! architectures, stay unchanged.
//!
//! A string that is not longer than the host's is written over it. A longer one is put into a new segment at the end
//! of the file, and every reference to the old one is redirected: instructions, relocations, and the length that the
//! compiler knew. The proof that nothing was missed is not made here but by questions to the twin
//! ([`Table::probes`](super::table::Table::probes)).

mod apt_name;
mod chars;
mod image;
mod instructions;
mod moves;
mod references;
mod rules;
mod strings;
pub mod traps;

use kiln_records::arch::Arch;

use rules::Answer;
use strings::Names;

pub(super) use image::{Image, Part};

/// Why a program cannot be made to answer like its emulated original. It then has no twin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Untold(String);

impl Untold {
    fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

/// Whether the file at `path` contains answers that [`tell`] would change.
///
/// Other files can be linked into the directory of twins unchanged.
pub fn concerns(path: &str) -> bool {
    !rules::answers_of(path).is_empty()
}

/// Rewrites the answers of `twin`, the host's build of the file at `path`, to those of `original`, the target's build.
///
/// `path` is absolute, in the root. The file may be a program, a module or a library. Returns how many strings and
/// constants were changed, which is zero for most files.
///
/// # Errors
///
/// An answer is not where it is expected. `twin` is then partly changed and must not be used.
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
            // The compiler knew the length of the name.
            Answer::Operands if host.debian().len() != target.debian().len() => {
                apt_name::rename(twin, &image, original, host, target)?
            }
            Answer::Operands => instructions::change_name(twin, &image, host, target)?,
            Answer::CpuLevel => instructions::hide_cpu_level(twin, &image),
            Answer::Chars(function) if host == Arch::X86_64 => chars::unsigned(twin, &image, function)?,
            // Its instructions are not known, and of the others x86_64 alone has signed ones.
            Answer::Chars(_) if target == Arch::X86_64 => {
                return Err(Untold::new("it takes bytes as unsigned"));
            }
            Answer::Chars(_) => 0,
        };
    }
    Ok(told)
}

/// The content of `/.kiln/target`, from which `answers.so` takes its answers: the target's machine name as `uname`
/// returns it, and the multiarch directory names of the host and of the target, one per line.
pub fn facts(host: Arch, target: Arch) -> String {
    format!("{}\n{}\n{}\n", target.name(), host.multiarch(), target.multiarch())
}
