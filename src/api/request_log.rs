//! Writes one line to the log for each request, with an id by which the request can be found there.

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

use axum::{
    extract::Request,
    http::{HeaderName, HeaderValue, Method, StatusCode},
    middleware::Next,
    response::Response,
};
use tracing::Instrument;
use uuid::Uuid;

use crate::metrics;

/// The header with a request's id. An id from a gateway is kept.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id that is taken over.
const LONGEST_ID: usize = 64;

/// The caller of a request: set by authentication, read by the log.
#[derive(Debug, Clone, Default)]
pub(super) struct Caller(Arc<OnceLock<String>>);

impl Caller {
    /// Sets the name of the caller.
    pub(super) fn is(&self, name: &str) {
        // The first name stays.
        let _ = self.0.set(name.to_owned());
    }
}

/// The id of a request: set by the log, read by the audit log.
#[derive(Debug, Clone)]
pub(super) struct RequestId(pub(super) String);

/// The middleware that writes the line.
pub(super) async fn log(mut request: Request, next: Next) -> Response {
    let id = identity(&request);
    let caller = Caller::default();
    request.extensions_mut().insert(caller.clone());
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut line = Line {
        method: request.method().clone(),
        path: request.uri().path().to_owned(),
        id: id.clone(),
        caller,
        begun: Instant::now(),
        status: None,
    };
    let span = tracing::info_span!("request", id = %id);
    let mut response = next.run(request).instrument(span).await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    line.status = Some(response.status());
    response
}

fn identity(request: &Request) -> String {
    let given = request.headers().get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let plain = |id: &&str| {
        let plain = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
        !id.is_empty() && id.len() <= LONGEST_ID && id.bytes().all(plain)
    };
    given
        .filter(plain)
        .map_or_else(|| Uuid::new_v4().to_string(), str::to_owned)
}

/// The line. It is written when the request is over, also when the caller went away before.
struct Line {
    method: Method,
    /// The path without the query, which may contain private data.
    path: String,
    id: String,
    caller: Caller,
    begun: Instant,
    status: Option<StatusCode>,
}

impl Drop for Line {
    fn drop(&mut self) {
        let (method, path, id) = (&self.method, self.path.as_str(), self.id.as_str());
        let principal = self.caller.0.get().map_or("-", String::as_str);
        metrics::api_answered(self.status.map(|status| status.as_u16()), self.begun.elapsed());
        let duration_ms = self.begun.elapsed().as_secs_f64() * 1000.0;
        let duration_ms = (duration_ms * 1000.0).round() / 1000.0;
        let Some(status) = self.status else {
            tracing::info!(%method, path, duration_ms, request.id = id, principal, "the caller closed the connection");
            return;
        };
        let status = status.as_u16();
        // Probes arrive every few seconds for ever.
        if path.starts_with("/healthz/") && status < 400 {
            tracing::debug!(%method, path, status, duration_ms, request.id = id, principal, "answered");
        } else {
            tracing::info!(%method, path, status, duration_ms, request.id = id, principal, "answered");
        }
    }
}
