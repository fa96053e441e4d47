//! The kubernetes driver and an API server that fails, or has much to do: an API in memory, whose pods are records.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use kiln::sandbox::{
    Driver, Limits, Network, Reach, SandboxSpec, SandboxState, Scratch, ShellWay,
    agents::Agents,
    kubernetes::{Cluster, KubernetesDriver, KubernetesSettings, PodImage, PodSettings, ServiceKind, ShellService},
    toolbox::{Facts, Toolbox},
};
use kiln_inside::room::{Usage, order::Said};
use kiln_records::{Code, JobId, arch::Arch, protocol::AgentFacts, run::Kernel};
use serde_json::json;
use tempfile::TempDir;

use crate::support::{
    eventually_async,
    fake_cluster::{FakeCluster, Fault},
};

/// A cluster, and Kiln's driver for it.
struct Place {
    cluster: FakeCluster,
    driver: KubernetesDriver,
    dir: TempDir,
}

fn driver(cluster: &FakeCluster, dir: &TempDir, endpoint: Option<IpAddr>) -> KubernetesDriver {
    let settings = KubernetesSettings {
        kubeconfig: Some(cluster.kubeconfig(dir.path())),
        context: None,
        namespace: None,
        installation: "here".to_owned(),
        agents: Agents::beside(dir.path().join("agent")),
        start: Duration::from_mins(2),
        shells: Some(ShellService {
            kind: ServiceKind::LoadBalancer,
            host: None,
            annotations: BTreeMap::new(),
            endpoint,
        }),
        pods: PodSettings {
            image: PodImage::WithToolbox("rig.invalid/kiln-toolbox".to_owned()),
            pull_policy: "Never".to_owned(),
            vm_runtime: Some("kata".to_owned()),
            ..PodSettings::default()
        },
    };
    KubernetesDriver::new(Arc::new(Cluster::new(settings)), Arch::host())
}

impl Place {
    async fn new() -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let cluster = FakeCluster::start().await;
        let dir = tempfile::tempdir().unwrap();
        fs_err::write(dir.path().join("agent"), "an agent").unwrap();
        let driver = driver(&cluster, &dir, None);
        Self { cluster, driver, dir }
    }

    /// Another driver, of a server that the cluster reaches at this address.
    fn reached_at(&mut self, address: IpAddr) {
        self.driver = driver(&self.cluster, &self.dir, Some(address));
    }

    fn spec(&self) -> SandboxSpec {
        let none = Path::new("/none");
        let job = JobId::new();
        SandboxSpec {
            job,
            toolbox: Toolbox {
                name: "toolbox".to_owned(),
                squashfs: none.to_owned(),
                tree: none.to_owned(),
                vm: none.to_owned(),
                facts: Facts {
                    sha256: "toolbox".to_owned(),
                    size: 0,
                    arch: Arch::host(),
                    built: jiff::Timestamp::UNIX_EPOCH,
                    packages: Vec::new(),
                },
            },
            agent: self.dir.path().join("agent"),
            limits: Limits {
                memory: Some(1 << 30),
                cpus: None,
                pids: 200,
                disk: None,
            },
            kernel: Kernel::Own,
            network: Network::Isolated(Reach::default()),
            doors_dir: none.to_owned(),
            facts: AgentFacts {
                gateway: None,
                ca_bundle: None,
                server: String::new(),
                job,
                token: "secret-of-the-job".to_owned(),
                doors: Vec::new(),
                proxy: None,
            },
            server_url: Some("http://127.0.0.1:9".to_owned()),
            server_ca_bundle: None,
            in_directory: false,
            lease: None,
            scratch_from: None,
        }
    }

    async fn start(&self) -> JobId {
        let spec = self.spec();
        self.driver.start(&spec).await.unwrap();
        spec.job
    }

    async fn runs(&self, job: JobId) -> bool {
        matches!(self.driver.look(job).await, Ok(SandboxState::Running))
    }

    /// Waits until nothing but the watches is needed to know how a sandbox is.
    async fn is_watched(&self, job: JobId) {
        eventually_async(|| async {
            self.cluster.take();
            self.runs(job).await && self.cluster.take().is_empty()
        })
        .await;
    }
}

