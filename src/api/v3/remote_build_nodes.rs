//! `/remote-build-nodes`: hosts that can run jobs of their own architecture natively, and their state. Touches the
//! database, and the hosts over SSH.

use axum::{Json, extract::State, http::StatusCode};
use futures::{StreamExt, stream};
use kiln_records::{RemoteBuildNode, names::check_host_name, remote_build_node::RemoteBuildNodeStatus};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    api::{
        Api,
        address::Path,
        body::{Answer, RawBody},
        fields::{HostName, body},
        problem::{Problem, Result},
    },
    remote_nodes,
};

/// The number of hosts examined at the same time.
const PARALLEL: usize = 16;

body! {
    /// A new remote build node.
    pub(in crate::api) struct RemoteBuildNodeCreate {
        /// The host's name.
        xname: HostName,
    }
}

/// List the remote build nodes.
#[utoipa::path(get, path = "/remote-build-nodes", tag = "remote-build-nodes",
    responses((status = 200, body = Vec<RemoteBuildNode>)))]
async fn list_nodes(State(api): State<Api>) -> Result<Json<Vec<RemoteBuildNode>>> {
    Ok(Json(api.store.nodes().await?))
}

/// Register a remote build node. A registered node stays unchanged.
#[utoipa::path(post, path = "/remote-build-nodes", tag = "remote-build-nodes", request_body = RemoteBuildNodeCreate,
    responses((status = 201, body = RemoteBuildNode)))]
async fn create_node(State(api): State<Api>, body: RawBody) -> Answer<(StatusCode, Json<RemoteBuildNode>)> {
    let RemoteBuildNodeCreate { xname } = body.read()?;
    let node = RemoteBuildNode { xname };
    api.store.put_node(&node).await?;
    Ok((StatusCode::CREATED, Json(node)))
}

/// Unregister every remote build node.
#[utoipa::path(delete, path = "/remote-build-nodes", tag = "remote-build-nodes", responses((status = 204)))]
async fn delete_all_nodes(State(api): State<Api>) -> Result<StatusCode> {
    api.store.delete_nodes(None).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn find(api: &Api, xname: &str) -> Result<RemoteBuildNode> {
    // An invalid host name cannot be registered, so the database need not be queried.
    if check_host_name(xname).is_err() {
        return Err(Problem::not_found());
    }
    api.store.node(xname).await?.ok_or_else(Problem::not_found)
}

/// Show a remote build node.
#[utoipa::path(get, path = "/remote-build-nodes/{xname}", tag = "remote-build-nodes",
    params(("xname" = String, Path, description = "The host's name")),
    responses((status = 200, body = RemoteBuildNode), (status = 404, body = Problem)))]
async fn get_node(State(api): State<Api>, Path(xname): Path<String>) -> Result<Json<RemoteBuildNode>> {
    Ok(Json(find(&api, &xname).await?))
}

/// Unregister a remote build node.
#[utoipa::path(delete, path = "/remote-build-nodes/{xname}", tag = "remote-build-nodes",
    params(("xname" = String, Path, description = "The host's name")),
    responses((status = 204), (status = 404, body = Problem)))]
async fn delete_node(State(api): State<Api>, Path(xname): Path<String>) -> Result<StatusCode> {
    let node = find(&api, &xname).await?;
    match api.store.delete_nodes(Some(&node.xname)).await? {
        0 => Err(Problem::not_found()),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}

/// Check every remote build node, all at the same time.
#[utoipa::path(get, path = "/remote-build-nodes/status", tag = "remote-build-nodes",
    responses((status = 200, body = Vec<RemoteBuildNodeStatus>)))]
async fn list_statuses(State(api): State<Api>) -> Result<Json<Vec<RemoteBuildNodeStatus>>> {
    let nodes = api.store.nodes().await?;
    let looks = stream::iter(nodes).map(|node| remote_nodes::look_at(node.xname, &api.remote_nodes));
    Ok(Json(looks.buffered(PARALLEL).collect().await))
}

/// Check a remote build node.
#[utoipa::path(get, path = "/remote-build-nodes/status/{xname}", tag = "remote-build-nodes",
    params(("xname" = String, Path, description = "The host's name")),
    responses((status = 200, body = RemoteBuildNodeStatus), (status = 404, body = Problem)))]
async fn get_status(State(api): State<Api>, Path(xname): Path<String>) -> Result<Json<RemoteBuildNodeStatus>> {
    let node = find(&api, &xname).await?;
    Ok(Json(remote_nodes::look_at(node.xname, &api.remote_nodes).await))
}

pub(super) fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(list_nodes, create_node, delete_all_nodes))
        .routes(routes!(list_statuses))
        .routes(routes!(get_status))
        .routes(routes!(get_node, delete_node))
}
