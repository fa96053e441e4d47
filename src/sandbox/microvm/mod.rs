//! Virtual machines, one per job: their parts, and QEMU's command line. The machines are started by the namespace
//! driver.
//!
//! QEMU runs inside a sandbox of namespaces, which treats it like any other program: it has no rights on the host, and
//! its own root, network and limits. A guest that breaks out of its machine is where a job on the host's kernel
//! starts.
//!
//! ```text
//!  supervisor ─ entrance ─ init (pid 1) ─ relays ─ /run/kiln/*.sock
//!       │ control, words        └ QEMU ── the job's kernel ── init ── agent
//!       └──────────────────────────┘ 10.0.2.2:PORT ─▶ 127.0.0.1:PORT of the sandbox ─▶ relay
//! ```
//!
//! The kernel comes with the toolbox; the first root (`initrd`) is made from its modules and the agent; the toolbox is
//! a read-only disk, and the job's disk space is another disk (`scratch`).

use std::path::PathBuf;

use kiln_records::protocol::AgentFacts;
use serde::{Deserialize, Serialize};

use super::{
    Limits,
    doors::{AGENT_SOCKET, socket_name},
};

pub(crate) mod boot_files;
pub mod image;
pub(crate) mod initrd;
mod kernel;
mod modules;
pub(crate) mod qemu;

/// What executes the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Accelerator {
    /// The CPU itself.
    Kvm,
    /// QEMU's emulation of a CPU, which takes 20 to 60 times as long.
    Tcg,
}

/// The parts of a virtual machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct VmSpec {
    /// The emulator's program.
    pub(crate) qemu: PathBuf,
    /// What executes the guest's instructions.
    pub(crate) accelerator: Accelerator,
    /// The kernel.
    pub(crate) kernel: PathBuf,
    /// The part of its initrd that all jobs share.
    pub(crate) initrd: PathBuf,
    /// The toolbox as a squashfs; `None` when the machine only has to boot.
    pub(crate) toolbox: Option<PathBuf>,
    /// Bytes of the guest's memory.
    pub(crate) memory: u64,
    /// CPUs.
    pub(crate) cpus: u32,
    /// The relays to the server's sockets.
    pub(crate) relays: Vec<Relay>,
}

/// A port on the loopback of the sandbox around a machine that leads to a socket of the server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Relay {
    /// The port.
    pub(crate) port: u16,
    /// The socket's file name.
    pub(crate) socket: String,
}

impl Accelerator {
    /// The warning about emulation.
    pub(crate) const SLOW: &str =
        "the virtual machine's CPU is emulated, which takes 20 to 60 times as long; a working /dev/kvm avoids that";
}

const MIB: u64 = 1 << 20;

/// QEMU's memory in addition to the guest's: QEMU itself and its buffers, and under emulation the code that it has
/// translated.
const OWN_MEMORY: u64 = 192 * MIB;

/// The most memory for translated code; other code is translated again when needed.
const TRANSLATED_MIB: u64 = 256;

/// What the guest's kernel keeps for itself besides the initrd: 58 MiB of kernel, and its tables.
const KERNEL_MEMORY: u64 = 72 * MIB;

/// The memory of a guest that its job does not have, with a program of so many bytes as process 1. The program is in the
/// initrd, and once more as the agent; the kernel unpacks the initrd from memory into a file system that may use half of
/// what is left.
pub(super) fn guest_memory_beside(init_size: u64) -> u64 {
    KERNEL_MEMORY + 4 * init_size
}

/// The most host memory that a machine takes in addition to its job's.
pub(super) fn memory_beside(init_size: u64) -> u64 {
    guest_memory_beside(init_size) + OWN_MEMORY + TRANSLATED_MIB * MIB
}

/// QEMU's own threads: one per CPU, and those that wait for disks.
const OWN_THREADS: u32 = 128;

impl VmSpec {
    /// The guest's memory for a job that may use `limit` bytes; without a limit, a quarter of the host's memory, if
    /// known. `init_size`: bytes of the program that is process 1.
    pub(crate) fn memory_for(limit: Option<u64>, init_size: u64) -> u64 {
        let usual = || crate::host::memory().map_or(2048 * MIB, |bytes| bytes / 4);
        limit.unwrap_or_else(usual) + guest_memory_beside(init_size)
    }

    /// The limits of the sandbox around the machine. The guest enforces the job's own limits.
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

/// The port of the relay to the server's own socket, unless a door has that number.
const SERVER_PORT: u16 = 7400;

/// The relays of a job, and the agent's facts with the server's sockets replaced, which a machine cannot have.
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
