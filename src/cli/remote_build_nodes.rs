//! `kiln remote-build-nodes`: the commands for remote build nodes of a server.

use clap::{Args, Subcommand};
use kiln_records::Failure;
use reqwest::Method;
use serde_json::json;

use super::{
    records::{Common, Plain, Which, create, request},
    session::Session,
};
use crate::client::{
    Filter,
    collection::{REMOTE_BUILD_NODE_STATUS, REMOTE_BUILD_NODES},
};

#[derive(Debug, Subcommand)]
pub(super) enum RemoteBuildNodesCommand {
    #[command(flatten)]
    Common(Common<Plain, Plain>),
    /// Create a record.
    #[command(display_order = 3)]
    Create(CreateRemoteBuildNode),
    /// Check whether nodes can run jobs.
    #[command(subcommand, display_order = 7)]
    Status(StatusCommand),
}

#[derive(Debug, Args)]
pub(super) struct CreateRemoteBuildNode {
    /// The host name.
    #[arg(long)]
    xname: String,
}

#[derive(Debug, Subcommand)]
pub(super) enum StatusCommand {
    /// Check all nodes.
    List,
    /// Check one node.
    Describe(Which),
}

impl RemoteBuildNodesCommand {
    pub(super) async fn run(self, session: &Session) -> Result<(), Failure> {
        let status = &REMOTE_BUILD_NODE_STATUS;
        match self {
            RemoteBuildNodesCommand::Common(command) => command.run(&REMOTE_BUILD_NODES, session).await,
            RemoteBuildNodesCommand::Create(node) => {
                create(session, &REMOTE_BUILD_NODES, &json!({ "xname": node.xname })).await
            }
            RemoteBuildNodesCommand::Status(StatusCommand::List) => {
                session.show_list(status, session.client.list(status, &Filter::default()).await?)
            }
            RemoteBuildNodesCommand::Status(StatusCommand::Describe(which)) => {
                let found = session.client.find(status, &which.id).await?;
                session.show(&request(session, Method::GET, status, &found, None).await?)
            }
        }
    }
}
