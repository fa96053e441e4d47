//! The counterparts of a root's packages and what trials showed, as a file beside the unpacked packages: with both, a root
//! with the same packages has its twins at once. Reads and writes that file, and reads what trials depend on.

use std::{collections::BTreeMap, io, path::Path};

use kiln_records::arch::Arch;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{format::Format, index::Lack, table::VERSION};

/// The name of the file. Directories of packages have an underscore in their names.
const NAME: &str = "kept.json";

/// The largest such file, in bytes; that of 500 packages has 60 kB.
const LARGEST: u64 = 16 << 20;

/// What another root begins with.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    /// The architecture of the twins.
    pub(super) host: Arch,
    /// The architecture of the root.
    pub(super) target: Arch,
    /// The format of its packages.
    pub(super) format: Format,
    /// The counterparts of its packages.
    pub(super) counterparts: Vec<Counterpart>,
    /// The [`conditions`] of the trials.
    pub(super) conditions: String,
    /// Whether the twins of programs answered like these, by the programs' keys.
    pub(super) trials: BTreeMap<String, bool>,
}

/// What is known of the build for the host of a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counterpart {
    /// The package's name.
    pub(super) name: String,
    /// Its version.
    pub(super) version: String,
    /// The host's build, or why there is none.
    pub(super) found: Result<Build, Lack>,
}

/// An unpacked package of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Build {
    /// The name of the directory into which it is unpacked.
    pub(super) dir: String,
    /// Its version.
    pub(super) version: String,
}

impl Kept {
    /// Reads the file in `dir`. `None` if there is none that fits.
    pub(super) fn read(dir: &Path, host: Arch, target: Arch) -> Option<Self> {
        let path = dir.join(NAME);
        if fs_err::symlink_metadata(&path).ok()?.len() > LARGEST {
            return None;
        }
        let kept: Self = serde_json::from_slice(&fs_err::read(path).ok()?).ok()?;
        (kept.host == host && kept.target == target).then_some(kept)
    }

    /// Writes the file in `dir`.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub(super) fn write(&self, dir: &Path) -> io::Result<()> {
        fs_err::write(dir.join(NAME), serde_json::to_vec(self)?)
    }
}

/// A digest of what the answers of a trial depend on besides the root and both builds: the questions, the emulator, the library
/// that answers for the target, and the CPU.
///
/// # Errors
///
/// One of them cannot be read.
pub(super) fn conditions(emulator: &Path, answers: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    hash.update(format!("{} {VERSION}", env!("CARGO_PKG_VERSION")));
    for file in [emulator, answers] {
        hash.update(Sha256::digest(fs_err::read(file)?));
    }
    // Frequencies change all the time.
    let lines = fs_err::read_to_string("/proc/cpuinfo")?;
    let model = |line: &&str| {
        ["flags", "model name", "Features", "CPU part", "isa"]
            .iter()
            .any(|it| line.starts_with(it))
    };
    for line in lines.lines().filter(model) {
        hash.update(line);
    }
    Ok(hex::encode(hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_for_one_pair_of_architectures() {
        let dir = tempfile::tempdir().unwrap();
        let read = |host, target| Kept::read(dir.path(), host, target);
        assert_eq!(read(Arch::X86_64, Arch::Aarch64), None);
        let counterpart = |name: &str, found| Counterpart {
            name: name.to_owned(),
            version: "1:2-3".to_owned(),
            found,
        };
        let kept = Kept {
            host: Arch::X86_64,
            target: Arch::Aarch64,
            format: Format::Deb,
            counterparts: vec![
                counterpart(
                    "bash",
                    Ok(Build {
                        dir: "bash_1:2-3".to_owned(),
                        version: "1:2-3".to_owned(),
                    }),
                ),
                counterpart("mine", Err(Lack::Stranger)),
            ],
            conditions: "0".to_owned(),
            trials: BTreeMap::from([("key".to_owned(), false)]),
        };
        kept.write(dir.path()).unwrap();
        assert_eq!(read(Arch::X86_64, Arch::Aarch64), Some(kept));
        assert_eq!(read(Arch::X86_64, Arch::Riscv64), None);
        assert_eq!(read(Arch::Aarch64, Arch::Aarch64), None);
        fs_err::write(dir.path().join(NAME), "{").unwrap();
        assert_eq!(read(Arch::X86_64, Arch::Aarch64), None);
    }

    #[test]
    fn trials_hold_for_the_same_answers_on_the_same_cpu() {
        let dir = tempfile::tempdir().unwrap();
        let [emulator, answers] = ["qemu-aarch64", "answers.so"].map(|name| dir.path().join(name));
        let conditions = || conditions(&emulator, &answers);
        fs_err::write(&emulator, "one").unwrap();
        assert!(conditions().is_err());
        fs_err::write(&answers, "one").unwrap();
        let one = conditions().unwrap();
        assert_eq!(conditions().unwrap(), one);
        for file in [&emulator, &answers] {
            fs_err::write(file, "other").unwrap();
            assert_ne!(conditions().unwrap(), one);
            fs_err::write(file, "one").unwrap();
        }
        assert_eq!(conditions().unwrap(), one);
    }
}
