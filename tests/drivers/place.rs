//! The place of sandboxes in a test: a driver, with means to put something into its sandboxes and to watch them.

use std::{
    net::IpAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use kiln::sandbox::{
    Driver, Evidence, Kernel, Limits, Network, Reach, SandboxSpec, SandboxState, Scratch, doors::Doors,
    namespace::NamespaceDriver, toolbox::Toolbox, toolboxes::Toolboxes,
};
use kiln_records::{Code, JobId, protocol::AgentFacts};
use tokio::sync::Semaphore;

use crate::drivers::{bell::Bell, stand_in};
pub use crate::support::own_address;
use crate::support::{self, Kiln, eventually, eventually_async};

pub const MIB: u64 = 1 << 20;

/// The differences between drivers.
pub trait Kind: Sized {
    /// Its name, by which a process of a test's finds it.
    const NAME: &'static str;

    /// Why it cannot be tried here at all.
    fn lack() -> Option<String>;

    /// A driver of its own, with its things below the data directory.
    fn new(kiln: &Kiln) -> impl Future<Output = Self>;

    /// The driver.
    fn driver(&self) -> &dyn Driver;

    /// The kind of kernel of the sandboxes.
    fn kernel(&self) -> Kernel {
        Kernel::Shared
    }

    /// The toolbox of its sandboxes.
    fn toolbox(kiln: &Kiln) -> Toolbox {
        toolbox(kiln)
    }

    /// The facts that an agent receives for these.
    fn facts_inside(&self, spec: &SandboxSpec) -> AgentFacts {
        spec.facts.clone()
    }

    /// Where the bell hangs: on the loopback, which doors lead to, or where other machines reach it.
    fn bell_address() -> IpAddr {
        IpAddr::from([127, 0, 0, 1])
    }

    /// Where a sandbox finds a door: the path of a socket, or an address with a port.
    fn door(&self, port: u16) -> String {
        format!("/run/kiln/port-{port}.sock")
    }

    /// The resolver in `/etc/resolv.conf` of a sandbox.
    fn resolver(&self) -> &'static str {
        "10.0.2.3"
    }

    /// A name that this resolver knows, and its address. The tests do not know what the host's own resolver knows.
    fn known_name(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    /// Where a sandbox finds the server, if not at its socket.
    fn server_url(&self) -> Option<String> {
        None
    }

    /// The environment in which another process makes the same driver.
    fn environment(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Why disk space has no fixed size here, if it has none.
    fn no_sized_disk(&self) -> Option<String>;

    /// The reason why the host's network is not available, if it is not.
    fn no_host_network(&self) -> Option<String>;

    /// Why a recipe may look into the agent, if it may.
    fn no_shield(&self) -> Option<String> {
        None
    }

    /// The forbidden remains of a job on the host, in words.
    fn leftovers(&self, kiln: &Kiln, job: JobId) -> Vec<String>;

    /// Ends whatever a failed test left running.
    fn clean(&self, kiln: &Kiln);
}

/// A driver with a directory of its own.
pub struct Place<K: Kind> {
    // The order of the fields is that of their end: no sandbox rings when the doors are closed.
    pub kind: K,
    pub bell: Bell,
    doors: Mutex<Vec<Doors>>,
    pub kiln: Kiln,
}

impl<K: Kind> Place<K> {
    pub async fn new() -> Self {
        Self::at(Kiln::new()).await
    }

    pub async fn at(kiln: Kiln) -> Self {
        Self {
            kind: K::new(&kiln).await,
            bell: Bell::at(K::bell_address()),
            doors: Mutex::default(),
            kiln,
        }
    }

    pub fn driver(&self) -> &dyn Driver {
        self.kind.driver()
    }

    /// The description of a sandbox that runs this script. `ring WORD` in it reaches the test's bell.
    pub fn spec(&self, script: &str) -> SandboxSpec {
        let job = JobId::new();
        let doors_dir = self.kiln.data().join(format!("doors-{job}"));
        fs_err::create_dir(&doors_dir).unwrap();
        let doors = Doors::open(&doors_dir, &[self.bell.port], &Arc::new(Semaphore::new(64))).unwrap();
        self.doors.lock().unwrap().push(doors);
        let agent = self.kiln.data().join(format!("agent-{job}"));
        let door = self.kind.door(self.bell.port);
        stand_in::write(agent.clone(), &job.to_string(), script, &door);
        self.spec_of(job, &doors_dir, &agent, self.bell.port)
    }

    /// The same for an agent and doors that are there.
    pub fn spec_of(&self, job: JobId, doors_dir: &Path, agent: &Path, port: u16) -> SandboxSpec {
        SandboxSpec {
            job,
            toolbox: K::toolbox(&self.kiln),
            agent: agent.to_owned(),
            limits: Limits {
                memory: Some(1 << 30),
                cpus: None,
                pids: 200,
                disk: None,
            },
            kernel: self.kind.kernel(),
            network: Network::Isolated(Reach::default()),
            doors_dir: doors_dir.to_owned(),
            facts: AgentFacts {
                gateway: None,
                ca_bundle: None,
                server: "unix:/run/kiln/agent.sock".to_owned(),
                job,
                token: "secret-of-the-job".to_owned(),
                doors: vec![port],
                proxy: None,
            },
            server_url: self.kind.server_url(),
            server_ca_bundle: None,
            in_directory: false,
            lease: None,
            scratch_from: None,
        }
    }

    /// Starts a sandbox, and comes back when its script has done all it has to do; then it sleeps.
    pub async fn start(&self, script: &str) -> JobId {
        let script = format!("{script}\nring ready\nsleep 600\n");
        let mut spec = self.spec(&script);
        self.driver().start(&spec).await.unwrap();
        if let Err(evidence) = self.rings(spec.job, "ready").await
            && has_crashed(&evidence)
        {
            println!("TRIED AGAIN: the kernel of the machine crashed: {evidence:?}");
            self.driver().destroy(spec.job, Scratch::Remove).await.unwrap();
            spec = self.spec(&script);
            self.driver().start(&spec).await.unwrap();
        }
        self.wait_for(spec.job, "ready").await;
        spec.job
    }

    /// Waits until the sandbox of `job` has rung with `word`.
    pub async fn wait_for(&self, job: JobId, word: &str) {
        let ended = self.rings(job, word).await.err();
        assert!(ended.is_none(), "no {word}: {ended:?}");
    }

    /// Waits until the sandbox of `job` has rung with `word`. Returns how it ended, if it did so without.
    async fn rings(&self, job: JobId, word: &str) -> Result<(), Evidence> {
        let name = job.to_string();
        let has_rung = || self.bell.has_heard(&name, word);
        eventually_async(async || {
            if has_rung() {
                return Ok(Ok(()));
            }
            match self.driver().look(job).await {
                Ok(SandboxState::Ended(evidence)) => {
                    // What it said last may be on its way.
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    Ok(if has_rung() { Ok(()) } else { Err(evidence) })
                }
                other => Err(format!("no {word}: {other:?}")),
            }
        })
        .await
    }

    /// Runs a script to its end, and once more if the kernel of a machine has crashed.
    pub async fn run(&self, spec: &SandboxSpec) -> Evidence {
        self.driver().start(spec).await.unwrap();
        let evidence = self.end_of(spec.job).await;
        if !has_crashed(&evidence) {
            return evidence;
        }
        println!("TRIED AGAIN: the kernel of the machine crashed: {evidence:?}");
        self.driver().destroy(spec.job, Scratch::Keep).await.unwrap();
        let mut again = spec.clone();
        again.scratch_from = Some(spec.job);
        self.driver().start(&again).await.unwrap();
        self.end_of(spec.job).await
    }

    pub async fn end_of(&self, job: JobId) -> Evidence {
        eventually_async(|| async {
            match self.driver().look(job).await.unwrap() {
                state @ (SandboxState::Running | SandboxState::Waiting { .. }) => Err(format!("{state:?}")),
                _ => Ok(()),
            }
        })
        .await;
        match self.driver().look(job).await.unwrap() {
            SandboxState::Ended(evidence) => evidence,
            other => panic!("{other:?}"),
        }
    }

    /// Destroys it; nothing is left.
    pub async fn destroy(&self, job: JobId) {
        self.driver().destroy(job, Scratch::Remove).await.unwrap();
        assert_eq!(self.driver().look(job).await.unwrap(), SandboxState::Absent);
        assert_eq!(self.driver().list().await.unwrap(), []);
        let left = || self.kind.leftovers(&self.kiln, job);
        eventually(|| {
            let left = left();
            if left.is_empty() {
                Ok(())
            } else {
                Err(format!("{left:?}"))
            }
        });
        self.kiln.assert_clean();
    }
}

impl<K: Kind> Drop for Place<K> {
    fn drop(&mut self) {
        self.kind.clean(&self.kiln);
    }
}

/// The toolbox that all tests share.
pub fn toolbox(kiln: &Kiln) -> Toolbox {
    let driver = NamespaceDriver::new(&kiln.data().join("sandboxes"), &support::kiln_program()).unwrap();
    let toolboxes = Toolboxes::new(&kiln.data().join("toolboxes"), driver).unwrap();
    toolboxes.find(kiln_records::arch::Arch::host()).unwrap()
}

/// Whether the kernel of a machine has crashed. That of an emulated one does so now and then while it boots (seen twice in
/// thousands of boots: it ran an instruction that it was replacing). Kiln tries such a job again, and so do tests.
fn has_crashed(evidence: &Evidence) -> bool {
    let is_lost = evidence
        .failure
        .as_ref()
        .is_some_and(|failure| failure.code == Code::VmLost);
    is_lost && evidence.last_words.iter().any(|line| line.contains("---[ end trace"))
}
