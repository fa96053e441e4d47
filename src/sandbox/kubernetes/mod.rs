//! The kubernetes driver: sandboxes in pods of a cluster. Talks to the cluster's API; keeps nothing on disk.
//!
//! ```text
//!  Job kiln-<us>-<job>              one pod, tried once, on nodes of the place's architecture
//!  ├─ pod                           the image's entrance (`agent::container`), which makes the sandbox inside; before it,
//!  │                                where no registry has images with a toolbox, the agent of another image fetches one
//!  ├─ NetworkPolicy of that name    what the job may reach
//!  ├─ Secret of that name           the order with the agent's token; the pod does not start before it is there
//!  └─ Service, Endpoints            the way to its shell, if it has one and the site wants that
//! ```
//!
//! They go with the Job. On a node's own kernel the pod has a user namespace, and the build's
//! sandbox another one inside it. With a RuntimeClass that gives each pod a virtual machine (Kata), it has all rights over
//! the machine. There is one driver for each architecture, over one [`Cluster`]; all state is found again by labels.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Node, Pod},
};
use kiln_inside::room::order::PROGRAMS_OF_IMAGE;
use kiln_records::{Code, Failure, JobId, arch::Arch, protocol::ToolboxName};
use tokio::time::{Instant, sleep};

use super::{
    Capacity, Driver, DriverKind, Evidence, Kernel, Machine, Network, SandboxSpec, SandboxState, Scratch, ShellWay,
    Usage, orders,
};
pub use access::{RIGHTS, Right, SHELL_RIGHTS};
use cluster::Known;
pub use cluster::{Cluster, KubernetesSettings};
use evidence::Stage;
pub use image::Image;
use kube::api::PropagationPolicy as Propagation;
use shell::Shell;
pub use shell::{ServiceKind, ShellService};
use wanted::{ARCH, JOB, Wanted};
pub use wanted::{PodImage, PodSettings};

mod access;
mod budget;
mod cluster;
mod evidence;
mod fault;
mod image;
mod nodes;
mod pod;
mod policy;
mod readback;
mod recent;
mod resources;
mod said;
mod shell;
mod waiting;
mod wanted;
mod watched;

/// How long a cluster may take to delete a sandbox, and the pauses between two looks: the first, and the longest.
const PATIENCE: Duration = Duration::from_mins(2);
const LOOK_EVERY: Duration = Duration::from_millis(200);
const LOOK_SELDOM: Duration = Duration::from_secs(2);

/// How long a node that is lost may take to end a pod. A cluster says that it is lost after some 40 s without a word of it.
const LOST_AFTER: Duration = Duration::from_secs(20);

/// How long the watch may take to hear of a deletion.
const NEWS: Duration = Duration::from_secs(10);

/// Makes sandboxes on the nodes of one architecture.
#[derive(Debug)]
pub struct KubernetesDriver {
    cluster: Arc<Cluster>,
    arch: Arch,
    /// Whether the cluster had such nodes at the last look.
    is_there: AtomicBool,
    /// The memory that the RuntimeClass adds to each pod, as of the last look.
    overhead: AtomicU64,
    tags: image::Tags,
}

#[async_trait]
impl Driver for KubernetesDriver {
    async fn start(&self, sandbox: &SandboxSpec) -> Result<(), Failure> {
        Box::pin(self.make(sandbox)).await
    }

    async fn look(&self, job: JobId) -> Result<SandboxState, Failure> {
        let Some(known) = self.cluster.known(job).await? else {
            return Ok(SandboxState::Absent);
        };
        let stage = if known.is_gone {
            Stage::Ended
        } else {
            evidence::stage(&known.job, known.pod.as_deref())
        };
        Ok(match stage {
            Stage::Runs => SandboxState::Running,
            Stage::Waits => SandboxState::Waiting {
                why: self.why_it_waits(job, &known).await?,
                longest: self.cluster.settings.start,
            },
            Stage::Ended => SandboxState::Ended(self.evidence(&known).await?),
        })
    }

    async fn last_words(&self, job: JobId) -> Result<Vec<String>, Failure> {
        let known = self.cluster.known(job).await?;
        let log = self.log_of(known.and_then(|known| known.pod).as_deref()).await?;
        Ok(said::last_words(&log))
    }

