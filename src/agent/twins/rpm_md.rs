//! Asks the rpm repositories of the recipe or the image for their packages, for the target and for the host. Runs
//! zypper and rpm, and touches its own directories.
//!
//! zypper handles trust, whichever package manager the repositories are for: it fetches the indexes, checks their
//! digests and, where required, their signatures. It works on its own directories and knows of no installed package,
//! so it and kiwi cannot disturb each other.

use std::{
    ffi::OsStr,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use fs_err::File;
use kiln_records::{arch::Arch, compression::Compression, os_release};
use reqwest::Url;

use super::{
    format::Format,
    image,
    index::{self, Index},
    installed, primary, stand_in,
};
use crate::twins::root::Root;

/// The directories of kiwi's repositories and of its package manager's indexes, for each package manager that it
/// knows.
const KIWI: [(&str, &str); 2] = [
    ("/var/cache/kiwi/zypper/repos", "/var/cache/kiwi/zypper/raw"),
    ("/var/cache/kiwi/dnf/repos", "/var/cache/kiwi/dnf/cache"),
];

/// kiwi's logins for repositories, in zypper's format.
const CREDENTIALS: &str = "/var/cache/kiwi/zypper/credentials";

/// The directories of an image's repositories, by package manager.
const OF_IMAGE: [&str; 3] = ["etc/zypp/repos.d", "etc/yum.repos.d", "etc/dnf/repos.d"];

/// The directory of an image's logins for them.
const CREDENTIALS_OF_IMAGE: &str = "etc/zypp/credentials.d";

/// The most bytes of each of these files.
const LONGEST: u64 = 1 << 20;

/// Finds a login by its name: the text of one of zypper's files.
type Logins<'a> = &'a dyn Fn(&OsStr) -> Option<String>;

/// Finds the address of the first repository in a list of mirrors, by the list's own.
type Lists<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A repository.
#[derive(Debug, PartialEq, Eq)]
struct Repository {
    /// Address of the target's packages, with login.
    target: Url,
    /// Address of the host's packages; `None` when that is unknown.
    host: Option<Url>,
    /// Whether its index must be signed.
    checks_index: bool,
    /// Whether each of its packages must be signed.
    checks_packages: bool,
}

/// zypper for both architectures.
#[derive(Debug)]
pub(super) struct Zypper {
    dir: PathBuf,
    target: Arch,
    host: Arch,
    repositories: Vec<Repository>,
}

/// The directory of kiwi's repositories, once its package manager has begun to use them, or, for a root that was `restored`,
/// once they are set up.
pub(super) fn ready(restored: bool) -> Option<&'static Path> {
    let has_entries = |dir: &str| fs_err::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
    let found = KIWI
        .iter()
        .find(|(repositories, indexes)| has_entries(if restored { repositories } else { indexes }));
    found.map(|(repositories, _)| Path::new(repositories))
}

impl Zypper {
    /// Sets up zypper below `dir`, with the repositories that kiwi has set up in `kiwi` for a `root` of `target`. `None` while the
    /// root has no keys that are needed: rpm would make a database to look for them, and kiwi refuses a root that is there.
    ///
    /// # Errors
    ///
    /// The place of a repository is unknown, so that it may be the origin of any package.
    pub(super) fn of_recipe(
        dir: PathBuf,
        kiwi: &Path,
        root: &Path,
        (target, host): (Arch, Arch),
        lists: Lists<'_>,
    ) -> io::Result<Option<Self>> {
        let mut repositories = Vec::new();
        let logins = |name: &OsStr| fs_err::read_to_string(Path::new(CREDENTIALS).join(name)).ok();
        for entry in fs_err::read_dir(kiwi)? {
            let text = fs_err::read_to_string(entry?.path())?;
            for section in sections(&text) {
                repositories.extend(repository(&section, (target, host), &logins, lists)?);
            }
        }
        if repositories.iter().any(Repository::is_checked) && !installed::has_settled_rpms(root)? {
            return Ok(None);
        }
        let made = Self::new(dir, target, host, repositories, |_| {
            let mut query = Command::new("rpm");
            query.arg("--root").arg(root).arg("--query");
            query.stdin(Stdio::null()).stderr(Stdio::null());
            Ok(query)
        });
        made.map(Some)
    }

