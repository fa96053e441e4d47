//! The docker driver with a runtime that gives each container a virtual machine.
//!
//! `KILN_TEST_KATA_RUNTIME` names one that is installed here, `KILN_TEST_KATA_CONFIG` its configuration file.

use std::net::IpAddr;

use kiln::sandbox::{
    Driver, SandboxSpec,
    docker::{DockerDriver, EngineAddress},
};
use kiln_records::{JobId, protocol::AgentFacts, run::Kernel};

use crate::drivers::{
    cases::conformance,
    docker::{clean, leftovers, settings},
    place::{Kind, own_address},
};
use crate::support::{
    self, Kiln,
    engine::{Engine, KNOWN_NAME},
};

/// Sandboxes with a kernel of their own.
pub struct Machines {
    driver: DockerDriver,
}

fn runtime() -> Option<String> {
    std::env::var("KILN_TEST_KATA_RUNTIME").ok()
}

impl Kind for Machines {
    const NAME: &'static str = "kata";

    fn lack() -> Option<String> {
        let unset = || {
            runtime().is_none().then(|| {
                "KILN_TEST_KATA_RUNTIME does not name a runtime of Kata Containers that is installed here".to_owned()
            })
        };
        let no_address = || {
            own_address()
                .is_none()
                .then(|| "this machine has no address but its loopback".to_owned())
        };
        unset()
            .or_else(Engine::lack)
            .or_else(support::no_namespaces)
            .or_else(no_address)
    }

    async fn new(kiln: &Kiln) -> Self {
        let mut settings = settings(kiln, EngineAddress::Socket(Engine::shared().socket()));
        settings.vm_runtime = runtime();
        Self {
            driver: DockerDriver::new(settings),
        }
    }

    fn driver(&self) -> &dyn Driver {
        &self.driver
    }

    fn kernel(&self) -> Kernel {
        Kernel::Own
    }

    fn environment(&self) -> Vec<(&'static str, String)> {
        vec![Engine::shared().environment()]
    }

    fn facts_inside(&self, spec: &SandboxSpec) -> AgentFacts {
        AgentFacts {
            server: spec.server_url.clone().unwrap(),
            gateway: own_address(),
            ..spec.facts.clone()
        }
    }

    fn bell_address() -> IpAddr {
        own_address().unwrap()
    }

    fn door(&self, port: u16) -> String {
        format!("{}:{port}", own_address().unwrap())
    }

    fn server_url(&self) -> Option<String> {
        Some(format!("http://{}:9000", own_address().unwrap()))
    }

    fn resolver(&self) -> &'static str {
        // That of the engine's host: the engine's own is not in a machine's network.
        "10.0.2.100"
    }

    fn known_name(&self) -> Option<(&'static str, &'static str)> {
        Some(KNOWN_NAME)
    }

    fn no_sized_disk(&self) -> Option<String> {
        None
    }

    fn no_host_network(&self) -> Option<String> {
        Some("a virtual machine never has the host's network".to_owned())
    }

    fn no_shield(&self) -> Option<String> {
        Some("root of a virtual machine is root over the agent in it, too".to_owned())
    }

    fn leftovers(&self, kiln: &Kiln, job: JobId) -> Vec<String> {
        leftovers(Engine::shared(), kiln, job)
    }

    fn clean(&self, kiln: &Kiln) {
        clean(Engine::shared(), kiln);
    }
}

conformance!(Machines);
