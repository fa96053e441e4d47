//! The kubernetes driver, on a cluster with a node that really runs pods.
//!
//! `KILN_TEST_KUBERNETES_RUN` names the directory of a cluster that `.ci/kubernetes-rig up` has started. Its node has no
//! virtual machines and no user namespaces for pods: a RuntimeClass pretends to have machines. The toolbox is that of the
//! rig: busybox.

use std::{net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use kiln::sandbox::{
    Capacity, Driver, DriverKind, Limits, Machine, SandboxSpec, SandboxState, Scratch, Usage,
    agents::Agents,
    kubernetes::{Cluster, Image, KubernetesDriver, KubernetesSettings, PodImage, PodSettings},
    namespace::NamespaceDriver,
    toolbox::{Facts, Toolbox},
};
use kiln_records::{Code, Failure, JobId, arch::Arch, protocol::AgentFacts, run::Kernel};

use crate::drivers::{
    cases::conformance,
    docker::installation,
    place::{Kind, MIB, Place},
};
use crate::support::{
    self, KILN_AGENT, Kiln,
    cluster::{self, NAMESPACE},
    eventually_async, tool,
};

/// The repository of the tests' images, which no registry has.
const REPOSITORY: &str = "rig.invalid/kiln-toolbox";

/// Pods of the rig.
pub struct Pods {
    driver: Importing,
}

/// A driver that gives the node the image of each sandbox first: no registry has it.
#[derive(Debug)]
struct Importing {
    driver: KubernetesDriver,
    dir: PathBuf,
    packer: NamespaceDriver,
    entrance: PathBuf,
}

impl Importing {
    async fn import(&self, sandbox: &SandboxSpec) {
        let image = Image::of(&sandbox.toolbox, &self.entrance, &sandbox.agent, sandbox.kernel).unwrap();
        let archive = self.dir.join(format!("{}.tar", image.tag()));
        image.write(&self.packer, REPOSITORY, &archive).await.unwrap();
        cluster::shared().import(&archive);
        fs_err::remove_file(archive).unwrap();
    }
}

#[async_trait]
impl Driver for Importing {
    async fn start(&self, sandbox: &SandboxSpec) -> Result<(), Failure> {
        self.import(sandbox).await;
        self.driver.start(sandbox).await
    }

    async fn look(&self, job: JobId) -> Result<SandboxState, Failure> {
        self.driver.look(job).await
    }

    async fn last_words(&self, job: JobId) -> Result<Vec<String>, Failure> {
        self.driver.last_words(job).await
    }

    async fn usage(&self, job: JobId) -> Result<Usage, Failure> {
        self.driver.usage(job).await
    }

    async fn destroy(&self, job: JobId, scratch: Scratch) -> Result<(), Failure> {
        self.driver.destroy(job, scratch).await
    }

    async fn list(&self) -> Result<Vec<(JobId, bool)>, Failure> {
        self.driver.list().await
    }

    fn kind(&self, kernel: Kernel) -> DriverKind {
        self.driver.kind(kernel)
    }

    async fn capacity(&self) -> Result<Capacity, Failure> {
        self.driver.capacity().await
    }

    async fn arch(&self) -> Result<Arch, Failure> {
        self.driver.arch().await
    }

    async fn shared_kernel(&self) -> Result<(), Failure> {
        self.driver.shared_kernel().await
    }

    async fn own_kernel(&self) -> Result<Machine, Failure> {
        self.driver.own_kernel().await
    }
}

fn settings(kiln: &Kiln) -> KubernetesSettings {
    KubernetesSettings {
        kubeconfig: Some(cluster::shared().account(kiln.data(), None)),
        context: None,
        namespace: None,
        installation: installation(kiln),
        agents: Agents::beside(support::kiln_program().with_file_name(KILN_AGENT)),
        start: Duration::from_mins(2),
        shells: None,
        pods: PodSettings {
            image: PodImage::WithToolbox(REPOSITORY.to_owned()),
            pull_policy: "Never".to_owned(),
            vm_runtime: Some(cluster::shared().said("KILN_RIG_MACHINE").to_owned()),
            // The node has few, and the tests run at the same time.
            request_cpus: 0,
            ..PodSettings::default()
        },
    }
}

fn driver(settings: KubernetesSettings) -> KubernetesDriver {
    KubernetesDriver::new(Arc::new(Cluster::new(settings)), Arch::host())
}

impl Kind for Pods {
    const NAME: &'static str = "kubernetes";

    fn lack() -> Option<String> {
        cluster::lack().or_else(support::no_namespaces)
    }

    async fn new(kiln: &Kiln) -> Self {
        let program = support::kiln_program();
        Self {
            driver: Importing {
                driver: driver(settings(kiln)),
                dir: kiln.data().to_owned(),
                packer: NamespaceDriver::new(&kiln.data().join("sandboxes"), &program).unwrap(),
                entrance: program.with_file_name(KILN_AGENT),
            },
        }
    }

    fn driver(&self) -> &dyn Driver {
        &self.driver
    }

    fn kernel(&self) -> Kernel {
        Kernel::Own
    }

    fn toolbox(kiln: &Kiln) -> Toolbox {
        let dir = kiln.data().join("busybox");
        let tree = dir.join("tree");
        if !tree.exists() {
            let bin = tree.join("bin");
            fs_err::create_dir_all(&bin).unwrap();
            for name in ["etc", "usr", "mnt"] {
                fs_err::create_dir(tree.join(name)).unwrap();
            }
            fs_err::copy("/bin/busybox", bin.join("busybox")).unwrap();
            for applet in tool("/bin/busybox", &["--list"])
                .lines()
                .filter(|applet| *applet != "busybox")
            {
                std::os::unix::fs::symlink("busybox", bin.join(applet)).unwrap();
            }
            // As a toolbox's files, these belong to the ids of sandboxes.
            if nix::unistd::geteuid().is_root() {
                tool(
                    "chown",
                    &[
                        "--recursive",
                        "--no-dereference",
                        "1879048192:1879048192",
                        dir.to_str().unwrap(),
                    ],
                );
            }
        }
        Toolbox {
            name: "busybox".to_owned(),
            squashfs: dir.join("none"),
            vm: dir.join("none"),
            facts: Facts {
                sha256: "busybox".to_owned(),
                size: 0,
                arch: Arch::host(),
                built: jiff::Timestamp::UNIX_EPOCH,
                packages: Vec::new(),
            },
            tree,
        }
    }

    fn facts_inside(&self, spec: &SandboxSpec) -> AgentFacts {
        AgentFacts {
            server: spec.server_url.clone().unwrap(),
            gateway: Some(cluster::shared().address()),
            ..spec.facts.clone()
        }
    }

    fn bell_address() -> IpAddr {
        cluster::shared().address()
    }

    fn door(&self, port: u16) -> String {
        format!("{}:{port}", cluster::shared().address())
    }

    fn server_url(&self) -> Option<String> {
        Some(format!("http://{}:9000", cluster::shared().address()))
    }

    fn no_sized_disk(&self) -> Option<String> {
        Some("there is no machine that could have loop devices".to_owned())
    }

    fn no_host_network(&self) -> Option<String> {
        Some("a pod never has its node's network".to_owned())
    }

    fn leftovers(&self, kiln: &Kiln, _: JobId) -> Vec<String> {
        let of = format!("kiln.installation={}", installation(kiln));
        let all = "jobs,pods,secrets,networkpolicies";
        let left = cluster::shared().kubectl(&["get", all, "--selector", &of, "--output", "name"]);
        left.lines().map(str::to_owned).collect()
    }

    fn clean(&self, kiln: &Kiln) {
        let of = format!("kiln.installation={}", installation(kiln));
        cluster::shared().kubectl(&["delete", "jobs", "--selector", &of, "--wait=false"]);
    }
}

conformance!(Pods:
    how_a_sandbox_ended_is_known,
    a_sandbox_outlives_the_process_that_started_it,
    a_sandbox_is_destroyed_while_it_runs,
    more_memory_than_allowed,
    what_the_place_has
);

/// Starts a sandbox, as a server does, says that and waits to be killed. Run by a test, in a process of its own.
#[test]
#[ignore = "a process that another test starts and kills"]
async fn a_starter() {
    crate::drivers::cases::a_starter::<Pods>().await;
}

/// Waits until a sandbox waits for this code and these words.
async fn waits_for(driver: &dyn Driver, job: JobId, code: Code, words: &str) {
    eventually_async(|| async {
        match driver.look(job).await.unwrap() {
            SandboxState::Waiting { why, .. } if why.code == code && why.detail.contains(words) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

#[test]
async fn a_sandbox_that_cannot_start_says_why() {
    needs!(Pods::lack());
    let place = Place::<Pods>::new().await;
    let plain = driver(settings(&place.kiln));
    // The node does not have the image.
    let missing = place.spec("");
    plain.start(&missing).await.unwrap();
    waits_for(&plain, missing.job, Code::ImageMissing, "ErrImageNeverPull").await;
    plain.destroy(missing.job, Scratch::Remove).await.unwrap();
    // More than any node has.
    let large = SandboxSpec {
        limits: Limits {
            memory: Some(1 << 50),
            ..missing.limits
        },
        ..place.spec("")
    };
    plain.start(&large).await.unwrap();
    waits_for(&plain, large.job, Code::PodWaits, "Insufficient memory").await;
    place.destroy(large.job).await;
}

#[test]
async fn what_the_cluster_has_not() {
    needs!(Pods::lack());
    let place = Place::<Pods>::new().await;
    let mut settings = settings(&place.kiln);
    let cluster = Cluster::new(settings.clone());
    assert_eq!(cluster.missing_rights().await.unwrap(), [""; 0]);
    assert_eq!(cluster.version().await.unwrap().1, NAMESPACE);
    // The rig's Kubernetes is older than user namespaces in pods.
    let failure = driver(settings.clone()).shared_kernel().await.unwrap_err();
    assert_eq!(failure.code, Code::NoUserNamespace, "{failure}");
    let native = SandboxSpec {
        kernel: Kernel::Shared,
        ..place.spec("")
    };
    let failure = driver(settings.clone()).start(&native).await.unwrap_err();
    assert_eq!(failure.code, Code::NoUserNamespace, "{failure}");
    settings.pods.vm_runtime = Some("no-such-class".to_owned());
    let failure = driver(settings.clone()).own_kernel().await.unwrap_err();
    assert_eq!(failure.code, Code::RuntimeUnknown, "{failure}");
    settings.pods.vm_runtime = None;
    let failure = driver(settings.clone()).start(&place.spec("")).await.unwrap_err();
    assert_eq!(failure.code, Code::NoVm, "{failure}");
    // There is no such architecture.
    let none = KubernetesDriver::new(Arc::new(Cluster::new(settings.clone())), Arch::Riscv64);
    assert_eq!(none.arch().await.unwrap_err().code, Code::NoPlace);
    assert!(!none.is_there());
    settings.kubeconfig = Some("/nowhere/kubeconfig".into());
    let failure = driver(settings).look(JobId::new()).await.unwrap_err();
    assert_eq!(failure.code, Code::ClusterRefused, "{failure}");
    assert_eq!(place.driver().list().await.unwrap(), []);
}

#[test]
async fn a_pod_that_should_be_in_a_virtual_machine_refuses_its_nodes_kernel() {
    needs!(Pods::lack());
    let place = Place::<Pods>::new().await;
    // A class of Kata's name, whose pods run on the node's kernel as they are.
    let mut settings = settings(&place.kiln);
    settings.pods.vm_runtime = Some("kata-qemu".to_owned());
    let strict = driver(settings);
    let spec = place.spec("ring ready");
    place.kind.driver.import(&spec).await;
    strict.start(&spec).await.unwrap();
    let evidence = place.end_of(spec.job).await;
    assert_eq!(evidence.failure.unwrap().code, Code::NotIsolated);
    assert!(!place.bell.has_heard(&spec.job.to_string(), "ready"));
    place.destroy(spec.job).await;
}

#[test]
async fn a_pod_that_is_deleted_by_hand_is_no_silence() {
    needs!(Pods::lack());
    let place = Place::<Pods>::new().await;
    let job = place
        .start("dd if=/dev/zero of=/scratch/x bs=1M count=30 2>/dev/null")
        .await;
    let driver = place.driver();
    eventually_async(|| async { driver.usage(job).await.unwrap().disk > 20 * MIB }).await;
    cluster::shared().kubectl(&[
        "delete",
        "pods",
        "--selector",
        &format!("kiln.job={job}"),
        "--wait=false",
    ]);
    let evidence = place.end_of(job).await;
    // Old clusters make a second pod, which is another sandbox.
    let code = evidence.failure.unwrap().code;
    assert!(matches!(code, Code::PodEvicted | Code::SandboxLost), "{code}");
    place.destroy(job).await;
}

/// Makes an object that is there for one test only.
struct There(&'static str, String);

impl There {
    fn new(kind: &'static str, name: String, manifest: &serde_json::Value, dir: &std::path::Path) -> Self {
        let file = dir.join(format!("{name}.json"));
        fs_err::write(&file, manifest.to_string()).unwrap();
        cluster::shared().kubectl(&["create", "--filename", file.to_str().unwrap()]);
        Self(kind, name)
    }

    fn gone(&self) {
        cluster::shared().kubectl(&["delete", self.0, &self.1, "--ignore-not-found"]);
    }
}

impl Drop for There {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.gone();
        }
    }
}

#[test]
async fn a_quota_that_is_exceeded_is_the_reason_why_a_sandbox_waits() {
    needs!(Pods::lack());
    let place = Place::<Pods>::new().await;
    let name = format!("quota-{}", JobId::new());
    let dir = place.kiln.data();
    let class = serde_json::json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1,
        "metadata": {"name": name}});
    let _class = There::new("priorityclass", name.clone(), &class, dir);
    // Other tests' pods have another class.
    let quota = serde_json::json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": {
        "hard": {"pods": "0"},
        "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": [name]}]}}});
    let quota = There::new("resourcequota", name.clone(), &quota, dir);
    let mut settings = settings(&place.kiln);
    settings.pods.priority_class = Some(name);
    let limited = driver(settings);
    let spec = place.spec("ring ready");
    place.kind.driver.import(&spec).await;
    // The controller of quotas has to have seen it.
    eventually_async(|| async {
        cluster::shared().kubectl(&["get", quota.0, &quota.1, "--output", "jsonpath={.status.hard.pods}"]) == "0"
    })
    .await;
    limited.start(&spec).await.unwrap();
    waits_for(&limited, spec.job, Code::PodWaits, "exceeded quota").await;
    limited.destroy(spec.job, Scratch::Remove).await.unwrap();
    assert_eq!(place.kind.leftovers(&place.kiln, spec.job), [""; 0]);
}

