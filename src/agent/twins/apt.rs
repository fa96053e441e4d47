//! What the recipe's repositories of Debian packages have for the host's architecture.
//!
//! apt does what needs trust: it fetches the lists and checks their signatures against the recipe's keys. It works on
//! directories of its own and knows of no other architecture and no installed package, so it can neither disturb nor be
//! disturbed by what kiwi does.

use std::{
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use fs_err::File;

use super::index::{Index, Offer};
use crate::arch::Arch;

/// Where kiwi writes its sources, and its logins for them.
const KIWI: &str = "/var/cache/kiwi/apt-get";

/// apt for the host's architecture.
#[derive(Debug)]
pub(super) struct Apt {
    dir: PathBuf,
}

/// Whether kiwi has set up its sources, and has begun to read the lists.
pub(super) fn is_ready() -> bool {
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
            &dir.join("cache"),
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
             Dir::Etc \"{at}/etc\";\nDir::Etc::netrcparts \"{}\";\n\
             APT::Architecture \"{name}\";\nAPT::Architectures {{ \"{name}\"; }};\nAPT::Sandbox::User \"root\";\n\
             Acquire::Languages \"none\";\nAcquire::PDiffs \"false\";\nAcquire::Retries \"3\";\n",
            logins().display()
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
                read(&mut index, repository, BufReader::new(File::open(file)?))?;
            }
        }
        Ok(index)
    }
}

/// kiwi's logins for its sources.
pub(super) fn logins() -> PathBuf {
    Path::new(KIWI).join("auth.conf.d")
}

/// A source without the architectures that it is meant for: it is asked for another one.
fn for_any_arch(source: &str) -> String {
    let others = source.lines().filter(|line| {
        let (field, _) = line.split_once(':').unwrap_or_default();
        !field.eq_ignore_ascii_case("Architectures")
    });
    others.flat_map(|line| [line, "\n"]).collect()
}

/// Reads one list. Packages for all architectures are left out: they have no programs of an architecture.
fn read(index: &mut Index, repository: &str, mut list: impl BufRead) -> io::Result<()> {
    let mut line = String::new();
    let mut fields: [String; 6] = Default::default();
    loop {
        line.clear();
        let read = list.read_line(&mut line)?;
        if line.trim().is_empty() {
            let [name, version, arch, file, size, sha256] = std::mem::take(&mut fields);
            let is_named = ![&name, &version, &file].iter().any(|field| field.is_empty());
            if let Ok(size) = size.parse()
                && is_named
                && arch != "all"
                && sha256.len() == 64
            {
                let address = format!("{}/{file}", repository.trim_end_matches('/'));
                let is_signed = false;
                let offer = Offer {
                    address,
                    sha256,
                    size,
                    is_signed,
                };
                index.add((name, version), offer);
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
            "Size" => 4,
            "SHA256" => 5,
            _ => continue,
        };
        value.trim().clone_into(&mut fields[field]);
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
        read(&mut index, "http://mirror/debian/", list.as_bytes()).unwrap();
        assert_eq!(index.len(), 1);
        let offer = index.get(&("bash".to_owned(), "5.2-1".to_owned())).unwrap();
        assert_eq!((&*offer.address, offer.size), ("http://mirror/debian/pool/bash.deb", 1));
    }

    #[test]
    fn a_source_for_one_architecture_is_asked_for_another() {
        let source = "Types: deb\nURIs: http://x\nArchitectures: arm64\nSuites: ./\n";
        assert_eq!(for_any_arch(source), "Types: deb\nURIs: http://x\nSuites: ./\n");
    }
}
