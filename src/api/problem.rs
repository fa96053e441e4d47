//! Error answers: `application/problem+json`, with the members that IMS's clients read. Pure, but for the log.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use kiln_records::{Code, Failure};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{
    artifacts::{Misplaced, Unlisted, Unusable},
    orchestrate::ask::Refusal,
    store::StoreError,
};

/// The time after which a busy server may be asked again, in seconds.
const RETRY_AFTER: u32 = 5;

/// The result of a handler.
pub type Result<T> = std::result::Result<T, Problem>;

/// A refusal or a failure of a request (RFC 9457).
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Problem {
    /// The HTTP status.
    #[serde(serialize_with = "as_number")]
    #[schema(value_type = u16)]
    pub status: StatusCode,
    /// The reason phrase of the status.
    pub title: String,
    /// The cause, in plain text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub detail: Option<String>,
    /// The mistakes by field: lists of texts, nested like the fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<std::collections::BTreeMap<String, Value>>, nullable = false)]
    pub errors: Option<Map<String, Value>>,
    /// `urn:kiln:failure:` followed by the code; absent without a code.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub kind: Option<Kind>,
    /// The stable code of the failure; docs/errors.md lists all codes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub code: Option<Code>,
    /// The suggested remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub hint: Option<String>,
    /// The seconds after which the request may be repeated, for the header `Retry-After`.
    #[serde(skip)]
    pub retry_after: Option<u32>,
}

/// The `type` of a problem that comes from a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind(Code);

impl Serialize for Kind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("urn:kiln:failure:{}", self.0))
    }
}

impl Problem {
    /// A problem with its status and cause.
    pub fn new(status: StatusCode, detail: impl std::fmt::Display) -> Self {
        Self {
            status,
            title: status.canonical_reason().unwrap_or("Error").to_owned(),
            detail: Some(detail.to_string()),
            errors: None,
            kind: None,
            code: None,
            hint: None,
            retry_after: None,
        }
    }

    /// 503: the server has too much to do now.
    pub fn busy(detail: impl std::fmt::Display) -> Self {
        Self {
            retry_after: Some(RETRY_AFTER),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        }
    }

    /// 400: the request cannot be carried out in this form.
    pub fn bad_request(detail: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// 404: no such resource.
    pub fn not_found() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "Requested resource does not exist. Re-run request with valid ID.",
        )
    }

    /// 409: the request conflicts with an existing resource.
    pub fn conflict(detail: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::CONFLICT, detail)
    }

    /// 422: the request is readable but makes no sense.
    pub fn unprocessable(detail: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    /// 422, with the errors of each field.
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
            StoreError::Doomed(_) | StoreError::Stale | StoreError::Exists | StoreError::TooMany { .. } => {
                Self::conflict(error)
            }
            StoreError::TooLarge { .. } => Self::new(StatusCode::PAYLOAD_TOO_LARGE, error),
            StoreError::Damaged(_) => Failure::from(error).into(),
            StoreError::Unavailable(_) => {
                let mut problem = Self::from(Failure::from(error));
                // The address of the database belongs in the log only.
                problem.detail = Some("The database does not answer. Try again later.".to_owned());
                problem
            }
        }
    }
}

/// Statuses are those of IMS: an unusable reference of a job is a 400.
impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::ShellOfCreate
            | Refusal::OfRecipes
            | Refusal::OfContainerfile(_)
            | Refusal::OnlyContainerfile
            | Refusal::NoSecret(_)
            | Refusal::TooManyShells
            | Refusal::Unknown(..)
            | Refusal::NoLink(_) => Self::bad_request(refusal),
            Refusal::Packer => Self::unprocessable(refusal),
            Refusal::RecordsOnly
            | Refusal::NotEnded
            | Refusal::NotSettled
            | Refusal::FilesGone
            | Refusal::NotReached { .. } => Self::conflict(refusal),
            Refusal::Object(unusable) => unusable.into(),
            Refusal::Failed(failure) => failure.into(),
            Refusal::Store(error) => error.into(),
        }
    }
}

/// Statuses are those of IMS, which accepts invalid manifests.
impl From<Unusable> for Problem {
    fn from(unusable: Unusable) -> Self {
        match unusable {
            Unusable::Place(Misplaced::NotAPath(_)) => {
                let errors = json!({"path": ["Not of the form s3://bucket/key."]});
                Self::invalid(Map::from_iter([("link".to_owned(), errors)]))
            }
            Unusable::Missing(_) | Unusable::Place(Misplaced::Foreign(_)) | Unusable::Malformed { .. } => {
                Self::unprocessable(unusable)
            }
            Unusable::TooLarge { .. } | Unusable::Rootfs { .. } => Self::bad_request(unusable),
            Unusable::S3(failure) => failure.into(),
        }
    }
}

impl From<Unlisted> for Problem {
    fn from(unlisted: Unlisted) -> Self {
        match unlisted {
            Unlisted::Manifest(unusable) => unusable.into(),
            Unlisted::Document(detail) => Self::unprocessable(detail),
            Unlisted::S3(failure) => failure.into(),
            Unlisted::Ending(detail) => Self::busy(detail),
        }
    }
}

/// The table of failures decides between client and server. Only the server's failures are logged.
impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        let Failure { code, detail, hint, .. } = failure;
        let status = StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if status.is_server_error() {
            tracing::error!(code = code.name(), hint, "{detail}");
        }
        Self {
            kind: Some(Kind(code)),
            code: Some(code),
            hint,
            ..Self::new(status, detail)
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let kind = HeaderValue::from_static("application/problem+json");
        let retry_after = self.retry_after;
        let mut response = (self.status, [(header::CONTENT_TYPE, kind)], Json(self)).into_response();
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_failure_says_what_it_is_and_what_to_do() {
        let problem = Problem::from(Failure::new(Code::S3Unreachable, "cannot read it").hint("start it"));
        let expected = json!({
            "status": 502, "title": "Bad Gateway", "detail": "cannot read it",
            "type": "urn:kiln:failure:s3_unreachable", "code": "s3_unreachable", "hint": "start it",
        });
        assert_eq!(serde_json::to_value(problem).unwrap(), expected);
        for code in Code::ALL {
            let problem = Problem::from(Failure::new(*code, ""));
            assert_eq!(problem.status.as_u16(), code.status(), "{code}");
            assert_ne!(problem.title, "Error", "{code}");
        }
    }

    #[test]
    fn a_problem_without_a_failure_is_as_ims_has_it() {
        let problem = serde_json::to_value(Problem::bad_request("no")).unwrap();
        assert_eq!(problem, json!({"status": 400, "title": "Bad Request", "detail": "no"}));
    }

    #[test]
    fn a_database_that_is_away_is_named_in_the_log_only() {
        let problem = Problem::from(StoreError::Unavailable("postgres://me@there".to_owned()));
        assert_eq!(
            (problem.status, problem.code),
            (StatusCode::SERVICE_UNAVAILABLE, Some(Code::StoreUnavailable))
        );
        assert!(!serde_json::to_string(&problem).unwrap().contains("postgres"));
    }
}
