//! Looks after the root in which instructions run: the working container of one stage after another. Mounts it where twins expect
//! the root of a job, and starts and ends them.

use std::{
    convert::Infallible,
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use kiln_records::{Failure, Warning, arch::Arch, protocol::Emulator};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use sha2::{Digest, Sha256};

use super::runs::{Answer, Runs, Said};
use crate::{
    building::Building,
    pauses,
    twins::{Earlier, Root, Twins},
};

/// Programs by which the architecture of a root is told. At most this much is read of one, in bytes.
const PROGRAMS: [&str; 6] = [
    "bin/sh",
    "bin/busybox",
    "usr/bin/env",
    "bin/bash",
    "sbin/init",
    "usr/bin/true",
];
const MOST: u64 = 16 << 20;

/// Files that name repositories, and directories of such files.
const REPOSITORIES: [&str; 4] = [
    "etc/apt/sources.list",
    "etc/apt/sources.list.d",
    "etc/yum.repos.d",
    "etc/zypp/repos.d",
];

/// The root of the stage that is being built, and the twins of all stages.
#[derive(Debug)]
pub(super) struct Stages<'a> {
    building: Building<'a>,
    /// The root that is mounted now.
    current: Option<Current>,
    twins: Option<Twins>,
    earlier: Earlier,
}

/// A root, and what its twins were begun with.
#[derive(Debug, PartialEq, Eq)]
struct Current {
    /// Device and inode.
    root: (u64, u64),
    /// A digest of the files that name its repositories: an instruction may change them.
    repositories: [u8; 32],
}

impl<'a> Stages<'a> {
    pub(super) fn new(building: Building<'a>) -> Self {
        Self {
            building,
            current: None,
            twins: None,
            earlier: Earlier::default(),
        }
    }

    /// Answers the runtime, for as long as buildah runs.
    pub(super) async fn serve(&mut self, runs: &Runs) -> Result<Infallible, Failure> {
        let failed = |error: io::Error| Failure::io("cannot hear of the instructions that run", &error);
        loop {
            let question = runs.next().await.map_err(failed)?;
            let answer = match &question.said {
                Said::Begins(root) => self.begins(root).await.unwrap_or_else(|failure| Answer {
                    refusal: Some(failure.detail),
                    ..Answer::default()
                }),
                Said::Ended(root) => {
                    self.ended(root).await;
                    Answer::default()
                }
            };
            question.answer(&answer).await;
        }
    }

    /// Ends the twins of the last stage. Returns those of all stages.
    pub(super) fn end(mut self) -> (Option<Twins>, Earlier) {
        self.unmount();
        (self.twins.take(), std::mem::take(&mut self.earlier))
    }

    /// Prepares a root for a command.
    async fn begins(&mut self, root: &Path) -> Result<Answer, Failure> {
        let failed = |error: io::Error| Failure::io("cannot prepare the root of an instruction", &error);
        let found = fs_err::metadata(root).map_err(failed)?;
        let wanted = Current {
            root: (found.dev(), found.ino()),
            repositories: repositories_of(root).map_err(failed)?,
        };
        let target = self.building.job.arch;
        let foreign = self.building.emulator.filter(|_| {
            // What cannot be told may be foreign, and the emulator is asked for that only.
            arch_of(root).is_none_or(|arch| arch == target)
        });
        if self.current.as_ref() != Some(&wanted) {
            self.leave().await?;
            if foreign.is_some() {
                self.enter(root, wanted).map_err(failed)?;
            }
        }
        pauses::trust_the_site(root, true).await?;
        let variable = |emulator: &Emulator| ("QEMU_CPU".to_owned(), emulator.cpu.clone());
        Ok(Answer {
            environment: foreign.map(variable).into_iter().collect(),
            twins_of: self.twins.as_ref().map(|_| self.place()),
            refusal: None,
        })
    }

    /// Takes out of a root what only a command in it needs.
    async fn ended(&mut self, root: &Path) {
        let mut done = pauses::trust_the_site(root, false).await;
        if let Some(twins) = &self.twins {
            done = done.and(twins.leave().await);
        }
        if let Err(failure) = done {
            self.building.events.warn(Warning::of(&failure, &failure)).await;
        }
    }

    /// Ends the stage before.
    async fn leave(&mut self) -> Result<(), Failure> {
        if let Some(twins) = self.twins.take() {
            let ended = twins.end_of_stage().await?;
            self.earlier = std::mem::take(&mut self.earlier).and(ended);
        }
        self.unmount();
        Ok(())
    }

    fn enter(&mut self, root: &Path, current: Current) -> io::Result<()> {
        let place = self.place();
        fs_err::create_dir_all(&place)?;
        let none = None::<&Path>;
        mount(Some(root), &place, none, MsFlags::MS_BIND, none)?;
        self.current = Some(current);
        let Building {
            job,
            outputs,
            events,
            channel,
            http,
            web,
            ..
        } = self.building;
        self.twins = Twins::of_job(job, outputs, events, channel, http, web, None);
        Ok(())
    }

    fn unmount(&mut self) {
        if self.current.take().is_some() {
            let _ = umount2(&self.place(), MntFlags::MNT_DETACH);
        }
    }

    fn place(&self) -> PathBuf {
        self.building.outputs.root()
    }
}

impl Drop for Stages<'_> {
    fn drop(&mut self) {
        self.unmount();
    }
}

/// A digest of the files that name a root's repositories.
fn repositories_of(root: &Path) -> io::Result<[u8; 32]> {
    let root = Root::open(root)?;
    let mut hash = Sha256::new();
    for dir in REPOSITORIES.map(Path::new) {
        let files = root.names(dir).into_iter().map(|name| dir.join(name));
        for file in files.chain([dir.to_owned()]) {
            if let Some(content) = root.content(&file, MOST) {
                hash.update(file.as_os_str().as_encoded_bytes());
                hash.update((content.len() as u64).to_le_bytes());
                hash.update(content);
            }
        }
    }
    Ok(hash.finalize().into())
}

/// The architecture of a root's programs, if one of them says it.
pub(super) fn arch_of(root: &Path) -> Option<Arch> {
    let root = Root::open(root).ok()?;
    PROGRAMS.iter().find_map(|path| {
        let content = root.content(Path::new(path), MOST)?;
        let machine = u16::from_le_bytes(content.get(18..20)?.try_into().ok()?);
        let machine = if content.get(5) == Some(&2) {
            machine.swap_bytes()
        } else {
            machine
        };
        let is_elf = content.starts_with(b"\x7fELF");
        Arch::ALL
            .into_iter()
            .find(|arch| is_elf && arch.elf_machine() == machine)
    })
}
