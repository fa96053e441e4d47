//! Remote build nodes: hosts that run jobs of their own architecture natively. Pure: no I/O.

use serde::{Deserialize, Serialize};

/// A host that is registered to run jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RemoteBuildNode {
    /// The host name, which is its id.
    pub xname: String,
}

/// The result of a check of a host. The texts hold the reason if the check failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemoteBuildNodeStatus {
    /// The host's name.
    pub xname: String,
    /// The result of the login with SSH.
    pub ssh_status: String,
    /// The result of the check for Podman.
    pub podman_status: String,
    /// Its architecture.
    pub node_arch: String,
    /// The number of jobs that run there now; -1 if unknown.
    pub num_current_jobs: i64,
    /// Whether jobs can run there.
    pub able_to_run_jobs: bool,
}
