//! Limits the size and duration of requests. Touches the request only.

use std::{any::Any, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures::StreamExt;
use tokio::time::timeout;

use super::problem::Problem;
use crate::{
    config::LimitSettings,
    settings::{Period, Size},
};

/// How much of a too large body is read nevertheless: a caller that only listens after sending everything thus receives
/// the reason for the refusal.
const LINGER: u64 = 16 << 20;

/// The limits in use.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    body: Size,
    time: Period,
}

impl From<&LimitSettings> for Limits {
    fn from(settings: &LimitSettings) -> Self {
        Self {
            body: settings.body_bytes,
            time: settings.request_timeout,
        }
    }
}

/// Limits the body's size and the time of a request.
///
/// A body that is not a file is received here, as a whole. Handlers would do the same, and here a slow caller can be
/// told from a slow answer.
pub(super) async fn limit(State(limits): State<Limits>, request: Request, next: Next) -> Response {
    let time = limits.time.duration();
    if is_upload(request.uri().path()) {
        return upload(time, request, next).await;
    }
    let (parts, body) = request.into_parts();
    let body = match timeout(time, receive(body, declared(&parts.headers), limits.body)).await {
        Ok(Ok(body)) => body,
        Ok(Err(problem)) => return problem.into_response(),
        Err(_) => {
            let detail = format!("The request was not received within {}.", limits.time);
            return Problem::new(StatusCode::REQUEST_TIMEOUT, detail).into_response();
        }
    };
    let mut request = Request::from_parts(parts, Body::from(body));
    // The size of the body has been checked.
    DefaultBodyLimit::disable().apply(&mut request);
    if let Ok(response) = timeout(time, next.run(request)).await {
        return response;
    }
    let detail = format!("There was no answer within {}. Try again later.", limits.time);
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).into_response()
}

/// Passes a body that is a file to its handler as a stream; the handler limits its size. It may take long, but must not
/// stall.
async fn upload(time: Duration, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let pieces = futures::stream::unfold(body.into_data_stream(), move |mut stream| async move {
        let piece = match timeout(time, stream.next()).await {
            Ok(piece) => piece?,
            Err(_) => Err(axum::Error::new(StoodStill)),
        };
        Some((piece, stream))
    });
    next.run(Request::from_parts(parts, Body::from_stream(pieces))).await
}

/// The reason for giving up an upload.
#[derive(Debug, thiserror::Error)]
#[error("nothing came for too long")]
struct StoodStill;

/// Receives a whole body.
async fn receive(body: Body, declared: Option<u64>, most: Size) -> Result<Bytes, Problem> {
    let mut kept = Vec::with_capacity(usize::try_from(declared.unwrap_or(0).min(most.0)).unwrap_or(0));
    let mut received = 0;
    let mut stream = body.into_data_stream();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|error| Problem::bad_request(format_args!("The body broke off: {error}.")))?;
        received += piece.len() as u64;
        if received <= most.0 {
            kept.extend_from_slice(&piece);
        } else if received > LINGER || declared.is_some_and(|declared| declared > LINGER) {
            break;
        }
    }
    match declared.unwrap_or(received).max(received) {
        sent if sent <= most.0 => Ok(kept.into()),
        _ if declared.is_none() && received > LINGER => Err(too_large(most, "more than 16 MiB")),
        sent => Err(too_large(most, format_args!("{sent} bytes"))),
    }
}

fn too_large(most: Size, sent: impl std::fmt::Display) -> Problem {
    let detail = format!("The body may have {} bytes ({most}) at most; {sent} were sent.", most.0);
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
}

/// The length of the body, as declared by the caller.
fn declared(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Whether the body is a file.
fn is_upload(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    matches!(
        parts.as_slice(),
        ["", "kiln", "v1", "recipes", _, "archive"] | ["", "kiln", "v1", "images", _, "artifacts", _]
    )
}

/// The answer when a handler panics. The message of the panic stays in the log.
#[expect(clippy::needless_pass_by_value, reason = "that is how it is called")]
pub(super) fn panicked(what: Box<dyn Any + Send>) -> Response {
    let text = what
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| what.downcast_ref::<String>().map(String::as_str));
    tracing::error!("a request handler panicked: {}", text.unwrap_or("it gave no reason"));
    let detail = "An internal error. The server's log has the details, under the x-request-id of this answer.";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail).into_response()
}

#[cfg(test)]
mod tests {
    use axum::{Router, routing::get};
    use tower::ServiceExt;

    use super::*;
    use crate::api::{auth::Auth, serve};

    /// The answer of a whole server with this single handler.
    async fn answer(handler: axum::routing::MethodRouter, path: &str) -> (StatusCode, String) {
        let settings = LimitSettings {
            request_timeout: Period::seconds(1),
            ..LimitSettings::default()
        };
        let router = Router::new().route("/v3/images", handler);
        let app = serve::app(router, None, Auth::open(&settings), Limits::from(&settings));
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = app.oneshot(request).await.unwrap();
        let status = response.status();
        if !status.is_success() {
            assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
        }
        assert!(response.headers().contains_key("x-request-id"));
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn an_answer_that_does_not_come_is_a_problem() {
        let (status, text) = answer(get(std::future::pending::<()>), "/v3/images").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(text.contains("There was no answer within 1s."), "{text}");
    }

    #[tokio::test]
    async fn a_panic_is_a_problem_that_does_not_say_what_it_was() {
        async fn panicking(request: Request) {
            assert!(request.uri().path().is_empty(), "the secret is 42");
        }
        let (status, text) = answer(get(panicking), "/apis/ims/v3/images").await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(!text.contains("42"), "{text}");
    }

    #[tokio::test]
    async fn addresses_are_made_normal_before_they_are_looked_at() {
        for path in [
            "/v3/images",
            "//v3/images",
            "/apis/ims/v3/images",
            "/apis/ims//v3/images",
        ] {
            let (status, text) = answer(get(|| async { "here" }), path).await;
            assert_eq!((status, text.as_str()), (StatusCode::OK, "here"), "{path}");
        }
    }

    #[test]
    fn only_files_may_be_large() {
        for path in ["/kiln/v1/recipes/1/archive", "/kiln/v1/images/1/artifacts/rootfs"] {
            assert!(is_upload(path), "{path}");
        }
        for path in [
            "/v3/images",
            "/kiln/v1/images/1/manifest",
            "/kiln/v1/recipes//1/archive",
            "/kiln/v1/recipes/1/archive/",
            "/v3/kiln/v1/recipes/1/archive",
        ] {
            assert!(!is_upload(path), "{path}");
        }
    }
}
