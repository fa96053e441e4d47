//! The manifests of `examples/kubernetes`: that they are safe is read from the files in every run; that a cluster takes them, and
//! that the server's account may do what it has to and nothing else, is asked of a real API server.
//!
//! `KILN_TEST_KUBERNETES` names the directory with the programs that `make kubernetes-rig` makes. In [`build`], images are built in
//! pods of a running cluster.

mod away;
mod build;
mod faults;
mod manifests;
mod rig;
mod site;

use std::collections::BTreeSet;

use manifests::{BASE, documents, of_kind};
use rig::Rig;
use serde_json::Value;

/// Everything that the driver does in the cluster: verb, group, resource with its subresource, and the namespace, if it has one.
const RIGHTS: [(&str, &str, &str, Option<&str>); 14] = [
    ("create", "batch", "jobs", Some(JOBS)),
    ("delete", "batch", "jobs", Some(JOBS)),
    ("get", "batch", "jobs", Some(JOBS)),
    ("list", "batch", "jobs", Some(JOBS)),
    ("watch", "batch", "jobs", Some(JOBS)),
    ("list", "", "pods", Some(JOBS)),
    ("watch", "", "pods", Some(JOBS)),
    ("get", "", "pods/log", Some(JOBS)),
    ("list", "", "events", Some(JOBS)),
    ("create", "", "secrets", Some(JOBS)),
    ("create", "networking.k8s.io", "networkpolicies", Some(JOBS)),
    ("list", "", "nodes", None),
    ("get", "node.k8s.io", "runtimeclasses", None),
    // Its own account is asked about itself by every client; everybody has this right.
    ("create", "authorization.k8s.io", "selfsubjectaccessreviews", None),
];

/// What would make more of the account than a driver of jobs.
const DENIED: [(&str, &str, &str, Option<&str>); 27] = [
    ("get", "", "secrets", Some(JOBS)),
    ("list", "", "secrets", Some(JOBS)),
    ("watch", "", "secrets", Some(JOBS)),
    ("delete", "", "secrets", Some(JOBS)),
    ("get", "", "secrets", Some(SERVER)),
    ("list", "", "secrets", Some(SERVER)),
    ("create", "", "secrets", Some(SERVER)),
    ("create", "batch", "jobs", Some(SERVER)),
    ("create", "batch", "jobs", Some("kube-system")),
    ("create", "", "pods", Some(JOBS)),
    ("create", "", "pods", Some(SERVER)),
    ("delete", "", "pods", Some(JOBS)),
    ("create", "", "pods/exec", Some(JOBS)),
    ("get", "", "pods/exec", Some(JOBS)),
    ("create", "", "pods/attach", Some(JOBS)),
    ("create", "", "pods/portforward", Some(JOBS)),
    ("get", "", "pods/log", Some("kube-system")),
    ("patch", "", "nodes", None),
    ("update", "", "nodes/status", None),
    ("get", "", "nodes/proxy", None),
    ("create", "node.k8s.io", "runtimeclasses", None),
    ("delete", "networking.k8s.io", "networkpolicies", Some(JOBS)),
    ("create", "", "serviceaccounts/token", Some(SERVER)),
    ("create", "", "serviceaccounts/token", Some(JOBS)),
    ("create", "rbac.authorization.k8s.io", "rolebindings", Some(JOBS)),
    ("create", "rbac.authorization.k8s.io", "clusterrolebindings", None),
    ("impersonate", "", "users", None),
];

const SERVER: &str = "kiln";
const JOBS: &str = "kiln-jobs";

/// The rules of the roles, one for each verb of each resource.
fn granted() -> BTreeSet<(String, String, String, Option<String>)> {
    let rbac = documents(&BASE.join("rbac.yaml"));
    let mut granted = BTreeSet::new();
    for role in rbac.iter().filter(|one| one["rules"].is_array()) {
        let namespace = role["metadata"]["namespace"].as_str().map(str::to_owned);
        for rule in role["rules"].as_array().unwrap() {
            let texts = |key: &str| -> Vec<String> { serde_json::from_value(rule[key].clone()).unwrap() };
            for group in texts("apiGroups") {
                for resource in texts("resources") {
                    for verb in texts("verbs") {
                        granted.insert((verb, group.clone(), resource.clone(), namespace.clone()));
                    }
                }
            }
        }
    }
    granted
}