    /// Sets up zypper below `dir`, with the repositories of the image in `root`, which is for `target`.
    ///
    /// # Errors
    ///
    /// The image has no repositories, or the place of one is unknown.
    pub(super) fn of_image(
        dir: PathBuf,
        root: &Root,
        (target, host): (Arch, Arch),
        lists: Lists<'_>,
    ) -> io::Result<Self> {
        let text = |path: &Path| root.text(path, LONGEST);
        let logins = |name: &OsStr| text(&Path::new(CREDENTIALS_OF_IMAGE).join(name));
        let release = os_release::PLACES
            .iter()
            .find_map(|path| version(&text(Path::new(path))?));
        let mut repositories = Vec::new();
        for dir in OF_IMAGE.map(Path::new) {
            for name in root.names(dir) {
                let Some(mut text) = text(&dir.join(name)) else {
                    continue;
                };
                if let Some(release) = &release {
                    text = text.replace("${releasever}", release).replace("$releasever", release);
                }
                for section in sections(&text).filter(|section| !is_off(section)) {
                    repositories.extend(repository(&section, (target, host), &logins, lists)?);
                }
            }
        }
        if repositories.is_empty() {
            return Err(io::Error::other("the image names no repositories"));
        }
        Self::new(dir, target, host, repositories, |dir| image::query_rpm(root, dir))
    }

    /// Uses the keys that the command `rpm --query` finds. The command is made only if keys are needed, since it may
    /// copy a database into the directory that it is given.
    fn new(
        dir: PathBuf,
        target: Arch,
        host: Arch,
        repositories: Vec<Repository>,
        query: impl FnOnce(&Path) -> io::Result<Command>,
    ) -> io::Result<Self> {
        fs_err::create_dir_all(dir.join("repos"))?;
        for (number, repository) in repositories.iter().enumerate() {
            let checks = u8::from(repository.checks_index);
            for (arch, address) in repository.addresses(target, host) {
                let text = format!(
                    "[{number}-{arch}]\nname={number}-{arch}\nenabled=1\ntype=rpm-md\nautorefresh=1\ngpgcheck=0\npkg_gpgcheck=0\nrepo_gpgcheck={checks}\nbaseurl={address}\n"
                );
                fs_err::write(dir.join(format!("repos/{number}-{arch}.repo")), text)?;
            }
        }
        fs_err::write(dir.join("zypp.conf"), format!("[main]\narch = {}\n", host.name()))?;
        let zypper = Self {
            dir,
            target,
            host,
            repositories,
        };
        if zypper.repositories.iter().any(Repository::is_checked) {
            zypper.take_keys(query(&zypper.dir)?)?;
        }
        Ok(zypper)
    }

    /// The database with the keys of the root: those that the recipe names, or the image trusts.
    pub(super) fn keys(&self) -> PathBuf {
        self.dir.join("root/var/lib/rpm")
    }

    fn take_keys(&self, mut query: Command) -> io::Result<()> {
        query.args(["--queryformat", "%{DESCRIPTION}\\n", "gpg-pubkey"]);
        let keys = query.output()?.stdout;
        fs_err::create_dir_all(self.keys())?;
        let file = self.dir.join("keys.asc");
        fs_err::write(&file, keys)?;
        let mut import = Command::new("rpmkeys");
        import.arg("--dbpath").arg(self.keys()).arg("--import").arg(file);
        // Without keys, no signature is accepted.
        import.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        import.status().map(drop)
    }

    /// Starts to fetch the indexes. A repository without an index does not stop the others.
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

