//! `/kiln/v1`: what IMS has not. One file per resource.

mod follow;
mod jobs;
mod logs;

use utoipa_axum::{router::OpenApiRouter, routes};

use super::Api;

/// Everything of `/kiln/v1` but uploads.
pub(super) fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(logs::get))
        .routes(routes!(follow::get))
        .routes(routes!(jobs::get))
        .routes(routes!(jobs::cancel))
        .routes(routes!(jobs::retry))
}
