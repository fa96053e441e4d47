//! `/prune`: what the section `[retention]` gives up. Touches the database and S3, through [`retention`](crate::retention).

use std::time::Duration;

use axum::{Json, extract::State};

use crate::{
    api::{Api, orphans, problem::Result},
    retention::Pruned,
};

/// How long a request may work: less than the usual limit of a request.
const LONGEST: Duration = Duration::from_secs(30);

/// Show what pruning would remove now: as much of it as can be found in half a minute.
#[utoipa::path(get, path = "/prune", tag = "retention", responses((status = 200, body = Pruned)))]
pub(super) async fn look(State(api): State<Api>) -> Result<Json<Pruned>> {
    Ok(Json(api.retention.prune(true, Some(LONGEST)).await?))
}

/// Remove what the server's rules give up, for half a minute. `complete` says whether that was all.
#[utoipa::path(post, path = "/prune", tag = "retention", responses((status = 200, body = Pruned)))]
pub(super) async fn prune(State(api): State<Api>) -> Result<Json<Pruned>> {
    let pruned = api.retention.prune(false, Some(LONGEST)).await?;
    orphans::remove(&api).await;
    api.wake_orchestrator();
    Ok(Json(pruned))
}
