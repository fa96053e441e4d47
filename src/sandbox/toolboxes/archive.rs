//! Packs toolboxes for other hosts, and unpacks those of others. Runs host programs in sandboxes, and changes the directory of
//! toolboxes.
//!
//! An archive is a tar file with the squashfs, the files for machines and the facts. The tree is made of the squashfs again.

use std::path::{Path, PathBuf};

use kiln_records::{Code, Failure, arch::Arch};

use super::{FACTS, Facts, SQUASHFS, Toolbox, Toolboxes, definition, make_shared_dir, sha256_of};

/// The name of the toolbox, which is the digest of its description: another version of Kiln has another one.
const NAME: &str = "description";

/// The most bytes and entries of an archive from elsewhere, and the most bytes of its facts.
const MOST: (u64, usize, u64) = (8 << 30, 20_000, 1 << 20);

/// The archive, beside what is in it.
const ARCHIVE: &str = "toolbox.tar";

/// A packed toolbox. The file goes when this is dropped.
#[derive(Debug)]
pub struct Archive(PathBuf);

impl Archive {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Archive {
    fn drop(&mut self) {
        if let Err(error) = fs_err::remove_file(&self.0) {
            tracing::debug!(%error, "the archive of a toolbox is left");
        }
    }
}

impl Toolboxes {
    /// Packs a toolbox.
    ///
    /// # Errors
    ///
    /// `toolbox_*` failures with tar's last output.
    pub async fn pack(&self, toolbox: &Toolbox) -> Result<Archive, Failure> {
        let dir = self.dir.join(&toolbox.name);
        // Another process may pack it at the same time.
        let file = format!("{}-{ARCHIVE}", uuid::Uuid::new_v4());
        let archive = Archive(dir.join(&file));
        fs_err::write(dir.join(NAME), &toolbox.name).map_err(|error| Failure::io("cannot pack the toolbox", &error))?;
        let mut argv = vec!["tar", "--create", "--file", &file, SQUASHFS, FACTS, NAME];
        argv.extend(toolbox.vm.exists().then_some("vm"));
        self.run_in(&dir, &argv).await?;
        Ok(archive)
    }

    /// The toolbox of the built-in description for hosts of this architecture, from an archive that `bring` writes to the given
    /// file, unless it is there. `None` if nothing is brought.
    ///
    /// # Errors
    ///
    /// Those of `bring`, `toolbox_*` failures with the last output of tar or unsquashfs, and `toolbox_facts` when the archive is
    /// that of another toolbox.
    pub async fn unpack(
        &self,
        arch: Arch,
        bring: impl AsyncFnOnce(&Path) -> Result<bool, Failure>,
    ) -> Result<Option<Toolbox>, Failure> {
        let _lock = self.lock().await?;
        if let Some(toolbox) = self.find(arch) {
            return Ok(Some(toolbox));
        }
        let name = definition::digest(arch);
        let work = self.dir.join(format!("{name}.partial"));
        self.driver.remove_dir(&work).await?;
        make_shared_dir(&work)?;
        let unpacked = async {
            if !bring(&work.join(ARCHIVE)).await? {
                return Ok(false);
            }
            self.run_in(&work, &["tar", "--extract", "--file", ARCHIVE]).await?;
            self.run_in(&work, &["unsquashfs", "-no-progress", "-dest", "tree", SQUASHFS])
                .await?;
            fs_err::remove_file(work.join(ARCHIVE))
                .map_err(|error| Failure::io("cannot unpack the toolbox", &error))?;
            match fs_err::read_to_string(work.join(NAME)) {
                Ok(found) if found == name => {}
                Ok(_) => {
                    return Err(Failure::new(
                        Code::ToolboxFacts,
                        "the archive is that of a toolbox of another version of Kiln",
                    ));
                }
                Err(error) => return Err(Failure::io("cannot unpack the toolbox", &error)),
            }
            let facts = Toolbox::read(&self.dir, format!("{name}.partial")).map(|toolbox| toolbox.facts);
            let sha256 = sha256_of(&work.join(SQUASHFS)).await?;
            match facts {
                Some(facts) if facts.arch == arch && facts.sha256 == sha256 => Ok(true),
                _ => Err(Failure::new(
                    Code::ToolboxFacts,
                    "the archive is not that of the toolbox that it claims to be",
                )),
            }
        };
        match unpacked.await {
            Ok(true) => {}
            other => {
                self.driver.remove_dir(&work).await?;
                return other.map(|_| None);
            }
        }
        fs_err::rename(&work, self.dir.join(name)).map_err(|error| Failure::io("cannot keep the toolbox", &error))?;
        Ok(self.find(arch))
    }

