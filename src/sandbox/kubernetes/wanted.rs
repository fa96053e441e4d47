//! What the sandboxes of a cluster have in common, and in what they differ: labels, the site's settings for pods. Pure: no
//! I/O.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use kiln_records::{JobId, arch::Arch};

use crate::sandbox::{Kernel, Limits};

/// Labels of everything that Kiln makes in a cluster: the installation that made it, its job, and the architecture of its
/// place.
pub(super) const INSTALLATION: &str = "kiln.installation";
pub(super) const JOB: &str = "kiln.job";
pub(super) const ARCH: &str = "kiln.arch";

/// The label that every system for clusters shows, and its value.
const NAME: (&str, &str) = ("app.kubernetes.io/name", "kiln-job");

/// The image of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodImage {
    /// The repository of images with a toolbox; the tag says which.
    WithToolbox(String),
    /// An image, with its tag, that has the agent at [`FETCHER`](kiln_inside::room::order::FETCHER): the toolbox is fetched
    /// from S3.
    Base(String),
}

impl Default for PodImage {
    fn default() -> Self {
        Self::WithToolbox(String::new())
    }
}

/// The settings of a site that go into every pod.
#[derive(Debug, Clone, Default)]
pub struct PodSettings {
    /// The image that they start from.
    pub image: PodImage,
    /// When nodes fetch it, as Kubernetes calls that.
    pub pull_policy: String,
    /// Secrets with the registry's credentials.
    pub pull_secrets: Vec<String>,
    /// The RuntimeClass that runs pods in virtual machines.
    pub vm_runtime: Option<String>,
    /// Labels that nodes must have.
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that are tolerated.
    pub tolerations: Vec<Toleration>,
    /// The priority class.
    pub priority_class: Option<String>,
    /// More labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations of pods.
    pub annotations: BTreeMap<String, String>,
    /// CPUs that are reserved.
    pub request_cpus: u32,
    /// The storage class of disk space, if it is not on the node's own disk.
    pub storage_class: Option<String>,
    /// Labels of the server's own pods.
    pub server_labels: BTreeMap<String, String>,
}

/// The properties in which the Jobs of sandboxes differ.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub(super) job: JobId,
    pub(super) name: String,
    pub(super) installation: &'a str,
    pub(super) arch: Arch,
    pub(super) kernel: Kernel,
    /// With its tag.
    pub(super) image: String,
    /// Whether the image has no toolbox, which is fetched then.
    pub(super) fetches: bool,
    pub(super) limits: Limits,
    /// Whether the first process sets up routes.
    pub(super) sets_routes: bool,
    /// The only nodes that can run it, if not all of its architecture can.
    pub(super) nodes: Option<Vec<String>>,
    pub(super) settings: &'a PodSettings,
}

impl Wanted<'_> {
    /// The labels of everything that belongs to the sandbox.
    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.settings.labels.clone();
        let own = [
            (NAME.0, NAME.1.to_owned()),
            (INSTALLATION, self.installation.to_owned()),
            (JOB, self.job.to_string()),
            (ARCH, self.arch.name().to_owned()),
        ];
        labels.extend(own.map(|(name, value)| (name.to_owned(), value)));
        labels
    }
}

/// The selector of a sandbox's pods.
pub(super) fn selector(installation: &str, job: JobId) -> String {
    format!("{INSTALLATION}={installation},{JOB}={job}")
}
