//! Turns a registry's refusals and silences into failures with advice. Reads the rest of an answer only.

use std::{error::Error, io, time::Duration};

use kiln_records::{Code, Failure, names::shown};
use reqwest::{Response, StatusCode, header::RETRY_AFTER};
use serde::Deserialize;

/// How much of an error answer is read, in bytes.
const LONGEST: usize = 64 << 10;

/// The most characters of a registry's own words that are shown.
const MOST_WORDS: usize = 300;

#[derive(Deserialize)]
struct Errors {
    #[serde(default)]
    errors: Vec<One>,
}

#[derive(Deserialize)]
struct One {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: Option<String>,
}

/// What a registry said.
#[derive(Debug, Default)]
pub struct Said {
    /// The code of its first error.
    pub code: String,
    words: String,
}

/// The code and message in an error answer.
pub async fn read(mut response: Response) -> Said {
    let mut body = Vec::new();
    let reading = async {
        while body.len() < LONGEST {
            match response.chunk().await {
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Ok(None) | Err(_) => break,
            }
        }
    };
    // The status alone says enough.
    let _ = tokio::time::timeout(Duration::from_secs(3), reading).await;
    let Ok(Errors { errors }) = serde_json::from_slice(&body) else {
        return Said::default();
    };
    let words = errors.iter().map(|one| match &one.message {
        Some(message) => format!("{message} ({})", one.code),
        None => one.code.clone(),
    });
    let words: String = words.collect::<Vec<_>>().join("; ").chars().take(MOST_WORDS).collect();
    Said {
        code: errors.into_iter().next().map(|one| one.code).unwrap_or_default(),
        words: shown(&words).replace('\n', " "),
    }
}

/// The failure for an unsuccessful answer. `what` names the attempt, such as "cannot read r.example/x:1".
pub fn refused(registry: &str, what: &str, status: StatusCode, said: &Said, wait: Option<Duration>) -> Failure {
    let reason = match status.canonical_reason() {
        Some(reason) => format!("{} {reason}", status.as_u16()),
        None => status.as_u16().to_string(),
    };
    let detail = if said.words.is_empty() {
        format!("{what}: {registry} answered {reason}")
    } else {
        format!("{what}: {registry} answered {reason}: {}", said.words)
    };
    let later = wait.map_or_else(
        || "try again later".to_owned(),
        |wait| format!("the registry asks for {} s of patience; try again then", wait.as_secs()),
    );
    match status {
        StatusCode::UNAUTHORIZED => Failure::new(Code::RegistryUnauthorized, detail).hint(format!(
            "`kiln registry login {registry}`; or the stored password is not right any more"
        )),
        StatusCode::FORBIDDEN => Failure::new(Code::RegistryDenied, detail)
            .hint("the account lacks this right, or the repository is not there"),
        StatusCode::NOT_FOUND => Failure::new(Code::RegistryMissing, detail)
            .hint("check the name and the tag; some registries want repositories made first"),
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::INSUFFICIENT_STORAGE => Failure::new(Code::RegistryFull, detail)
            .hint("raise the registry's quota or limit, or delete images there; nothing got a tag"),
        StatusCode::TOO_MANY_REQUESTS => Failure::new(Code::RegistryBusy, detail).hint(later),
        status if status.is_server_error() => Failure::new(Code::RegistryBroken, detail).hint(later),
        _ if said.code == "DIGEST_INVALID" => Failure::new(Code::RegistryDigest, detail)
            .hint("what arrived is not what was sent: repeat, and look at what is in between if it happens again"),
        _ => Failure::new(Code::RegistryRefused, detail).hint("the message is from the registry"),
    }
}

/// How long a registry asks to wait.
pub fn retry_after(response: &Response) -> Option<Duration> {
    let text = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    // The other form is a date, which registries do not use.
    text.trim().parse().ok().map(Duration::from_secs)
}

/// The failure for a request without an answer.
pub fn unanswered(registry: &str, what: &str, error: &reqwest::Error) -> Failure {
    let cause = innermost(error);
    if is_forbidden(error) {
        return redirect(registry, what, "a place whose addresses are not public");
    }
    if error.is_timeout() {
        return slow(registry, what);
    }
    let failure = Failure::new(
        Code::RegistryUnreachable,
        format!("{what}: {registry} cannot be reached: {cause}"),
    );
    if !error.is_connect() {
        return Failure::new(
            Code::RegistryLost,
            format!("{what}: the connection to {registry} broke: {cause}"),
        )
        .hint("try again: what the registry has is not sent again");
    }
    if cause.contains("certificate") || cause.contains("UnknownIssuer") {
        return failure.hint("name the authority of its certificate with --ca FILE");
    }
    if cause.contains("corrupt message") || cause.contains("InvalidContentType") {
        return failure
            .hint("it does not speak TLS; --insecure uses plain HTTP, which anyone on the way can read and change");
    }
    failure.hint("check the name, the port, and that the registry runs")
}

/// The failure for a registry that makes no progress.
pub fn slow(registry: &str, what: &str) -> Failure {
    Failure::new(Code::RegistryTimeout, format!("{what}: {registry} makes no progress"))
        .hint("try again: what the registry has is not sent again")
}

/// The failure for a redirect that is not followed.
pub fn redirect(registry: &str, what: &str, to: &str) -> Failure {
    Failure::new(
        Code::RegistryRedirect,
        format!("{what}: {registry} leads to {to}, and is not followed"),
    )
    .hint("a registry may lead to public addresses, and to addresses of the kind that it has itself")
}

/// The failure for an answer that no registry gives.
pub fn senseless(registry: &str, what: &str, why: impl std::fmt::Display) -> Failure {
    Failure::new(
        Code::RegistryAnswer,
        format!(
            "{what}: the answer of {registry} makes no sense: {}",
            shown(&why.to_string())
        ),
    )
    .hint("check that the address is a registry's")
}

fn is_forbidden(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The cause of an error, which is the last of its sources.
pub fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    match cause.downcast_ref::<io::Error>().map(io::Error::kind) {
        Some(io::ErrorKind::ConnectionRefused) => "connection refused".to_owned(),
        _ => shown(&cause.to_string()).into_owned(),
    }
}
