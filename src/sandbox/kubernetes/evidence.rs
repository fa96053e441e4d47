//! Tells the state of a sandbox from its Job and its pod, and how it ended. Pure: no I/O.

use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{ContainerState, ContainerStateTerminated, Pod},
};
use kiln_inside::room::order::End;
use kiln_records::{Code, Failure};

use super::pod::{CONTAINER, FETCHING};
use crate::sandbox::Evidence;

/// Where a sandbox is on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its container has not started.
    Waits,
    /// Its container runs.
    Runs,
    /// It has ended.
    Ended,
}

/// The stage of a sandbox with this Job and this pod.
pub(super) fn stage(job: &Job, pod: Option<&Pod>) -> Stage {
    let Some(pod) = pod else {
        let failed = job.status.as_ref().and_then(|status| status.failed).unwrap_or_default();
        return if failed > 0 || is_over(job) {
            Stage::Ended
        } else {
            Stage::Waits
        };
    };
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    match state(pod) {
        Some(state) if state.terminated.is_some() => Stage::Ended,
        _ if matches!(phase, Some("Failed" | "Succeeded")) || is_lost(pod) => Stage::Ended,
        Some(state) if state.running.is_some() => Stage::Runs,
        // Its node is silent, and may still run it: the agent is heard, or it is not.
        _ if phase == Some("Unknown") => Stage::Runs,
        _ => Stage::Waits,
    }
}

/// The evidence from a sandbox that has ended. `log` is what could be read of its output.
pub(super) fn evidence(job: &Job, pod: Option<&Pod>, said: Option<End>, last_words: Vec<String>) -> Evidence {
    let ended = pod.and_then(terminated);
    let code = ended.map_or(1, |ended| ended.exit_code);
    let end = pod.and_then(noted).or(said);
    let oom = u64::from(ended.is_some_and(|ended| ended.reason.as_deref() == Some("OOMKilled")));
    // A node that takes a pod away ends its sandbox first, which then says that it was ended.
    let taken = pod.and_then(taken_away);
    let oom_kills = end.as_ref().map_or(oom, |end| end.usage.oom_kills.max(oom));
    Evidence {
        exit_code: end.as_ref().map_or(code, |end| end.exit_code),
        oom_kills,
        failure: taken.or_else(|| match end {
            Some(end) => end.failure,
            // A first process that ran out of memory cannot have reported anything.
            None if oom > 0 => None,
            None => Some(lost(job, ended)),
        }),
        warning: None,
        last_words,
    }
}

/// Whether a pod is one of this Job, and not of an earlier one of the same name.
pub(super) fn belongs_to(pod: &Pod, job: &Job) -> bool {
    let owners = pod.metadata.owner_references.iter().flatten();
    job.metadata.uid.is_some()
        && owners
            .into_iter()
            .any(|owner| Some(&owner.uid) == job.metadata.uid.as_ref())
}

/// The node that has a pod.
pub(super) fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// The end that the first process noted, which only it can.
pub(super) fn noted(pod: &Pod) -> Option<End> {
    serde_json::from_str(terminated(pod)?.message.as_deref()?).ok()
}

/// Why the cluster took the pod away, if it did.
fn taken_away(pod: &Pod) -> Option<Failure> {
    let status = pod.status.as_ref()?;
    let says = |message: Option<&String>, reason: &str| message.cloned().unwrap_or_else(|| reason.to_owned());
    if let Some(reason) = status.reason.as_deref() {
        let why = says(status.message.as_ref(), reason);
        match reason {
            "DeadlineExceeded" => {
                return Some(Failure::new(
                    Code::WallLimit,
                    format!("the cluster ended the pod: {why}"),
                ));
            }
            "NodeLost" | "NodeShutdown" | "Shutdown" | "Terminated" => {
                return Some(Failure::new(Code::NodeLost, format!("the pod's node went away: {why}")));
            }
            // Evicted, Preempting, OutOfcpu, UnexpectedAdmissionError and others.
            _ => {
                return Some(Failure::new(
                    Code::PodEvicted,
                    format!("the cluster took the pod away ({reason}): {why}"),
                ));
            }
        }
    }
    let disruption = status
        .conditions
        .as_ref()?
        .iter()
        .find(|condition| condition.type_ == "DisruptionTarget" && condition.status == "True")?;
    let reason = disruption.reason.as_deref().unwrap_or_default();
    let why = says(disruption.message.as_ref(), reason);
    Some(match reason {
        "DeletionByTaintManager" | "DeletionByPodGC" => {
            Failure::new(Code::NodeLost, format!("the pod's node went away: {why}"))
        }
        _ => Failure::new(Code::PodEvicted, format!("the cluster took the pod away: {why}")),
    })
}

