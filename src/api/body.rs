//! Reads request bodies as JSON, and answers those that are not. Touches the request only.

use axum::{
    body::Bytes,
    extract::{FromRequest, Request, rejection::BytesRejection},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use super::{
    fields::{self, Members},
    problem::{Problem, Result},
};

/// A body, unread. A handler reads it after its other checks.
#[derive(Debug)]
pub(super) struct RawBody {
    bytes: Bytes,
    is_json: bool,
}

impl<S: Send + Sync> FromRequest<S> for RawBody {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self> {
        let is_json = is_json(request.headers());
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|rejection| unreadable(&rejection))?;
        Ok(Self { bytes, is_json })
    }
}

impl RawBody {
    /// The members of the body.
    ///
    /// # Errors
    ///
    /// As [`RawBody::json`], and 422 with all mistakes in its members.
    pub(super) fn read<B: Members>(&self) -> Answer<B> {
        Ok(fields::read(self.json()?)?)
    }

    /// The members of the body, where a body is optional.
    ///
    /// # Errors
    ///
    /// As [`RawBody::read`]; an empty body counts as none.
    pub(super) fn read_if_any<B: Members>(&self) -> Answer<Option<B>> {
        if self.bytes.is_empty() || (self.is_json && self.bytes.trim_ascii() == b"{}") {
            return Ok(None);
        }
        self.read().map(Some)
    }

    /// The body as JSON that is not empty.
    ///
    /// # Errors
    ///
    /// 415 for another media type, 400 for invalid JSON or an empty value (`{}`, `[]`, `null`, `0`, `""`).
    pub(super) fn json(&self) -> std::result::Result<Value, Refusal> {
        if !self.is_json {
            return Err(Refusal::Framework(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "The body has to be JSON, with the content type application/json.".to_owned(),
            ));
        }
        let value: Value = serde_json::from_slice(&self.bytes)
            .map_err(|error| Refusal::Framework(StatusCode::BAD_REQUEST, format!("The body is not JSON: {error}.")))?;
        if says_nothing(&value) {
            return Err(Problem::bad_request("The request body is empty.").into());
        }
        Ok(value)
    }
}

/// The reason for refusing a body.
#[derive(Debug)]
pub(super) enum Refusal {
    /// An answer of IMS's web framework, which is not a problem document.
    Framework(StatusCode, String),
    /// A problem.
    Problem(Box<Problem>),
}

impl<P: Into<Problem>> From<P> for Refusal {
    fn from(problem: P) -> Self {
        Self::Problem(Box::new(problem.into()))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Refusal::Framework(status, message) => (status, axum::Json(json!({ "message": message }))).into_response(),
            Refusal::Problem(problem) => problem.into_response(),
        }
    }
}

/// The result of a handler that reads a body.
pub(super) type Answer<T> = std::result::Result<T, Refusal>;

fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()) else {
        return false;
    };
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

fn unreadable(rejection: &BytesRejection) -> Problem {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        return Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "The request body is larger than this server takes (limits.body_bytes).",
        );
    }
    Problem::bad_request(rejection.body_text())
}
