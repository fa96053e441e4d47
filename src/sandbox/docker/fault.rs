//! Turns errors of engines into failures with advice. Writes only to the log.

use std::time::Duration;

use bollard::errors::Error;
use kiln_records::{Code, Failure, failure::chain};

/// Seconds until an engine must have begun to answer. The longest of these requests starts a virtual machine.
pub(super) const TIMEOUT_S: u64 = 120;

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
    failure_within(Duration::from_secs(TIMEOUT_S), what, error)
}

/// The same for a request that has another time.
pub(super) fn failure_within(limit: Duration, what: &str, error: &Error) -> Failure {
    let message = match error {
        Error::DockerResponseServerError { message, .. } => message,
        // It may well answer other requests: virtual machines that do not boot were seen to take that long.
        Error::RequestTimeoutError => {
            let detail = format!("{what}: the container engine took more than {} s", limit.as_secs());
            return Failure::new(Code::EngineGone, detail)
                .hint("the engine, or a runtime that it started, hangs: the engine's own log says more");
        }
        _ => return gone(format!("{what}: {}", chain(error))),
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

/// The causes of an error that are said, counted from the innermost. What helps is often one of the middle.
const CAUSES: usize = 3;

/// What an engine or its runtime said, on one line. Kata's Rust runtime says each error with all of its causes and a
/// backtrace: the last causes are what went wrong. All of them go to the log, and no backtrace does.
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
    let said: Vec<_> = lines
        .filter(|line| !line.starts_with("Caused by"))
        .map(|line| match line.split_once(": ") {
            Some((number, cause)) if number.chars().all(|c| c.is_ascii_digit()) => cause,
            _ => line,
        })
        .collect();
    if said.len() > CAUSES {
        tracing::warn!("the container engine said: {first}: {}", said.join(": "));
    }
    let last = said.iter().skip(said.len().saturating_sub(CAUSES)).copied();
    std::iter::once(first).chain(last).collect::<Vec<_>>().join(": ")
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
        let late = failure("cannot run a container", &Error::RequestTimeoutError);
        assert_eq!(late.code, Code::EngineGone);
        assert_eq!(
            late.detail,
            "cannot run a container: the container engine took more than 120 s"
        );
        let late = failure_within(Duration::from_mins(10), "cannot load", &Error::RequestTimeoutError);
        assert_eq!(late.detail, "cannot load: the container engine took more than 600 s");
    }

    #[test]
    fn of_a_backtrace_the_last_causes_are_said() {
        let message = "failed to create shim task: Others(\"failed to handle message try init runtime instance\\n\\n\
            Caused by:\\n    0: init runtime handler\\n    1: start vm\\n    2: No such file or directory (os error 2)\\n\\n\
            Stack backtrace:\\n   0: <unknown>\\n   1: <unknown>\\n\"): unknown";
        let expected = "failed to create shim task: Others(\"failed to handle message try init runtime instance: init runtime \
            handler: start vm: No such file or directory (os error 2)";
        assert_eq!(in_short(message), expected);
        assert_eq!(in_short(&message.replace("\\n", "\n")), expected);
        let five =
            "cannot start\n\nCaused by:\n 0: a\n 1: b\n 2: connect agent server\n 3: hybrid vsock\n 4: No such file";
        assert_eq!(
            in_short(five),
            "cannot start: connect agent server: hybrid vsock: No such file"
        );
        let one = "cannot start\n\nCaused by:\n    the guest does not answer";
        assert_eq!(in_short(one), "cannot start: the guest does not answer");
        assert_eq!(in_short("No such image: x:1\n"), "No such image: x:1");
    }
}
