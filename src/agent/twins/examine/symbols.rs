//! Judges a file by the functions that it calls in libraries. Works on bytes in memory: no I/O.

use object::{
    LittleEndian,
    elf::FileHeader64,
    read::elf::{ElfFile, FileHeader, Sym, Version},
};

use super::Finding;
use crate::twins::elf::Broken;

type Header = FileHeader64<LittleEndian>;

/// The functions of libm that are exact, or correctly rounded by IEEE 754, or say how numbers are rounded. Those that set
/// which operations raise a signal are not among them: twins rely on it (`qemu/answers/src/traps.rs`). All others may
/// differ in their last digit: glibc's manual lists the errors, which differ between CPUs.
const EXACT: &[&str] = &[
    "ceil",
    "copysign",
    "fabs",
    "fdim",
    "finite",
    "floor",
    "fma",
    "fmax",
    "fmin",
    "fmod",
    "frexp",
    "ilogb",
    "isinf",
    "isnan",
    "ldexp",
    "llrint",
    "llround",
    "logb",
    "lrint",
    "lround",
    "modf",
    "nearbyint",
    "nextafter",
    "remainder",
    "remquo",
    "rint",
    "round",
    "roundeven",
    "scalb",
    "scalbln",
    "scalbn",
    "significand",
    "sqrt",
    "trunc",
    "fegetround",
    "fesetround",
    "feclearexcept",
    "fetestexcept",
    "feraiseexcept",
    "__fpclassify",
    "__signbit",
    "__isinf",
    "__isnan",
    "__finite",
    "__issignaling",
];

/// Functions that load code by its path or name.
const LOADING: &[&str] = &[
    "dlopen",
    "dlmopen",
    "g_module_open",
    "g_module_open_full",
    "lt_dlopen",
    "lt_dlopenext",
];

/// Functions of glibc for utmp, wtmp and lastlog: the times in their records have 32 bits on x86_64 and 64 on aarch64
/// and riscv64.
const ACCOUNTING: &[&str] = &[
    "getutent",
    "getutid",
    "getutline",
    "pututline",
    "getutxent",
    "getutxid",
    "getutxline",
    "pututxline",
    "updwtmp",
    "updwtmpx",
    "login",
    "logout",
    "logwtmp",
];

/// Functions that tell what the CPU or the machine is. `__getauxval` is not among them: gcc calls it in every program for
/// aarch64 that has atomic operations.
const ASKING: &[&str] = &["getauxval", "elf_aux_info", "__riscv_hwprobe"];

/// The findings in the functions that `file` calls.
pub(super) fn findings(file: &[u8]) -> Result<Vec<Finding>, Broken> {
    let elf = ElfFile::<Header>::parse(file)?;
    let header = elf.elf_header();
    let sections = header.sections(LittleEndian, file)?;
    let symbols = sections.symbols(LittleEndian, file, object::elf::SHT_DYNSYM)?;
    let versions = sections.versions(LittleEndian, file)?;
    let mut findings = Vec::new();
    for (index, symbol) in symbols.enumerate() {
        if !symbol.is_undefined(LittleEndian) {
            continue;
        }
        let name = String::from_utf8_lossy(symbol.name(LittleEndian, symbols.strings())?).into_owned();
        let origin = match &versions {
            Some(versions) => versions.version(versions.version_index(LittleEndian, index).index())?,
            None => None,
        };
        let is_of_libm = origin
            .and_then(Version::file)
            .is_some_and(|file| file.starts_with(b"libm.so"));
        let is_among = |list: &[&str]| list.contains(&name.as_str());
        if is_of_libm && !is_exact(&name) {
            findings.push(Finding::Mathematics(name));
        } else if is_among(LOADING) {
            findings.push(Finding::Plugins(name));
        } else if is_among(ACCOUNTING) {
            findings.push(Finding::Layout(name));
        } else if is_among(ASKING) {
            findings.push(Finding::OwnCpu(name));
        }
    }
    Ok(findings)
}

/// Functions for `float` end in `f`. Those for `long double` are not exact in this sense: their type differs.
fn is_exact(function: &str) -> bool {
    EXACT.contains(&function) || function.strip_suffix('f').is_some_and(|double| EXACT.contains(&double))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_with_another_layout_are_found() {
        let name = "getutxent";
        let dir = tempfile::tempdir().unwrap();
        let (source, library) = (dir.path().join("caller.c"), dir.path().join("caller.so"));
        fs_err::write(
            &source,
            format!("int {name}(void);\nint calls(void) {{ return {name}(); }}\n"),
        )
        .unwrap();
        let mut compiler = std::process::Command::new("cc");
        compiler
            .args(["-shared", "-fPIC", "-nostdlib", "-o"])
            .args([&library, &source]);
        assert!(compiler.status().unwrap().success());
        let found = findings(&fs_err::read(library).unwrap()).unwrap();
        assert_eq!(found, [Finding::Layout(name.to_owned())]);
    }

    #[test]
    fn functions_are_exact_for_double_and_float_only() {
        for (function, exact) in [
            ("sqrt", true),
            ("sqrtf", true),
            ("fmodf", true),
            ("sqrtl", false),
            ("exp", false),
            ("powf", false),
        ] {
            assert_eq!(is_exact(function), exact, "{function}");
        }
    }
}
