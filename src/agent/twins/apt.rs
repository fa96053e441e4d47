//! Asks the Debian repositories of the recipe or the image for packages of the host's architecture. Runs apt, and
//! touches its own directories.
//!
//! apt handles trust: it fetches the lists for both architectures and checks their signatures against the keys of the
//! recipe or the image. It works on its own directories and knows of no installed package, so it and kiwi cannot
//! disturb each other.

use kiln_records::PackageDigest;
use std::{
    collections::BTreeMap,
    ffi::OsString,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use fs_err::File;
use kiln_records::arch::Arch;
use nix::{
    fcntl::{FcntlArg, fcntl},
    libc,
};

use super::{
    format::Format,
    index::{Index, Listed, Offer, Repository},
};
use crate::twins::root::Root;

/// The directory of kiwi's sources and its logins for them.
const KIWI: &str = "/var/cache/kiwi/apt-get";

/// An image's sources, keys and logins: files, and directories of such files.
const OF_IMAGE: [&str; 6] = [
    "sources.list",
    "sources.list.d",
    "trusted.gpg",
    "trusted.gpg.d",
    "auth.conf",
    "auth.conf.d",
];

/// The end of the names of `Release` and `InRelease`.
const RELEASE: &[u8] = b"Release";

/// The most bytes of a file of apt's configuration.
const LONGEST: u64 = 1 << 20;

/// apt for both architectures.
#[derive(Debug)]
pub(super) struct Apt {
    dir: PathBuf,
    logins: String,
    target: Arch,
    host: Arch,
}

/// Whether kiwi has set up its sources and read the lists. apt holds a lock until all of them are there.
pub(super) fn is_ready() -> bool {
    let lists = Path::new(KIWI).join("lists");
    let is_release = |name: &OsString| name.as_encoded_bytes().ends_with(RELEASE);
    !is_locked(&lists.join("lock")) && names(&lists).is_ok_and(|names| names.iter().any(is_release))
}

/// The names of the files that apt keeps in its directory `lists`: lists, and what signs them.
fn names(lists: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in fs_err::read_dir(lists)? {
        let entry = entry?;
        if entry.file_type()?.is_file() && entry.file_name() != "lock" {
            names.push(entry.file_name());
        }
    }
    Ok(names)
}

/// Whether another process locked the file at `path`. A file that cannot be looked at counts as locked.
fn is_locked(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return true };
    let mut lock = whole();
    let asked = fcntl(&file, FcntlArg::F_GETLK(&mut lock));
    asked.is_err() || libc::c_int::from(lock.l_type) != libc::F_UNLCK
}

/// A lock on the whole of a file.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the kernel's constants fit into its members"
)]
const fn whole() -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// Whether kiwi has set up its sources.
pub(super) fn has_sources() -> bool {
    Path::new(KIWI).is_dir()
}

