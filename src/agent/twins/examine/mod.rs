//! Examines both builds of a program or library for what depends on the CPU. Works on the bytes of the files: no I/O.
//!
//! A file without findings does the same on both CPUs, as far as a file can show it. Nothing is concluded from a file
//! that cannot be read to its end: that is a finding, too.

mod code;
mod symbols;
mod words;

use std::fmt;

use kiln_records::arch::Arch;

use super::{elf::Broken, modes, truth::Image};

/// Why the results of a program may depend on the CPU that it runs on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// A text names the architecture, and the other build does not have it: a path, a triplet, an answer.
    Name(String),
    /// Code that computes with `long double`, whose format differs.
    LongDouble,
    /// Code that rounds once for a multiplication and an addition, where the other build rounds twice.
    Fused,
    /// Code that sets by itself how the CPU treats results that no number stands for.
    Modes,
    /// A function of libm whose last digit differs.
    Mathematics(String),
    /// A function that loads plugins, of which the other architecture may have others.
    Plugins(String),
    /// A function or file of records whose layout differs.
    Layout(String),
    /// A question to the CPU, or to the kernel about it.
    OwnCpu(String),
    /// The file cannot be examined.
    Unreadable(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(text) => write!(f, "it says `{}`", text.escape_debug()),
            Self::LongDouble => f.write_str("it computes with long double"),
            Self::Fused => f.write_str("it rounds products and sums at once"),
            Self::Modes => f.write_str(modes::FOUND),
            Self::Mathematics(function) => write!(f, "it calls {function}, which CPUs round differently"),
            Self::Plugins(function) => write!(f, "it loads plugins, by {function}"),
            Self::Layout(function) => write!(f, "it has to do with {function}, whose records have another layout"),
            Self::OwnCpu(what) => write!(f, "it asks about its CPU, by {what}"),
            Self::Unreadable(why) => write!(f, "it cannot be examined: {why}"),
        }
    }
}

/// One build of a file.
#[derive(Debug, Clone, Copy)]
pub struct Build<'a> {
    /// The content of the file.
    pub file: &'a [u8],
    /// The architecture that it is for.
    pub arch: Arch,
}

/// A way of looking at a build, beside the other one.
type Look = fn(Build<'_>, &Image, Build<'_>) -> Result<Option<Finding>, Broken>;

/// The ways, the cheapest first: large libraries mostly have a finding among the names of the functions that they call.
const LOOKS: [Look; 4] = [
    |build, _, _| Ok(symbols::findings(build.file)?.into_iter().min()),
    |build, _, _| Ok(words::record(build)),
    words::unsaid,
    |build, image, _| Ok(code::finding(build, image)),
];

/// A finding in a file that exists in both builds. `None`, if it does the same on both CPUs.
pub fn examine(one: Build<'_>, other: Build<'_>) -> Option<Finding> {
    // Only the 8087's format has instructions of its own; without them nothing shows its use.
    if !has_one_long_double(one.arch, other.arch) && ![one.arch, other.arch].contains(&Arch::X86_64) {
        return Some(Finding::LongDouble);
    }
    let unreadable = |broken: Broken| Finding::Unreadable(broken.to_string());
    let images = match (words::parts(one.file), words::parts(other.file)) {
        (Ok(of_one), Ok(of_other)) => [of_one, of_other],
        (Err(broken), _) | (_, Err(broken)) => return Some(unreadable(broken)),
    };
    LOOKS.into_iter().find_map(|look| {
        let builds = [(one, other), (other, one)].into_iter().zip(&images);
        let found = builds.map(|((build, beside), image)| look(build, image, beside));
        // Whichever of the two is the host's.
        found
            .filter_map(|found| found.unwrap_or_else(|broken| Some(unreadable(broken))))
            .min()
    })
}

/// The first function of libm that `file` calls and whose last digit depends on the CPU.
pub fn libm(file: &[u8]) -> Option<Finding> {
    let found = symbols::findings(file).unwrap_or_else(|broken| vec![Finding::Unreadable(broken.to_string())]);
    found
        .into_iter()
        .find(|finding| matches!(finding, Finding::Mathematics(_) | Finding::Unreadable(_)))
}

/// Whether a program for aarch64 sets by itself how the CPU treats results that no number stands for. One that cannot be
/// read may.
pub fn sets_modes_on_aarch64(file: &[u8]) -> bool {
    let Ok(image) = words::parts(file) else { return true };
    image
        .code
        .iter()
        .any(|part| code::sets_modes_on_aarch64(&file[part.bytes.clone()]))
}

/// The formats of `long double`.
#[derive(Debug, PartialEq, Eq)]
enum LongDouble {
    /// 80 bits, as the 8087 had.
    Extended,
    /// 128 bits of IEEE 754.
    Quadruple,
    /// Two of 64 bits.
    Pair,
}

/// Whether `long double` has the same format for both architectures.
pub fn has_one_long_double(one: Arch, other: Arch) -> bool {
    long_double(one) == long_double(other)
}

/// By the architectures' ABIs for Linux. Distributions for POWER change from pairs to quadruple precision one by one.
fn long_double(arch: Arch) -> LongDouble {
    match arch {
        Arch::X86_64 => LongDouble::Extended,
        Arch::Ppc64le => LongDouble::Pair,
        Arch::Aarch64 | Arch::Riscv64 | Arch::S390x => LongDouble::Quadruple,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The finding in this very program, as if it were built for both.
    fn of_this_program(one: Arch, other: Arch) -> Option<Finding> {
        let file = fs_err::read(std::env::current_exe().unwrap()).unwrap();
        let build = |arch| Build { file: &file, arch };
        examine(build(one), build(other))
    }

    #[test]
    fn what_cannot_be_read_is_a_finding() {
        let broken = Build {
            file: b"\x7fELF and no more",
            arch: Arch::X86_64,
        };
        let finding = examine(broken, broken);
        assert!(matches!(finding, Some(Finding::Unreadable(_))), "{finding:?}");
    }

    #[test]
    fn it_makes_no_difference_which_build_is_the_hosts() {
        for (one, other) in [
            (Arch::X86_64, Arch::Aarch64),
            (Arch::Aarch64, Arch::Ppc64le),
            (Arch::Riscv64, Arch::X86_64),
        ] {
            assert_eq!(
                of_this_program(one, other),
                of_this_program(other, one),
                "{one} and {other}"
            );
        }
    }

    #[test]
    fn a_format_that_leaves_no_trace_is_taken_to_be_used() {
        assert_eq!(of_this_program(Arch::Aarch64, Arch::Ppc64le), Some(Finding::LongDouble));
        assert_ne!(of_this_program(Arch::Aarch64, Arch::Riscv64), Some(Finding::LongDouble));
    }
}
