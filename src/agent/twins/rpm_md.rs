//! What the recipe's repositories of rpms have for the host's architecture.
//!
//! zypper does what needs trust, whichever package manager the recipe is for: it fetches the indexes, checks their
//! digests and, where the recipe asks for it, their signatures. It works on directories of its own and knows of no
//! installed package, so it can neither disturb nor be disturbed by what kiwi does.

use std::{
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use fs_err::File;
use reqwest::Url;

use super::{index::Index, primary, stand_in};
use crate::{arch::Arch, compression::Compression};

/// Where kiwi sets up its repositories, and where its package manager keeps their indexes, for each that it knows.
const KIWI: [(&str, &str); 2] = [
    ("/var/cache/kiwi/zypper/repos", "/var/cache/kiwi/zypper/raw"),
    ("/var/cache/kiwi/dnf/repos", "/var/cache/kiwi/dnf/cache"),
];

/// kiwi's logins for repositories, as zypper has them.
const CREDENTIALS: &str = "/var/cache/kiwi/zypper/credentials";

/// A repository.
#[derive(Debug, PartialEq, Eq)]
struct Repository {
    /// Where the host's packages are, with login.
    address: Url,
    /// Whether its index must be signed.
    checks_index: bool,
    /// Whether each of its packages must be.
    checks_packages: bool,
}

/// zypper for the host's architecture.
#[derive(Debug)]
pub(super) struct Zypper {
    dir: PathBuf,
    host: Arch,
    repositories: Vec<Repository>,
}

/// Where kiwi has set up its repositories, once its package manager has begun to use them.
pub(super) fn ready() -> Option<&'static Path> {
    let has_entries = |dir: &str| fs_err::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
    let found = KIWI.iter().find(|(_, indexes)| has_entries(indexes));
    found.map(|(repositories, _)| Path::new(repositories))
}

impl Zypper {
    /// Makes zypper work for `host` below `dir`, with the repositories that kiwi has set up in `kiwi` for a `root` of
    /// `target`.
    pub(super) fn new(dir: PathBuf, kiwi: &Path, root: &Path, target: Arch, host: Arch) -> io::Result<Self> {
        fs_err::create_dir_all(dir.join("repos"))?;
        let mut repositories = Vec::new();
        for entry in fs_err::read_dir(kiwi)? {
            let text = fs_err::read_to_string(entry?.path())?;
            let found = sections(&text).filter_map(|section| repository(&section, target, host));
            repositories.extend(found);
        }
        for (number, repository) in repositories.iter().enumerate() {
            let text = format!(
                "[{number}]\nname={number}\nenabled=1\ntype=rpm-md\nautorefresh=1\ngpgcheck=0\npkg_gpgcheck=0\nrepo_gpgcheck={}\nbaseurl={}\n",
                u8::from(repository.checks_index),
                repository.address
            );
            fs_err::write(dir.join(format!("repos/{number}.repo")), text)?;
        }
        fs_err::write(dir.join("zypp.conf"), format!("[main]\narch = {}\n", host.name()))?;
        let zypper = Self {
            dir,
            host,
            repositories,
        };
        if zypper
            .repositories
            .iter()
            .any(|one| one.checks_index || one.checks_packages)
        {
            zypper.take_keys(root)?;
        }
        Ok(zypper)
    }

    /// The database with the keys that kiwi has put into the root: those that the recipe names.
    pub(super) fn keys(&self) -> PathBuf {
        self.dir.join("root/var/lib/rpm")
    }

    fn take_keys(&self, root: &Path) -> io::Result<()> {
        let mut export = Command::new("rpm");
        export.arg("--root").arg(root);
        export.args(["--query", "--queryformat", "%{DESCRIPTION}\\n", "gpg-pubkey"]);
        let keys = export.stdin(Stdio::null()).stderr(Stdio::null()).output()?.stdout;
        fs_err::create_dir_all(self.keys())?;
        let file = self.dir.join("keys.asc");
        fs_err::write(&file, keys)?;
        let mut import = Command::new("rpmkeys");
        import.arg("--dbpath").arg(self.keys()).arg("--import").arg(file);
        // Without keys nothing is signed by one of them.
        import.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        import.status().map(drop)
    }

