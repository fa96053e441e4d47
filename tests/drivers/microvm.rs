//! Virtual machines of the namespace driver, and the tests that only they have.

use std::{net::IpAddr, time::Instant};

use kiln::sandbox::{DiskLimit, Driver, Kernel, Network, Reach, SandboxSpec, Scratch, namespace::NamespaceDriver};
use kiln_records::{JobId, protocol::AgentFacts};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::drivers::{
    cases::conformance,
    namespace,
    place::{Kind, MIB, Place},
};
use crate::support::{self, Kiln};

/// Where a machine finds the doors.
const GATEWAY: &str = "10.0.2.2";

/// A sandbox with a kernel of its own.
pub struct Microvms {
    driver: NamespaceDriver,
}

impl Kind for Microvms {
    const NAME: &'static str = "microvm";

    fn lack() -> Option<String> {
        let qemu = format!("qemu-system-{}", support::HOST);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_there = std::env::split_paths(&path).any(|dir| dir.join(&qemu).exists());
        let no_qemu = (!is_there).then(|| format!("{qemu} is not installed: `.ci/install-packages test`"));
        support::no_namespaces().or(no_qemu)
    }

    async fn new(kiln: &Kiln) -> Self {
        let program = support::kiln_program();
        let driver = NamespaceDriver::new(&kiln.data().join("sandboxes"), &program).unwrap();
        let agent = program.with_file_name(support::KILN_AGENT);
        let driver = driver.with_machines(&kiln.data().join("toolboxes"), &agent);
        driver.own_kernel().await.unwrap();
        Self { driver }
    }

    fn driver(&self) -> &dyn Driver {
        &self.driver
    }

    fn kernel(&self) -> Kernel {
        Kernel::Own
    }

    fn facts_inside(&self, spec: &SandboxSpec) -> AgentFacts {
        AgentFacts {
            server: format!("http://{GATEWAY}:7400"),
            gateway: Some(GATEWAY.parse::<IpAddr>().unwrap()),
            ..spec.facts.clone()
        }
    }

    fn door(&self, port: u16) -> String {
        format!("{GATEWAY}:{port}")
    }

    fn no_sized_disk(&self) -> Option<String> {
        None
    }

    fn no_host_network(&self) -> Option<String> {
        Some("a virtual machine has a network of its own".to_owned())
    }

    fn leftovers(&self, _: &Kiln, job: JobId) -> Vec<String> {
        namespace::leftovers(job)
    }

    fn clean(&self, kiln: &Kiln) {
        namespace::end_all(kiln);
    }
}

conformance!(Microvms:
    how_a_sandbox_ended_is_known,
    a_sandbox_outlives_the_process_that_started_it,
    a_sandbox_is_destroyed_while_it_runs,
    the_hosts_loopback_is_out_of_reach_and_the_rest_is_not,
    disk_space_of_a_fixed_size_is_full_when_it_is,
    disk_space_that_was_kept_is_gone_on_with,
    what_the_place_has
);

/// See [`crate::drivers::cases::a_starter`].
#[test]
#[ignore = "a process that another test starts and kills"]
async fn a_starter() {
    crate::drivers::cases::a_starter::<Microvms>().await;
}

/// QEMU's process for a sandbox on the host.
fn qemu_of(job: JobId) -> Pid {
    let processes = namespace::processes_of(job);
    let qemu = processes.iter().find(|(_, name)| name.starts_with("qemu-system"));
    qemu.unwrap_or_else(|| panic!("no QEMU: {processes:?}")).0
}

