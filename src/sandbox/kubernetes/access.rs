//! The rights that the driver needs, and no others: every call of the API is in this table. Asks the API whether Kiln's
//! account has them; changes nothing.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use kiln_records::Failure;
use kube::{Api, Client, api::PostParams};

use super::fault::failure;

/// A kind of object, and what is done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Right {
    /// The API group; empty for the core.
    pub group: &'static str,
    /// The resource, with its subresource.
    pub resource: &'static str,
    /// The verbs.
    pub verbs: &'static [&'static str],
    /// Whether it is outside namespaces.
    pub of_cluster: bool,
}

/// Everything that the driver does.
pub const RIGHTS: &[Right] = &[
    Right {
        group: "batch",
        resource: "jobs",
        verbs: &["create", "delete", "get", "list", "watch"],
        of_cluster: false,
    },
    Right {
        group: "",
        resource: "pods",
        verbs: &["list", "watch"],
        of_cluster: false,
    },
    Right {
        group: "",
        resource: "pods/log",
        verbs: &["get"],
        of_cluster: false,
    },
    // Orders can be written, and not read.
    Right {
        group: "",
        resource: "secrets",
        verbs: &["create"],
        of_cluster: false,
    },
    Right {
        group: "networking.k8s.io",
        resource: "networkpolicies",
        verbs: &["create"],
        of_cluster: false,
    },
    Right {
        group: "",
        resource: "events",
        verbs: &["list"],
        of_cluster: false,
    },
    Right {
        group: "",
        resource: "nodes",
        verbs: &["list"],
        of_cluster: true,
    },
    Right {
        group: "node.k8s.io",
        resource: "runtimeclasses",
        verbs: &["get"],
        of_cluster: true,
    },
];

/// What it does in addition where shells have Services. To apply an object is to patch it, and to create it if it is not there.
pub const SHELL_RIGHTS: &[Right] = &[
    Right {
        group: "",
        resource: "services",
        verbs: &["create", "patch"],
        of_cluster: false,
    },
    Right {
        group: "",
        resource: "endpoints",
        verbs: &["create", "patch"],
        of_cluster: false,
    },
];

/// The rights that the client's account lacks, as `verb resource`.
///
/// # Errors
///
/// The API does not answer.
pub(super) async fn missing(client: &Client, namespace: &str, with_shells: bool) -> Result<Vec<String>, Failure> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut missing = Vec::new();
    let for_shells = SHELL_RIGHTS.iter().filter(|_| with_shells);
    for right in RIGHTS.iter().chain(for_shells) {
        for verb in right.verbs {
            let (resource, sub) = match right.resource.split_once('/') {
                Some((resource, sub)) => (resource, Some(sub.to_owned())),
                None => (right.resource, None),
            };
            let review = SelfSubjectAccessReview {
                spec: SelfSubjectAccessReviewSpec {
                    resource_attributes: Some(ResourceAttributes {
                        group: Some(right.group.to_owned()),
                        resource: Some(resource.to_owned()),
                        subresource: sub,
                        verb: Some((*verb).to_owned()),
                        namespace: (!right.of_cluster).then(|| namespace.to_owned()),
                        ..Default::default()
                    }),
                    ..Default::default()
                },
                ..Default::default()
            };
            let answer = reviews.create(&PostParams::default(), &review).await;
            let answer = answer.map_err(|error| failure("cannot ask for the rights of this account", &error))?;
            if !matches!(answer.status, Some(SubjectAccessReviewStatus { allowed: true, .. })) {
                missing.push(format!("{verb} {}", right.resource));
            }
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::*;

    /// Group, resource and verb of each rule of a role.
    fn granted(role: &Value) -> BTreeMap<(String, String), Vec<String>> {
        let texts = |value: &Value| -> Vec<String> {
            let all = value.as_array().unwrap().iter();
            all.map(|text| text.as_str().unwrap().to_owned()).collect()
        };
        let mut granted = BTreeMap::new();
        for rule in role["rules"].as_array().unwrap() {
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    let old = granted.insert((group.clone(), resource), texts(&rule["verbs"]));
                    assert_eq!(old, None);
                }
            }
        }
        granted
    }

    fn needed(rights: &[Right], of_cluster: bool) -> BTreeMap<(String, String), Vec<String>> {
        let rights = rights.iter().filter(|right| right.of_cluster == of_cluster);
        let verbs = |right: &Right| right.verbs.iter().map(|verb| (*verb).to_owned()).collect();
        rights
            .map(|right| ((right.group.to_owned(), right.resource.to_owned()), verbs(right)))
            .collect()
    }

    fn manifest(dir: &str) -> Vec<Value> {
        let path = format!("{}/examples/{dir}/rbac.yaml", env!("CARGO_MANIFEST_DIR"));
        serde_saphyr::from_multiple(&fs_err::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn the_manifests_grant_what_the_tables_have() {
        let shells = manifest("kubernetes-shells");
        assert_eq!(granted(&shells[0]), needed(SHELL_RIGHTS, false));
        assert_eq!(shells[1]["roleRef"]["name"], shells[0]["metadata"]["name"]);
        let documents = manifest("kubernetes");
        let of = |kind: &str| documents.iter().find(|document| document["kind"] == kind).unwrap();
        assert_eq!(shells[1]["subjects"], of("RoleBinding")["subjects"]);
        assert_eq!(granted(of("Role")), needed(RIGHTS, false));
        assert_eq!(granted(of("ClusterRole")), needed(RIGHTS, true));
        for kind in ["RoleBinding", "ClusterRoleBinding"] {
            let binding = of(kind);
            assert_eq!(binding["subjects"][0]["name"], of("ServiceAccount")["metadata"]["name"]);
            assert_eq!(binding["roleRef"]["name"], "kiln");
        }
    }
}
