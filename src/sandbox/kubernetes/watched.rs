//! Keeps what the cluster says of this installation's Jobs and pods: one watch for each, whatever their number. Talks to
//! the API only.

use std::{
    fmt::Debug,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::StreamExt;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Pod, PodSpec},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kiln_records::JobId;
use kube::{
    Api, Resource, ResourceExt,
    runtime::{
        WatchStreamExt,
        reflector::{self, Lookup, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

use super::wanted::{INSTALLATION, JOB};

/// The two watches. They end with this.
#[derive(Debug)]
pub(super) struct Watched {
    jobs: Watch<Job>,
    pods: Watch<Pod>,
}

impl Watched {
    /// Begins to watch.
    pub(super) fn begin(jobs: Api<Job>, pods: Api<Pod>, installation: &str) -> Self {
        let labels = format!("{INSTALLATION}={installation}");
        Self {
            jobs: Watch::begin(jobs, &labels, trim_job),
            pods: Watch::begin(pods, &labels, trim_pod),
        }
    }

    /// Whether both watches have seen everything and still hear of changes.
    pub(super) fn is_live(&self) -> bool {
        self.jobs.is_live() && self.pods.is_live()
    }

    /// The Job and the pods of a sandbox. `None` when there is no Job here, which does not mean that it does not exist: it
    /// may have been created a moment ago.
    pub(super) fn of(&self, job: JobId) -> Option<(Arc<Job>, Vec<Arc<Pod>>)> {
        Some((self.jobs.of(job).pop()?, self.pods.of(job)))
    }

    /// All Jobs.
    pub(super) fn jobs(&self) -> Vec<Arc<Job>> {
        self.jobs.store.state()
    }
}

/// Removes what is never asked for. Most of an object is the account of who set which of its fields, as one map for each of
/// them: some 100 kB of memory.
fn trim(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    metadata.annotations = None;
}

fn trim_job(job: &mut Job) {
    trim(&mut job.metadata);
    job.spec = None;
}

fn trim_pod(pod: &mut Pod) {
    trim(&mut pod.metadata);
    let node_name = pod.spec.take().and_then(|spec| spec.node_name);
    pod.spec = Some(PodSpec {
        node_name,
        ..PodSpec::default()
    });
}

/// One watch.
#[derive(Debug)]
struct Watch<K: 'static + Lookup<DynamicType = ()>>
where
    K::DynamicType: Hash + Eq,
{
    store: Store<K>,
    is_live: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl<K> Watch<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    /// `trim` makes the objects smaller before they are kept.
    fn begin(api: Api<K>, labels: &str, trim: fn(&mut K)) -> Self {
        let (store, writer) = reflector::store();
        let is_live = Arc::new(AtomicBool::new(false));
        let noted = Arc::clone(&is_live);
        let events = watcher(api, watcher::Config::default().labels(labels));
        // Errors come from before the back-off, so that they are noted at once.
        let events = events.inspect(move |event| match event {
            // The list that follows is not complete before its end.
            Err(_) | Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => noted.store(false, Ordering::Release),
            Ok(watcher::Event::InitDone | watcher::Event::Apply(_) | watcher::Event::Delete(_)) => {}
        });
        let noted = Arc::clone(&is_live);
        let events = events.default_backoff().modify(trim).reflect(writer);
        let task = tokio::spawn(async move {
            let mut events = std::pin::pin!(events);
            let mut was_said = false;
            while let Some(event) = events.next().await {
                match event {
                    Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => {}
                    Ok(_) => {
                        was_said = false;
                        noted.store(true, Ordering::Release);
                    }
                    Err(error) if !was_said => {
                        was_said = true;
                        tracing::warn!("the cluster cannot be watched: {error}");
                    }
                    Err(_) => {}
                }
            }
            noted.store(false, Ordering::Release);
        });
        Self { store, is_live, task }
    }

    fn is_live(&self) -> bool {
        self.is_live.load(Ordering::Acquire)
    }

    fn of(&self, job: JobId) -> Vec<Arc<K>> {
        let job = job.to_string();
        self.store.state_filter(|object| object.labels().get(JOB) == Some(&job))
    }
}

impl<K: 'static + Lookup<DynamicType = ()>> Drop for Watch<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sandbox::kubernetes::evidence;

    #[test]
    fn what_is_asked_of_a_pod_and_its_job_is_kept() {
        let metadata = json!({
            "name": "n", "uid": "u", "labels": {JOB: "1"}, "annotations": {"a": "b"}, "deletionTimestamp": "2026-11-01T10:00:00Z",
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {"f:phase": {}}}}],
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "of-job"}],
        });
        let status = json!({"phase": "Running", "podIP": "10.0.0.1"});
        let pod =
            json!({"metadata": metadata, "spec": {"containers": [{"name": "c"}], "nodeName": "one"}, "status": status});
        let mut pod: Pod = serde_json::from_value(pod).unwrap();
        trim_pod(&mut pod);
        let job = json!({"metadata": {"name": "j", "uid": "of-job"}, "spec": {"template": {"spec": {"containers": []}}}, "status": {"failed": 1}});
        let mut job: Job = serde_json::from_value(job).unwrap();
        trim_job(&mut job);
        assert_eq!(evidence::node_of(&pod), Some("one"));
        assert!(evidence::belongs_to(&pod, &job));
        assert!(pod.labels().contains_key(JOB) && pod.metadata.deletion_timestamp.is_some());
        assert_eq!(pod.status.unwrap().pod_ip.as_deref(), Some("10.0.0.1"));
        assert_eq!(job.status.unwrap().failed, Some(1));
        assert!(pod.metadata.managed_fields.is_none() && pod.metadata.annotations.is_none());
        assert!(pod.spec.unwrap().containers.is_empty() && job.spec.is_none());
    }
}
