//! Limits the size, the memory and the duration of requests. Touches the request only.

use std::any::Any;

use axum::{
    body::Body,
    extract::{DefaultBodyLimit, Request, State},
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse, Response},
};
use kiln_records::budget::RECORD_BYTES;
use tokio::time::timeout;

use super::{
    bodies::{self, Bodies, Refused, Share},
    problem::Problem,
    rate::Key,
};
use crate::{
    artifacts::largest_part,
    config::LimitSettings,
    settings::{Period, Size},
    store::Most,
};

/// The least memory for the bodies of one caller, in bytes. All callers together have four times as much.
const LEAST_MEMORY: u64 = 64 << 20;

/// The limits in use. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Limits {
    body: Size,
    time: Period,
    bodies: Bodies,
}

impl From<&LimitSettings> for Limits {
    fn from(settings: &LimitSettings) -> Self {
        // Whatever may be sent has to fit.
        let largest = settings.body_bytes.0.max(largest_part(settings.upload_bytes.0));
        let of_one = usize::try_from(LEAST_MEMORY.max(largest.saturating_mul(2))).unwrap_or(usize::MAX);
        Self {
            body: settings.body_bytes,
            time: settings.request_timeout,
            bodies: Bodies::new(of_one.saturating_mul(4), of_one),
        }
    }
}

impl From<&LimitSettings> for Most {
    fn from(settings: &LimitSettings) -> Self {
        Self {
            of_caller: settings.records_of_caller,
            of_all: settings.records,
        }
    }
}

/// The memory for the body of a request, for a handler that receives it. Requests have it among their extensions.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    bodies: Bodies,
    caller: Key,
}

impl Memory {
    /// The memory of this request; nothing at first.
    pub(crate) fn share(&self) -> Share {
        self.bodies.share(self.caller.clone())
    }
}

/// Limits the body's size, its memory and the time of a request.
///
/// A body that is not a file is received here, as a whole. Handlers would do the same, and here a slow caller can be
/// told from a slow answer.
pub(super) async fn limit(State(limits): State<Limits>, mut request: Request, next: Next) -> Response {
    let time = limits.time.duration();
    let memory = Memory {
        bodies: limits.bodies.clone(),
        caller: request.extensions().get::<Key>().cloned().unwrap_or(Key::Others),
    };
    if is_upload(request.uri().path()) {
        // The handler limits its size.
        request.extensions_mut().insert(memory);
        return next
            .run(request.map(|body| Body::from_stream(bodies::pieces(body, time))))
            .await;
    }
    let (parts, body) = request.into_parts();
    let mut share = memory.share();
    let most = most(parts.uri.path(), limits.body);
    let body = match bodies::receive(&parts.headers, body, most.0, time, &mut share).await {
        Ok(body) => body,
        Err(refused) => return limits.refuse(&refused, most).into_response(),
    };
    let mut request = Request::from_parts(parts, Body::from(body));
    // The size of the body has been checked.
    DefaultBodyLimit::disable().apply(&mut request);
    let answer = timeout(time, next.run(request)).await;
    drop(share);
    if let Ok(response) = answer {
        return response;
    }
    let detail = format!("There was no answer within {}. Try again later.", limits.time);
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).into_response()
}

impl Limits {
    fn refuse(&self, refused: &Refused, most: Size) -> Problem {
        match refused {
            Refused::TooLarge(_) => {
                let detail = format!("The body may have {} bytes ({most}) at most; {refused}.", most.0);
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
            }
            Refused::Slow => {
                let detail = format!("The request was not received within {}.", self.time);
                Problem::new(StatusCode::REQUEST_TIMEOUT, detail)
            }
            Refused::Full => no_memory(),
            Refused::Broken(_) => Problem::bad_request(refused),
        }
    }
}

/// 503: too many bodies are being received.
pub(super) fn no_memory() -> Problem {
    Problem::busy("The server is receiving as much as it can hold. Try again later.")
}

/// The largest body at an address that takes no file; `contents` is what the site allows where the body has contents that
/// become objects in S3. Any other body becomes a record, or a part of one.
fn most(path: &str, contents: Size) -> Size {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        ["", "kiln", "v1", "images", _, "boot-check" | "customize" | "manifest"] => contents,
        _ => Size(contents.0.min(RECORD_BYTES as u64)),
    }
}

/// The largest body at an address unless the site has set something else, for the documentation.
pub(super) fn usual_most(path: &str) -> u64 {
    let usual = LimitSettings::default();
    if is_upload(path) {
        usual.upload_bytes.0
    } else {
        most(path, usual.body_bytes).0
    }
}

/// Whether the body is a file.
fn is_upload(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    matches!(
        parts.as_slice(),
        ["", "ui", "recipes", "upload"]
            | ["", "kiln", "v1", "recipes", _, "archive"]
            | ["", "kiln", "v1", "images", _, "artifacts", _]
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
    use axum::{Router, http::header, routing::get};
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
        let app = serve::app(router, None, Auth::open(Vec::new(), &settings), Limits::from(&settings));
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