#[test]
async fn a_pod_that_is_evicted_through_the_api_is_no_fault_of_the_job() {
    needs!(Pods::lack());
    let place = Place::<Pods>::new().await;
    let job = place.start("true").await;
    let of = format!("kiln.job={job}");
    let pod = cluster::shared().kubectl(&[
        "get",
        "pods",
        "--selector",
        &of,
        "--output",
        "jsonpath={.items[0].metadata.name}",
    ]);
    let eviction = serde_json::json!({"apiVersion": "policy/v1beta1", "kind": "Eviction",
        "metadata": {"name": pod, "namespace": NAMESPACE}});
    let file = place.kiln.data().join("eviction.json");
    fs_err::write(&file, eviction.to_string()).unwrap();
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction");
    cluster::shared().kubectl(&["create", "--raw", &path, "--filename", file.to_str().unwrap()]);
    let code = place.end_of(job).await.failure.unwrap().code;
    assert!(matches!(code, Code::PodEvicted | Code::SandboxLost), "{code}");
    place.destroy(job).await;
}

#[test]
async fn a_runtime_class_that_goes_takes_no_running_sandbox_along() {
    needs!(Pods::lack());
    let place = Place::<Pods>::new().await;
    let name = format!("class-{}", JobId::new());
    let class = serde_json::json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "pretended-machine",
        "metadata": {"name": name}});
    let class = There::new("runtimeclass", name.clone(), &class, place.kiln.data());
    let mut settings = settings(&place.kiln);
    settings.pods.vm_runtime = Some(name);
    let own = driver(settings);
    own.own_kernel().await.unwrap();
    let spec = place.spec("ring ready; sleep 20; exit 7");
    place.kind.driver.import(&spec).await;
    own.start(&spec).await.unwrap();
    place.wait_for(spec.job, "ready").await;
    class.gone();
    let failure = own.start(&place.spec("")).await.unwrap_err();
    assert_eq!(failure.code, Code::RuntimeUnknown, "{failure}");
    let evidence = place.end_of(spec.job).await;
    assert_eq!((evidence.exit_code, evidence.failure), (7, None));
    place.destroy(spec.job).await;
}
