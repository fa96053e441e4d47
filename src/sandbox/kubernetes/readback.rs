//! Compares a Job with what the API server made of it: old servers drop fields that they do not know, without an error.
//! Pure: no I/O.

use k8s_openapi::api::batch::v1::Job;
use kiln_records::{Code, Failure};
use serde_json::Value;

/// The parts of a Job on which the isolation of its sandbox depends.
const SAFETY: [&str; 8] = [
    "/spec/backoffLimit",
    "/spec/template/spec/restartPolicy",
    "/spec/template/spec/automountServiceAccountToken",
    "/spec/template/spec/hostUsers",
    "/spec/template/spec/runtimeClassName",
    "/spec/template/spec/affinity",
    "/spec/template/spec/containers/0/securityContext",
    "/spec/template/spec/initContainers/0/securityContext",
];

/// Succeeds if everything that safety needs is as it was wanted.
///
/// # Errors
///
/// `cluster_unsafe` with the names of the fields.
pub(super) fn check(wanted: &Job, made: &Job) -> Result<(), Failure> {
    let json = |job: &Job| serde_json::to_value(job).unwrap_or_default();
    let (wanted, made) = (json(wanted), json(made));
    let mut differ = Vec::new();
    for path in SAFETY {
        if let Some(value) = wanted.pointer(path) {
            compare(path, value, made.pointer(path), &mut differ);
        }
    }
    for name in ["containers", "initContainers"] {
        let number = |job: &Value| job["spec"]["template"]["spec"][name].as_array().map_or(0, Vec::len);
        if number(&made) != number(&wanted) {
            differ.push(name.to_owned());
        }
    }
    if differ.is_empty() {
        return Ok(());
    }
    let detail = format!(
        "the API server does not keep what isolates a job: {}",
        differ.join(", ")
    );
    Err(Failure::new(Code::ClusterUnsafe, detail)
        .hint("the cluster is too old for these fields, or an admission webhook changes Jobs"))
}

/// Notes the leaves that are wanted and not there. Others may be added: they are defaults.
fn compare(path: &str, wanted: &Value, made: Option<&Value>, differ: &mut Vec<String>) {
    if let Value::Object(wanted) = wanted {
        for (name, value) in wanted {
            compare(
                &format!("{path}/{name}"),
                value,
                made.and_then(|made| made.get(name)),
                differ,
            );
        }
    } else if made != Some(wanted) {
        let short = path
            .trim_start_matches("/spec/template/spec/")
            .trim_start_matches("/spec/");
        differ.push(short.replace("containers/0/", "").replace('/', "."));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::{
        Kernel,
        kubernetes::pod::{
            self,
            tests::{plain, wanted},
        },
    };

    #[test]
    fn fields_that_an_old_server_drops_are_named() {
        let settings = plain();
        let job = pod::job(&wanted(Kernel::Shared, &settings));
        check(&job, &job).unwrap();
        let mut made = job.clone();
        let pod = made.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
        // Defaults.
        pod.dns_policy = Some("ClusterFirst".to_owned());
        pod.scheduler_name = Some("default-scheduler".to_owned());
        check(&job, &made).unwrap();
        // As 1.20 does.
        let pod = made.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
        pod.host_users = None;
        let security = pod.containers[0].security_context.as_mut().unwrap();
        (security.proc_mount, security.app_armor_profile) = (Some("Default".to_owned()), None);
        let failure = check(&job, &made).unwrap_err();
        assert_eq!(failure.code, Code::ClusterUnsafe);
        assert_eq!(
            failure.detail,
            "the API server does not keep what isolates a job: hostUsers, securityContext.appArmorProfile.type, \
             securityContext.procMount"
        );
    }

    #[test]
    fn a_virtual_machine_that_is_taken_away_or_a_container_that_is_added_is_noticed() {
        let settings = plain();
        let job = pod::job(&wanted(Kernel::Own, &settings));
        let mut made = job.clone();
        let pod = made.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
        pod.runtime_class_name = None;
        let second = pod.containers[0].clone();
        pod.containers.push(second);
        let failure = check(&job, &made).unwrap_err();
        assert!(failure.detail.ends_with(": runtimeClassName, containers"), "{failure}");
        // As meshes do, whose container may change the pod's network.
        let mut made = job.clone();
        let pod = made.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
        pod.init_containers = Some(pod.containers.clone());
        let failure = check(&job, &made).unwrap_err();
        assert!(failure.detail.ends_with(": initContainers"), "{failure}");
    }
}
