//! Virtual machines, one for a job: what they are made of, and how QEMU is asked for them.
//!
//! QEMU is the program of a sandbox of namespaces, which stays what it is around any program: nobody on the host, with a
//! root, a network and limits of its own. A guest that breaks out of its machine is where a job on the host's kernel
//! starts.
//!
//! ```text
//!  supervisor ─ entrance ─ init (pid 1) ─ relays ─ /run/kiln/*.sock
//!       │ control, words        └ QEMU ── the job's kernel ── init ── agent
//!       └──────────────────────────┘ 10.0.2.2:PORT ─▶ 127.0.0.1:PORT of the sandbox ─▶ relay
//! ```
//!
//! The kernel comes with the toolbox, the first root (`initrd`) is made from its modules and the agent, the toolbox is a
//! disk that cannot be written to, and the job's disk space another one (`scratch`).

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{
    Limits,
    doors::{AGENT_SOCKET, socket_name},
};
use crate::records::protocol::AgentFacts;

pub(crate) mod boot_files;
pub(crate) mod initrd;
mod kernel;
mod modules;
pub(crate) mod qemu;

/// What runs the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Accelerator {
    /// The CPU itself.
    Kvm,
    /// QEMU's emulation of a CPU, which takes 20 to 60 times as long.
    Tcg,
}

/// What a virtual machine is made from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct VmSpec {
    /// The emulator's program.
    pub(crate) qemu: PathBuf,
    /// What runs the guest's instructions.
    pub(crate) accelerator: Accelerator,
    /// The kernel.
    pub(crate) kernel: PathBuf,
    /// Its first root, without what is one job's.
    pub(crate) initrd: PathBuf,
    /// The toolbox as a squashfs; none when the machine is only to boot.
    pub(crate) toolbox: Option<PathBuf>,
    /// Bytes of the guest's memory.
    pub(crate) memory: u64,
    /// CPUs.
    pub(crate) cpus: u32,
    /// What the machine reaches of the server.
    pub(crate) relays: Vec<Relay>,
}

/// A port, on the loopback of the sandbox around a machine, that leads to a socket of the server's.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Relay {
    /// The port.
    pub(crate) port: u16,
    /// The socket's file name.
    pub(crate) socket: String,
}

impl Accelerator {
    /// What people are told of emulation.
    pub(crate) const SLOW: &str = "the virtual machine's CPU is emulated, which takes 20 to 60 times as long; \
        with a /dev/kvm that works it would not be";
}

const MIB: u64 = 1 << 20;

/// What QEMU needs beside the guest's memory: itself and its buffers, and under emulation the code that it has
/// translated.
const OWN_MEMORY: u64 = 192 * MIB;

/// The most that translated code takes; the rest of it is translated anew.
const TRANSLATED_MIB: u64 = 256;

/// What the guest's kernel keeps for itself, first root and all, so that the job has what it was given.
const KERNEL_MEMORY: u64 = 96 * MIB;

/// What a machine takes of the host beside its job's memory, at most.
pub(super) const MEMORY_BESIDE: u64 = KERNEL_MEMORY + OWN_MEMORY + TRANSLATED_MIB * MIB;

/// QEMU's own threads: one for a CPU, and those that wait for disks.
const OWN_THREADS: u32 = 128;

impl VmSpec {
    /// The guest's memory for a job that may use `limit` bytes; without a limit a quarter of the host's, if that is
    /// known.
    pub(crate) fn memory_for(limit: Option<u64>) -> u64 {
        let usual = || crate::host::memory().map_or(2048 * MIB, |bytes| bytes / 4);
        limit.unwrap_or_else(usual) + KERNEL_MEMORY
    }

    /// What the sandbox around it may use. What the job may is the guest's to limit.
    pub(crate) fn host_limits(&self, job: &Limits) -> Limits {
        let translated = match self.accelerator {
            Accelerator::Kvm => 0,
            Accelerator::Tcg => TRANSLATED_MIB * MIB,
        };
        Limits {
            memory: job.memory.map(|_| self.memory + OWN_MEMORY + translated),
            pids: OWN_THREADS + self.cpus,
            ..*job
        }
    }
}

/// Where the relay to the server's own socket listens, unless a door has that number.
const SERVER_PORT: u16 = 7400;

/// The relays of a job, and what its agent is told instead of the server's sockets, which a machine cannot have.
pub(crate) fn relays(facts: &AgentFacts) -> (Vec<Relay>, AgentFacts) {
    let is_free = |port: &u16| !facts.doors.contains(port);
    let server = (SERVER_PORT..=u16::MAX).find(is_free).unwrap_or(SERVER_PORT);
    let mut relays = vec![Relay {
        port: server,
        socket: AGENT_SOCKET.to_owned(),
    }];
    relays.extend(facts.doors.iter().map(|port| Relay {
        port: *port,
        socket: socket_name(*port),
    }));
    let facts = AgentFacts {
        server: format!("http://{}:{server}", qemu::GATEWAY),
        gateway: Some(qemu::GATEWAY.into()),
        ..facts.clone()
    };
    (relays, facts)
}