/// Removes the lists that kiwi read for an earlier root, so that they are not taken for those of the next one.
pub(super) fn forget() -> io::Result<()> {
    match fs_err::remove_dir_all(Path::new(KIWI).join("lists")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Apt {
    /// Sets up apt below `dir`, with kiwi's current sources.
    pub(super) fn of_recipe(dir: PathBuf, target: Arch, host: Arch) -> io::Result<Self> {
        let sources = dir.join("etc/sources.list.d");
        fs_err::create_dir_all(&sources)?;
        for entry in fs_err::read_dir(Path::new(KIWI).join("sources.list.d"))? {
            let entry = entry?;
            let text = fs_err::read_to_string(entry.path())?;
            fs_err::write(sources.join(entry.file_name()), for_any_arch(&text))?;
        }
        let logins = logins(Path::new(KIWI));
        copy_lists(&Path::new(KIWI).join("lists"), &dir.join("state/lists"))?;
        Self::new(dir, target, host, logins)
    }

    /// Sets up apt below `dir`, with the sources of the image in `root`.
    ///
    /// # Errors
    ///
    /// The image has no sources, or they cannot be copied.
    pub(super) fn of_image(dir: PathBuf, root: &Root, target: Arch, host: Arch) -> io::Result<Self> {
        let etc = dir.join("etc");
        let files = OF_IMAGE.iter().map(Path::new).flat_map(|path| {
            let below = root.names(&Path::new("etc/apt").join(path));
            std::iter::once(path.to_owned()).chain(below.into_iter().map(|name| path.join(name)))
        });
        let mut has_sources = false;
        for file in files {
            let Some(content) = root.content(&Path::new("etc/apt").join(&file), LONGEST) else {
                continue;
            };
            let content = if file.starts_with("sources.list") || file.starts_with("sources.list.d") {
                has_sources = true;
                let text = for_any_arch(&String::from_utf8_lossy(&content));
                with_keys_of(&text, root, &dir.join("keys"))?.into()
            } else {
                content
            };
            let copy = etc.join(file);
            fs_err::create_dir_all(copy.parent().unwrap_or(&etc))?;
            fs_err::write(copy, content)?;
        }
        if !has_sources {
            return Err(io::Error::other("the image names no repositories in /etc/apt"));
        }
        let logins = logins(&etc);
        Self::new(dir, target, host, logins)
    }

    /// Uses sources and keys that are below `dir` already.
    fn new(dir: PathBuf, target: Arch, host: Arch, logins: String) -> io::Result<Self> {
        for made in ["etc/apt.conf.d", "state", "cache"] {
            fs_err::create_dir_all(dir.join(made))?;
        }
        fs_err::write(dir.join("status"), "")?;
        let (name, other, at) = (host.debian(), target.debian(), dir.display());
        let config = format!(
            "Dir::State \"{at}/state\";\nDir::State::status \"{at}/status\";\nDir::Cache \"{at}/cache\";\n\
             Dir::Etc \"{at}/etc\";\n{logins}APT::Architecture \"{name}\";\n\
             APT::Architectures {{ \"{name}\"; \"{other}\"; }};\nAPT::Sandbox::User \"root\";\n\
             Acquire::Languages \"none\";\nAcquire::PDiffs \"false\";\nAcquire::Retries \"3\";\n\
             Acquire::AllowInsecureRepositories \"true\";\n"
        );
        fs_err::write(dir.join("apt.conf"), config)?;
        Ok(Self {
            dir,
            logins,
            target,
            host,
        })
    }

    /// apt's settings that name the logins for the sources.
    pub(super) fn logins(&self) -> String {
        self.logins.clone()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        // Only this file, not the sandbox's own configuration, which is for the target.
        command.env("APT_CONFIG", self.dir.join("apt.conf")).env("LANG", "C");
        command.stdin(Stdio::null());
        command
    }

    /// Starts to fetch the lists. It fails when one of them could not be fetched.
    pub(super) fn start_update(&self) -> io::Result<Child> {
        let mut command = self.command("apt-get");
        // Its cache would be of no use here, and costs as much time as the lists.
        command.args([
            "-q",
            "update",
            "--error-on=any",
            "--option=pkgCacheFile::Generate=false",
        ]);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
    }

    /// The content of the lists.
    ///
    /// # Errors
    ///
    /// The lists cannot be read.
    pub(super) fn index(&self) -> io::Result<Index> {
        let lists = self.dir.join("state/lists");
        let empty = self.dir.join("state/empty");
        copy_without_packages(&lists, &empty)?;
        let mut command = self.command("apt-get");
        let format = "$(TRUSTED)\t$(BASE_URI)\t$(REPO_URI)\t$(FILENAME)";
        command.args(["indextargets", "--format", format]);
        command.arg(format!("--option=Dir::State::lists={}", empty.display()));
        let output = command.arg("Created-By: Packages").output()?;
        if !output.status.success() {
            return Err(io::Error::other("apt-get cannot list the fetched packages"));
        }
        // Lists with one signature, by the place of that.
        let mut repositories: BTreeMap<String, Repository> = BTreeMap::new();
        let (host, target) = (self.host.debian(), self.target.debian());
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let words: Vec<_> = line.splitn(4, '\t').collect();
            let [trusted, signed, address, file] = words[..] else {
                return Err(io::Error::other("apt-get does not say where its lists are"));
            };
            let repository = repositories.entry(signed.to_owned()).or_default();
            let name = Path::new(file).file_name().unwrap_or_default();
            let list = BufReader::new(File::open(lists.join(name))?);
            read(address, list, |arch, listed| {
                if arch == target {
                    repository.add_for_target(listed);
                } else if arch == host && trusted == "yes" {
                    // An unsigned list, of a recipe that allows it, proves nothing about its packages.
                    repository.add_for_host(Format::Deb, listed);
                }
            })?;
        }
        Ok(Index::new(Format::Deb, repositories.into_values().collect()))
    }
}

/// Copies the lists in `from`, which are as apt left them, so that it does not fetch them again.
fn copy_lists(from: &Path, to: &Path) -> io::Result<()> {
    if !from.is_dir() {
        return Ok(());
    }
    fs_err::create_dir_all(to)?;
    for name in names(from)? {
        fs_err::copy(from.join(&name), to.join(name))?;
    }
    Ok(())
}

/// Makes a directory with the signed files in `lists`, and an empty file for each list. apt tells which lists it has, and
/// whether they are signed, only after reading all of them into a cache.
fn copy_without_packages(lists: &Path, to: &Path) -> io::Result<()> {
    fs_err::create_dir_all(to.join("partial"))?;
    for name in names(lists)? {
        let bytes = name.as_encoded_bytes();
        if bytes.ends_with(RELEASE) || bytes.ends_with(b"Release.gpg") {
            fs_err::copy(lists.join(&name), to.join(name))?;
        } else {
            fs_err::write(to.join(name), "")?;
        }
    }
    Ok(())
}

/// apt's settings that name the logins in the directory `etc`.
pub(super) fn logins(etc: &Path) -> String {
    let etc = etc.display();
    format!("Dir::Etc::netrc \"{etc}/auth.conf\";\nDir::Etc::netrcparts \"{etc}/auth.conf.d\";\n")
}

/// Sources without their restriction to architectures: they are asked for another one.
fn for_any_arch(sources: &str) -> String {
    let others = sources.lines().filter(|line| {
        let (field, _) = line.split_once(':').unwrap_or_default();
        !field.eq_ignore_ascii_case("Architectures")
    });
    others.map(|line| line_for_any_arch(line) + "\n").collect()
}

/// The same for a source on one line, `deb [OPTION…] ADDRESS SUITE COMPONENT…`. Any other line is unchanged.
fn line_for_any_arch(line: &str) -> String {
    let options = line.trim_start().strip_prefix("deb").and_then(|rest| {
        let (before, rest) = rest.split_once('[')?;
        before.trim().is_empty().then(|| rest.split_once(']')).flatten()
    });
    let Some((options, after)) = options else {
        return line.to_owned();
    };
    let others: Vec<_> = options
        .split_whitespace()
        .filter(|option| {
            !["arch=", "arch+=", "arch-="]
                .iter()
                .any(|name| option.starts_with(name))
        })
        .collect();
    match &others[..] {
        [] => format!("deb{after}"),
        others => format!("deb [{}]{after}", others.join(" ")),
    }
}

/// Sources that refer to copies, below `dir`, of the keys in `root`.
fn with_keys_of(sources: &str, root: &Root, dir: &Path) -> io::Result<String> {
    const BETWEEN: [char; 6] = [' ', '\t', ',', '=', ':', ']'];
    let mut made = String::new();
    for line in sources.lines() {
        let names_keys = line.to_ascii_lowercase().contains("signed-by");
        for word in line.split_inclusive(BETWEEN) {
            let path = Path::new(word.trim_end_matches(BETWEEN));
            // Other values are fingerprints, or the key itself.
            let key = (names_keys && path.is_absolute())
                .then(|| root.content(path, LONGEST))
                .flatten();
            if let (Some(key), Some(name)) = (key, path.file_name()) {
                let copies = dir.join(made.len().to_string());
                fs_err::create_dir_all(&copies)?;
                fs_err::write(copies.join(name), key)?;
                made.push_str(&copies.join(name).display().to_string());
                made.push_str(&word[path.as_os_str().len()..]);
            } else {
                made.push_str(word);
            }
        }
        made.push('\n');
    }
    Ok(made)
}

/// The fields of a list that matter, as its lines begin.
const FIELDS: [&[u8]; 9] = [
    b"Package: ",
    b"Version: ",
    b"Architecture: ",
    b"Filename: ",
    b"Size: ",
    b"SHA256: ",
    b"Source: ",
    b"Built-Using: ",
    b"Static-Built-Using: ",
];

/// The source package and its version, which all builds have, and what was `linked` into this one.
///
/// `Source` has both where they differ from the package's own, as with a rebuild (`3.11-4+b1`).
fn source_of_all_builds(name: &str, version: &str, source: &str, linked: &[String]) -> String {
    let (of, its) = match source.split_once(" (") {
        Some((of, its)) => (of, its.trim_end_matches(')')),
        None if source.is_empty() => (name, version),
        None => (source, version),
    };
    format!("{of} {its} {}", linked.join(" "))
}

/// Hands the packages of one list to `take`, each with its architecture.
fn read(repository: &str, mut list: impl BufRead, mut take: impl FnMut(&str, Listed)) -> io::Result<()> {
    // A distribution's list has a million lines, few of which matter: nothing is done for the others.
    let mut line = Vec::new();
    let mut fields: [String; FIELDS.len()] = Default::default();
    loop {
        line.clear();
        let read = list.read_until(b'\n', &mut line)?;
        if line.trim_ascii().is_empty() {
            let [name, version, arch, file, size, sha256, source, linked @ ..] = std::mem::take(&mut fields);
            let address = format!("{}/{file}", repository.trim_end_matches('/'));
            let digest = PackageDigest::parse(&sha256).filter(|_| !file.is_empty());
            let offer = digest.zip(size.parse().ok()).map(|(digest, size)| Offer {
                address,
                digest,
                size,
                is_signed: false,
            });
            if !name.is_empty() {
                let source = source_of_all_builds(&name, &version, &source, &linked);
                let id = (name, version);
                take(&arch, Listed { id, source, offer });
            }
            if read == 0 {
                return Ok(());
            }
            continue;
        }
        let value = FIELDS
            .iter()
            .zip(&mut fields)
            .find_map(|(name, field)| Some((line.strip_prefix(*name)?, field)));
        if let Some((value, field)) = value {
            String::from_utf8_lossy(value).trim().clone_into(field);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read() {
        let list = "Package: bash\nVersion: 5.2-1\nArchitecture: amd64\nDescription: a\n shell: yes\n\
                    Filename: pool/bash.deb\nSize: 1\nSHA256: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n\n\
                    Package: doc\nVersion: 1\nArchitecture: all\nFilename: pool/doc.deb\n\
                    SHA256: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n\n\
                    Package: odd\nVersion: 1\nArchitecture: amd64\nFilename: pool/odd.deb\n";
        let mut found = Vec::new();
        let take = |arch: &str, listed: Listed| found.push((arch.to_owned(), listed.id, listed.offer));
        read("http://mirror/debian/", list.as_bytes(), take).unwrap();
        let bash = ("bash".to_owned(), "5.2-1".to_owned());
        assert_eq!((&*found[0].0, &found[0].1), ("amd64", &bash));
        let offer = found[0].2.as_ref().unwrap();
        assert_eq!((&*offer.address, offer.size), ("http://mirror/debian/pool/bash.deb", 1));
        // A package that cannot be checked is listed all the same.
        let others: Vec<_> = found[1..]
            .iter()
            .map(|(arch, (name, _), offer)| (&**arch, &**name, offer))
            .collect();
        assert_eq!(others, [("all", "doc", &None), ("amd64", "odd", &None)]);
    }

    #[test]
    fn builds_of_one_source_are_told_by_it() {
        let of = |name, version, source, linked: &[&str]| {
            let linked: Vec<_> = linked.iter().map(|text| (*text).to_owned()).collect();
            source_of_all_builds(name, version, source, &linked)
        };
        let plain = of("grep", "3.11-4", "", &["", ""]);
        assert_eq!(of("grep", "3.11-4+b1", "grep (3.11-4)", &["", ""]), plain);
        assert_ne!(of("grep", "3.11-4+b1", "", &["", ""]), plain);
        assert_ne!(of("grep", "3.11-4+b1", "grep (3.11-4)", &["", "rustc (= 1.85)"]), plain);
        assert_eq!(
            of("libx1", "1-2", "x", &["", ""]),
            of("libx1", "1-2+b3", "x (1-2)", &["", ""])
        );
    }

    #[test]
    fn lists_are_there_once_apt_lets_go_of_its_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert!(is_locked(&path));
        let file = fs_err::File::options()
            .create(true)
            .truncate(true)
            .write(true)
            .open(&path)
            .unwrap();
        assert!(!is_locked(&path));
        // A lock of this kind is a stranger's to its own process, too.
        fcntl(&file, FcntlArg::F_OFD_SETLK(&whole())).unwrap();
        assert!(is_locked(&path));
        drop(file);
        assert!(!is_locked(&path));
    }

    #[test]
    fn apt_tells_its_lists_without_reading_them() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs_err::create_dir_all(at("etc/sources.list.d")).unwrap();
        let sources = "deb http://signed/debian stable main\ndeb http://other/debian stable main\n";
        fs_err::write(at("etc/sources.list"), sources).unwrap();
        fs_err::create_dir_all(at("kiwi/partial")).unwrap();
        let release = "Origin: x\nSuite: stable\nCodename: stable\nDate: Thu, 01 Jan 2026 00:00:00 UTC\n\
                       Architectures: amd64 arm64\nComponents: main\nSHA256:\n";
        let list = |name: &str, arch: &str| {
            format!(
                "Package: {name}\nVersion: 1\nArchitecture: {arch}\nFilename: {name}.deb\nSize: 1\n\
                 SHA256: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n\n"
            )
        };
        fs_err::write(at("kiwi/signed_debian_dists_stable_InRelease"), release).unwrap();
        fs_err::write(at("kiwi/other_debian_dists_stable_Release"), release).unwrap();
        fs_err::write(at("kiwi/lock"), "").unwrap();
        for (repository, package) in [("signed", "bash"), ("other", "dash")] {
            for arch in ["amd64", "arm64"] {
                let name = format!("kiwi/{repository}_debian_dists_stable_main_binary-{arch}_Packages");
                fs_err::write(at(&name), list(package, arch)).unwrap();
            }
        }
        copy_lists(&at("kiwi"), &at("state/lists")).unwrap();
        assert!(!at("state/lists/lock").exists());
        let apt = Apt::new(dir.path().to_owned(), Arch::Aarch64, Arch::X86_64, logins(&at("etc"))).unwrap();
        let index = apt.index().unwrap();
        // apt was given empty ones.
        let given = at("state/empty/signed_debian_dists_stable_main_binary-amd64_Packages");
        assert_eq!(fs_err::metadata(given).unwrap().len(), 0);
        let twin = |name: &str| index.twin(&(name.to_owned(), "1".to_owned()), None);
        assert_eq!(twin("bash").unwrap().offer.address, "http://signed/debian/bash.deb");
        // An unsigned list proves nothing.
        assert!(twin("dash").is_err());
    }

    #[test]
    fn a_source_for_one_architecture_is_asked_for_another() {
        let source = "Types: deb\nURIs: http://x\nArchitectures: arm64\nSuites: ./\n";
        assert_eq!(for_any_arch(source), "Types: deb\nURIs: http://x\nSuites: ./\n");
        for (line, expected) in [
            ("deb http://x y main", "deb http://x y main"),
            ("deb [arch=arm64] http://x y main", "deb http://x y main"),
            (
                " deb [ arch=arm64,armhf signed-by=/k.gpg ] http://x y",
                "deb [signed-by=/k.gpg] http://x y",
            ),
            ("# deb [", "# deb ["),
        ] {
            assert_eq!(for_any_arch(line), format!("{expected}\n"));
        }
    }

    #[test]
    fn keys_of_an_image_are_read_in_the_image() {
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir_all(dir.path().join("root/usr/share")).unwrap();
        fs_err::write(dir.path().join("root/usr/share/k.pgp"), "the key").unwrap();
        std::os::unix::fs::symlink("/usr/share/k.pgp", dir.path().join("root/k.gpg")).unwrap();
        let root = Root::open(&dir.path().join("root")).unwrap();
        let keys = dir.path().join("keys");
        let there = |text: &str| with_keys_of(text, &root, &keys).unwrap();
        for (before, after) in [
            ("deb [signed-by=", "] http://k.gpg/k.gpg y"),
            ("Signed-By: ", ""),
            ("signed-by:\t/missing.gpg,", " 0123ABCD!"),
        ] {
            let made = there(&format!("{before}/k.gpg{after}"));
            let copy = made
                .strip_prefix(before)
                .unwrap()
                .trim_end()
                .strip_suffix(after)
                .unwrap();
            assert!(Path::new(copy).starts_with(&keys), "{made}");
            assert_eq!(fs_err::read_to_string(copy).unwrap(), "the key");
        }
        let other = "URIs: http://x/k.gpg\n# /k.gpg\n";
        assert_eq!(there(other), other);
    }
}
