//! `/metrics`: the figures of this server in Prometheus' text format. Asks the database whether it answers, and the file
//! system of the data directory for its space; all other figures are in memory.

use std::time::Duration;

use axum::{Router, extract::State, http::header, response::IntoResponse, routing::get};
use kiln_records::arch::Arch;
use rustix::fs::{StatVfs, statvfs};
use tokio::time::timeout;

use super::Api;
use crate::metrics::{Answer, CONTENT_TYPE, gauges};

/// How long the database, or the file system, may take. Prometheus gives up after 10 s by default.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) fn routes() -> Router<Api> {
    Router::new().route("/metrics", get(metrics))
}

async fn metrics(State(api): State<Api>) -> impl IntoResponse {
    let mut answer = Answer::default();
    let version = env!("CARGO_PKG_VERSION");
    answer.count(&gauges::BUILD_INFO, [version, Arch::host().name()], 1);
    answer.time(&gauges::START_TIME, api.started);
    let directory = api.data_dir.clone();
    let look = tokio::task::spawn_blocking(move || statvfs(&directory));
    let (database, space) = tokio::join!(timeout(PATIENCE, api.store.ping()), timeout(PATIENCE, look));
    let is_up = matches!(database, Ok(Ok(())));
    answer.count(&gauges::DATABASE_UP, [], is_up.into());
    if let Ok(Ok(Ok(space))) = space {
        write_space(&mut answer, &space);
    }
    if let Some(orchestrator) = &api.orchestrator {
        orchestrator.glance.write_metrics(&mut answer);
    }
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], answer.text())
}

fn write_space(answer: &mut Answer, space: &StatVfs) {
    let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
    answer.count(&gauges::DATA_SIZE, [], bytes(space.f_blocks));
    answer.count(&gauges::DATA_FREE, [], bytes(space.f_bavail));
    if space.f_files > 0 {
        answer.count(&gauges::DATA_FILES, [], space.f_files);
        answer.count(&gauges::DATA_FILES_FREE, [], space.f_favail);
    }
}
