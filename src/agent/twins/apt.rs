//! Packages of the host's architecture from the repositories of the recipe.
//!
//! apt does what needs trust: it fetches the lists, checks their signatures against the recipe's keys, downloads and
//! checks what is asked for. It works on directories of its own and knows of no other architecture and no installed
//! package, so it can neither disturb nor be disturbed by what kiwi does.

use std::{
    collections::HashMap,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use fs_err::File;

use crate::{agent::digest, arch::Arch};

/// Where kiwi writes its sources, and its logins for them.
const KIWI: &str = "/var/cache/kiwi/apt-get";

/// apt's own way to download by address and checksum.
const HELPER: &str = "/usr/lib/apt/apt-helper";

/// apt for the host's architecture.
#[derive(Debug)]
pub(super) struct Apt {
    dir: PathBuf,
}

/// A package that the repositories have.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Offer {
    address: String,
    /// Lower-case hexadecimal.
    sha256: String,
}

/// What the repositories have for one architecture: by name and version.
#[derive(Debug, Default)]
pub(super) struct Index(HashMap<(String, String), Offer>);

/// Whether kiwi has set up its sources, and has begun to read the lists.
pub(super) fn kiwi_is_ready() -> bool {
    Path::new(KIWI).join("lists").is_dir()
}

impl Apt {
    /// Makes apt work for `host` below `dir`, with the sources that kiwi has now.
    pub(super) fn new(dir: PathBuf, host: Arch) -> io::Result<Self> {
        let sources = dir.join("etc/sources.list.d");
        for made in [
            &sources,
            &dir.join("etc/apt.conf.d"),
            &dir.join("state"),
            &dir.join("cache/archives/partial"),
        ] {
            fs_err::create_dir_all(made)?;
        }
        fs_err::write(dir.join("status"), "")?;
        for entry in fs_err::read_dir(Path::new(KIWI).join("sources.list.d"))? {
            let entry = entry?;
            let text = fs_err::read_to_string(entry.path())?;
            fs_err::write(sources.join(entry.file_name()), for_any_arch(&text))?;
        }
        let (name, at) = (host.debian(), dir.display());
        let config = format!(
            "Dir::State \"{at}/state\";\nDir::State::status \"{at}/status\";\nDir::Cache \"{at}/cache\";\n\
             Dir::Etc \"{at}/etc\";\nDir::Etc::netrcparts \"{KIWI}/auth.conf.d\";\n\
             APT::Architecture \"{name}\";\nAPT::Architectures {{ \"{name}\"; }};\nAPT::Sandbox::User \"root\";\n\
             Acquire::Languages \"none\";\nAcquire::PDiffs \"false\";\nAcquire::Retries \"3\";\n"
        );
        fs_err::write(dir.join("apt.conf"), config)?;
        Ok(Self { dir })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        // Only this file, not the sandbox's own configuration, which is for the target.
        command.env("APT_CONFIG", self.dir.join("apt.conf")).env("LANG", "C");
        command.stdin(Stdio::null());
        command
    }

    /// Starts to fetch the lists.
    pub(super) fn start_update(&self) -> io::Result<Child> {
        let mut command = self.command("apt-get");
        command.args(["-q", "update"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
    }

    /// What the lists say.
    ///
    /// # Errors
    ///
    /// When they cannot be read.
    pub(super) fn index(&self) -> io::Result<Index> {
        let mut command = self.command("apt-get");
        command.args(["indextargets", "--format", "$(TRUSTED)\t$(REPO_URI)\t$(FILENAME)"]);
        let output = command.arg("Created-By: Packages").output()?;
        if !output.status.success() {
            return Err(io::Error::other("apt-get cannot list what it has fetched"));
        }
        let mut index = Index::default();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let mut words = line.splitn(3, '\t');
            // A list that nobody signed, of a recipe that does not mind, proves nothing about its packages.
            if let (Some("yes"), Some(repository), Some(file)) = (words.next(), words.next(), words.next()) {
                index.read(repository, BufReader::new(File::open(file)?))?;
            }
        }
        Ok(index)
    }

    /// Downloads packages by name and version. Returns their files, in the same order; none for those that could not
    /// be had.
    pub(super) fn download(&self, index: &Index, wanted: &[(String, String)]) -> io::Result<Vec<Option<PathBuf>>> {
        let archives = self.dir.join("cache/archives");
        let offers: Vec<_> = wanted.iter().map(|package| index.0.get(package)).collect();
        let mut command = self.command(HELPER);
        command.args(["-q", "download-file"]);
        let file = |offer: &Offer| archives.join(format!("{}.deb", offer.sha256));
        for offer in offers.iter().flatten() {
            command.arg(&offer.address).arg(file(offer));
            command.arg(format!("SHA256:{}", offer.sha256));
        }
        if offers.iter().any(Option::is_some) {
            // What it says of its failures is of no use: each file is looked at below.
            command.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        }
        let checked = |offer: &Offer| {
            let path = file(offer);
            let (_, found) = digest::sha256_of(&path).ok()?;
            (found == offer.sha256).then_some(path)
        };
        Ok(offers.into_iter().map(|offer| checked(offer?)).collect())
    }
}

/// A source without the architectures that it is meant for: it is asked for another one.
fn for_any_arch(source: &str) -> String {
    let others = source.lines().filter(|line| {
        let (field, _) = line.split_once(':').unwrap_or_default();
        !field.eq_ignore_ascii_case("Architectures")
    });
    others.flat_map(|line| [line, "\n"]).collect()
}

impl Index {
    /// Reads one list. Packages for all architectures are left out: they have no programs of an architecture.
    fn read(&mut self, repository: &str, mut list: impl BufRead) -> io::Result<()> {
        let mut line = String::new();
        let mut fields: [String; 5] = Default::default();
        loop {
            line.clear();
            let read = list.read_line(&mut line)?;
            if line.trim().is_empty() {
                let [name, version, arch, file, sha256] = std::mem::take(&mut fields);
                if ![&name, &version, &file].iter().any(|field| field.is_empty()) && arch != "all" && sha256.len() == 64
                {
                    let address = format!("{}/{file}", repository.trim_end_matches('/'));
                    self.0.entry((name, version)).or_insert(Offer { address, sha256 });
                }
                if read == 0 {
                    return Ok(());
                }
                continue;
            }
            let Some((name, value)) = line.split_once(": ") else {
                continue;
            };
            let field = match name {
                "Package" => 0,
                "Version" => 1,
                "Architecture" => 2,
                "Filename" => 3,
                "SHA256" => 4,
                _ => continue,
            };
            value.trim().clone_into(&mut fields[field]);
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
        let mut index = Index::default();
        index.read("http://mirror/debian/", list.as_bytes()).unwrap();
        assert_eq!(index.0.len(), 1);
        let offer = &index.0[&("bash".to_owned(), "5.2-1".to_owned())];
        assert_eq!(offer.address, "http://mirror/debian/pool/bash.deb");
    }

    #[test]
    fn a_source_for_one_architecture_is_asked_for_another() {
        let source = "Types: deb\nURIs: http://x\nArchitectures: arm64\nSuites: ./\n";
        assert_eq!(for_any_arch(source), "Types: deb\nURIs: http://x\nSuites: ./\n");
    }
}
