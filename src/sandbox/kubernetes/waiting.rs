//! Finds out why a pod has not started, in the cluster's own words: its conditions, its container's state, and events.
//! Pure: no I/O.

use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod};
use kiln_records::{Code, Failure};

use super::pod::{CONTAINER, FETCHING};

/// Why a sandbox waits. Without a pod, the events are those of its Job, else those of the pod.
pub(super) fn reason(pod: Option<&Pod>, events: &[Event]) -> Failure {
    let Some(pod) = pod else {
        return match newest(events, &["FailedCreate"]) {
            Some(why) => Failure::new(Code::PodWaits, format!("the cluster cannot create its pod: {why}"))
                .hint("a RuntimeClass, a quota or an admission webhook refuses it"),
            None => Failure::new(Code::PodWaits, "the cluster has not created its pod yet"),
        };
    };
    if let Some(why) = unscheduled(pod) {
        return Failure::new(Code::PodWaits, format!("no node takes its pod: {why}"))
            .hint("a job may ask for less (`job_mem_size`, `build_env_size`); RuntimeClasses add their overhead");
    }
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let Some(node) = node else {
        return Failure::new(Code::PodWaits, "its pod waits for a node");
    };
    match waiting(pod) {
        Some((Waits::Image, why)) => Failure::new(
            Code::ImageMissing,
            format!("node {node} has no image for it: {why}"),
        )
        .hint(
            "`kiln toolbox push` puts it into the registry that the message names, unless it is the `base_image` of \
                 [kubernetes]",
        ),
        Some((Waits::Refused, why)) => Failure::new(
            Code::PodWaits,
            format!("node {node} cannot create its container: {why}"),
        ),
        Some((Waits::Fetched, _)) => Failure::new(
            Code::PodWaits,
            format!("its pod fetches the toolbox from S3, on node {node}"),
        ),
        Some((Waits::Created, _)) | None => {
            match newest(
                events,
                &["FailedCreatePodSandBox", "FailedMount", "FailedAttachVolume", "Failed"],
            ) {
                Some(why) => Failure::new(Code::PodWaits, format!("node {node} cannot start its pod: {why}")),
                None => Failure::new(Code::PodWaits, format!("its pod is being started on node {node}")),
            }
        }
    }
}

/// Whether events are needed to find out why a sandbox waits.
pub(super) fn needs_events(pod: Option<&Pod>) -> bool {
    pod.is_none_or(|pod| {
        let has_node = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        has_node && unscheduled(pod).is_none() && waiting(pod).is_none_or(|(kind, _)| kind == Waits::Created)
    })
}

/// The kinds of reasons for which a container waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// It is being created.
    Created,
    /// The toolbox is being fetched.
    Fetched,
    /// Its image cannot be had.
    Image,
    /// Its node refuses it.
    Refused,
}

impl Waits {
    fn of(reason: &str) -> Self {
        match reason {
            "ContainerCreating" | "PodInitializing" | "" => Self::Created,
            "ErrImagePull"
            | "ImagePullBackOff"
            | "ErrImageNeverPull"
            | "InvalidImageName"
            | "ImageInspectError"
            | "RegistryUnavailable"
            | "SignatureValidationFailed" => Self::Image,
            _ => Self::Refused,
        }
    }
}

fn waiting(pod: &Pod) -> Option<(Waits, String)> {
    let status = pod.status.as_ref()?;
    let state = |statuses: Option<&Vec<ContainerStatus>>, name: &str| {
        let of_container = statuses?.iter().find(|status| status.name == name)?;
        of_container.state.clone()
    };
    let fetching = state(status.init_container_statuses.as_ref(), FETCHING);
    if fetching.as_ref().is_some_and(|state| state.running.is_some()) {
        return Some((Waits::Fetched, String::new()));
    }
    let of_fetching = fetching.and_then(|state| state.waiting);
    let of_sandbox = || state(status.container_statuses.as_ref(), CONTAINER)?.waiting;
    let waiting = of_fetching.or_else(of_sandbox)?;
    let reason = waiting.reason.clone().unwrap_or_default();
    let why = match &waiting.message {
        Some(message) => format!("{reason}: {}", one_line(message)),
        None => reason.clone(),
    };
    Some((Waits::of(&reason), why))
}

/// What the scheduler says of a pod for which it has no node.
fn unscheduled(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let scheduled = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
    let why = scheduled.message.as_ref().or(scheduled.reason.as_ref());
    (scheduled.status == "False").then(|| why.map_or_else(|| "for no reason".to_owned(), |why| one_line(why)))
}

