//! The REST API.
//!
//! One file per resource. Everything here speaks HTTP and JSON and nothing else does; what requests mean for records is
//! decided in the handlers, what is kept in [`store`](crate::store), what lies in S3 in [`artifacts`](crate::artifacts).

pub mod address;
pub mod auth;
pub mod limits;
pub mod problem;
mod rate;
mod request_log;
pub mod serve;
pub mod tls;

use std::sync::Arc;

use axum::{Json, Router, routing::get};
use serde_json::json;

use crate::{artifacts::ArtifactStore, store::SharedStore};

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

    /// The routes, without authentication and limits.
    pub fn router(self) -> Router {
        Router::new()
            .route("/healthz/live", get(|| async { Json(json!({})) }))
            .with_state(self)
    }
}