/// Whether the pod was deleted because its node is gone, so that nobody will ever say how it ended.
fn is_lost(pod: &Pod) -> bool {
    let code = taken_away(pod).map(|failure| failure.code);
    pod.metadata.deletion_timestamp.is_some() && code == Some(Code::NodeLost)
}

/// The failure of a sandbox that left no word.
fn lost(job: &Job, ended: Option<&ContainerStateTerminated>) -> Failure {
    if let Some(ended) = ended {
        let reason = ended
            .reason
            .as_deref()
            .filter(|reason| *reason != "Error" && *reason != "Completed");
        let message = ended.message.as_deref().filter(|message| !message.starts_with('{'));
        let why = [reason, message].into_iter().flatten().collect::<Vec<_>>().join(": ");
        let why = if why.is_empty() {
            String::new()
        } else {
            format!(" ({why})")
        };
        let detail = format!(
            "the sandbox's container ended without a report, with code {}{why}",
            ended.exit_code
        );
        return Failure::new(Code::SandboxLost, detail)
            .hint("it was killed: see the events and the kernel log of its node");
    }
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    let failed = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "Failed");
    let reason = failed.and_then(|failed| failed.reason.as_deref());
    if reason == Some("DeadlineExceeded") {
        return Failure::new(Code::WallLimit, "the deadline of its Job in the cluster has passed");
    }
    Failure::new(Code::PodEvicted, "the sandbox's pod was deleted, and left no word")
        .hint("it was deleted by hand, evicted, or its node was removed")
}

fn is_over(job: &Job) -> bool {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| matches!(condition.type_.as_str(), "Failed" | "Complete") && condition.status == "True")
}

/// The end of the sandbox's container, or else that of the container which failed to fetch its toolbox.
fn terminated(pod: &Pod) -> Option<&ContainerStateTerminated> {
    let of_sandbox = state(pod).and_then(|state| state.terminated.as_ref());
    let of_fetching = || {
        let statuses = pod.status.as_ref()?.init_container_statuses.as_ref()?;
        let fetching = statuses.iter().find(|status| status.name == FETCHING)?;
        let ended = fetching.state.as_ref()?.terminated.as_ref()?;
        (ended.exit_code != 0).then_some(ended)
    };
    of_sandbox.or_else(of_fetching)
}

fn state(pod: &Pod) -> Option<&ContainerState> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == CONTAINER)?.state.as_ref()
}

#[cfg(test)]
mod tests {
    use kiln_inside::room::Usage;
    use serde_json::{Value, json};

    use super::*;

    fn job(status: &Value) -> Job {
        serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap()
    }

    fn pod(mut status: Value, state: &Value) -> Pod {
        status["containerStatuses"] = json!([
            {"name": CONTAINER, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}
        ]);
        serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap()
    }

    fn of(job: &Job, pod: Option<&Pod>) -> Evidence {
        assert_eq!(stage(job, pod), Stage::Ended);
        evidence(job, pod, None, Vec::new())
    }

    fn code(evidence: &Evidence) -> Option<Code> {
        evidence.failure.as_ref().map(|failure| failure.code)
    }

    #[test]
    fn the_stages_of_a_pod() {
        let job = job(&json!({"active": 1}));
        assert_eq!(stage(&job, None), Stage::Waits);
        let pending = pod(
            json!({"phase": "Pending"}),
            &json!({"waiting": {"reason": "ContainerCreating"}}),
        );
        assert_eq!(stage(&job, Some(&pending)), Stage::Waits);
        let running = json!({"running": {"startedAt": "2026-11-01T10:00:00Z"}});
        assert_eq!(
            stage(&job, Some(&pod(json!({"phase": "Running"}), &running))),
            Stage::Runs
        );
        // A node that cannot be asked is no end.
        assert_eq!(
            stage(&job, Some(&pod(json!({"phase": "Unknown"}), &json!({})))),
            Stage::Runs
        );
        // A pod that is being deleted by hand still runs.
        let mut deleted = pod(json!({"phase": "Running"}), &running);
        deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-11-01T10:00:00Z")).unwrap();
        assert_eq!(stage(&job, Some(&deleted)), Stage::Runs);
        let nothing = serde_json::from_value(json!({"metadata": {}})).unwrap();
        assert_eq!(stage(&job, Some(&nothing)), Stage::Waits);
    }

