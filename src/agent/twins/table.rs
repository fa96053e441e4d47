//! The rules of `qemu/twins.toml`: which programs may run as twins, from which level on, and how they are tried. Pure:
//! the table is compiled in.

use kiln_records::{
    Code, Failure, TwinLevel,
    protocol::{FNV_BASIS, fnv1a},
};
use serde::Deserialize;

use super::call::CommandHash;

/// The table compiled into this program.
const TABLE: &str = include_str!("../../../qemu/twins.toml");

/// Identifies the table: its FNV-1a hash.
pub(super) const VERSION: u64 = fnv1a(FNV_BASIS, TABLE.as_bytes());

/// The programs that may run as twins.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    #[serde(rename = "rule")]
    rules: Vec<Rule>,
    #[serde(rename = "library")]
    libraries: Vec<Library>,
    #[serde(rename = "probe")]
    probes: Vec<Probe>,
    #[serde(rename = "command")]
    commands: Vec<Command>,
}

/// One decision and its reason. The first rule that matches a program applies.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// `None` means never.
    from: From,
    why: String,
    /// Whether a program must be free of [findings](super::examine).
    #[serde(default)]
    examined: bool,
    /// Functions in which `long double` does not matter.
    #[serde(default)]
    long_double: Vec<String>,
    #[serde(default)]
    programs: Vec<String>,
    #[serde(default)]
    packages: Vec<String>,
}

#[derive(Debug, Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum From {
    Never,
    Tools,
    Shell,
    Full,
}

/// A command that starts under the emulator, since its twin would give up after it has changed something.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Command {
    #[expect(dead_code, reason = "for readers of the table")]
    why: String,
    /// The program's path, and its arguments up to the first that is no option.
    words: Vec<String>,
}

/// Libraries whose findings do not matter.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Library {
    why: String,
    names: Vec<String>,
    /// Functions in which `long double` does not matter.
    #[serde(default)]
    long_double: Vec<String>,
}

/// Questions that a twin must answer like the emulated program.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Probe {
    programs: Vec<String>,
    ask: Vec<Vec<String>>,
}

impl Table {
    /// The table that this program was built with.
    ///
    /// # Errors
    ///
    /// `twins_table` when the table is malformed; a test checks it.
    pub fn built_in() -> Result<Self, Failure> {
        toml::from_str(TABLE).map_err(|error| Failure::new(Code::TwinsTable, format!("qemu/twins.toml: {error}")))
    }

    /// The commands that start under the emulator.
    pub(super) fn emulated_commands(&self) -> Vec<u64> {
        let of = |command: &Command| {
            let mut words = command.words.iter().map(String::as_bytes);
            CommandHash::of(words.next().unwrap_or_default(), words)
        };
        self.commands.iter().map(of).collect()
    }

    /// The lowest level at which the program or module at `path` of `package` runs as a twin. `None` means never.
    ///
    /// `path` is absolute, in the root. Shared libraries have no rules: they belong to the programs that load them.
    pub fn level_of(&self, path: &str, package: &str) -> Option<TwinLevel> {
        match self.rule(path, package)?.from {
            From::Never => None,
            From::Tools => Some(TwinLevel::Tools),
            From::Shell => Some(TwinLevel::Shell),
            From::Full => Some(TwinLevel::Full),
        }
    }

    /// Whether the program at `path` of `package`, and the libraries that it needs, must be free of
    /// [findings](super::examine): no rule names it.
    pub fn is_examined(&self, path: &str, package: &str) -> bool {
        self.rule(path, package).is_none_or(|rule| rule.examined)
    }

    /// Why findings in the library of this name (`DT_SONAME`) do not matter. `None` if they do.
    pub fn why_library(&self, name: &str) -> Option<&str> {
        self.library(name).map(|library| library.why.as_str())
    }

    /// The exported functions in which the program or module at `path` of `package` may compute with `long double`. `None`
    /// if it may everywhere, or if it is no entry.
    pub fn long_double(&self, path: &str, package: &str) -> Option<&[String]> {
        let rule = self.rule(path, package).filter(|rule| !rule.examined)?;
        limited(&rule.long_double)
    }

