//! Which files say something of their own, and in which form.

/// What is changed in a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Rule {
    /// Strings with the host's name.
    pub strings: bool,
    /// The directory of character set converters, which are code of the host and lie beside the twins.
    pub gconv: bool,
    /// Debian's name of the host where the compiler made it an operand of an instruction.
    pub constants: bool,
}

/// Files of these names tell in strings what they were built for. A `*` at the end stands for anything.
const SPEAKERS: &[&str] = &[
    // $MACHTYPE and $HOSTTYPE, and the like of other shells
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
    "apt*",
    "libapt-*",
    "rpm*",
    "librpm*",
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

/// The rule for the file at `path`. None when it is used as it is.
pub(super) fn rule_of(path: &str) -> Option<Rule> {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    let rule = Rule {
        strings: directory == "/usr/lib/apt/methods" || SPEAKERS.iter().any(|pattern| matches(pattern, name)),
        gconv: name.starts_with("libc.so.6") || name.starts_with("libc-2."),
        constants: name.starts_with("libapt-pkg.so"),
    };
    (rule != Rule::default()).then_some(rule)
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
            assert!(rule_of(path).is_some_and(|rule| rule.strings), "{path}");
        }
        assert!(rule_of("/usr/lib/aarch64-linux-gnu/libc.so.6").is_some_and(|rule| rule.gconv && !rule.strings));
        for path in [
            "/usr/bin/sed",
            "/usr/bin/bashbug",
            "/usr/lib/aarch64-linux-gnu/libcap.so.2",
            "bin",
        ] {
            assert_eq!(rule_of(path), None, "{path}");
        }
    }
}
