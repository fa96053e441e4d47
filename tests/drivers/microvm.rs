//! Virtual machines of the namespace driver, and what they alone have to stand.

use std::{net::IpAddr, time::Duration};

use kiln::{
    records::{JobId, protocol::AgentFacts},
    sandbox::{Driver, Kernel, SandboxSpec, namespace::NamespaceDriver},
};

use crate::{
    cases::conformance,
    namespace,
    place::Kind,
    support::{self, Kiln},
};

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
        let no_qemu = (!is_there).then(|| format!("{qemu} is not installed"));
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

    fn soon(&self) -> Duration {
        Duration::from_mins(1)
    }

    fn end_of_a_running_one(&self) -> Duration {
        Duration::from_secs(1)
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
    what_the_place_has
);

/// See [`crate::cases::a_starter`].
#[tokio::test]
#[ignore = "a process that another test starts and kills"]
async fn a_starter() {
    crate::cases::a_starter::<Microvms>().await;
}