    async fn usage(&self, job: JobId) -> Result<Usage, Failure> {
        let known = self.cluster.known(job).await?;
        let Some(pod) = known.and_then(|known| known.pod) else {
            return Ok(Usage::default());
        };
        match (evidence::noted(&pod), &pod.metadata.name) {
            (Some(end), _) => Ok(end.usage),
            (None, Some(name)) => self.cluster.usage(job, name).await,
            (None, None) => Ok(Usage::default()),
        }
    }

    async fn destroy(&self, job: JobId, _: Scratch) -> Result<(), Failure> {
        // The disk space of a pod goes with it: a job that would continue with it starts afresh.
        let begun = Instant::now();
        let mut pause = LOOK_EVERY;
        loop {
            let had_job = self.cluster.delete_job(job, Propagation::Foreground).await?;
            let pods = self.cluster.pods_of(job).await?;
            if !had_job && pods.is_empty() {
                break;
            }
            if begun.elapsed() > LOST_AFTER
                && let Some(node) = self.lost_node_of_all(&pods).await?
            {
                tracing::warn!(
                    node,
                    "the node of the job's pod does not answer: it ends the pod when it comes back"
                );
                self.abandon(job).await?;
                break;
            }
            if begun.elapsed() > PATIENCE {
                return Err(stuck(job));
            }
            sleep(pause).await;
            pause = (pause * 2).min(LOOK_SELDOM);
        }
        let until = Instant::now() + NEWS;
        while self
            .cluster
            .watched()
            .await?
            .is_some_and(|watched| watched.of(job).is_some())
            && Instant::now() < until
        {
            sleep(LOOK_EVERY / 10).await;
        }
        self.cluster.forget(job);
        Ok(())
    }

    async fn why_silent(&self, job: JobId) -> Result<Option<Failure>, Failure> {
        let known = self.cluster.known(job).await?;
        let nodes = self.cluster.nodes().await?;
        let pod = known.and_then(|known| known.pod);
        Ok(pod.and_then(|pod| nodes::why_lost(&nodes, evidence::node_of(&pod)?)))
    }

    async fn list(&self) -> Result<Vec<(JobId, bool)>, Failure> {
        let of = |job: &Job| {
            let labels = job.metadata.labels.as_ref()?;
            let is_own = labels.get(ARCH).is_some_and(|arch| arch == self.arch.name());
            let job = labels.get(JOB)?.parse().ok()?;
            is_own.then_some((job, false))
        };
        let mut jobs: Vec<_> = match self.cluster.watched().await? {
            Some(watched) => watched.jobs().iter().filter_map(|job| of(job)).collect(),
            None => self.cluster.jobs().await?.iter().filter_map(of).collect(),
        };
        jobs.sort_unstable();
        Ok(jobs)
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Relaxed)
    }

    async fn shell_way(&self, job: JobId, port: u16) -> Result<ShellWay, Failure> {
        let cluster = &self.cluster;
        let Some(settings) = &cluster.settings.shells else {
            return Ok(ShellWay::Server);
        };
        let Some(known) = cluster.known(job).await? else {
            let detail = format!("the Job of job {job} is gone, and with it the way to its shell");
            return Err(Failure::new(Code::SandboxLost, detail));
        };
        let server = cluster.server_address(settings.endpoint).await?;
        let shell = Shell {
            job,
            name: cluster.name_of(job),
            labels: known.job.metadata.labels.clone().unwrap_or_default(),
            owner: pod::owner(&known.job),
            settings,
        };
        cluster
            .apply_endpoints(&shell.name, &shell.endpoints(server, port))
            .await?;
        let made = cluster.apply_service(&shell.name, &shell.service()).await?;
        let nodes = match settings.kind {
            ServiceKind::NodePort => cluster.nodes().await?,
            ServiceKind::LoadBalancer | ServiceKind::ClusterIp => Arc::default(),
        };
        let ready = nodes::usable(&nodes, self.arch, &cluster.settings.pods);
        Ok(shell.way(&made, &ready))
    }

    fn kind(&self, kernel: Kernel) -> DriverKind {
        match kernel {
            Kernel::Shared => DriverKind::Kubernetes,
            Kernel::Own => DriverKind::KubernetesVm,
        }
    }

    fn is_meant_for(&self, kernel: Kernel) -> bool {
        kernel == Kernel::Shared || self.cluster.settings.pods.vm_runtime.is_some()
    }

    fn memory_beside(&self, kernel: Kernel) -> u64 {
        match kernel {
            Kernel::Shared => 0,
            Kernel::Own => self.overhead.load(Ordering::Relaxed),
        }
    }

    async fn capacity(&self) -> Result<Capacity, Failure> {
        let nodes = self.cluster.nodes().await?;
        Ok(nodes::capacity(&self.usable(&nodes)?))
    }

    async fn arch(&self) -> Result<Arch, Failure> {
        let nodes = self.cluster.nodes().await?;
        self.usable(&nodes).map(|_| self.arch)
    }

    async fn shared_kernel(&self) -> Result<(), Failure> {
        let nodes = self.cluster.nodes().await?;
        nodes::with_user_namespaces(&self.usable(&nodes)?, self.arch).map(drop)
    }

    async fn own_kernel(&self) -> Result<Machine, Failure> {
        let class = self.cluster.vm_runtime().await?;
        let name = class.metadata.name.unwrap_or_default();
        let nodes = self.cluster.nodes().await?;
        let usable = self.usable(&nodes)?;
        let wanted = class.scheduling.and_then(|scheduling| scheduling.node_selector);
        let wanted = wanted.unwrap_or_default();
        if !usable.iter().any(|node| nodes::has_labels(node, &wanted)) {
            let detail = format!(
                "no {} node has the labels that RuntimeClass `{name}` asks for",
                self.arch
            );
            return Err(Failure::new(Code::NoVm, detail).hint("label the nodes that have Kata Containers"));
        }
        nodes::only_with_boot(&nodes, &usable, self.arch)?;
        let overhead = class.overhead.and_then(|overhead| overhead.pod_fixed);
        let memory = overhead.as_ref().and_then(|fixed| nodes::amount(fixed.get("memory")?));
        self.overhead.store(memory.unwrap_or_default(), Ordering::Relaxed);
        Ok(Machine {
            what: format!("RuntimeClass {name} with handler {}", class.handler),
            // The class does not say. Kata without KVM is not usual in a cluster.
            accelerated: true,
        })
    }
}