#[test]
fn the_roles_have_the_drivers_rights_and_no_others() {
    let expected: BTreeSet<_> = RIGHTS
        .iter()
        .filter(|right| right.1 != "authorization.k8s.io")
        .map(|&(verb, group, resource, namespace)| {
            (
                verb.to_owned(),
                group.to_owned(),
                resource.to_owned(),
                namespace.map(str::to_owned),
            )
        })
        .collect();
    assert_eq!(granted(), expected);
}

/// Whether an object that was read back has all of what was asked for: a server drops fields that it does not know.
fn lost(asked: &Value, kept: &Value, path: &str, lost_fields: &mut Vec<String>) {
    match (asked, kept) {
        (Value::Object(asked), Value::Object(_)) => {
            for (key, value) in asked {
                lost(value, &kept[key], &format!("{path}.{key}"), lost_fields);
            }
        }
        (Value::Array(asked), Value::Array(kept)) if asked.len() == kept.len() => {
            for (index, (asked, kept)) in asked.iter().zip(kept).enumerate() {
                lost(asked, kept, &format!("{path}[{index}]"), lost_fields);
            }
        }
        _ if asked == kept => {}
        _ => lost_fields.push(format!("{path}: {asked} became {kept}")),
    }
}

#[test]
fn a_cluster_takes_the_manifests_and_their_account_has_least_rights() {
    needs!(rig::lack());
    let rig = Rig::api_only();

    // A namespace has to be there before a server says what it would do in it.
    let namespaces = BASE.join("namespaces.yaml");
    rig.cluster
        .try_kubectl(&["apply", "-f", namespaces.to_str().unwrap()])
        .ok();
    // This server is older than policy/v1, which the overlay is for. Nothing else is different there.
    let overlay = BASE.with_file_name("kubernetes-before-1.21");
    let overlay = overlay.to_str().unwrap();
    let newer = rig
        .cluster
        .try_kubectl(&["kustomize", BASE.to_str().unwrap()])
        .ok()
        .stdout;
    let older = rig.cluster.try_kubectl(&["kustomize", overlay]).ok().stdout;
    assert_ne!(newer, older);
    assert_eq!(
        newer,
        older.replace("apiVersion: policy/v1beta1", "apiVersion: policy/v1")
    );
    let objects: Vec<Value> = serde_saphyr::from_multiple(&older).unwrap();

    let tried = rig
        .cluster
        .try_kubectl(&["apply", "--dry-run=server", "-k", overlay])
        .ok()
        .stdout;
    let answered = |said: &str| said.lines().filter(|line| line.ends_with("(server dry run)")).count();
    assert_eq!(answered(&tried), objects.len(), "{tried}");
    let absent = rig
        .cluster
        .try_kubectl(&["get", "deployment", "kiln", "--namespace", SERVER]);
    assert_eq!(absent.code, Some(1), "a trial made it: {}", absent.stdout);

    rig.cluster.try_kubectl(&["apply", "-k", overlay]).ok();
    let mut lost_fields = Vec::new();
    for object in &objects {
        let name = object["metadata"]["name"].as_str().unwrap();
        let kind = object["kind"].as_str().unwrap();
        let (group, version) = object["apiVersion"]
            .as_str()
            .unwrap()
            .split_once('/')
            .unwrap_or(("", "v1"));
        let resource = if group.is_empty() {
            kind.to_owned()
        } else {
            format!("{kind}.{version}.{group}")
        };
        let mut get = vec!["get", &resource, name, "--output=json"];
        get.extend(object["metadata"]["namespace"].as_str().map(|_| "--namespace"));
        get.extend(object["metadata"]["namespace"].as_str());
        let kept: Value = serde_json::from_str(&rig.cluster.try_kubectl(&get).ok().stdout).unwrap();
        lost(object, &kept, &format!("{kind} {name}"), &mut lost_fields);
    }
    assert_eq!(lost_fields, Vec::<String>::new());

    for (rights, expected) in [(RIGHTS.as_slice(), "yes"), (DENIED.as_slice(), "no")] {
        for &right in rights {
            assert_eq!(rig.can(right), expected, "{right:?}");
        }
    }
}

/// Nobody gets one without asking, and rights are the server's alone.
#[test]
fn only_the_server_has_a_token_of_the_cluster() {
    let all = manifests::all();
    for account in of_kind(&all, "ServiceAccount") {
        assert_eq!(account["automountServiceAccountToken"], false, "{account:#}");
    }
    for binding in all.iter().filter(|one| one["roleRef"].is_object()) {
        let subjects = binding["subjects"].as_array().unwrap();
        assert_eq!(subjects.len(), 1);
        assert_eq!(subjects[0]["name"], "kiln");
        assert_eq!(subjects[0]["namespace"], SERVER);
    }
}
