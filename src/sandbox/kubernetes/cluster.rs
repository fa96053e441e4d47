//! The cluster: one client and one pair of watches for the places of all architectures, and each kind of call. Reads the
//! kubeconfig; talks to the API only.

use std::{
    collections::HashMap,
    fmt::{self, Debug},
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
    sync::{Arc, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Endpoints, Event, Node, Pod, Secret, Service},
    networking::v1::NetworkPolicy,
    node::v1::RuntimeClass,
};
use kiln_records::{Code, Failure, JobId, failure::chain};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams, PropagationPolicy},
    client::ClientBuilder,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};
use tokio::{
    net::UdpSocket,
    sync::{Mutex, OnceCell},
    time::sleep,
};
use uuid::Uuid;

use super::{
    access,
    budget::Budget,
    evidence,
    fault::{failure, gone, is_conflict, is_missing, is_too_early},
    pod::CONTAINER,
    recent::Recent,
    said,
    shell::ShellService,
    wanted::{self, INSTALLATION, PodSettings},
    watched::Watched,
};
use crate::sandbox::{Usage, agents::Agents};

/// The longest time for an answer.
const ANSWER: Duration = Duration::from_secs(30);

/// How long what was seen of the nodes, and the events and the usage of one sandbox, is valid.
const NODES_FOR: Duration = Duration::from_secs(10);
const EVENTS_FOR: Duration = Duration::from_secs(4);
const USAGE_FOR: Duration = Duration::from_secs(15);

/// The annotation of a Job that tells the call that made it from others.
const CALL: &str = "kiln.call";

/// How long what belonged to an earlier Job of the same name may stay after it, and the pause between two looks.
const REMAINS: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The name by which an API server knows whose fields of an object are whose.
const FIELD_MANAGER: &str = "kiln";

/// The last lines of a log that are read, and their bytes.
const TAIL: i64 = 400;
const TAIL_BYTES: i64 = 4 << 20;

/// The objects of one page of a list, and the most pages.
const PAGE: u32 = 500;
const PAGES: usize = 100;

/// The events of an object that are read. An API server returns any of them, and keeps one for each reason.
const EVENTS: u32 = 200;

/// The cluster, and the site's settings for jobs in it.
#[derive(Debug, Clone)]
pub struct KubernetesSettings {
    /// The file with its address; else the account of the server's own pod, or the user's files.
    pub kubeconfig: Option<PathBuf>,
    /// The context in the file, if not the current one.
    pub context: Option<String>,
    /// The namespace of jobs, if not that of the context.
    pub namespace: Option<String>,
    /// Identifies this installation of Kiln among those that use the same namespace: a value of a label.
    pub installation: String,
    /// What goes into every pod.
    pub pods: PodSettings,
    /// The agents: one for each architecture is in the image.
    pub agents: Agents,
    /// How long a pod may wait for its start.
    pub start: Duration,
    /// The Services that lead to shells, if there shall be such.
    pub shells: Option<ShellService>,
}

/// A cluster, not contacted before it is needed.
#[derive(Debug)]
pub struct Cluster {
    pub(super) settings: KubernetesSettings,
    open: OnceCell<Open>,
    nodes: Mutex<Option<(Instant, Arc<[Node]>)>>,
    events: Recent<Vec<Event>>,
    usages: Recent<Usage>,
    /// The uid of the first pod of each sandbox that was looked at.
    first_pods: std::sync::Mutex<HashMap<JobId, String>>,
}

/// A connection.
struct Open {
    client: Client,
    /// Host and port of the API.
    address: (String, u16),
    namespace: String,
    watched: OnceCell<Watched>,
}

impl Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The client has credentials.
        f.debug_struct("Open")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// The Job and the pods of a sandbox.
pub(super) type Found = (Arc<Job>, Vec<Arc<Pod>>);

/// The Job of a sandbox, and the first of its pods.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) job: Arc<Job>,
    pub(super) pod: Option<Arc<Pod>>,
    /// Whether there was a pod, and it is gone. Old clusters replace a pod that was deleted, although its Job is to be
    /// tried once: the second one is not this sandbox.
    pub(super) is_gone: bool,
}

