//! Turns error answers and missing answers into failures with advice. Reads the rest of the answer only.

use std::{error::Error, io};

use kiln_records::{Code, Failure, names::is_invisible};
use reqwest::{Response, StatusCode, header::LOCATION};

use super::{Data, Server};

/// How much of an error answer is read, in bytes.
const LONGEST: usize = 256 << 10;

/// The failure for an unsuccessful answer, in the form of `cray`: title and detail, or else the status. The errors of
/// each field follow on separate lines.
pub(super) async fn from_answer(server: &Server, response: Response) -> Failure {
    let status = response.status();
    if status.is_redirection() {
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let detail = format!(
            "{server} sends elsewhere: {}",
            printable(location.unwrap_or("it does not say where"))
        );
        return Failure::new(Code::Refused, detail).hint("use that address with --server");
    }
    let body = read_some(response).await;
    let answer: Data = serde_json::from_slice(&body).unwrap_or_default();
    let reason = status.canonical_reason().unwrap_or("unknown status");
    let mut detail = match (answer.text("title"), answer.text("detail"), answer.text("message")) {
        (Some(title), Some(detail), _) => format!("{}: {}", printable(title), printable(detail)),
        (Some(text), None, _) | (None, Some(text), _) | (None, None, Some(text)) => {
            format!("{} {reason}: {}", status.as_u16(), printable(text))
        }
        (None, None, None) => format!("{server} answered {} {reason}", status.as_u16()),
    };
    let mut lines = Vec::new();
    list_errors(answer.get("errors"), "", &mut lines);
    for line in lines {
        detail.push_str("\n  ");
        detail.push_str(&line);
    }
    let code = match status {
        StatusCode::UNAUTHORIZED => Code::Unauthorized,
        StatusCode::FORBIDDEN => Code::Forbidden,
        StatusCode::NOT_FOUND => Code::NotFound,
        status if status.is_server_error() => Code::ServerError,
        _ => Code::Refused,
    };
    // A Kiln server says what it failed of.
    let failure = Failure::new(answer.text("code").and_then(Code::named).unwrap_or(code), detail);
    match answer.text("hint").map(printable).or_else(|| hint_for(status, server)) {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn hint_for(status: StatusCode, server: &Server) -> Option<String> {
    match status {
        StatusCode::UNAUTHORIZED => Some(format!(
            "`kiln login {server}` keeps a token; --token FILE and KILN_TOKEN give one for a single command"
        )),
        StatusCode::FORBIDDEN => Some("your token does not allow this; ask for one that does".to_owned()),
        StatusCode::TOO_MANY_REQUESTS => Some("wait a little before the next request".to_owned()),
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            Some("try again in a while; the server's log says more".to_owned())
        }
        StatusCode::INTERNAL_SERVER_ERROR => Some("the server's log says more".to_owned()),
        _ => None,
    }
}

/// Fields and their errors: `link.path: Missing data for required field.`
fn list_errors(errors: &Data, at: &str, lines: &mut Vec<String>) {
    match errors {
        Data::Map(members) => {
            for (key, value) in members {
                let key = printable(key);
                let at = match (at.is_empty(), key.as_str()) {
                    (_, "_schema") => at.to_owned(),
                    (true, _) => key,
                    (false, _) => format!("{at}.{key}"),
                };
                list_errors(value, &at, lines);
            }
        }
        Data::List(items) => items.iter().for_each(|item| list_errors(item, at, lines)),
        Data::Text(text) if at.is_empty() => lines.push(printable(text)),
        Data::Text(text) => lines.push(format!("{at}: {}", printable(text))),
        Data::Null | Data::Bool(_) | Data::Number(_) => {}
    }
}

async fn read_some(mut response: Response) -> Vec<u8> {
    let mut body = Vec::new();
    while body.len() < LONGEST {
        match response.chunk().await {
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) | Err(_) => break,
        }
    }
    body
}

/// The failure for a request without an answer.
pub(super) fn unreachable(server: &Server, error: &reqwest::Error) -> Failure {
    let cause = innermost(error);
    if error.is_timeout() {
        return Failure::new(Code::ServerTimeout, format!("{server} does not answer in time"))
            .hint("the request may have been carried out: look before you repeat it");
    }
    if !error.is_connect() {
        return Failure::new(Code::ServerLost, format!("{server} broke off: {cause}"))
            .hint("the request may have been carried out: look before you repeat it");
    }
    let failure = Failure::new(
        Code::ServerUnreachable,
        format!("no server answers at {server}: {cause}"),
    );
    if cause.contains("certificate") || cause.contains("UnknownIssuer") {
        return failure.hint("name the server's authority with --ca-file or KILN_CA_FILE");
    }
    if server.is_loopback() {
        failure.hint("start one with `kiln serve`, or name another with --server URL or KILN_SERVER")
    } else {
        failure.hint("check --server, KILN_SERVER or what `kiln login` was given; `kiln serve` starts a server")
    }
}

/// The failure for an answer that is neither Kiln's nor IMS's.
pub(super) fn no_such_server(server: &Server) -> Failure {
    Failure::new(
        Code::ServerUnknown,
        format!("{server} does not answer as Kiln and IMS do"),
    )
    .hint("behind a gateway IMS is below /apis/ims: --server https://GATEWAY/apis/ims")
}

/// The cause of an error, which is the last of its sources.
pub(super) fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    match cause.downcast_ref::<io::Error>().map(io::Error::kind) {
        Some(io::ErrorKind::ConnectionRefused) => "connection refused".to_owned(),
        _ => printable(&cause.to_string()),
    }
}

/// A server's text on one line, without control characters.
pub(super) fn printable(text: &str) -> String {
    let flat = text.replace(['\n', '\t'], " ");
    flat.chars().filter(|c| !is_invisible(*c)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_listed_by_field() {
        let errors = r#"{"name":["Missing."],"link":{"path":["Too\u001b[31m short."]},"ssh_containers":{"0":{"jail":["Not a boolean."]}},"_schema":["Invalid."]}"#;
        let mut lines = Vec::new();
        list_errors(&serde_json::from_str(errors).unwrap(), "", &mut lines);
        assert_eq!(
            lines,
            [
                "name: Missing.",
                "link.path: Too[31m short.",
                "ssh_containers.0.jail: Not a boolean.",
                "Invalid."
            ]
        );
    }
}
