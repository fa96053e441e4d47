//! Finds the agents on disk: one for each architecture that sandboxes are made on. Reads files only.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use kiln_records::{Code, Failure, arch::Arch};

/// This host's own agent, and those for build nodes of other architectures. Each of the latter is in a directory
/// beside the own agent, named after the architecture, with the programs that go into sandboxes with it.
#[derive(Debug, Clone)]
pub struct Agents {
    own: PathBuf,
}

impl Agents {
    /// The agents beside this host's own.
    pub fn beside(own: PathBuf) -> Self {
        Self { own }
    }

    /// The agent for hosts of this architecture.
    ///
    /// # Errors
    ///
    /// `not_equipped` when the agent was not built, or is for another architecture than its directory says.
    pub fn of(&self, arch: Arch) -> Result<PathBuf, Failure> {
        if arch == Arch::host() {
            return Ok(self.own.clone());
        }
        let name = self.own.file_name().unwrap_or_default();
        let path = self.own.with_file_name(arch.name()).join(name);
        let lacks = |why: String| {
            Failure::new(Code::NotEquipped, format!("there is no agent for {arch}: {why}")).hint(format!(
                "`make agent ARCH={arch}` builds it; put it into the directory `{arch}` beside `{}`",
                self.own.display()
            ))
        };
        match machine(&path) {
            Ok(machine) if machine == arch.elf_machine() => Ok(path),
            Ok(_) => Err(lacks(format!("{} is for another architecture", path.display()))),
            Err(error) => Err(lacks(error.to_string())),
        }
    }
}

/// `e_machine` of a program. All agents are for little-endian machines.
fn machine(path: &Path) -> std::io::Result<u16> {
    let mut head = [0; 20];
    fs_err::File::open(path)?.read_exact(&mut head)?;
    Ok(u16::from_le_bytes([head[18], head[19]]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_inside::emulation::probe::tiny_program;

    #[test]
    fn an_agent_counts_for_the_architecture_that_it_is_of() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("kiln-agent");
        let agents = Agents::beside(own.clone());
        assert_eq!(agents.of(Arch::host()).unwrap(), own);

        let [arch, other] = [Arch::Riscv64, Arch::Ppc64le];
        let failure = agents.of(arch).unwrap_err();
        assert_eq!(failure.code, Code::NotEquipped);
        assert!(failure.hint.unwrap().contains("make agent ARCH=riscv64"));

        let path = dir.path().join("riscv64/kiln-agent");
        fs_err::create_dir(path.parent().unwrap()).unwrap();
        fs_err::write(&path, tiny_program(other)).unwrap();
        assert!(agents.of(arch).unwrap_err().detail.contains("another architecture"));
        fs_err::write(&path, tiny_program(arch)).unwrap();
        assert_eq!(agents.of(arch).unwrap(), path);
    }
}