impl Cluster {
    /// The cluster of these settings.
    pub fn new(settings: KubernetesSettings) -> Self {
        Self {
            settings,
            open: OnceCell::new(),
            nodes: Mutex::default(),
            events: Recent::for_some(EVENTS_FOR),
            usages: Recent::for_some(USAGE_FOR),
            first_pods: std::sync::Mutex::default(),
        }
    }

    async fn open(&self) -> Result<&Open, Failure> {
        self.open.get_or_try_init(|| self.connect()).await
    }

    async fn connect(&self) -> Result<Open, Failure> {
        let settings = &self.settings;
        let bad = |error: &dyn std::error::Error| {
            Failure::new(
                Code::ClusterRefused,
                format!("the address of the cluster cannot be read: {}", chain(error)),
            )
            .hint("see `kubeconfig` and `context` in [kubernetes]")
        };
        let options = KubeConfigOptions {
            context: settings.context.clone(),
            ..KubeConfigOptions::default()
        };
        let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        let config = match &settings.kubeconfig {
            Some(file) => {
                let file = Kubeconfig::read_from(file).map_err(|error| bad(&error))?;
                let config = Config::from_custom_kubeconfig(file, &options).await;
                config.map_err(|error| bad(&error))?
            }
            None if in_pod && settings.context.is_none() => Config::incluster().map_err(|error| bad(&error))?,
            None => Config::from_kubeconfig(&options).await.map_err(|error| bad(&error))?,
        };
        let namespace = settings
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        let url = &config.cluster_url;
        let port = url
            .port_u16()
            .unwrap_or(if url.scheme_str() == Some("http") { 80 } else { 443 });
        let host = url.host().unwrap_or_default();
        let address = (host.trim_matches(['[', ']']).to_owned(), port);
        let client = ClientBuilder::try_from(config);
        let client = client.map_err(|error| failure("cannot make a client of the cluster", &error))?;
        let client = client.with_layer(&Budget).build();
        Ok(Open {
            client,
            address,
            namespace,
            watched: OnceCell::new(),
        })
    }

