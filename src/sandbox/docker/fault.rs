//! Turns errors of engines into failures with advice. Writes only to the log.

use bollard::errors::Error;
use kiln_records::{Code, Failure, failure::chain};

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
    let detail = format!("{what}: {}", in_short(message));
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

/// What an engine or its runtime said, on one line. Kata's Rust runtime says each error with all of its causes and a
/// backtrace: the last cause is what went wrong. The whole text goes to the log.
pub(super) fn in_short(message: &str) -> String {
    // Errors within errors come with their line breaks escaped.
    let text = message.replace("\\n", "\n");
    let causes = text
        .to_lowercase()
        .find("stack backtrace:")
        .map_or(&text[..], |at| &text[..at]);
    let mut lines = causes.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    // `Caused by:`, then one cause on a line, with a number if there are several.
    let last = lines.next_back().filter(|line| !line.starts_with("Caused by"));
    let Some(last) = last else {
        return first.to_owned();
    };
    tracing::warn!("the container engine said: {}", message.trim());
    let cause = match last.split_once(": ") {
        Some((number, cause)) if number.chars().all(|c| c.is_ascii_digit()) => cause,
        _ => last,
    };
    format!("{first}: {cause}")
}

/// The failure for a configured runtime that the engine does not have.
pub(super) fn runtime_unknown(detail: impl std::fmt::Display) -> Failure {
    Failure::new(Code::RuntimeUnknown, detail)
        .hint("add the lines of kata/docker-daemon.json to the engine's daemon.json, and reload the engine")
}

/// The failure for an engine that does not answer.
pub(super) fn gone(detail: impl std::fmt::Display) -> Failure {
    Failure::new(Code::EngineGone, detail).hint("check that the container engine runs, and its address")
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

    #[test]
    fn of_a_backtrace_the_last_cause_is_said() {
        let message = "failed to create shim task: Others(\"failed to handle message try init runtime instance\\n\\n\
            Caused by:\\n    0: init runtime handler\\n    1: start vm\\n    2: No such file or directory (os error 2)\\n\\n\
            Stack backtrace:\\n   0: <unknown>\\n   1: <unknown>\\n\"): unknown";
        let expected = "failed to create shim task: Others(\"failed to handle message try init runtime instance: No such \
            file or directory (os error 2)";
        assert_eq!(in_short(message), expected);
        assert_eq!(in_short(&message.replace("\\n", "\n")), expected);
        let one = "cannot start\n\nCaused by:\n    the guest does not answer";
        assert_eq!(in_short(one), "cannot start: the guest does not answer");
        assert_eq!(in_short("No such image: x:1\n"), "No such image: x:1");
    }
}
