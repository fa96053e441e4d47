//! Turns errors of engines into failures with advice. Pure: no I/O.

use bollard::errors::Error;
use kiln_records::{Code, Failure};

/// Whether the engine answered that the object does not exist.
pub(super) fn is_missing(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 404, .. })
}

/// Whether the engine answered with a conflict: the name is taken, or the object is in use or being removed.
pub(super) fn is_conflict(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 409, .. })
}

/// The failure for an engine's error; `what` describes the attempt.
///
/// `engine_gone` when there is no answer, `image_missing`, `runtime_unknown`, and `engine_refused` for every other
/// error.
pub(super) fn failure(what: &str, error: &Error) -> Failure {
    let Error::DockerResponseServerError { message, .. } = error else {
        return gone(format!("{what}: {}", chain(error)));
    };
    let said = message.to_lowercase();
    let detail = format!("{what}: {}", message.trim());
    if said.contains("no such image") {
        Failure::new(Code::ImageMissing, detail).hint("it was just removed; the next attempt restores it")
    } else if said.contains("unknown runtime") || said.contains("invalid runtime name") {
        runtime_unknown(detail)
    } else if said.contains("no space left") {
        Failure::new(Code::DiskFull, detail).hint("free space where the engine keeps its data (`docker system df`)")
    } else {
        Failure::new(Code::EngineRefused, detail)
    }
}

/// The failure for a configured runtime that the engine does not have.
pub(super) fn runtime_unknown(detail: impl std::fmt::Display) -> Failure {
    Failure::new(Code::RuntimeUnknown, detail)
        .hint("name the runtime in the engine's daemon.json and reload that; docs/docker.md shows the lines")
}

/// The failure for an engine that does not answer.
pub(super) fn gone(detail: impl std::fmt::Display) -> Failure {
    Failure::new(Code::EngineGone, detail).hint("check that the container engine runs, and its address")
}

/// An error with its causes: the outermost one alone only says that something failed.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_old_and_new_are_understood() {
        for (status_code, message, code) in [
            (400, "Unknown runtime specified kata", Code::RuntimeUnknown),
            (400, "unknown or invalid runtime name: kata", Code::RuntimeUnknown),
            (404, "No such image: kiln-toolbox:1", Code::ImageMissing),
            (500, "write /var/lib/docker/x: no space left on device", Code::DiskFull),
            (500, "cannot do that", Code::EngineRefused),
        ] {
            let message = message.to_owned();
            let found = failure("cannot", &Error::DockerResponseServerError { status_code, message });
            assert_eq!(found.code, code, "{found}");
        }
        assert_eq!(failure("cannot", &Error::RequestTimeoutError).code, Code::EngineGone);
    }
}