#[test]
async fn qemu_is_nobody_and_knows_no_secret() {
    needs!(Microvms::lack(), support::not_root());
    let place = Place::<Microvms>::new().await;
    let job = place.start("").await;
    let qemu = qemu_of(job);
    let read = |file: &str| fs_err::read_to_string(format!("/proc/{qemu}/{file}")).unwrap();
    let status = read("status");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(
        field("Uid:").iter().all(|uid| uid.parse::<u32>().unwrap() >= 100_000),
        "{status}"
    );
    for rights in ["CapPrm:", "CapEff:", "CapBnd:"] {
        assert_eq!(field(rights), ["0000000000000000"], "{rights}");
    }
    assert_eq!(
        (field("NoNewPrivs:"), field("Seccomp:")),
        (vec!["1".to_owned()], vec!["2".to_owned()])
    );
    let known = read("cmdline") + &read("environ");
    assert!(!known.contains("secret-of-the-job"), "{known}");
    // Its root is not the host's.
    let mut names: Vec<String> = fs_err::read_dir(format!("/proc/{qemu}/root"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names.retain(|name| !["bin", "sbin", "lib", "lib32", "lib64", "libx32"].contains(&name.as_str()));
    assert_eq!(names, ["dev", "etc", "proc", "run", "tmp", "usr", "vm"]);
    place.destroy(job).await;
}

#[test]
async fn the_end_of_a_machine_is_known_whatever_ends_it() {
    needs!(Microvms::lack(), support::not_root());
    let place = Place::<Microvms>::new().await;
    // The emulator is killed.
    let job = place.start("").await;
    kill(qemu_of(job), Signal::SIGKILL).unwrap();
    let evidence = place.end_of(job).await;
    assert_eq!(evidence.failure.unwrap().code.name(), "vm_lost");
    // Its data may be incomplete, so no job resumes from them.
    place.driver().destroy(job, Scratch::Keep).await.unwrap();
    let mut next = place.spec("");
    next.scratch_from = Some(job);
    let failure = place.driver().start(&next).await.unwrap_err();
    assert_eq!(failure.code.name(), "no_scratch", "{failure}");
    assert!(failure.detail.contains("ended without unmounting"), "{failure}");
    // Nor is it ever mounted by this kernel, whatever root in the machine wrote: a clean file system without a label.
    let disk = fs_err::File::options()
        .write(true)
        .open(place.kind.driver.kept_at(next.job).unwrap())
        .unwrap();
    for (at, bytes) in [(0x3a, &[1, 0][..]), (0x78, &[0; 16])] {
        std::os::unix::fs::FileExt::write_all_at(disk.file(), bytes, 1024 + at).unwrap();
    }
    next.kernel = Kernel::Shared;
    let failure = place.driver().start(&next).await.unwrap_err();
    assert!(failure.detail.contains("it belongs to a virtual machine"), "{failure}");
    place.driver().destroy(next.job, Scratch::Remove).await.unwrap();
    place.driver().destroy(job, Scratch::Remove).await.unwrap();

    // The kernel of the guest ends in panic, and its last words are heard.
    let spec = place.spec("mount -t proc proc /mnt; echo c > /mnt/sysrq-trigger; sleep 60");
    let evidence = place.run(&spec).await;
    assert_eq!(evidence.failure.as_ref().unwrap().code.name(), "vm_lost");
    let words = evidence.last_words.join("\n");
    // Of a long trace the end stands: how its kernel was entered, on either architecture.
    let ways = ["entry_SYSCALL_64", "el0t_64_sync"];
    assert!(ways.iter().any(|way| words.contains(way)), "{evidence:?}");
    place.destroy(spec.job).await;
}

#[test]
async fn a_machine_has_the_cpus_of_its_job() {
    needs!(Microvms::lack());
    let place = Place::<Microvms>::new().await;
    let mut spec = place.spec("nproc >&2");
    spec.limits.cpus = Some(1);
    let evidence = place.run(&spec).await;
    assert_eq!(evidence.last_words, ["1"], "{evidence:?}");
    place.destroy(spec.job).await;
}

#[test]
async fn a_machine_has_the_memory_of_its_job() {
    needs!(Microvms::lack());
    let place = Place::<Microvms>::new().await;
    let mut spec = place.spec(&format!("{} 2>/dev/null; echo on >&2", support::TAKES_ALL_MEMORY));
    spec.limits.memory = Some(512 * MIB);
    let evidence = place.run(&spec).await;
    assert!(evidence.oom_kills > 0 && evidence.failure.is_none(), "{evidence:?}");
    assert_eq!(evidence.last_words, ["on"], "{evidence:?}");
    place.destroy(spec.job).await;
}

#[test]
async fn a_machine_has_the_processes_of_its_job() {
    needs!(Microvms::lack());
    let place = Place::<Microvms>::new().await;
    let mut spec = place.spec("i=0; while [ $i -lt 60 ]; do sleep 60 & i=$((i+1)); done; echo forked >&2");
    spec.limits.pids = 40;
    let evidence = place.run(&spec).await;
    assert!(!evidence.last_words.contains(&"forked".to_owned()), "{evidence:?}");
    place.destroy(spec.job).await;
}

#[test]
async fn what_a_machine_cannot_have_is_refused() {
    needs!(Microvms::lack());
    let place = Place::<Microvms>::new().await;
    let mut spec = place.spec("");
    spec.network = Network::Host;
    assert_eq!(place.driver().start(&spec).await.unwrap_err().code.name(), "vm_network");
    // Disk space of a sandbox on the host's kernel belongs to other ids.
    let mut shared = place.spec("true");
    shared.kernel = Kernel::Shared;
    shared.limits.disk = Some(DiskLimit {
        bytes: 64 * MIB,
        inodes: 1000,
    });
    place.run(&shared).await;
    place.driver().destroy(shared.job, Scratch::Keep).await.unwrap();
    spec.network = Network::Isolated(Reach::default());
    spec.scratch_from = Some(shared.job);
    assert_eq!(place.driver().start(&spec).await.unwrap_err().code.name(), "no_scratch");
    for job in [spec.job, shared.job] {
        place.driver().destroy(job, Scratch::Remove).await.unwrap();
    }
    assert_eq!(place.driver().list().await.unwrap(), []);
}

/// Prints how long it takes to the agent; the figure is in docs/microvm.md.
#[test]
async fn a_machine_is_up_in_time() {
    needs!(Microvms::lack());
    let place = Place::<Microvms>::new().await;
    let begun = Instant::now();
    let job = place.start("").await;
    println!("from start to the agent's first word: {:?}", begun.elapsed());
    place.destroy(job).await;
}