    /// As [`Self::long_double`], for the library of this name (`DT_SONAME`).
    pub fn long_double_of_library(&self, name: &str) -> Option<&[String]> {
        limited(&self.library(name)?.long_double)
    }

    fn library(&self, name: &str) -> Option<&Library> {
        let knows = |library: &&Library| library.names.iter().any(|pattern| matches(pattern, name));
        self.libraries.iter().find(knows)
    }

    /// The reason for the table's decision about `path`. `None` when no rule matches, which means never.
    pub fn why(&self, path: &str, package: &str) -> Option<&str> {
        self.rule(path, package).map(|rule| rule.why.as_str())
    }

    /// Questions for the twin of `path` and for the emulated program, run in the same root and environment: the
    /// arguments of each run. Exit status, output and errors must be equal, or the program has no twin.
    ///
    /// A question that makes no sense to a version of a program does no harm: both builds fail in the same way.
    pub fn probes(&self, path: &str) -> impl Iterator<Item = &[String]> {
        let name = base_name(path);
        let probes = self
            .probes
            .iter()
            .filter(move |probe| is_among(name, path, &probe.programs));
        probes.flat_map(|probe| probe.ask.iter().map(Vec::as_slice))
    }

    fn rule(&self, path: &str, package: &str) -> Option<&Rule> {
        let name = base_name(path);
        self.rules.iter().find(|rule| {
            is_among(name, path, &rule.programs) || rule.packages.iter().any(|pattern| matches(pattern, package))
        })
    }
}

