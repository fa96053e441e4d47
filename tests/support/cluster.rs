//! A running cluster for tests, which `.ci/kubernetes-rig up` has started and whose directory `KILN_TEST_KUBERNETES_RUN` names:
//! what it says of itself, its administrator, and the account that Kiln has there.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
    time::{Duration, Instant},
};

use super::tool;

/// The namespaces of the tests' jobs and of the server's account: those of `examples/kubernetes`.
pub const NAMESPACE: &str = "kiln-jobs";
const OF_ACCOUNT: &str = "kiln";

/// The rig's directory.
fn rig() -> Option<PathBuf> {
    std::env::var_os("KILN_TEST_KUBERNETES_RUN").map(PathBuf::from)
}

/// What the rig says of itself.
pub fn said() -> BTreeMap<String, String> {
    let text = fs_err::read_to_string(rig().unwrap().join("env")).unwrap();
    let words = text.split_whitespace().filter_map(|word| word.split_once('='));
    words.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

pub fn address() -> IpAddr {
    said()["KILN_RIG_ADDRESS"].parse().unwrap()
}

pub fn kubectl(arguments: &[&str]) -> String {
    let program = Path::new(&said()["KILN_RIG_BIN"]).join("kubectl");
    let kubeconfig = format!("--kubeconfig={}", rig().unwrap().join("admin.kubeconfig").display());
    let mut all = vec![kubeconfig.as_str(), "--namespace", NAMESPACE];
    all.extend(arguments);
    tool(program.to_str().unwrap(), &all)
}

/// A kubeconfig of the account in `examples/kubernetes/rbac.yaml`: a call that the manifest does not grant fails every test.
pub fn account(dir: &Path) -> PathBuf {
    // Two at once would be in each other's way.
    static APPLIED: LazyLock<String> = LazyLock::new(|| {
        let base = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/kubernetes");
        kubectl(&[
            "apply",
            "--namespace",
            "",
            "--filename",
            &format!("{base}/namespaces.yaml"),
        ]);
        let file = |dir: &str| format!("{base}{dir}/rbac.yaml");
        kubectl(&[
            "apply",
            "--namespace",
            "",
            "--filename",
            &file(""),
            "--filename",
            &file("-shells"),
        ])
    });
    LazyLock::force(&APPLIED);
    let one = |arguments: &[&str]| {
        let of_account = ["--namespace", OF_ACCOUNT];
        kubectl(&[arguments, &of_account].concat()).trim().to_owned()
    };
    let mut secret = String::new();
    // Clusters as old as the rig's make a token for every account, a moment later.
    let until = Instant::now() + Duration::from_secs(20);
    while secret.is_empty() && Instant::now() < until {
        secret = one(&[
            "get",
            "serviceaccount",
            "kiln",
            "--output",
            "jsonpath={.secrets[0].name}",
        ]);
    }
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
            "server": of_cluster("server"),
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
pub fn import(archive: &Path) {
    let said = said();
    let imported = Command::new(Path::new(&said["KILN_RIG_BIN"]).join("ctr"))
        .args([
            "--address",
            &said["KILN_RIG_CONTAINERD"],
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

/// Why there is no cluster here, if so.
pub fn lack() -> Option<String> {
    rig()
        .is_none()
        .then(|| "KILN_TEST_KUBERNETES_RUN does not name a cluster that `.ci/kubernetes-rig up` has started".to_owned())
}
