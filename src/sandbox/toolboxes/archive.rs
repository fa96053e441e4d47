//! Packs toolboxes for other hosts, and unpacks those of others. Runs host programs in sandboxes, and changes the directory of
//! toolboxes.
//!
//! An archive is a tar file with the squashfs, the files for machines and the facts. The tree is made of the squashfs again.

use std::path::{Path, PathBuf};

use kiln_records::{Code, Failure, arch::Arch};

use super::{FACTS, SQUASHFS, Toolbox, Toolboxes, definition, make_shared_dir, sha256_of};

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
        let mut argv = vec!["tar", "--create", "--file", &file, SQUASHFS, FACTS];
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
