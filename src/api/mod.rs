//! The REST API. It touches the network; database and S3 only through the store and the artifacts.
//!
//! One file per resource. Only this module speaks HTTP and JSON with users. The handlers decide the effect of a request
//! on records; [`store`](crate::store) has the records, and [`artifacts`](crate::artifacts) has the objects in S3.

pub mod address;
pub mod agent;
mod audit;
pub mod auth;
mod bodies;
mod body;
pub mod connections;
mod fields;
mod hurried;
mod job_options;
pub(crate) mod kiln;
pub mod limits;
mod lists;
mod metrics;
pub mod openapi;
mod origin;
pub mod orphans;
mod places;
pub mod problem;
mod rate;
mod request_log;
mod schemas;
mod security_headers;
pub mod serve;
mod service;
pub mod tls;
pub mod turns;
mod uploads;
mod v2;
mod v3;

use std::{path::PathBuf, sync::Arc};

use axum::{Router, middleware};
use kiln_records::Moment;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::turns::Turns;
use crate::{
    artifacts::ArtifactStore,
    orchestrate::{Orchestrator, ask::Asker, schedule::Scheduler, sets::Sets},
    remote_nodes::RemoteNodeSettings,
    retention::Retention,
    store::{LogFeed, Most, SharedStore},
};

/// The state shared by request handlers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Api(Arc<Shared>);

/// The parts of [`Api`].
#[derive(Debug)]
pub struct Shared {
    /// The store of records.
    pub store: SharedStore,
    /// The objects in S3.
    pub artifacts: ArtifactStore,
    /// The door for new jobs.
    pub asker: Arc<Asker>,
    /// The directory of Kiln's files.
    pub data_dir: PathBuf,
    /// When this process started.
    pub started: Moment,
    /// The turns of answers that grow as long as their jobs run.
    pub streams: Turns,
    /// What each caller may add to the records.
    pub most_records: Most,
    /// The largest object accepted over the API, in bytes.
    pub upload_bytes: u64,
    /// The URL of this server for its users, if it is configured.
    pub public_url: Option<String>,
    /// The login to remote build nodes.
    pub remote_nodes: RemoteNodeSettings,
    /// Wakes the followers of a job.
    pub feed: Arc<LogFeed>,
    /// Cancelled when the server stops, to end endless answers.
    pub stop: CancellationToken,
    /// The orchestrator; none if another server carries out jobs.
    pub orchestrator: Option<Arc<Orchestrator>>,
    /// Removes what the settings give up.
    pub retention: Retention,
    /// Notified when a schedule changes.
    pub schedule_changed: Arc<Notify>,
}

impl std::ops::Deref for Api {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Api {
    /// An API with these parts.
    pub fn new(shared: Shared) -> Self {
        Self(Arc::new(shared))
    }

    /// The sets of this server.
    pub fn sets(&self) -> Sets {
        Sets::new(Arc::clone(&self.asker))
    }

    /// Wakes the orchestrator, because remains are to be cleared away.
    fn wake_orchestrator(&self) {
        if let Some(orchestrator) = &self.orchestrator {
            orchestrator.jobs.clear_away();
        }
    }

    /// The scheduler of jobs.
    pub fn scheduler(&self) -> Scheduler {
        Scheduler::new(Arc::clone(&self.asker), Arc::clone(&self.schedule_changed))
    }

    /// The routes of an address that serves metrics alone, without authentication and limits.
    pub fn metrics_router(self) -> Router {
        metrics::routes()
            .method_not_allowed_fallback(address::wrong_method)
            .fallback(address::unknown)
            .with_state(self)
    }

    /// The routes, without authentication and limits. They expect [normalized](address::normalize) addresses.
    pub fn router(self) -> Router {
        let (router, document) = openapi::routes().split_for_parts();
        router
            .merge(openapi::pages(&document))
            .merge(metrics::routes())
            .method_not_allowed_fallback(address::wrong_method)
            .fallback(address::unknown)
            .layer(middleware::from_fn_with_state(self.clone(), audit::note))
            .with_state(self)
    }
}
