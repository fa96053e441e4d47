//! Remote build nodes: hosts that run jobs of their own architecture natively. Pure: no I/O.

use serde::{Deserialize, Serialize};

/// A registered host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RemoteBuildNode {
    /// The host's name, which is its identity.
    pub xname: String,
}

/// What a look at a host found. Texts hold the reason when something is not as it has to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemoteBuildNodeStatus {
    /// The host's name.
    pub xname: String,
    /// Whether it can be logged in to.
    pub ssh_status: String,
    /// Whether it has Podman.
    pub podman_status: String,
    /// Its architecture.
    pub node_arch: String,
    /// Jobs that run there now; -1 when that is not known.
    pub num_current_jobs: i64,
    /// Whether jobs can run there.
    pub able_to_run_jobs: bool,
}