    /// Packs a toolbox into a new file. Returns the file's SHA-256, hexadecimal.
    ///
    /// # Errors
    ///
    /// Those of [`Self::pack`]; the file exists, or cannot be written.
    pub async fn export(&self, toolbox: &Toolbox, to: &Path) -> Result<String, Failure> {
        let failed = |error: std::io::Error| Failure::io("cannot write the archive", &error);
        let dir = match to.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let partial = tempfile::NamedTempFile::new_in(dir).map_err(failed)?.into_temp_path();
        let archive = self.pack(toolbox).await?;
        fs_err::tokio::copy(archive.path(), &partial).await.map_err(failed)?;
        let sha256 = sha256_of(&partial).await?;
        partial.persist_noclobber(to).map_err(|error| failed(error.error))?;
        Ok(sha256)
    }

    /// The toolbox in an archive from elsewhere, which must have this digest (SHA-256, hexadecimal) and nothing but the files
    /// of a toolbox of this version.
    ///
    /// # Errors
    ///
    /// `toolbox_archive` and those of [`Self::unpack`]; nothing is left then.
    pub async fn import(&self, archive: &Path, sha256: &str) -> Result<Toolbox, Failure> {
        let from = archive.to_owned();
        let arch = tokio::task::spawn_blocking(move || arch_of(&from))
            .await
            .map_err(|error| Failure::new(Code::ToolboxArchive, error))??;
        let bring = async |copy: &Path| {
            fs_err::tokio::copy(archive, copy)
                .await
                .map_err(|error| Failure::io("cannot copy the archive", &error))?;
            // The copy is checked: the file may change meanwhile.
            let found = sha256_of(copy).await?;
            if !found.eq_ignore_ascii_case(sha256) {
                return Err(unsafe_archive(&format_args!("its SHA-256 is {found}")));
            }
            let copy = copy.to_owned();
            let looked = tokio::task::spawn_blocking(move || arch_of(&copy)).await;
            let is_same = looked.map_err(|error| Failure::new(Code::ToolboxArchive, error))?? == arch;
            is_same
                .then_some(true)
                .ok_or_else(|| unsafe_archive(&"it was changed meanwhile"))
        };
        self.unpack(arch, bring)
            .await?
            .ok_or_else(|| Failure::new(Code::ToolboxLost, "the toolbox that was just unpacked does not exist"))
    }

