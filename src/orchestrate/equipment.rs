//! Keeps what sandboxes are made from: an agent and a toolbox for each architecture that places have. It looks for
//! agents on disk; finished toolboxes are handed to it.
//!
//! Agents are installed with Kiln. Toolboxes are made when the first job, or the first build node, needs one: a caller
//! that finds no toolbox requests it here, and the task that builds toolboxes waits here for requests.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use kiln_records::{Code, Failure, arch::Arch};
use tokio::sync::Notify;

use crate::sandbox::{agents::Agents, toolbox::Toolbox};

/// The agents and toolboxes of a server.
#[derive(Debug)]
pub struct Equipment {
    agents: Agents,
    toolboxes: Mutex<Toolboxes>,
    wanted: Notify,
}

#[derive(Debug, Default)]
struct Toolboxes {
    made: BTreeMap<Arch, Result<Toolbox, Failure>>,
    wanted: BTreeSet<Arch>,
}

/// Why a sandbox cannot be made yet, or at all.
#[derive(Debug, Clone)]
pub enum Lack {
    /// The toolbox is being made, as this says.
    Toolbox(String),
    /// The missing part is not made by this server, or cannot be made now.
    Failed(Failure),
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Toolbox(reason) => f.write_str(reason),
            Self::Failed(failure) => failure.fmt(f),
        }
    }
}

impl From<Lack> for Failure {
    fn from(lack: Lack) -> Self {
        match lack {
            Lack::Toolbox(reason) => Failure::new(Code::SandboxStart, reason),
            Lack::Failed(failure) => failure,
        }
    }
}

impl Equipment {
    /// Equipment with the toolboxes that already exist.
    pub fn new(agents: Agents, toolboxes: impl IntoIterator<Item = Toolbox>) -> Self {
        let made = toolboxes.into_iter().map(|toolbox| (toolbox.facts.arch, Ok(toolbox)));
        Self {
            agents,
            toolboxes: Mutex::new(Toolboxes {
                made: made.collect(),
                wanted: BTreeSet::new(),
            }),
            wanted: Notify::new(),
        }
    }

    fn toolboxes(&self) -> MutexGuard<'_, Toolboxes> {
        // Each change is one call.
        self.toolboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The agent and toolbox for sandboxes on hosts of this architecture. A missing toolbox is requested.
    ///
    /// # Errors
    ///
    /// The missing part.
    pub fn of(&self, arch: Arch) -> Result<(PathBuf, Toolbox), Lack> {
        let agent = self.agents.of(arch).map_err(Lack::Failed)?;
        let known = self.toolboxes().made.get(&arch).cloned();
        let lack = match known {
            Some(Ok(toolbox)) => return Ok((agent, toolbox)),
            Some(Err(failure)) => Lack::Failed(failure),
            None if arch == Arch::host() => {
                Lack::Toolbox("the toolbox is being built, once; that takes a few minutes".to_owned())
            }
            None => Lack::Toolbox(format!(
                "the toolbox for {arch} is being built under an emulator, once; that takes a quarter of an hour or more"
            )),
        };
        self.toolboxes().wanted.insert(arch);
        self.wanted.notify_one();
        Err(lack)
    }

    /// Waits until a missing toolbox is requested, and returns its architecture. This host's own comes first, since it
    /// is needed to make the others.
    pub async fn wanted(&self) -> Arch {
        loop {
            {
                let mut toolboxes = self.toolboxes();
                let host = Some(Arch::host()).filter(|host| toolboxes.wanted.contains(host));
                if let Some(arch) = host.or_else(|| toolboxes.wanted.first().copied()) {
                    toolboxes.wanted.remove(&arch);
                    return arch;
                }
            }
            self.wanted.notified().await;
        }
    }

    /// Takes a finished toolbox, or the reason why it could not be made.
    pub fn note(&self, arch: Arch, made: Result<Toolbox, Failure>) {
        let mut toolboxes = self.toolboxes();
        toolboxes.made.insert(arch, made);
        // It may have been requested again while it was being made.
        toolboxes.wanted.remove(&arch);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use kiln_inside::emulation::probe::tiny_program;

    use super::*;
    use crate::sandbox::toolbox::tests::toolbox;

    #[test]
    fn a_toolbox_is_made_when_somebody_asks_for_it_and_this_hosts_first() {
        let dir = tempfile::tempdir().unwrap();
        let foreign = if Arch::host() == Arch::Aarch64 {
            Arch::X86_64
        } else {
            Arch::Aarch64
        };
        let equipment = Equipment::new(Agents::beside(dir.path().join("kiln-agent")), []);
        // Without an agent a toolbox is of no use.
        let lack = equipment.of(foreign).unwrap_err();
        assert!(matches!(lack, Lack::Failed(failure) if failure.code == Code::NotEquipped));
        assert_eq!(equipment.wanted().now_or_never(), None);

        fs_err::create_dir(dir.path().join(foreign.name())).unwrap();
        fs_err::write(
            dir.path().join(foreign.name()).join("kiln-agent"),
            tiny_program(foreign),
        )
        .unwrap();
        for arch in [foreign, Arch::host()] {
            assert!(matches!(equipment.of(arch), Err(Lack::Toolbox(_))));
        }
        assert_eq!(equipment.wanted().now_or_never(), Some(Arch::host()));
        assert_eq!(equipment.wanted().now_or_never(), Some(foreign));
        assert_eq!(equipment.wanted().now_or_never(), None);

        // A toolbox that could not be made is tried again at the next request.
        equipment.note(foreign, Err(Failure::new(Code::ToolboxBuild, "no mirror")));
        assert_eq!(equipment.wanted().now_or_never(), None);
        assert!(matches!(equipment.of(foreign), Err(Lack::Failed(failure)) if failure.code == Code::ToolboxBuild));
        assert_eq!(equipment.wanted().now_or_never(), Some(foreign));
        equipment.note(foreign, Ok(toolbox(foreign)));
        let (agent, found) = equipment.of(foreign).unwrap();
        assert!(agent.starts_with(dir.path().join(foreign.name())));
        assert_eq!(found.facts.arch, foreign);
    }
}
