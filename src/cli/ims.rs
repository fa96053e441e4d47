//! The commands of `cray ims`: as `kiln ims …`, so that a pasted line works, and without the `ims`. Pure: no I/O.

use clap::{Args, Subcommand};
use kiln_records::Failure;

use super::{
    deleted::DeletedCommand,
    images::ImagesCommand,
    jobs::JobsCommand,
    printer::Printer,
    public_keys::PublicKeysCommand,
    recipes::RecipesCommand,
    remote_build_nodes::RemoteBuildNodesCommand,
    session::{ReadConfig, ServerOptions, Session},
};
use crate::client::collection;

/// A group of commands about records on a server.
#[derive(Debug, Subcommand)]
pub(super) enum RecordsCommand {
    /// Manage the recipes of a server.
    Recipes(Group<RecipesCommand>),
    /// Manage the images of a server.
    Images(Group<ImagesCommand>),
    /// Manage the jobs of a server.
    Jobs(Group<JobsCommand>),
    /// Manage the public keys that may log in to shells of jobs.
    PublicKeys(Group<PublicKeysCommand>),
    /// Manage deleted recipes, images and public keys.
    Deleted(Group<DeletedCommand>),
    /// Manage the hosts that run jobs of their own architecture.
    RemoteBuildNodes(Group<RemoteBuildNodesCommand>),
}

/// A group, and the options that all its commands take.
#[derive(Debug, Args)]
pub(super) struct Group<C: Subcommand> {
    #[command(subcommand)]
    pub(super) command: C,

    #[command(flatten)]
    pub(super) options: ServerOptions,
}

/// The commands below `kiln ims`, and the options that may stand before them.
#[derive(Debug, Args)]
pub(super) struct ImsArguments {
    #[command(subcommand)]
    command: ImsCommand,

    /// Read through the group, whose options are the same.
    #[command(flatten)]
    _options: ServerOptions,
}

/// A group below `kiln ims`.
#[derive(Debug, Subcommand)]
enum ImsCommand {
    #[command(flatten)]
    Records(RecordsCommand),
    /// Show the version of the server.
    Version(Group<VersionCommand>),
}

#[derive(Debug, Subcommand)]
pub(super) enum VersionCommand {
    /// Show the version.
    List,
}

impl RecordsCommand {
    pub(super) async fn run(self, config: ReadConfig<'_>, printer: &Printer) -> Result<(), Failure> {
        match self {
            RecordsCommand::Recipes(group) => {
                let run = async |session: &Session| group.command.run(session).await;
                group.options.with(config, printer, false, run).await
            }
            RecordsCommand::Images(group) => {
                let begins = group.command.begins_jobs();
                let run = async |session: &Session| group.command.run(session).await;
                group.options.with(config, printer, begins, run).await
            }
            RecordsCommand::Jobs(group) => {
                let begins = group.command.begins_jobs();
                let run = async |session: &Session| group.command.run(session).await;
                group.options.with(config, printer, begins, run).await
            }
            RecordsCommand::PublicKeys(group) => {
                let run = async |session: &Session| group.command.run(session).await;
                group.options.with(config, printer, false, run).await
            }
            RecordsCommand::Deleted(group) => {
                let run = async |session: &Session| group.command.run(session).await;
                group.options.with(config, printer, false, run).await
            }
            RecordsCommand::RemoteBuildNodes(group) => {
                let run = async |session: &Session| group.command.run(session).await;
                group.options.with(config, printer, false, run).await
            }
        }
    }
}

impl ImsArguments {
    pub(super) async fn run(self, config: ReadConfig<'_>, printer: &Printer) -> Result<(), Failure> {
        match self.command {
            ImsCommand::Records(command) => command.run(config, printer).await,
            ImsCommand::Version(group) => {
                let VersionCommand::List = group.command;
                group.options.with(config, printer, false, show_version).await
            }
        }
    }
}

async fn show_version(session: &Session) -> Result<(), Failure> {
    session.show(&session.client.get(collection::VERSION).await?)
}