/// Functions, unless they are all (`*`).
fn limited(functions: &[String]) -> Option<&[String]> {
    (!functions.iter().any(|name| name == "*")).then_some(functions)
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Patterns with a slash match paths, others match base names.
fn is_among(name: &str, path: &str, patterns: &[String]) -> bool {
    patterns
        .iter()
        .any(|pattern| matches(pattern, if pattern.contains('/') { path } else { name }))
}

/// Whether `text` matches `pattern`, in which `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((before, rest)) => text
            .strip_prefix(before)
            .is_some_and(|text| (0..=text.len()).any(|at| text.get(at..).is_some_and(|text| matches(rest, text)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(path: &str, package: &str) -> Option<TwinLevel> {
        Table::built_in().unwrap().level_of(path, package)
    }

    #[test]
    fn every_kind_of_program_has_its_level() {
        for (path, package, expected) in [
            ("/usr/bin/gzip", "gzip", Some(TwinLevel::Tools)),
            ("/usr/bin/sha256sum", "coreutils", Some(TwinLevel::Tools)),
            ("/usr/bin/bash", "bash", Some(TwinLevel::Shell)),
            ("/usr/bin/readlink", "coreutils", Some(TwinLevel::Shell)),
            ("/usr/bin/coreutils", "coreutils-single", Some(TwinLevel::Shell)),
            ("/usr/bin/perl", "perl-base", Some(TwinLevel::Full)),
            ("/usr/bin/dpkg-deb", "dpkg", Some(TwinLevel::Full)),
            ("/usr/bin/ldapsearch", "ldap-utils", Some(TwinLevel::Full)),
            (
                "/usr/lib/aarch64-linux-gnu/perl-base/auto/POSIX/POSIX.so",
                "perl-base",
                Some(TwinLevel::Full),
            ),
        ] {
            assert_eq!(level(path, package), expected, "{path}");
        }
    }

    #[test]
    fn what_must_stay_emulated_does() {
        for (path, package) in [
            ("/usr/bin/seq", "coreutils"),
            ("/usr/bin/lscpu", "util-linux"),
            ("/usr/bin/getconf", "libc-bin"),
            ("/usr/sbin/ldconfig", "libc-bin"),
            ("/usr/bin/aarch64-linux-gnu-gcc-12", "gcc-12"),
            ("/usr/bin/c++filt", "binutils-aarch64-linux-gnu"),
            ("/usr/bin/tcc", "tcc"),
            ("/usr/bin/cc", "my-compiler"),
            ("/usr/bin/qemu-x86_64", "qemu-user"),
            ("/bin/busybox", "busybox"),
            ("/usr/bin/systemd-detect-virt", "systemd"),
            ("/usr/bin/systemd-tmpfiles", "systemd"),
            ("/usr/bin/sort", "coreutils"),
            ("/usr/bin/od", "coreutils"),
            ("/usr/sbin/mke2fs", "e2fsprogs"),
        ] {
            assert_eq!(level(path, package), None, "{path}");
        }
    }

    #[test]
    fn what_nobody_has_looked_at_is_examined() {
        let table = Table::built_in().unwrap();
        for (path, package, examined) in [
            ("/usr/bin/dot", "graphviz", true),
            ("/usr/bin/convert-im6.q16", "imagemagick", true),
            ("/usr/bin/sqlite3", "sqlite3", true),
            ("/usr/bin/new-tool", "made-tomorrow", true),
            ("/usr/bin/bash", "bash", false),
            ("/usr/bin/dpkg-deb", "dpkg", false),
            ("/usr/lib/apt/methods/http", "apt", false),
            (
                "/usr/lib/python3/dist-packages/numpy/core/_simd.so",
                "python3-numpy",
                true,
            ),
            (
                "/usr/lib/aarch64-linux-gnu/perl-base/auto/POSIX/POSIX.so",
                "perl-base",
                false,
            ),
        ] {
            assert_eq!(table.is_examined(path, package), examined, "{path}");
        }
        for (name, examined) in [
            ("libc.so.6", false),
            ("libcrypto.so.3", false),
            ("libpam.so.0", true),
            ("libnew.so.1", true),
        ] {
            assert_eq!(table.why_library(name).is_none(), examined, "{name}");
        }
    }

    #[test]
    fn only_entries_trap_and_only_where_they_may_not_compute() {
        let table = Table::built_in().unwrap();
        let functions = |path| table.long_double(path, "package").map(<[String]>::len);
        assert_eq!(functions("/usr/bin/bash"), Some(0));
        assert_eq!(functions("/usr/bin/perl"), Some(1));
        assert_eq!(functions("/usr/bin/fc-cache"), Some(0));
        assert_eq!(functions("/usr/bin/new-tool"), None);
        assert_eq!(table.long_double_of_library("libc.so.6"), None);
        assert_eq!(table.long_double_of_library("libblkid.so.1"), Some([].as_slice()));
    }

    #[test]
    fn probes_are_those_of_the_program() {
        let table = Table::built_in().unwrap();
        let bash: Vec<_> = table.probes("/usr/bin/bash").collect();
        assert_eq!(bash.len(), 1);
        assert!(bash[0][1].contains("MACHTYPE"));
        assert_eq!(table.probes("/usr/bin/iconv").count(), 2);
        assert_eq!(table.probes("/usr/bin/sed").count(), 0);
    }

    #[test]
    fn every_rule_is_reached_and_says_why() {
        let table = Table::built_in().unwrap();
        let (last, others) = table.rules.split_last().unwrap();
        assert_eq!(
            (last.from, last.programs.as_slice()),
            (From::Full, ["*".to_owned()].as_slice())
        );
        assert!(last.examined);
        for library in &table.libraries {
            assert!(library.why.len() > 20 && !library.names.is_empty(), "{library:?}");
        }
        for rule in others {
            assert!(!rule.examined, "{rule:?}");
            assert!(
                rule.why.len() > 20 && !(rule.programs.is_empty() && rule.packages.is_empty()),
                "{rule:?}"
            );
            assert!(
                !rule.programs.iter().chain(&rule.packages).any(|pattern| pattern == "*"),
                "{rule:?}"
            );
        }
    }

    #[test]
    fn patterns() {
        assert!(matches("ldconfig*", "ldconfig.real") && matches("*-tcc", "i386-tcc") && matches("a*b*c", "a-b-b-c"));
        assert!(!matches("ld", "ldd") && !matches("*-tcc", "tcc") && !matches("a*b", "ab-"));
    }
}
