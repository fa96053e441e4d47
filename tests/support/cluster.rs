//! A running cluster for tests, which `.ci/kubernetes-rig up` has started: what it says of itself, its administrator, and the
//! account that Kiln has there. `KILN_TEST_KUBERNETES_RUN` names the directory of the one that tests share.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::{LazyLock, OnceLock},
};

use nix::unistd::Pid;

use super::{self as support, Ran, eventually};

/// The namespaces of the tests' jobs and of the server's account: those of `examples/kubernetes`.
pub const NAMESPACE: &str = "kiln-jobs";
const OF_ACCOUNT: &str = "kiln";

/// A cluster, by the directory that `.ci/kubernetes-rig up` was given.
#[derive(Debug)]
pub struct Cluster {
    run: PathBuf,
    said: BTreeMap<String, String>,
    has_account: OnceLock<()>,
    has_image: OnceLock<()>,
}

/// The one that tests share.
pub fn shared() -> &'static Cluster {
    static SHARED: LazyLock<Cluster> = LazyLock::new(|| Cluster::at(&directory().unwrap()));
    &SHARED
}

fn directory() -> Option<PathBuf> {
    std::env::var_os("KILN_TEST_KUBERNETES_RUN").map(PathBuf::from)
}

/// Why there is no cluster to share, if so.
pub fn lack() -> Option<String> {
    directory()
        .is_none()
        .then(|| "KILN_TEST_KUBERNETES_RUN does not name a cluster that `.ci/kubernetes-rig up` has started".to_owned())
}

impl Cluster {
    /// The cluster of this directory.
    pub fn at(run: &Path) -> Self {
        let text = fs_err::read_to_string(run.join("env")).unwrap();
        let words = text.split_whitespace().filter_map(|word| word.split_once('='));
        Self {
            run: run.to_owned(),
            said: words.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            has_account: OnceLock::new(),
            has_image: OnceLock::new(),
        }
    }

    /// What the rig says of itself, such as `KILN_RIG_NODE`.
    pub fn said(&self, name: &str) -> &str {
        &self.said[name]
    }

    /// The address at which pods reach this host.
    pub fn address(&self) -> IpAddr {
        self.said("KILN_RIG_ADDRESS").parse().unwrap()
    }

    /// The process of this name, which the rig has started.
    pub fn process(&self, name: &str) -> Pid {
        let text = fs_err::read_to_string(self.run.join("pids").join(name)).unwrap();
        Pid::from_raw(text.split_whitespace().next().unwrap().parse().unwrap())
    }

    /// Runs kubectl as the administrator, without a namespace.
    pub fn try_kubectl(&self, arguments: &[&str]) -> Ran {
        let mut command = Command::new(Path::new(self.said("KILN_RIG_BIN")).join("kubectl"));
        command
            .arg("--kubeconfig")
            .arg(self.run.join("admin.kubeconfig"))
            .args(arguments)
            // It keeps what servers offer there.
            .env("HOME", &self.run);
        support::run(command)
    }

    /// Runs kubectl as the administrator, in the namespace of jobs. Returns what it wrote.
    #[track_caller]
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let in_namespace = ["--namespace", NAMESPACE];
        self.try_kubectl(&[&in_namespace, arguments].concat()).ok().stdout
    }

    /// A kubeconfig of the account in `examples/kubernetes/rbac.yaml`: a call that the manifest does not grant fails every
    /// test. It calls the API at `server`, if that is another address than the cluster's own.
    pub fn account(&self, dir: &Path, server: Option<&str>) -> PathBuf {
        // Two at once would be in each other's way.
        self.has_account.get_or_init(|| {
            let base = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/kubernetes");
            for file in ["/namespaces.yaml", "/rbac.yaml", "-shells/rbac.yaml"] {
                self.try_kubectl(&["apply", "--filename", &format!("{base}{file}")])
                    .ok();
            }
        });
        let one = |arguments: &[&str]| {
            let of_account = ["--namespace", OF_ACCOUNT];
            let ran = self.try_kubectl(&[&of_account, arguments].concat()).ok();
            ran.stdout.trim().to_owned()
        };
        // Clusters as old as the rig's make a token for every account, a moment later.
        let secret = eventually(|| {
            let secret = one(&[
                "get",
                "serviceaccount",
                "kiln",
                "--output",
                "jsonpath={.secrets[0].name}",
            ]);
            Some(secret).filter(|secret| !secret.is_empty())
        });
        let token = one(&[
            "get",
            "secret",
            &secret,
            "--output",
            "go-template={{.data.token | base64decode}}",
        ]);
        let of_cluster = |key: &str| {
            let path = format!("jsonpath={{.clusters[0].cluster.{key}}}");
            one(&["config", "view", "--raw", "--flatten", "--output", &path])
        };
        let kubeconfig = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "rig", "cluster": {
                "server": server.unwrap_or(self.said("KILN_RIG_API")),
                "certificate-authority-data": of_cluster("certificate-authority-data"),
            }}],
            "users": [{"name": "kiln", "user": {"token": token}}],
            "contexts": [{"name": "rig", "context": {"cluster": "rig", "user": "kiln", "namespace": NAMESPACE}}],
            "current-context": "rig",
        });
        let file = dir.join("kubeconfig");
        fs_err::write(&file, kubeconfig.to_string()).unwrap();
        file
    }

    /// Gives the node the image in an archive: no registry has it.
    pub fn import(&self, archive: &Path) {
        let imported = Command::new(Path::new(self.said("KILN_RIG_BIN")).join("ctr"))
            .args([
                "--address",
                self.said("KILN_RIG_CONTAINERD"),
                "--namespace",
                "k8s.io",
                "images",
                "import",
            ])
            .arg(archive)
            .output()
            .unwrap();
        assert!(imported.status.success(), "{imported:?}");
    }

    /// The same with an image that has one file, as this name.
    pub fn import_file(&self, name: &str, path: &str, file: &Path) {
        let dir = tempfile::tempdir().unwrap();
        let layer = dir.path().join("layer.tar");
        let mut tar = tar::Builder::new(fs_err::File::create(&layer).unwrap());
        // containerd knows no sparse files.
        tar.sparse(false);
        tar.append_path_with_name(file, path).unwrap();
        tar.into_inner().unwrap();
        let mut import = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.ci/kubernetes-rig"));
        import.arg("import").arg(&self.run).arg(name).arg(&layer);
        support::run(import).ok();
    }

    /// The same as [`Self::import`] with an archive that is only made the first time.
    pub fn import_once(&self, make: impl FnOnce(&Path)) {
        self.has_image.get_or_init(|| {
            let dir = tempfile::tempdir().unwrap();
            let archive = dir.path().join("image.tar");
            make(&archive);
            self.import(&archive);
        });
    }
}
