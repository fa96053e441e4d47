//! Lists the files that contain answers of their own, and the form of these answers. Pure: no I/O.

/// Something in a file that has to be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// Strings that contain the host's name.
    Strings,
    /// The directory of character set converters, which are host code and lie beside the twins.
    Converters,
    /// Debian's name of the host where the compiler made it, or its length, an operand of an instruction.
    Operands,
    /// The x86_64 level that librpm measures.
    CpuLevel,
    /// A function that takes each `char` as the CPU does: signed on x86_64, and unsigned elsewhere.
    Chars(&'static str),
}

/// Files of these names contain strings with the architecture of their build. A `*` at the end stands for any text.
const SPEAKERS: &[&str] = &[
    // $MACHTYPE and $HOSTTYPE, and the equivalents of other shells
    "bash",
    "tcsh",
    "fish",
    // @INC, Config, -v; sys.implementation, sysconfig, suffixes of modules; and so on
    "perl*",
    "libperl.so*",
    "python2*",
    "python3*",
    "libpython2*",
    "libpython3*",
    "ruby*",
    "libruby*",
    "lua*",
    "liblua*",
    "php*",
    // the architecture of packages
    "dpkg*",
    "libapt-*",
    // the directory of its plugins
    "libdnf.so*",
    // MAKE_HOST, LD_PRELOAD for the child, directories that they list
    "make",
    "stdbuf",
    "gpgconf",
    // --version
    "curl",
    "git",
    "libcurl*",
    "lvm",
    "liblvm2cmd*",
];

/// The changes to make in the file at `path`; empty if it is used unchanged.
pub(super) fn answers_of(path: &str) -> &'static [Answer] {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    if name.starts_with("libc.so.6") || name.starts_with("libc-2.") {
        &[Answer::Converters]
    } else if name.starts_with("librpm.so") {
        &[Answer::CpuLevel]
    } else if name.starts_with("libgdbm.so") {
        // A key's place in a database (hash.c).
        &[Answer::Chars("_gdbm_hash")]
    } else if name.starts_with("libapt-pkg.so") {
        // The code is compared with the text that it refers to, so the text changes last.
        &[Answer::Operands, Answer::Strings]
    } else if directory == "/usr/lib/apt/methods" || SPEAKERS.iter().any(|pattern| matches(pattern, name)) {
        &[Answer::Strings]
    } else {
        &[]
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_names_wherever_they_lie() {
        for path in [
            "/usr/bin/bash",
            "/bin/bash",
            "/usr/bin/perl5.36.0",
            "/usr/lib64/libpython3.13.so.1.0",
            "/usr/lib/apt/methods/http",
        ] {
            assert_eq!(answers_of(path), [Answer::Strings], "{path}");
        }
        assert_eq!(answers_of("/usr/lib/aarch64-linux-gnu/libc.so.6"), [Answer::Converters]);
        for path in [
            "/usr/bin/sed",
            "/usr/bin/bashbug",
            "/usr/lib/aarch64-linux-gnu/libcap.so.2",
            "bin",
        ] {
            assert_eq!(answers_of(path), [], "{path}");
        }
    }
}
