//! The docker driver, on real engines with runc.

use std::marker::PhantomData;

use kiln::sandbox::{
    Driver,
    agents::Agents,
    docker::{DockerDriver, DockerSettings, EngineAddress},
    namespace::NamespaceDriver,
};
use kiln_records::JobId;

use crate::drivers::{cases::conformance, place::Kind};
use crate::support::{
    self, KILN_AGENT, Kiln,
    engine::{Engine, KNOWN_NAME},
};

/// Which engine has the containers.
pub trait Peer: Sync {
    const NAME: &'static str;
    /// The resolver in `/etc/resolv.conf` of a sandbox.
    const RESOLVER: &'static str;

    /// Why there cannot be one here, if so.
    fn lack() -> Option<String>;

    /// The one that all tests of this program share.
    fn engine() -> &'static Engine;
}

pub struct Docker;

impl Peer for Docker {
    const NAME: &'static str = "docker";
    // The engine's own, in the container's network.
    const RESOLVER: &'static str = "127.0.0.11";

    fn lack() -> Option<String> {
        Engine::lack()
    }

    fn engine() -> &'static Engine {
        Engine::shared()
    }
}

/// Sandboxes in containers on the engine's own kernel.
pub struct ContainersOf<P> {
    pub driver: DockerDriver,
    engine: PhantomData<P>,
}

pub type Containers = ContainersOf<Docker>;

/// The settings of a driver for the tests' engine; each test is an installation of its own.
pub fn settings(kiln: &Kiln, engine: EngineAddress) -> DockerSettings {
    let program = support::kiln_program();
    DockerSettings {
        engine,
        installation: installation(kiln),
        agents: Agents::beside(program.with_file_name(KILN_AGENT)),
        packer: NamespaceDriver::new(&kiln.data().join("sandboxes"), &program).unwrap(),
        vm_runtime: None,
        dns: Vec::new(),
    }
}

/// The name of a test's directory, which is its own.
pub fn installation(kiln: &Kiln) -> String {
    let dir = kiln.data().parent().unwrap().file_name().unwrap().to_str().unwrap();
    dir.trim_start_matches("kiln-test-").to_owned()
}

impl<P: Peer> Kind for ContainersOf<P> {
    const NAME: &'static str = P::NAME;

    fn lack() -> Option<String> {
        P::lack().or_else(support::no_namespaces)
    }

    async fn new(kiln: &Kiln) -> Self {
        // The program does this at its start.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let engine = EngineAddress::Socket(P::engine().socket());
        Self {
            driver: DockerDriver::new(settings(kiln, engine)),
            engine: PhantomData,
        }
    }

    fn driver(&self) -> &dyn Driver {
        &self.driver
    }

    fn environment(&self) -> Vec<(&'static str, String)> {
        vec![P::engine().environment()]
    }

    fn resolver(&self) -> &'static str {
        P::RESOLVER
    }

    fn known_name(&self) -> Option<(&'static str, &'static str)> {
        Some(KNOWN_NAME)
    }

    fn no_sized_disk(&self) -> Option<String> {
        Some("volumes have a size only on XFS with project quotas".to_owned())
    }

    fn no_host_network(&self) -> Option<String> {
        Some("the engine of the tests has a network of its own".to_owned())
    }

    fn leftovers(&self, kiln: &Kiln, job: JobId) -> Vec<String> {
        leftovers(P::engine(), kiln, job)
    }

    fn clean(&self, kiln: &Kiln) {
        clean(P::engine(), kiln);
    }
}

/// The remains of this installation at the engine, and of this job on the host.
pub fn leftovers(engine: &Engine, kiln: &Kiln, job: JobId) -> Vec<String> {
    let mark = format!("label=kiln.installation={}", installation(kiln));
    let mut left: Vec<String> = engine
        .docker(&["ps", "--all", "--filter", &mark, "--format", "container {{.Names}}"])
        .lines()
        .map(str::to_owned)
        .collect();
    let volumes = engine.docker(&["volume", "ls", "--filter", &mark, "--format", "volume {{.Name}}"]);
    left.extend(volumes.lines().map(str::to_owned));
    // A container that the engine has forgotten would still have its doors mounted.
    let doors = format!("doors-{job}");
    for entry in fs_err::read_dir("/proc").unwrap().flatten() {
        let mounts = fs_err::read_to_string(entry.path().join("mountinfo")).unwrap_or_default();
        if mounts.contains(&doors) {
            left.push(format!("process {}", entry.file_name().to_string_lossy()));
        }
    }
    left
}

/// Removes what a failed test left.
pub fn clean(engine: &Engine, kiln: &Kiln) {
    let mark = format!("label=kiln.installation={}", installation(kiln));
    for container in engine.docker(&["ps", "--all", "--quiet", "--filter", &mark]).lines() {
        engine.docker(&["rm", "--force", "--volumes", container]);
    }
}

conformance!(Containers);