/// Peak memory of this process, in bytes.
fn peak() -> u64 {
    let status = fs_err::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10
}

#[test(threads = 2)]
async fn many_sandboxes_cost_one_watch_of_jobs_and_one_of_pods() {
    let place = Place::new().await;
    let mut jobs = Vec::new();
    for _ in 0..300 {
        jobs.push(place.start().await);
    }
    let asked = place.cluster.take();
    // What was seen of the nodes is good for ten seconds.
    assert!(asked["list nodes"] < 30, "{asked:?}");
    place.is_watched(*jobs.last().unwrap()).await;
    for _ in 0..5 {
        for job in &jobs {
            assert!(place.runs(*job).await);
        }
        assert_eq!(place.driver.list().await.unwrap().len(), jobs.len());
    }
    // The watch that follows the first list may have begun meanwhile.
    let asked = place.cluster.take();
    let beginnings = ["watch jobs", "watch pods"];
    let is_beginning = |(what, times): (&String, &usize)| beginnings.contains(&what.as_str()) && *times == 1;
    assert!(asked.iter().all(is_beginning), "{asked:?}");
    place.driver.destroy(jobs[0], Scratch::Remove).await.unwrap();
    assert_eq!(place.cluster.names("secrets").len(), jobs.len() - 1);
}

#[test(threads = 2)]
async fn watches_that_end_or_have_lost_their_place_begin_again() {
    let place = Place::new().await;
    let job = place.start().await;
    place.is_watched(job).await;
    // What is in front of an API server may end every watch at once.
    let other = Place::new().await;
    other.cluster.set(Fault::Ends, "watch", usize::MAX);
    let second = other.start().await;
    assert!(other.runs(second).await);
    // Long enough for many more, if each that ends were begun again at once.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let asked = other.cluster.take();
    assert!(asked["watch jobs"] <= 4, "{asked:?}");
    assert!(other.runs(second).await);
    other.cluster.heal();
    other.is_watched(second).await;

    let third = Place::new().await;
    third.cluster.set(Fault::Gone, "watch", 2);
    let job = third.start().await;
    assert!(third.runs(job).await);
    third.is_watched(job).await;
    // News still comes.
    let name = third.cluster.names("jobs").remove(0);
    third.cluster.pod_is(
        &name,
        &json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}),
    );
    eventually_async(|| async {
        matches!(third.driver.look(job).await.unwrap(), SandboxState::Ended(evidence)
            if evidence.failure.as_ref().is_some_and(|failure| failure.code == Code::PodEvicted))
    })
    .await;
}

#[test(threads = 2)]
async fn nothing_is_left_of_a_start_that_fails_and_a_busy_server_is_asked_later() {
    let place = Place::new().await;
    let fails = async |fault, asked, code| {
        place.cluster.set(fault, asked, usize::MAX);
        let failure = place.driver.start(&place.spec()).await.unwrap_err();
        assert_eq!(failure.code, code, "{asked}: {failure}");
        place.cluster.heal();
        assert_eq!(place.cluster.names("jobs"), [""; 0], "{asked}");
        let times = place.cluster.take().get(asked).copied().unwrap_or_default();
        assert!(times < 30, "{asked} was asked {times} times");
    };
    fails(Fault::Status(500, None), "create jobs", Code::ClusterGone).await;
    fails(Fault::Status(422, None), "create jobs", Code::ClusterRefused).await;
    fails(Fault::Garbage, "create networkpolicies", Code::ClusterRefused).await;
    fails(Fault::Status(500, None), "create secrets", Code::ClusterGone).await;
    // An exceeded quota.
    fails(Fault::Status(403, None), "create secrets", Code::ClusterRefused).await;
    // The remains of another try, which never go.
    fails(Fault::Status(409, None), "create secrets", Code::ClusterGone).await;
    // Those that do.
    place.cluster.set(Fault::Status(409, None), "create secrets", 2);
    let job = place.start().await;
    assert!(place.runs(job).await);

    place.cluster.set(Fault::Status(429, Some(1)), "create jobs", 2);
    let begun = Instant::now();
    let job = place.start().await;
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(place.runs(job).await);
    // The same job again is not this one.
    let again = SandboxSpec { job, ..place.spec() };
    assert_eq!(place.driver.start(&again).await.unwrap_err().code, Code::SandboxExists);
    assert!(place.runs(job).await);
    // A Job that was made, although the answer said otherwise, is this one.
    place.cluster.set(Fault::Late, "create jobs", 1);
    let job = place.start().await;
    assert!(place.runs(job).await);
}