    /// Starts to fetch the indexes. Those of other repositories come even if one has none.
    pub(super) fn start_update(&self) -> io::Result<Child> {
        let mut command = Command::new(stand_in::real("zypper"));
        command.env("ZYPP_CONF", self.dir.join("zypp.conf")).env("LANG", "C");
        command.args(["--non-interactive", "--quiet"]);
        for (option, dir) in [
            ("--root", "root"),
            ("--reposd-dir", "repos"),
            ("--raw-cache-dir", "raw"),
            ("--cache-dir", "cache"),
        ] {
            command.arg(option).arg(self.dir.join(dir));
        }
        command.args(["refresh", "--download-only"]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
    }

    /// What the indexes say.
    ///
    /// # Errors
    ///
    /// When one cannot be read.
    pub(super) fn index(&self) -> io::Result<Index> {
        let mut index = Index::default();
        for (number, repository) in self.repositories.iter().enumerate() {
            let dir = self.dir.join(format!("raw/{number}/repodata"));
            // A repository that has nothing for the host has no index there.
            let Ok(entries) = fs_err::read_dir(dir) else { continue };
            for entry in entries {
                let entry = entry?;
                if entry.file_name().to_string_lossy().contains("primary.xml") {
                    let mut packed = BufReader::new(File::open(entry.path())?);
                    let compression = Compression::detect(packed.fill_buf()?);
                    let text: Box<dyn Read> = match compression {
                        Some(compression) => compression.reader(packed)?,
                        None => Box::new(packed),
                    };
                    let Repository {
                        address,
                        checks_packages,
                        ..
                    } = repository;
                    primary::read(BufReader::new(text), self.host, address, *checks_packages, &mut index)?;
                }
            }
        }
        Ok(index)
    }
}

/// The sections of an INI file, each with its settings.
fn sections(text: &str) -> impl Iterator<Item = Vec<(&str, &str)>> {
    text.split("\n[").map(|section| {
        let settings = section.lines().filter_map(|line| line.split_once('='));
        settings.map(|(name, value)| (name.trim(), value.trim())).collect()
    })
}

/// The repository of a section. None when nobody can tell where it has packages for the host.
fn repository(section: &[(&str, &str)], target: Arch, host: Arch) -> Option<Repository> {
    let setting = |name| {
        section
            .iter()
            .find(|(found, _)| *found == name)
            .map(|(_, value)| *value)
    };
    let is_on = |value: Option<&str>| value.is_some_and(|value| ["1", "yes", "true", "on"].contains(&value));
    let address = address(setting("baseurl")?, target, host)?;
    Some(Repository {
        address,
        checks_index: is_on(setting("repo_gpgcheck")),
        // zypper's name for it, and dnf's, which means something else to zypper.
        checks_packages: is_on(setting("pkg_gpgcheck").or_else(|| setting("gpgcheck"))),
    })
}

/// The address of the host's packages for one of the target's: the same, or another with the host's architecture where
/// the target's is a word of it. With the login that kiwi has for it, if any.
fn address(baseurl: &str, target: Arch, host: Arch) -> Option<Url> {
    let baseurl = baseurl.replace("$basearch", host.name()).replace("$arch", host.name());
    let mut address = Url::parse(&baseurl).ok()?;
    if !["http", "https"].contains(&address.scheme()) || baseurl.contains('$') {
        return None;
    }
    address.set_path(&for_other_arch(address.path(), target.name(), host.name()));
    let query: Vec<_> = address
        .query()
        .unwrap_or_default()
        .split('&')
        .map(str::to_owned)
        .collect();
    let (logins, others): (Vec<_>, Vec<_>) = query.into_iter().partition(|part| part.starts_with("credentials="));
    address.set_query(
        Some(&others.join("&"))
            .filter(|query| !query.is_empty())
            .map(String::as_str),
    );
    if let Some(name) = logins.first().and_then(|login| login.strip_prefix("credentials=")) {
        let text = fs_err::read_to_string(Path::new(CREDENTIALS).join(Path::new(name).file_name()?)).ok()?;
        let value = |field| {
            text.lines()
                .find_map(|line| line.strip_prefix(field)?.trim().strip_prefix('='))
        };
        address.set_username(value("username")?.trim()).ok()?;
        address.set_password(Some(value("password")?.trim())).ok()?;
    }
    Some(address)
}

/// A path with another architecture where the first is a word of it.
fn for_other_arch(path: &str, target: &str, host: &str) -> String {
    let is_in_word = |next: Option<char>| next.is_some_and(char::is_alphanumeric);
    let (mut made, mut rest) = (String::new(), path);
    while let Some((before, after)) = rest.split_once(target) {
        let is_word = !is_in_word(before.chars().next_back()) && !is_in_word(after.chars().next());
        made.push_str(before);
        made.push_str(if is_word { host } else { target });
        rest = after;
    }
    made + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(baseurl: &str) -> Option<String> {
        address(baseurl, Arch::Aarch64, Arch::X86_64).map(String::from)
    }

    #[test]
    fn the_architecture_is_a_word_of_the_address_or_none() {
        for (targets, expected) in [
            ("http://h/leap/15.6/oss", Some("http://h/leap/15.6/oss")),
            ("http://h/BaseOS/aarch64/os/", Some("http://h/BaseOS/x86_64/os/")),
            (
                "http://h/SLE-15-SP4-aarch64-Pool?t=1",
                Some("http://h/SLE-15-SP4-x86_64-Pool?t=1"),
            ),
            (
                "http://u:p@h/aarch64/aarch64ilp32/",
                Some("http://u:p@h/x86_64/aarch64ilp32/"),
            ),
            ("https://h/$basearch", Some("https://h/x86_64")),
            ("https://aarch64.example/x", Some("https://aarch64.example/x")),
            ("https://h/$releasever/", None),
            ("dir:///repo", None),
        ] {
            assert_eq!(hosts(targets).as_deref(), expected, "{targets}");
        }
    }

    #[test]
    fn checks_are_those_that_kiwi_asked_for() {
        let text = "[a]\nname = a\nbaseurl = http://h/a\nrepo_gpgcheck = 1\ngpgcheck = 1\npkg_gpgcheck = 0\n\n\
                    [b]\nbaseurl=http://h/b\ngpgcheck=1\n[c]\nmetalink=http://h/c\n";
        let found: Vec<_> = sections(text)
            .filter_map(|section| repository(&section, Arch::Aarch64, Arch::X86_64))
            .map(|found| (String::from(found.address), found.checks_index, found.checks_packages))
            .collect();
        let expected = [("http://h/a", true, false), ("http://h/b", false, true)];
        assert_eq!(
            found,
            expected.map(|(address, index, packages)| (address.to_owned(), index, packages))
        );
    }
}