    /// The content of the indexes.
    ///
    /// # Errors
    ///
    /// An index cannot be read, or there is none for the target: that repository may be the origin of any package.
    pub(super) fn index(&self) -> io::Result<Index> {
        let mut read = Vec::new();
        for (number, repository) in self.repositories.iter().enumerate() {
            let mut made = index::Repository::default();
            for (arch, address) in repository.addresses(self.target, self.host) {
                let dir = self.dir.join(format!("raw/{number}-{arch}/repodata"));
                let Some(list) = list_in(&dir)? else {
                    // A repository without packages for the host has no index there.
                    if arch == self.host {
                        continue;
                    }
                    let place = address.host_str().unwrap_or(address.path());
                    return Err(io::Error::other(format!(
                        "the repository at {place} could not be read, and any package may have come from it"
                    )));
                };
                let has_both = repository.host.as_ref() == Some(&repository.target);
                primary::read(list, address, repository.checks_packages, |of, listed| {
                    if of == self.host.name() && (arch == self.host || has_both) {
                        made.add_for_host(Format::Rpm, listed);
                    } else if of == self.target.name() && arch == self.target {
                        made.add_for_target(listed);
                    }
                })?;
            }
            read.push(made);
        }
        Ok(Index::new(Format::Rpm, read))
    }
}

impl Repository {
    /// Whether keys are needed for it.
    const fn is_checked(&self) -> bool {
        self.checks_index || self.checks_packages
    }

    /// The addresses of its indexes: one for each architecture, or one for both.
    fn addresses(&self, target: Arch, host: Arch) -> impl Iterator<Item = (Arch, &Url)> {
        let hosts = self.host.as_ref().filter(|address| **address != self.target);
        std::iter::once((target, &self.target)).chain(hosts.map(|address| (host, address)))
    }
}

/// The list of packages in a directory of a repository's metadata, if there is one.
fn list_in(dir: &Path) -> io::Result<Option<BufReader<Box<dyn Read>>>> {
    let Ok(entries) = fs_err::read_dir(dir) else {
        return Ok(None);
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_string_lossy().contains("primary.xml") {
            let mut packed = BufReader::new(File::open(entry.path())?);
            let compression = Compression::detect(packed.fill_buf()?);
            let text: Box<dyn Read> = match compression {
                Some(compression) => compression.reader(packed)?,
                None => Box::new(packed),
            };
            return Ok(Some(BufReader::new(text)));
        }
    }
    Ok(None)
}

/// The sections of an INI file, each with its settings.
fn sections(text: &str) -> impl Iterator<Item = Vec<(&str, &str)>> {
    text.split("\n[").map(|section| {
        let settings = section.lines().filter_map(|line| line.split_once('='));
        settings.map(|(name, value)| (name.trim(), value.trim())).collect()
    })
}

/// A setting of a section.
fn setting<'a>(section: &[(&str, &'a str)], name: &str) -> Option<&'a str> {
    section
        .iter()
        .find(|(found, _)| *found == name)
        .map(|(_, value)| *value)
}

/// Whether a repository is disabled.
fn is_off(section: &[(&str, &str)]) -> bool {
    setting(section, "enabled").is_some_and(|value| ["0", "no", "false", "off"].contains(&value))
}

/// The version in a file in the format of `/etc/os-release`.
fn version(text: &str) -> Option<String> {
    os_release::value(text, "VERSION_ID").map(str::to_owned)
}