#[test(threads = 2)]
async fn an_answer_without_an_end_is_not_kept() {
    let place = Place::new().await;
    let before = peak();
    place.cluster.set(Fault::Huge, "list nodes", usize::MAX);
    let failure = place.driver.capacity().await.unwrap_err();
    assert_eq!(failure.code, Code::ClusterGone, "{failure}");
    assert!(failure.detail.contains("bytes"), "{failure}");
    let grown = peak().saturating_sub(before);
    assert!(grown < 600 << 20, "{grown}");
}

/// A short job says what it used once or twice, and is asked at its end.
#[test(threads = 2)]
async fn that_a_pod_has_said_nothing_yet_is_not_remembered() {
    let place = Place::new().await;
    let job = place.start().await;
    place.is_watched(job).await;
    assert_eq!(place.driver.usage(job).await.unwrap(), Usage::default());
    let used = Usage {
        memory_peak: 1 << 20,
        ..Usage::default()
    };
    let line = serde_json::to_string(&Said::Usage(used)).unwrap();
    place.cluster.pods_say(&line);
    assert_eq!(place.driver.usage(job).await.unwrap(), used);
    // What it said costs its node one call for some time.
    place.cluster.take();
    assert_eq!(place.driver.usage(job).await.unwrap(), used);
    assert!(place.cluster.take().is_empty());
}

#[test(threads = 2)]
async fn a_shells_service_leads_to_the_server_that_was_last_to_say_so() {
    let mut place = Place::new().await;
    let job = place.start().await;
    // The API is on this host, so the server does not know its address for the cluster.
    let failure = place.driver.shell_way(job, 2201).await.unwrap_err();
    assert!(failure.hint.unwrap().contains("shell_endpoint"));
    assert_eq!(place.cluster.names("services"), [""; 0]);

    place.reached_at("10.0.0.7".parse().unwrap());
    let way = place.driver.shell_way(job, 2201).await.unwrap();
    let [name] = &place.cluster.names("services")[..] else {
        panic!("one Service")
    };
    let ShellWay::Elsewhere { outside, inside } = way else {
        panic!("{way:?}")
    };
    assert_eq!(outside.unwrap().host, "198.51.100.4");
    assert_eq!(inside.host, format!("{name}.jobs.svc"));
    let leads_to = || {
        let subset = place.cluster.object("endpoints", name)["subsets"][0].clone();
        let at = |part: &str, key: &str| subset[part][0][key].to_string();
        format!("{} {}", at("addresses", "ip"), at("ports", "port"))
    };
    assert_eq!(leads_to(), "\"10.0.0.7\" 2201");
    let owner = |resource: &str| place.cluster.object(resource, name)["metadata"]["ownerReferences"][0]["uid"].clone();
    let uid = place.cluster.object("jobs", name)["metadata"]["uid"].clone();
    assert_eq!((owner("services"), owner("endpoints")), (uid.clone(), uid));
    place.driver.shell_way(job, 2207).await.unwrap();
    assert_eq!(leads_to(), "\"10.0.0.7\" 2207");

    // A cluster that refuses, or does not know the job, says so.
    place
        .cluster
        .set(Fault::Status(403, None), "apply services", usize::MAX);
    let failure = place.driver.shell_way(job, 2207).await.unwrap_err();
    assert_eq!(failure.code, Code::ClusterRefused, "{failure}");
    place.cluster.heal();
    place.driver.destroy(job, Scratch::Remove).await.unwrap();
    let failure = place.driver.shell_way(job, 2207).await.unwrap_err();
    assert_eq!(failure.code, Code::SandboxLost, "{failure}");
    assert_eq!(place.cluster.names("services"), [""; 0]);
}