    #[test]
    fn a_sandbox_says_itself_how_it_ended() {
        let end = End {
            exit_code: 7,
            failure: None,
            usage: Usage {
                oom_kills: 2,
                ..Usage::default()
            },
        };
        let message = serde_json::to_string(&end).unwrap();
        let state = json!({"terminated": {"exitCode": 7, "reason": "Error", "message": message}});
        let found = of(&job(&json!({})), Some(&pod(json!({"phase": "Failed"}), &state)));
        assert_eq!((found.exit_code, found.oom_kills, found.failure), (7, 2, None));
        // What was cut off is found in the log.
        let state = json!({"terminated": {"exitCode": 7, "reason": "Error", "message": "{\"exit_co"}});
        let cut = pod(json!({"phase": "Failed"}), &state);
        let found = evidence(&job(&json!({})), Some(&cut), Some(end), Vec::new());
        assert_eq!((found.exit_code, found.oom_kills, found.failure), (7, 2, None));
    }

    #[test]
    fn a_toolbox_that_cannot_be_fetched_ends_its_sandbox() {
        let failure = Failure::new(Code::ImageMissing, "there is none");
        let end = End {
            exit_code: 1,
            failure: Some(failure.clone()),
            ..End::default()
        };
        let ended = |code: i32, message: &str| {
            let state = json!({"terminated": {"exitCode": code, "reason": "Error", "message": message}});
            json!([{"name": FETCHING, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}])
        };
        let said = serde_json::to_string(&end).unwrap();
        let of_pod = |phase: &str, first: Value| {
            pod(
                json!({"phase": phase, "initContainerStatuses": first}),
                &json!({"waiting": {"reason": "PodInitializing"}}),
            )
        };
        let job = job(&json!({}));
        let found = of(&job, Some(&of_pod("Failed", ended(1, &said))));
        assert_eq!((found.exit_code, found.failure), (1, Some(failure)));
        // Killed.
        let found = of(&job, Some(&of_pod("Failed", ended(137, ""))));
        assert_eq!(code(&found), Some(Code::SandboxLost));
        // What was fetched is no end.
        assert_eq!(stage(&job, Some(&of_pod("Pending", ended(0, "")))), Stage::Waits);
        assert_eq!(noted(&of_pod("Pending", ended(0, &said))), None);
    }

    #[test]
    fn a_container_that_was_killed_leaves_a_reason() {
        let killed = |reason: &str| {
            let state = json!({"terminated": {"exitCode": 137, "reason": reason}});
            of(&job(&json!({})), Some(&pod(json!({"phase": "Failed"}), &state)))
        };
        let oom = killed("OOMKilled");
        assert_eq!((oom.exit_code, oom.oom_kills, oom.failure), (137, 1, None));
        let other = killed("Error");
        assert_eq!((other.oom_kills, code(&other)), (0, Some(Code::SandboxLost)));
        let refused = killed("ContainerCannotRun");
        assert!(
            refused
                .failure
                .unwrap()
                .detail
                .ends_with("with code 137 (ContainerCannotRun)")
        );
    }

    #[test]
    fn what_the_cluster_takes_away_is_no_fault_of_the_job() {
        let job = job(&json!({}));
        for (reason, expected) in [
            ("Evicted", Code::PodEvicted),
            ("Preempting", Code::PodEvicted),
            ("NodeLost", Code::NodeLost),
            ("Terminated", Code::NodeLost),
            ("DeadlineExceeded", Code::WallLimit),
        ] {
            let status = json!({"phase": "Failed", "reason": reason, "message": "The node was low on resource"});
            let found = of(&job, Some(&pod(status, &json!({}))));
            assert_eq!(code(&found), Some(expected), "{reason}");
            assert!(found.failure.unwrap().detail.ends_with("The node was low on resource"));
        }
        let condition = |reason: &str| {
            json!({"phase": "Failed", "conditions": [
                {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "why"}
            ]})
        };
        let evicted = pod(
            condition("EvictionByEvictionAPI"),
            &json!({"terminated": {"exitCode": 143}}),
        );
        assert_eq!(code(&of(&job, Some(&evicted))), Some(Code::PodEvicted));
        // Its node will never say that it ended.
        let mut lost = pod(condition("DeletionByTaintManager"), &json!({"running": {}}));
        lost.status.as_mut().unwrap().phase = Some("Running".to_owned());
        assert_eq!(stage(&job, Some(&lost)), Stage::Runs);
        lost.metadata.deletion_timestamp = serde_json::from_value(json!("2026-11-01T10:00:00Z")).unwrap();
        assert_eq!(code(&of(&job, Some(&lost))), Some(Code::NodeLost));
    }

    #[test]
    fn a_job_without_its_pod_has_ended_if_it_had_one() {
        let failed = |reason: &str| {
            job(&json!({"failed": 1, "conditions": [{"type": "Failed", "status": "True", "reason": reason}]}))
        };
        assert_eq!(code(&of(&failed("DeadlineExceeded"), None)), Some(Code::WallLimit));
        assert_eq!(code(&of(&failed("BackoffLimitExceeded"), None)), Some(Code::PodEvicted));
    }
}
