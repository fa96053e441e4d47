//! Answers that say no: `application/problem+json`, with the members that IMS's clients read.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::{records::Failure, store::StoreError};

/// What a handler answers.
pub type Result<T> = std::result::Result<T, Problem>;

/// An answer that says no.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Problem {
    /// The HTTP status.
    #[serde(serialize_with = "as_number")]
    #[schema(value_type = u16)]
    pub status: StatusCode,
    /// The status in words.
    pub title: String,
    /// What is wrong, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub detail: Option<String>,
    /// What is wrong, field by field: lists of texts, nested as the fields are.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<std::collections::BTreeMap<String, Value>>, nullable = false)]
    pub errors: Option<Map<String, Value>>,
}

impl Problem {
    /// A problem with its status and cause.
    pub fn new(status: StatusCode, detail: impl std::fmt::Display) -> Self {
        Self {
            status,
            title: status.canonical_reason().unwrap_or("Error").to_owned(),
            detail: Some(detail.to_string()),
            errors: None,
        }
    }

    /// 400: the request cannot be carried out as it is.
    pub fn bad_request(detail: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// 404: there is nothing here.
    pub fn not_found() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "Requested resource does not exist. Re-run request with valid ID.",
        )
    }

    /// 409: it is in the way of something that exists.
    pub fn conflict(detail: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::CONFLICT, detail)
    }

    /// 422: it can be read, but it makes no sense.
    pub fn unprocessable(detail: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    /// 422, field by field.
    pub fn invalid(errors: Map<String, Value>) -> Self {
        let fields = errors.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let mut problem = Self::unprocessable(format_args!(
            "Input data was understood, but failed validation: {fields}."
        ));
        problem.errors = Some(errors);
        problem
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn as_number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::LinkInUse(_) => Self::unprocessable(error),
            StoreError::Doomed(_) | StoreError::Stale | StoreError::Exists => Self::conflict(error),
            StoreError::Unavailable(_) => {
                tracing::error!("{error}");
                Self::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "The database does not answer. Try again later.",
                )
            }
            StoreError::Damaged(_) => {
                tracing::error!("{error}");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, error)
            }
        }
    }
}

/// S3 or a database that does not answer is nobody's bad input.
impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        tracing::error!(code = failure.code, "{failure}");
        let status = match failure.code.as_str() {
            "store_unavailable" => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_GATEWAY,
        };
        Self::new(status, failure)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let kind = HeaderValue::from_static("application/problem+json");
        (self.status, [(header::CONTENT_TYPE, kind)], Json(self)).into_response()
    }
}
