//! A real cluster for one test: starts it from the programs that `KILN_TEST_KUBERNETES` names, and ends it with the test or the
//! test program. Listens on loopback and, with a node, on a bridge of its own; writes to a temporary directory.

use std::{
    io::Read,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
};

use tempfile::TempDir;

use crate::support::{self, cluster::Cluster};

/// Starts the cluster, says so, and ends it when its standard input ends, which happens when the test program ends for any
/// reason.
const KEEPER: &str = r#"
"$1" up "$2" $3 2>"$2.log" && echo ready
exec >&-
cat >/dev/null
code=0
if [ -d "$2/pids" ]; then "$1" down "$2" || code=1; fi
rm -rf "$(dirname "$2")"
exit $code
"#;

/// Why there is no cluster here, if so.
pub fn lack() -> Option<String> {
    std::env::var_os("KILN_TEST_KUBERNETES")
        .is_none_or(|value| value.is_empty())
        .then(|| "KILN_TEST_KUBERNETES names no programs of Kubernetes: `make kubernetes-rig` makes them".to_owned())
}

/// A running cluster of one test's own.
pub struct Rig {
    pub cluster: Cluster,
    pub dir: PathBuf,
    keeper: Option<(Child, ChildStdin)>,
}

impl Rig {
    /// An API server alone.
    pub fn api_only() -> Self {
        Self::start("--api-only")
    }

    /// With a node that runs pods. Needs root.
    pub fn with_node() -> Self {
        Self::start("")
    }

    fn start(option: &str) -> Self {
        let program = support::source_dir().join(".ci/kubernetes-rig");
        let dir = TempDir::with_prefix("kiln-kubernetes-").unwrap().keep().join("rig");
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .args([&program, &dir])
            .arg(option)
            // Not the keyboard's signals: it has to outlive the tests.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, mut stdout) = (keeper.stdin.take().unwrap(), keeper.stdout.take().unwrap());
        let mut said = String::new();
        stdout.read_to_string(&mut said).unwrap();
        let log = dir.with_extension("log");
        assert_eq!(said, "ready\n", "{}", fs_err::read_to_string(log).unwrap());
        Self {
            cluster: Cluster::at(&dir),
            keeper: Some((keeper, stdin)),
            dir,
        }
    }

    /// Whether the server's account may do this: `yes` or `no`, as the cluster says it.
    pub fn can(&self, (verb, group, resource, namespace): (&str, &str, &str, Option<&str>)) -> String {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let resource = format!("{resource}{}{group}", if group.is_empty() { "" } else { "." });
        let subresource = format!("--subresource={subresource}");
        let mut args = vec![
            "auth",
            "can-i",
            verb,
            &resource,
            &subresource,
            "--as=system:serviceaccount:kiln:kiln",
            "--as-group=system:serviceaccounts",
            "--as-group=system:serviceaccounts:kiln",
            "--as-group=system:authenticated",
        ];
        args.extend(namespace.map(|_| "--namespace"));
        args.extend(namespace);
        let ran = self.cluster.try_kubectl(&args);
        // It ends with 1 both for a no and for a failure.
        assert!(matches!(ran.stdout.trim(), "yes" | "no"), "{}", ran.stderr);
        ran.stdout.trim().to_owned()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some((mut keeper, stdin)) = self.keeper.take() {
            drop(stdin);
            let ended = keeper.wait().unwrap();
            if !std::thread::panicking() {
                assert!(ended.success(), "the cluster is not taken down: {ended}");
                assert!(!self.dir.exists(), "{} is left", self.dir.display());
            }
        }
    }
}
