//! The REST API.
//!
//! One file per resource. Everything here speaks HTTP and JSON and nothing else does; what requests mean for records is
//! decided in the handlers, what is kept in [`store`](crate::store), what lies in S3 in [`artifacts`](crate::artifacts).

pub mod address;
pub mod agent;
pub mod auth;
mod body;
mod fields;
mod job_options;
mod kiln;
pub mod limits;
mod lists;
pub mod openapi;
pub mod orphans;
pub mod problem;
mod rate;
mod request_log;
mod schemas;
pub mod serve;
mod service;
pub mod tls;
mod uploads;
mod v2;
mod v3;

use std::sync::Arc;

use axum::Router;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    artifacts::ArtifactStore,
    orchestrate::{Orchestrator, ask::Asker, schedule::Scheduler},
    remote_nodes::RemoteNodeSettings,
    store::{LogFeed, SharedStore},
};

/// What request handlers share. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Api(Arc<Shared>);

/// The parts of [`Api`].
#[derive(Debug)]
pub struct Shared {
    /// Records.
    pub store: SharedStore,
    /// Objects.
    pub artifacts: ArtifactStore,
    /// Takes new jobs in.
    pub asker: Arc<Asker>,
    /// The largest object that is taken over the API, in bytes.
    pub upload_bytes: u64,
    /// How remote build nodes are logged in to.
    pub remote_nodes: RemoteNodeSettings,
    /// Wakes those who follow a job.
    pub feed: Arc<LogFeed>,
    /// Cancelled when the server stops: answers that go on for ever end then.
    pub stop: CancellationToken,
    /// What carries jobs out; none where somebody else does.
    pub orchestrator: Option<Arc<Orchestrator>>,
    /// Rung when a schedule was changed.
    pub schedule_changed: Arc<Notify>,
}

impl std::ops::Deref for Api {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Api {
    /// An API over these.
    pub fn new(shared: Shared) -> Self {
        Self(Arc::new(shared))
    }

    /// Something is to be cleared away.
    fn wake_orchestrator(&self) {
        if let Some(orchestrator) = &self.orchestrator {
            orchestrator.clear_away();
        }
    }

    /// What makes the jobs of schedules.
    pub fn scheduler(&self) -> Scheduler {
        Scheduler::new(Arc::clone(&self.asker), Arc::clone(&self.schedule_changed))
    }

    /// The routes, without authentication and limits. Addresses have to be [normal](address::normalize) by then.
    pub fn router(self) -> Router {
        let (router, document) = openapi::routes().split_for_parts();
        router
            .merge(openapi::pages(&document))
            .method_not_allowed_fallback(address::wrong_method)
            .fallback(address::unknown)
            .with_state(self)
    }
}
