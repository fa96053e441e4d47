//! Turns errors of a cluster's API into failures with advice. Pure: no I/O.

use kiln_records::{Code, Failure, failure::chain};
use kube::Error;

/// Whether the API answered that the object does not exist.
pub(super) fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 404)
}

/// Whether the API answered that there is such an object already.
pub(super) fn is_conflict(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 409)
}

/// Whether the API answered that a request makes no sense now, as for the log of a container that has not started.
pub(super) fn is_too_early(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 400)
}

/// The failure for an error of the API; `what` describes the attempt.
///
/// `cluster_gone` when there is no answer, or the API server has too much to do; `cluster_refused` for every refusal.
pub(super) fn failure(what: &str, error: &Error) -> Failure {
    match error {
        Error::Api(status) => {
            let detail = format!("{what}: {}", status.message);
            match status.code {
                401 | 403 => Failure::new(Code::ClusterRefused, detail)
                    .hint("give Kiln's account the rights in examples/kubernetes/rbac.yaml; `kiln doctor` checks each"),
                429 | 500.. => gone(detail),
                _ => Failure::new(Code::ClusterRefused, detail),
            }
        }
        Error::SerdeError(_) | Error::BuildRequest(_) | Error::Auth(_) => {
            Failure::new(Code::ClusterRefused, format!("{what}: {}", chain(error)))
        }
        _ => gone(format!("{what}: {}", chain(error))),
    }
}

/// The failure for a cluster that does not answer.
pub(super) fn gone(detail: impl std::fmt::Display) -> Failure {
    Failure::new(Code::ClusterGone, detail).hint("check that the cluster's API answers, and [kubernetes]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_and_silence_are_told_apart() {
        let of = |code: u16| {
            let status = kube::core::Status {
                code,
                message: "the cause".to_owned(),
                ..kube::core::Status::default()
            };
            failure("cannot do that", &Error::Api(Box::new(status)))
        };
        for (code, expected) in [
            (400, Code::ClusterRefused),
            (403, Code::ClusterRefused),
            (422, Code::ClusterRefused),
            (429, Code::ClusterGone),
            (503, Code::ClusterGone),
        ] {
            assert_eq!(of(code).code, expected, "{code}");
        }
        assert_eq!(of(422).detail, "cannot do that: the cause");
        assert!(of(403).hint.unwrap().contains("rbac.yaml"));
    }
}