    fn api<K>(open: &Open) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(open.client.clone(), &open.namespace)
    }

    /// The watches, if they can be trusted now. The first call begins them.
    pub(super) async fn watched(&self) -> Result<Option<&Watched>, Failure> {
        let open = self.open().await?;
        let begin = async || Watched::begin(Self::api(open), Self::api(open), &self.settings.installation);
        let watched = open.watched.get_or_init(begin).await;
        Ok(watched.is_live().then_some(watched))
    }

    /// The name of everything that belongs to a sandbox.
    pub(super) fn name_of(&self, job: JobId) -> String {
        let digest = hex::encode(Sha256::digest(self.settings.installation.as_bytes()));
        format!("kiln-{}-{job}", &digest[..8])
    }

    /// What there is of a sandbox: from the watch if that has it, else from the API itself. Only the API's word that
    /// something does not exist counts.
    pub(super) async fn known(&self, job: JobId) -> Result<Option<Known>, Failure> {
        if let Some(found) = self.watched().await?.and_then(|watched| watched.of(job)) {
            let known = self.recognise(job, found);
            if !known.is_gone {
                return Ok(Some(known));
            }
        }
        let found = self.find(job).await?;
        Ok(found.map(|found| self.recognise(job, found)))
    }

    fn recognise(&self, id: JobId, (job, mut pods): Found) -> Known {
        // The pod of an earlier try may still be there, on a node that does not answer.
        pods.retain(|pod| evidence::belongs_to(pod, &job));
        let mut first = self.first_pods();
        let uid = |pod: &Arc<Pod>| pod.metadata.uid.clone().unwrap_or_default();
        let pod = if let Some(known) = first.get(&id) {
            pods.into_iter().find(|pod| uid(pod) == *known)
        } else {
            let created = |pod: &Arc<Pod>| pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
            let oldest = pods.into_iter().min_by_key(created);
            first.extend(oldest.iter().map(|pod| (id, uid(pod))));
            oldest
        };
        Known {
            is_gone: pod.is_none() && first.contains_key(&id),
            job,
            pod,
        }
    }

    fn first_pods(&self) -> MutexGuard<'_, HashMap<JobId, String>> {
        // Each change is one call.
        self.first_pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a sandbox that was deleted: another try has the same name.
    pub(super) fn forget(&self, job: JobId) {
        self.first_pods().remove(&job);
        self.events.forget(job);
        self.usages.forget(job);
    }

    /// A sandbox, asked of the API itself.
    pub(super) async fn find(&self, job: JobId) -> Result<Option<Found>, Failure> {
        let open = self.open().await?;
        let what = "cannot look at the sandbox's Job";
        match within(what, Self::api::<Job>(open).get(&self.name_of(job))).await? {
            Ok(found) => {
                let pods = self.pods_of(job).await?.into_iter().map(Arc::new);
                Ok(Some((Arc::new(found), pods.collect())))
            }
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(failure(what, &error)),
        }
    }

    /// The pods of a sandbox, asked of the API itself.
    pub(super) async fn pods_of(&self, job: JobId) -> Result<Vec<Pod>, Failure> {
        let open = self.open().await?;
        let selected = ListParams::default().labels(&wanted::selector(&self.settings.installation, job));
        let what = "cannot look at the sandbox's pod";
        let listed = within(what, Self::api::<Pod>(open).list(&selected)).await?;
        Ok(listed.map_err(|error| failure(what, &error))?.items)
    }

    /// The Jobs of this installation with more labels, asked of the API itself.
    pub(super) async fn jobs(&self) -> Result<Vec<Job>, Failure> {
        let open = self.open().await?;
        let selected = ListParams::default().labels(&format!("{INSTALLATION}={}", self.settings.installation));
        let what = "cannot list the sandboxes";
        all(what, &Self::api(open), selected).await
    }

    /// Creates a Job. Returns what the API server made of it; `None` if there is another one of this name.
    pub(super) async fn create_job(&self, mut job: Job) -> Result<Option<Job>, Failure> {
        let what = "cannot make the sandbox's Job";
        let jobs = Self::api::<Job>(self.open().await?);
        let call = Uuid::new_v4().to_string();
        let annotations = job.metadata.annotations.get_or_insert_default();
        annotations.insert(CALL.to_owned(), call.clone());
        match within(what, jobs.create(&PostParams::default(), &job)).await? {
            Ok(made) => Ok(Some(made)),
            // The client calls again where a gateway did not wait for the answer.
            Err(error) if is_conflict(&error) => {
                let name = job.metadata.name.unwrap_or_default();
                let there = within(what, jobs.get_opt(&name)).await?;
                let there = there.map_err(|error| failure(what, &error))?;
                let is_made = |job: &Job| job.annotations().get(CALL) == Some(&call);
                Ok(there.filter(is_made))
            }
            Err(error) => Err(failure(what, &error)),
        }
    }

    /// Creates the policy of a Job.
    pub(super) async fn create_policy(&self, policy: &NetworkPolicy) -> Result<(), Failure> {
        self.create("cannot make the sandbox's NetworkPolicy", policy).await
    }

    /// Creates the order of a Job.
    pub(super) async fn create_secret(&self, secret: &Secret) -> Result<(), Failure> {
        self.create("cannot give the sandbox its order", secret).await
    }

    /// Creates what belongs to a Job. That of an earlier Job of the same name goes after it, and is waited for.
    async fn create<K>(&self, what: &str, object: &K) -> Result<(), Failure>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + Serialize + DeserializeOwned,
    {
        let api = Self::api::<K>(self.open().await?);
        let until = Instant::now() + REMAINS;
        loop {
            match within(what, api.create(&PostParams::default(), object)).await? {
                Ok(_) => return Ok(()),
                Err(error) if !is_conflict(&error) => return Err(failure(what, &error)),
                Err(error) if Instant::now() > until => return Err(gone(format!("{what}: {}", chain(&error)))),
                Err(_) => sleep(LOOK_EVERY).await,
            }
        }
    }

    /// The address at which the cluster reaches this server: the one in the settings, else that from which this server
    /// calls the cluster's API.
    ///
    /// # Errors
    ///
    /// `cluster_refused` when that is one on which only this host can call it.
    pub(super) async fn server_address(&self, endpoint: Option<IpAddr>) -> Result<IpAddr, Failure> {
        if let Some(address) = endpoint {
            return Ok(address);
        }
        let (host, port) = &self.open().await?.address;
        let found = async {
            let api = tokio::net::lookup_host((host.as_str(), *port)).await?.next();
            let api = api.ok_or(ErrorKind::NotFound)?;
            let any: IpAddr = if api.is_ipv4() {
                Ipv4Addr::UNSPECIFIED.into()
            } else {
                Ipv6Addr::UNSPECIFIED.into()
            };
            // This sends nothing: the kernel only chooses the route.
            let socket = UdpSocket::bind((any, 0)).await?;
            socket.connect(api).await?;
            Ok(socket.local_addr()?.ip())
        };
        let found: std::io::Result<IpAddr> = found.await;
        let found = found.map_err(|error| gone(format!("the way to the cluster's API cannot be found: {error}")))?;
        if found.is_loopback() {
            let detail = "the cluster's API is on this host, which does not say where the cluster reaches this server";
            return Err(Failure::new(Code::ClusterRefused, detail).hint("set `shell_endpoint` in [kubernetes]"));
        }
        Ok(found)
    }

    /// Makes the Service of a shell what it should be. Returns what the API server made of it.
    pub(super) async fn apply_service(&self, name: &str, service: &Service) -> Result<Service, Failure> {
        self.apply("cannot make the Service of the shell", name, service).await
    }

    /// Makes the Endpoints of a shell's Service what they should be.
    pub(super) async fn apply_endpoints(&self, name: &str, endpoints: &Endpoints) -> Result<(), Failure> {
        let what = "cannot make the Endpoints of the shell";
        self.apply(what, name, endpoints).await.map(drop)
    }

    async fn apply<K>(&self, what: &str, name: &str, object: &K) -> Result<K, Failure>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + Serialize + DeserializeOwned,
    {
        let api = Self::api::<K>(self.open().await?);
        // A server that has taken the job over says its own address instead of the other's.
        let as_owner = PatchParams::apply(FIELD_MANAGER).force();
        let made = within(what, api.patch(name, &as_owner, &Patch::Apply(object))).await?;
        made.map_err(|error| failure(what, &error))
    }

    /// Deletes the Job of a sandbox. Returns whether there was one.
    pub(super) async fn delete_job(&self, job: JobId, pods: PropagationPolicy) -> Result<bool, Failure> {
        let open = self.open().await?;
        let what = "cannot remove the sandbox's Job";
        let how = DeleteParams {
            propagation_policy: Some(pods),
            ..DeleteParams::default()
        };
        match within(what, Self::api::<Job>(open).delete(&self.name_of(job), &how)).await? {
            Ok(_) => Ok(true),
            Err(error) if is_missing(&error) => Ok(false),
            Err(error) => Err(failure(what, &error)),
        }
    }

    /// The end of a pod's output; empty before its container has started, and when the pod is gone.
    pub(super) async fn log(&self, pod: &str) -> Result<String, Failure> {
        let open = self.open().await?;
        let what = "cannot read the output of the sandbox";
        let tail = LogParams {
            container: Some(CONTAINER.to_owned()),
            tail_lines: Some(TAIL),
            limit_bytes: Some(TAIL_BYTES),
            ..LogParams::default()
        };
        match within(what, Self::api::<Pod>(open).logs(pod, &tail)).await? {
            Ok(text) => Ok(text),
            Err(error) if is_missing(&error) || is_too_early(&error) => Ok(String::new()),
            Err(error) => Err(failure(what, &error)),
        }
    }

    /// The events of an object that belongs to a sandbox, a few seconds old at most.
    pub(super) async fn events(&self, job: JobId, kind: &str, name: &str) -> Result<Vec<Event>, Failure> {
        if let Some(events) = self.events.get(job) {
            return Ok(events);
        }
        let open = self.open().await?;
        let of = format!("involvedObject.kind={kind},involvedObject.name={name}");
        let what = "cannot read why the sandbox waits";
        let selected = ListParams::default().fields(&of).limit(EVENTS);
        let listed = within(what, Self::api::<Event>(open).list(&selected)).await?;
        let events = listed.map_err(|error| failure(what, &error))?.items;
        self.events.put(job, events.clone());
        Ok(events)
    }

    /// What a running pod said last of its usage, some seconds old at most: it costs a call to its node.
    pub(super) async fn usage(&self, job: JobId, pod: &str) -> Result<Usage, Failure> {
        if let Some(usage) = self.usages.get(job) {
            return Ok(usage);
        }
        // A pod that has said nothing yet may say all of it before such an answer is old: a short job had none at its end.
        let said = said::usage(&self.log(pod).await?);
        if let Some(usage) = said {
            self.usages.put(job, usage);
        }
        Ok(said.unwrap_or_default())
    }

    /// All nodes, a few seconds old at most.
    pub(super) async fn nodes(&self) -> Result<Arc<[Node]>, Failure> {
        let mut known = self.nodes.lock().await;
        if let Some((when, nodes)) = known.as_ref()
            && when.elapsed() < NODES_FOR
        {
            return Ok(Arc::clone(nodes));
        }
        let nodes: Api<Node> = Api::all(self.open().await?.client.clone());
        let what = "cannot list the nodes of the cluster";
        let nodes: Arc<[Node]> = all(what, &nodes, ListParams::default()).await?.into();
        *known = Some((Instant::now(), Arc::clone(&nodes)));
        Ok(nodes)
    }

    /// The RuntimeClass of virtual machines.
    ///
    /// # Errors
    ///
    /// `no_vm` when none is configured, `runtime_unknown` when the cluster has no such class.
    pub(super) async fn vm_runtime(&self) -> Result<RuntimeClass, Failure> {
        let Some(name) = &self.settings.pods.vm_runtime else {
            return Err(Failure::new(
                Code::NoVm,
                "no RuntimeClass with virtual machines is configured for this cluster",
            )
            .hint("install Kata Containers, and name its class as `vm_runtime` in [kubernetes]"));
        };
        let classes: Api<RuntimeClass> = Api::all(self.open().await?.client.clone());
        let what = "cannot look at the RuntimeClass";
        match within(what, classes.get(name)).await? {
            Ok(class) => Ok(class),
            Err(error) if is_missing(&error) => Err(Failure::new(
                Code::RuntimeUnknown,
                format!("the cluster has no RuntimeClass `{name}`"),
            )
            .hint("kubectl apply -f kata/runtimeclass.yaml; `kubectl get runtimeclasses` lists them")),
            Err(error) => Err(failure(what, &error)),
        }
    }

    /// The version of the API server, and the namespace of jobs.
    ///
    /// # Errors
    ///
    /// `cluster_gone` or `cluster_refused`.
    pub async fn version(&self) -> Result<(String, String), Failure> {
        let open = self.open().await?;
        let what = "cannot ask the cluster for its version";
        let version = within(what, open.client.apiserver_version()).await?;
        let version = version.map_err(|error| failure(what, &error))?;
        Ok((version.git_version, open.namespace.clone()))
    }

    /// The rights that Kiln's account lacks, as `verb resource`.
    ///
    /// # Errors
    ///
    /// `cluster_gone` or `cluster_refused`.
    pub async fn missing_rights(&self) -> Result<Vec<String>, Failure> {
        let open = self.open().await?;
        access::missing(&open.client, &open.namespace, self.settings.shells.is_some()).await
    }
}

/// All objects of a list, page by page.
async fn all<K>(what: &str, api: &Api<K>, mut selected: ListParams) -> Result<Vec<K>, Failure>
where
    K: Clone + Debug + DeserializeOwned,
{
    selected.limit = Some(PAGE);
    let mut items = Vec::new();
    for _ in 0..PAGES {
        let page = within(what, api.list(&selected)).await?;
        let page = page.map_err(|error| failure(what, &error))?;
        items.extend(page.items);
        selected.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if selected.continue_token.is_none() {
            return Ok(items);
        }
    }
    Err(gone(format!("{what}: the list does not end")))
}

/// A call of the API, which gets an answer in time or none.
async fn within<T>(
    what: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<Result<T, kube::Error>, Failure> {
    tokio::time::timeout(ANSWER, call).await.map_err(|_| {
        gone(format!(
            "{what}: the cluster's API did not answer for {} s",
            ANSWER.as_secs()
        ))
    })
}