/// The message of the newest event for one of these reasons.
fn newest(events: &[Event], reasons: &[&str]) -> Option<String> {
    let of_reason = |event: &&Event| event.reason.as_deref().is_some_and(|reason| reasons.contains(&reason));
    let time = |event: &&Event| {
        let last = event.last_timestamp.as_ref().map(|time| time.0);
        last.or_else(|| event.event_time.as_ref().map(|time| time.0))
    };
    let newest = events.iter().filter(of_reason).max_by_key(time)?;
    newest.message.as_deref().map(one_line)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(reason: &str, message: &str, time: &str) -> Event {
        let event = json!({
            "metadata": {}, "involvedObject": {}, "reason": reason, "message": message, "lastTimestamp": time
        });
        serde_json::from_value(event).unwrap()
    }

    fn pod(node: Option<&str>, status: &serde_json::Value) -> Pod {
        let pod = json!({"metadata": {}, "spec": {"containers": [], "nodeName": node}, "status": status});
        serde_json::from_value(pod).unwrap()
    }

    fn container(reason: &str, message: Option<&str>) -> serde_json::Value {
        let state = json!({"waiting": {"reason": reason, "message": message}});
        json!({"containerStatuses": [
            {"name": CONTAINER, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}
        ]})
    }

    #[test]
    fn a_pod_that_cannot_be_created_waits_for_the_words_of_the_last_event() {
        let why = reason(None, &[]);
        assert_eq!(
            (why.code, why.detail.as_str()),
            (Code::PodWaits, "the cluster has not created its pod yet")
        );
        let events = [
            event(
                "FailedCreate",
                "pod rejected: RuntimeClass \"x\" not found",
                "2026-11-01T10:00:10Z",
            ),
            event("FailedCreate", "exceeded quota", "2026-11-01T10:00:00Z"),
            event("SuccessfulCreate", "later, and of no interest", "2026-11-01T11:00:00Z"),
        ];
        let why = reason(None, &events);
        assert_eq!(
            why.detail,
            "the cluster cannot create its pod: pod rejected: RuntimeClass \"x\" not found"
        );
    }

    #[test]
    fn the_scheduler_says_why_there_is_no_node() {
        let message = "0/1 nodes are available: 1 Insufficient cpu.";
        let pod = pod(
            None,
            &json!({"conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
            ]}),
        );
        assert!(!needs_events(Some(&pod)) && needs_events(None));
        let why = reason(Some(&pod), &[]);
        assert_eq!(why.code, Code::PodWaits);
        assert_eq!(why.detail, format!("no node takes its pod: {message}"));
        assert_eq!(
            reason(Some(&super::tests::pod(None, &json!({}))), &[]).detail,
            "its pod waits for a node"
        );
    }

    #[test]
    fn nodes_say_why_a_container_does_not_start() {
        let of = |status, events: &[Event]| reason(Some(&pod(Some("rig"), &status)), events);
        for state in ["ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff"] {
            let why = of(container(state, Some("Back-off pulling image")), &[]);
            assert_eq!(why.code, Code::ImageMissing, "{state}");
            assert_eq!(
                why.detail,
                format!("node rig has no image for it: {state}: Back-off pulling image")
            );
        }
        let why = of(container("CreateContainerError", Some("no such\n  device")), &[]);
        assert_eq!(
            (why.code, why.detail.as_str()),
            (
                Code::PodWaits,
                "node rig cannot create its container: CreateContainerError: no such device"
            )
        );
        // The container that fetches the toolbox has an image, too, and comes first.
        let mut fetches = container("PodInitializing", None);
        let first = |state: serde_json::Value| json!([{"name": FETCHING, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}]);
        fetches["initContainerStatuses"] =
            first(json!({"waiting": {"reason": "ErrImagePull", "message": "no such tag"}}));
        let why = of(fetches.clone(), &[]);
        assert_eq!(why.code, Code::ImageMissing);
        assert!(why.detail.ends_with("ErrImagePull: no such tag"), "{why}");
        fetches["initContainerStatuses"] = first(json!({"running": {}}));
        assert_eq!(
            of(fetches, &[]).detail,
            "its pod fetches the toolbox from S3, on node rig"
        );
        let creating = || container("ContainerCreating", None);
        assert!(needs_events(Some(&pod(Some("rig"), &creating()))));
        assert!(!needs_events(Some(&pod(Some("rig"), &container("ErrImagePull", None)))));
        assert_eq!(of(creating(), &[]).detail, "its pod is being started on node rig");
        let refused = "can't set spec.hostUsers: false, RuntimeClass handler \"kata\" does not support user namespaces";
        let events = [event("FailedCreatePodSandBox", refused, "2026-11-01T10:00:00Z")];
        assert_eq!(
            of(creating(), &events).detail,
            format!("node rig cannot start its pod: {refused}")
        );
    }
}
