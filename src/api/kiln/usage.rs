//! `/kiln/v1/jobs/{id}/usage`: what a job used over time. Reads the database.

use axum::{Json, extract::State};
use kiln_records::usage::UsageCurve;

use super::jobs::carried_out;
use crate::api::{
    Api,
    address::Path,
    problem::{Problem, Result},
    v3::id,
};

/// Read what the latest attempt of a job used over time, in 120 points at most.
#[utoipa::path(get, path = "/jobs/{id}/usage", tag = "jobs",
    params(("id" = String, Path, description = "The id of the record")),
    responses((status = 200, body = UsageCurve), (status = 404, body = Problem), (status = 409, body = Problem)))]
pub(super) async fn get(State(api): State<Api>, Path(text): Path<String>) -> Result<Json<UsageCurve>> {
    let stored = carried_out(&api, id(&text)?).await?;
    let curve = api.store.usage(stored.job.id).await?;
    let attempt = stored.run.attempt;
    let of_attempt = curve.filter(|curve| curve.attempt == attempt);
    Ok(Json(of_attempt.unwrap_or(UsageCurve::new(attempt))))
}