impl KubernetesDriver {
    /// The driver for the nodes of this architecture.
    pub fn new(cluster: Arc<Cluster>, arch: Arch) -> Self {
        Self {
            cluster,
            arch,
            is_there: AtomicBool::new(true),
            overhead: AtomicU64::new(0),
            tags: image::Tags::default(),
        }
    }

    /// The nodes that take this place's jobs.
    fn usable<'a>(&self, nodes: &'a [Node]) -> Result<Vec<&'a Node>, Failure> {
        let usable = nodes::usable(nodes, self.arch, &self.cluster.settings.pods);
        let away = nodes::away(nodes, self.arch, &self.cluster.settings.pods);
        self.is_there
            .store(!usable.is_empty() || !away.is_empty(), Ordering::Relaxed);
        if usable.is_empty() && !away.is_empty() {
            let detail = format!(
                "no {} node of the cluster is ready: {}",
                self.arch,
                nodes::some_names(&away)
            );
            return Err(Failure::new(Code::NodesAway, detail).hint("see `kubectl get nodes`"));
        }
        if usable.is_empty() {
            let detail = format!("the cluster has no {} node that is ready and takes jobs", self.arch);
            return Err(Failure::new(Code::NoPlace, detail)
                .hint("see `kubectl get nodes`, and `node_selector` and `tolerations` in [kubernetes]"));
        }
        Ok(usable)
    }

    /// The node of pods that are being deleted, if it is lost for each of them: no word of their end will come.
    async fn lost_node_of_all(&self, pods: &[Pod]) -> Result<Option<String>, Failure> {
        let nodes = self.cluster.nodes().await?;
        let lost = |pod: &Pod| {
            let node = evidence::node_of(pod).filter(|_| pod.metadata.deletion_timestamp.is_some())?;
            nodes::why_lost(&nodes, node).map(|_| node.to_owned())
        };
        let lost: Option<Vec<_>> = pods.iter().map(lost).collect();
        Ok(lost.unwrap_or_default().pop())
    }

    /// Removes the Job of a sandbox without waiting for its pods, which the cluster removes by itself. Nothing that one of
    /// them might still say counts: the next try has another token.
    async fn abandon(&self, job: JobId) -> Result<(), Failure> {
        let until = Instant::now() + NEWS;
        while self.cluster.delete_job(job, Propagation::Background).await? {
            if Instant::now() > until {
                return Err(stuck(job));
            }
            sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    async fn log_of(&self, pod: Option<&Pod>) -> Result<String, Failure> {
        match pod.and_then(|pod| pod.metadata.name.as_deref()) {
            Some(name) => self.cluster.log(name).await,
            None => Ok(String::new()),
        }
    }

    async fn why_it_waits(&self, job: JobId, known: &Known) -> Result<Failure, Failure> {
        let pod = known.pod.as_deref();
        let (kind, of) = match pod {
            Some(pod) => ("Pod", pod.metadata.name.clone().unwrap_or_default()),
            None => ("Job", self.cluster.name_of(job)),
        };
        let events = if waiting::needs_events(pod) {
            self.cluster.events(job, kind, &of).await?
        } else {
            Vec::new()
        };
        Ok(waiting::reason(pod, &events))
    }

    async fn evidence(&self, known: &Known) -> Result<Evidence, Failure> {
        let pod = known.pod.as_deref();
        // A node that is gone has the output, too.
        let log = match self.log_of(pod).await {
            Ok(log) => log,
            Err(failure) => {
                tracing::warn!("the output of a sandbox that has ended cannot be read: {failure}");
                String::new()
            }
        };
        let words = said::last_words(&log);
        Ok(evidence::evidence(&known.job, pod, said::end(&log), words))
    }

    /// Creates the Job, and what belongs to it.
    async fn make(&self, sandbox: &SandboxSpec) -> Result<(), Failure> {
        let cluster = &self.cluster;
        let settings = &cluster.settings;
        let Network::Isolated(reach) = &sandbox.network else {
            return Err(Failure::new(Code::NoNetwork, "a pod never has the network of its node"));
        };
        if let Some(from) = sandbox.scratch_from {
            let detail = format!("the disk space of job {from} went with its pod");
            return Err(Failure::new(Code::NoScratch, detail));
        }
        let all = cluster.nodes().await?;
        let usable = self.usable(&all)?;
        let is_shared = sandbox.kernel == Kernel::Shared;
        let only = if is_shared {
            nodes::only(&nodes::with_user_namespaces(&usable, self.arch)?, &usable)
        } else {
            cluster.vm_runtime().await?;
            nodes::only_with_boot(&all, &usable, self.arch)?
        };
        let facts = orders::facts_elsewhere(sandbox).await?;
        let server = facts.gateway;
        let mut order = orders::order(sandbox, facts, is_shared.then_some(image::IDS), Vec::new(), Vec::new());
        order.programs = PROGRAMS_OF_IMAGE.into();
        order.filters_calls = is_shared;
        if !is_shared {
            order.hosts = nodes::boots(&all);
        }
        let entrance = settings.agents.of(self.arch)?;
        let tag = self
            .tags
            .of(&sandbox.toolbox, &entrance, &sandbox.agent, sandbox.kernel)?;
        let image = match &settings.pods.image {
            PodImage::WithToolbox(repository) => format!("{repository}:{tag}"),
            PodImage::Base(image) => {
                let toolbox = sandbox.toolbox.name.clone();
                order.toolbox = Some(ToolboxName { toolbox, tag });
                image.clone()
            }
        };
        let fetches = order.toolbox.is_some();
        let order = serde_json::to_vec(&order).map_err(|error| Failure::new(Code::SandboxStart, error))?;
        let wanted = Wanted {
            job: sandbox.job,
            name: cluster.name_of(sandbox.job),
            installation: &settings.installation,
            arch: self.arch,
            kernel: sandbox.kernel,
            image,
            fetches,
            limits: sandbox.limits,
            sets_routes: true,
            nodes: only,
            settings: &settings.pods,
        };
        let job = pod::job(&wanted);
        let made = cluster.create_job(job.clone()).await?;
        let made = made.ok_or_else(|| orders::exists(sandbox.job))?;
        let completed = async {
            readback::check(&job, &made)?;
            let owner = pod::owner(&made);
            // The pod starts when it has its order: by then its network is limited.
            let policy = policy::policy(&wanted, owner.clone(), reach, server);
            cluster.create_policy(&policy).await?;
            cluster.create_secret(&pod::secret(&wanted, owner, order)).await
        };
        let completed = completed.await;
        if completed.is_err()
            && let Err(failure) = cluster.delete_job(wanted.job, Propagation::Foreground).await
        {
            tracing::warn!("a Job that cannot be completed is left, until the next sweep: {failure}");
        }
        completed
    }
}

fn stuck(job: JobId) -> Failure {
    let detail = format!(
        "the cluster has not deleted the pod of job {job} for {} s",
        PATIENCE.as_secs()
    );
    Failure::new(Code::SandboxStuck, detail)
        .hint("its node does not answer, or a finalizer holds the Job: `kubectl describe` shows it")
}