    /// Runs a host program in a directory of toolboxes, with its files in the working directory.
    async fn run_in(&self, dir: &Path, argv: &[&str]) -> Result<(), Failure> {
        let mut shell = vec!["sh", "-c", "cd \"$0\" && exec \"$@\"", super::HOST_COMMAND_DIR];
        shell.extend(argv);
        self.run(
            dir,
            &shell,
            argv.first().copied().unwrap_or_default(),
            None,
            &mut |_| (),
        )
        .await
    }
}

/// The architecture of the toolbox in an archive, which must have nothing but the files of a toolbox.
fn arch_of(archive: &Path) -> Result<Arch, Failure> {
    let failed = |error: std::io::Error| unsafe_archive(&error);
    let file = fs_err::File::open(archive).map_err(|error| Failure::io("cannot read the archive", &error))?;
    let mut tar = tar::Archive::new(std::io::BufReader::new(file));
    let (mut bytes, mut facts, mut named) = (0_u64, None, false);
    for (count, entry) in tar.entries().map_err(failed)?.enumerate() {
        let mut entry = entry.map_err(failed)?;
        let kind = entry.header().entry_type();
        let path = entry.path().map_err(failed)?.into_owned();
        bytes = bytes.saturating_add(entry.size());
        if count >= MOST.1 || bytes > MOST.0 {
            return Err(unsafe_archive(&"it has more in it than any toolbox"));
        }
        let is_plain = path
            .components()
            .all(|part| matches!(part, std::path::Component::Normal(_)));
        let is_known = match path.to_str() {
            Some(SQUASHFS | FACTS | NAME) => kind.is_file(),
            _ => path.starts_with("vm") && (kind.is_file() || kind.is_dir()),
        };
        if !is_plain || !is_known {
            return Err(unsafe_archive(&format_args!(
                "no toolbox has the entry {:?}",
                path.display().to_string()
            )));
        }
        named |= path == Path::new(NAME);
        if path == Path::new(FACTS) {
            let mut text = Vec::new();
            std::io::Read::read_to_end(&mut std::io::Read::take(&mut entry, MOST.2), &mut text).map_err(failed)?;
            let read: Facts = serde_json::from_slice(&text).map_err(|error| unsafe_archive(&error))?;
            facts = Some(read);
        }
    }
    match facts {
        Some(facts) if named => Ok(facts.arch),
        _ => Err(unsafe_archive(&"it does not say which toolbox it has")),
    }
}

fn unsafe_archive(why: &dyn std::fmt::Display) -> Failure {
    Failure::new(Code::ToolboxArchive, format!("the archive is not taken: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(fill: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> tempfile::NamedTempFile {
        let mut builder = tar::Builder::new(Vec::new());
        fill(&mut builder);
        let packed = tempfile::NamedTempFile::new().unwrap();
        fs_err::write(packed.path(), builder.into_inner().unwrap()).unwrap();
        packed
    }

    fn add(builder: &mut tar::Builder<Vec<u8>>, name: &str, kind: tar::EntryType, content: &[u8]) {
        let mut header = tar::Header::new_gnu();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        if kind.is_symlink() {
            header.set_link_name("/etc").unwrap();
        }
        header.set_cksum();
        builder.append(&header, content).unwrap();
    }

    fn facts(builder: &mut tar::Builder<Vec<u8>>) {
        let facts = crate::sandbox::toolbox::tests::toolbox(Arch::Aarch64).facts;
        add(
            builder,
            FACTS,
            tar::EntryType::Regular,
            &serde_json::to_vec(&facts).unwrap(),
        );
        add(builder, NAME, tar::EntryType::Regular, b"name");
    }

    #[test]
    fn an_archive_has_the_files_of_a_toolbox_and_nothing_else() {
        let good = archive(|builder| {
            add(builder, SQUASHFS, tar::EntryType::Regular, b"squashfs");
            add(builder, "vm/", tar::EntryType::Directory, b"");
            add(builder, "vm/vmlinuz", tar::EntryType::Regular, b"kernel");
            facts(builder);
        });
        assert_eq!(arch_of(good.path()).unwrap(), Arch::Aarch64);
        for (name, kind) in [
            ("../escape", tar::EntryType::Regular),
            ("/etc/passwd", tar::EntryType::Regular),
            ("vm/../../escape", tar::EntryType::Regular),
            ("vm", tar::EntryType::Symlink),
            ("vm/link", tar::EntryType::Symlink),
            ("vm/hard", tar::EntryType::Link),
            ("vm/device", tar::EntryType::Block),
            ("vm/fifo", tar::EntryType::Fifo),
            ("tree/etc", tar::EntryType::Regular),
            (SQUASHFS, tar::EntryType::Symlink),
        ] {
            let bad = archive(|builder| {
                add(builder, name, kind, b"");
                facts(builder);
            });
            let failure = arch_of(bad.path()).unwrap_err();
            assert_eq!(failure.code, Code::ToolboxArchive, "{name}");
        }
        let nameless = archive(|builder| add(builder, SQUASHFS, tar::EntryType::Regular, b""));
        assert!(arch_of(nameless.path()).is_err());
        let nonsense = tempfile::NamedTempFile::new().unwrap();
        fs_err::write(nonsense.path(), "x".repeat(2000)).unwrap();
        assert!(arch_of(nonsense.path()).is_err());
    }
}
