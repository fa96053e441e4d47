//! The commands of `cray ims`: as `kiln ims …`, so that a pasted line works, and without the `ims`. Pure: no I/O.

use clap::{Args, Subcommand};

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
use crate::{client::collection, records::Failure};

/// A group of commands about records on a server.
#[derive(Debug, Subcommand)]
pub(super) enum RecordsCommand {
    /// Recipes on a server.
    Recipes(Group<RecipesCommand>),
    /// Images on a server.
    Images(Group<ImagesCommand>),
    /// Jobs on a server.
    Jobs(Group<JobsCommand>),
    /// Public keys, which may log in to shells of jobs.
    PublicKeys(Group<PublicKeysCommand>),
    /// Deleted recipes, images and public keys.
    Deleted(Group<DeletedCommand>),
    /// Hosts that run jobs of their own architecture.
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
    /// The server's version.
    Version(Group<VersionCommand>),
}

#[derive(Debug, Subcommand)]
pub(super) enum VersionCommand {
    /// Show it.
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
                let run = async |session: &Session| group.command.run(session).await;
                group.options.with(config, printer, false, run).await
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
