//! `/audit`: who changed what. Reads the database.

use axum::{
    Json,
    extract::{RawQuery, State},
};
use kiln_records::{Moment, audit::AuditEntry};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::{
    api::{
        Api, lists,
        problem::{Problem, Result},
    },
    store::AuditQuery,
};

/// The number of entries by default.
const USUAL: u32 = 100;

/// The most entries.
const MOST: u32 = 1000;

/// The entries to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "documentation; list() reads it")]
pub(super) struct AuditParameters {
    /// Only those of this caller.
    #[param(nullable = false)]
    who: Option<String>,
    /// Only those about this record.
    #[param(nullable = false, value_type = Option<uuid::Uuid>)]
    record_id: Option<String>,
    /// Only those from this time on, in RFC 3339.
    #[param(nullable = false, format = DateTime, example = "2026-11-01T00:00:00Z")]
    since: Option<String>,
    /// Only those before this time.
    #[param(nullable = false, format = DateTime, example = "2026-12-01T00:00:00Z")]
    until: Option<String>,
    /// The maximum number of entries; the default is 100.
    #[param(nullable = false, minimum = 1, maximum = 1_000)]
    limit: Option<u32>,
}

/// List the requests that could change something, latest first: those of callers that may do so, whatever became of them.
#[utoipa::path(get, path = "/audit", tag = "audit", params(AuditParameters),
    responses((status = 200, body = Vec<AuditEntry>), (status = 400, body = Problem)))]
pub(super) async fn list(State(api): State<Api>, RawQuery(query): RawQuery) -> Result<Json<Vec<AuditEntry>>> {
    let mut wanted = AuditQuery {
        limit: USUAL,
        ..AuditQuery::default()
    };
    for (key, value) in lists::pairs(query.as_deref())? {
        let wrong = |what: &str| Problem::bad_request(format_args!("`{key}` has to be: {what}."));
        let moment = || {
            value
                .parse::<Moment>()
                .map_err(|_| wrong("a time such as 2026-11-01T00:00:00Z"))
        };
        match key.as_str() {
            "who" => wanted.who = Some(value),
            "record_id" => wanted.record_id = Some(value.parse().map_err(|_| wrong("the id of a record"))?),
            "since" => wanted.since = Some(moment()?),
            "until" => wanted.until = Some(moment()?),
            "limit" => {
                let number = value.parse().ok().filter(|limit| (1..=MOST).contains(limit));
                wanted.limit = number.ok_or_else(|| wrong(&format!("a number from 1 to {MOST}")))?;
            }
            _ => return Err(Problem::bad_request(format_args!("There is no parameter `{key}`."))),
        }
    }
    Ok(Json(api.store.audit_entries(&wanted).await?))
}