/// The repository of a section. `None` for a section that is not about one.
///
/// # Errors
///
/// The place of its packages for the target is unknown.
fn repository(
    section: &[(&str, &str)],
    (target, host): (Arch, Arch),
    logins: Logins<'_>,
    lists: Lists<'_>,
) -> io::Result<Option<Repository>> {
    let setting = |name| setting(section, name);
    let is_on = |value: Option<&str>| value.is_some_and(|value| ["1", "yes", "true", "on"].contains(&value));
    let places = ["baseurl", "mirrorlist", "metalink"];
    let Some(place) = places.into_iter().find_map(setting) else {
        return Ok(None);
    };
    // zypper's name for it, and dnf's, which means something else to zypper.
    let checks_packages = is_on(setting("pkg_gpgcheck").or_else(|| setting("gpgcheck")));
    let checks_index = is_on(setting("repo_gpgcheck"));
    let listed = |arch: Arch| {
        // The digest of the index in a metalink is not looked at here.
        let metalink = setting("metalink").filter(|_| checks_index || checks_packages);
        lists(&for_arch(setting("mirrorlist").or(metalink)?, arch))
    };
    let of = |arch| match setting("baseurl") {
        Some(base) => address(base, target, arch, logins),
        None => address(&listed(arch)?, target, arch, logins),
    };
    let targets = of(target).ok_or_else(|| {
        io::Error::other(format!(
            "the address of the repository {place} is not a plain one, and any package may have come from it"
        ))
    })?;
    Ok(Some(Repository {
        target: targets,
        host: of(host).filter(|address| ["http", "https"].contains(&address.scheme())),
        checks_index,
        checks_packages,
    }))
}

/// The address of the packages for `host`, which may be the target itself, for that of the target's: with the host's
/// architecture where the target's is a word of it, and otherwise unchanged. With its login, if it has one.
fn address(baseurl: &str, target: Arch, host: Arch, logins: Logins<'_>) -> Option<Url> {
    let baseurl = for_arch(baseurl, host);
    let mut address = Url::parse(&baseurl).ok()?;
    if !["http", "https", "dir", "file"].contains(&address.scheme()) || baseurl.contains('$') {
        return None;
    }
    address.set_path(&for_other_arch(address.path(), target.name(), host.name()));
    let query: Vec<_> = address
        .query()
        .unwrap_or_default()
        .split('&')
        .map(str::to_owned)
        .collect();
    let (named, others): (Vec<_>, Vec<_>) = query.into_iter().partition(|part| part.starts_with("credentials="));
    address.set_query(
        Some(&others.join("&"))
            .filter(|query| !query.is_empty())
            .map(String::as_str),
    );
    if let Some(name) = named.first().and_then(|login| login.strip_prefix("credentials=")) {
        let text = logins(Path::new(name).file_name()?)?;
        let value = |field| {
            text.lines()
                .find_map(|line| line.strip_prefix(field)?.trim().strip_prefix('='))
        };
        address.set_username(value("username")?.trim()).ok()?;
        address.set_password(Some(value("password")?.trim())).ok()?;
    }
    Some(address)
}

/// An address in which the variables for the architecture have their value.
fn for_arch(address: &str, arch: Arch) -> String {
    address.replace("$basearch", arch.name()).replace("$arch", arch.name())
}

