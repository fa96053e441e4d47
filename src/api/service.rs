//! `/healthz` and `/version`. Reads the database for `/healthz/ready`.

use axum::{Json, extract::State, http::StatusCode};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Api,
    problem::{Problem, Result},
};

/// An empty object: the status alone tells the health.
#[derive(Debug, ToSchema)]
struct Health {}

/// The service's version.
#[derive(Debug, Serialize, ToSchema)]
struct Version {
    version: &'static str,
}

/// Check that the process answers.
#[utoipa::path(get, path = "/healthz/live", tag = "service", responses((status = 200, body = Health)))]
async fn live() -> Json<Value> {
    Json(json!({}))
}

/// Check that requests can be served: the database answers.
#[utoipa::path(get, path = "/healthz/ready", tag = "service",
    responses((status = 200, body = Health), (status = 503, body = Problem)))]
async fn ready(State(api): State<Api>) -> Result<Json<Value>> {
    api.store.ping().await.map_err(|error| {
        tracing::warn!("not ready: {error}");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "The database does not answer.")
    })?;
    Ok(Json(json!({})))
}

/// The service's version.
#[utoipa::path(get, path = "/version", tag = "service", responses((status = 200, body = Version)))]
async fn version() -> Json<Version> {
    Json(Version {
        version: env!("CARGO_PKG_VERSION"),
    })
}

pub(super) fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(live))
        .routes(routes!(ready))
        .routes(routes!(version))
}