/// A path in which one architecture is replaced by another where it is a word.
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

    /// The target's, and the host's.
    const ARCHS: (Arch, Arch) = (Arch::Aarch64, Arch::X86_64);

    fn hosts(baseurl: &str) -> Option<String> {
        address(baseurl, Arch::Aarch64, Arch::X86_64, &|_| None).map(String::from)
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
            ("plugin:/repo", None),
        ] {
            assert_eq!(hosts(targets).as_deref(), expected, "{targets}");
        }
    }

    #[test]
    fn checks_are_those_that_kiwi_asked_for() {
        let text = "[a]\nname = a\nbaseurl = http://h/a\nrepo_gpgcheck = 1\ngpgcheck = 1\npkg_gpgcheck = 0\n\n\
                    [b]\nbaseurl=http://h/b\ngpgcheck=1\n[main]\nkeepcache=1\n";
        let found: Vec<_> = sections(text)
            .filter_map(|section| repository(&section, ARCHS, &|_| None, &|_| None).unwrap())
            .map(|found| (String::from(found.target), found.checks_index, found.checks_packages))
            .collect();
        let expected = [("http://h/a", true, false), ("http://h/b", false, true)];
        assert_eq!(
            found,
            expected.map(|(address, index, packages)| (address.to_owned(), index, packages))
        );
    }

    #[test]
    fn a_repository_that_cannot_be_read_may_be_the_origin_of_any_package() {
        let of = |text| repository(&sections(text).next().unwrap(), ARCHS, &|_| None, &|_| None);
        for text in [
            "metalink=http://h/c",
            "[c]\nmirrorlist=http://h/c\n",
            "baseurl=http://h/$x/",
            "baseurl=x",
        ] {
            of(text).unwrap_err();
        }
        // Packages for the host cannot be fetched from a directory, but those for the target are listed there.
        let local = of("baseurl=dir:///repo").unwrap().unwrap();
        assert_eq!((local.target.as_str(), local.host), ("dir:///repo", None));

        let dir = tempfile::tempdir().unwrap();
        let repository = of("baseurl=http://h/aarch64").unwrap().unwrap();
        let new = || {
            Zypper::new(
                dir.path().into(),
                Arch::Aarch64,
                Arch::X86_64,
                vec![],
                |_| unreachable!(),
            )
        };
        let zypper = Zypper {
            repositories: vec![repository],
            ..new().unwrap()
        };
        assert!(zypper.index().unwrap_err().to_string().contains("the repository at h "));
        fs_err::create_dir_all(dir.path().join("raw/0-aarch64/repodata")).unwrap();
        fs_err::write(
            dir.path().join("raw/0-aarch64/repodata/primary.xml"),
            "<metadata></metadata>",
        )
        .unwrap();
        assert!(zypper.index().unwrap().why_empty().is_some());
    }

    #[test]
    fn a_repository_in_a_list_of_mirrors_is_found_for_each_architecture() {
        let lists = |list: &str| {
            let repository = match list {
                "http://l/$x" => return None,
                "http://l/one" => "http://m/$basearch/os".to_owned(),
                _ => list.replace("http://l/?arch=", "http://m/"),
            };
            Some(repository)
        };
        let of = |text| repository(&sections(text).next().unwrap(), ARCHS, &|_| None, &lists);
        for (text, target, host) in [
            ("mirrorlist=http://l/one", "http://m/aarch64/os", "http://m/x86_64/os"),
            (
                "metalink=http://l/?arch=$basearch\ngpgcheck=1",
                "http://m/aarch64",
                "http://m/x86_64",
            ),
        ] {
            let found = of(text).unwrap().unwrap();
            assert_eq!(found.target.as_str(), target);
            assert_eq!(found.host.unwrap().as_str(), host);
        }
        for text in ["metalink=http://l/one\ngpgcheck=0", "mirrorlist=http://l/$x"] {
            of(text).unwrap_err();
        }
    }

    #[test]
    fn an_image_names_its_repositories() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join("root").join(path);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, text).unwrap();
        };
        put("usr/lib/os-release", "NAME=x\nVERSION_ID=\"15.6\"\n");
        std::os::unix::fs::symlink("../usr/lib/os-release", {
            fs_err::create_dir_all(dir.path().join("root/etc")).unwrap();
            dir.path().join("root/etc/os-release")
        })
        .unwrap();
        let root = Root::open(&dir.path().join("root")).unwrap();
        let zypper = |name: &str| Zypper::of_image(dir.path().join(name), &root, ARCHS, &|_| None);
        assert!(zypper("none").unwrap_err().to_string().contains("no repositories"));
        put(
            "etc/zypp/repos.d/oss.repo",
            "[oss]\nenabled=1\nbaseurl=https://h/$releasever/aarch64?credentials=me\ngpgcheck=0\n[off]\nenabled=0\nbaseurl=http://h/off\n",
        );
        put("etc/zypp/credentials.d/me", "username = u\npassword = p\n");
        let found: Vec<_> = zypper("some")
            .unwrap()
            .repositories
            .into_iter()
            .map(|one| (String::from(one.target), one.host.map(String::from)))
            .collect();
        let expected = ["https://u:p@h/15.6/aarch64", "https://u:p@h/15.6/x86_64"].map(str::to_owned);
        let [target, host] = expected;
        assert_eq!(found, [(target, Some(host))]);
    }
}
