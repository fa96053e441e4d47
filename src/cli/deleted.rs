//! `kiln deleted`: shows deleted records of a server, restores them, or deletes them finally.

use clap::{Args, Subcommand, ValueEnum};
use kiln_records::Failure;
use reqwest::Method;
use serde_json::json;

use super::{
    records::{ArchList, Common, NamedList, Plain, Which, called, request},
    session::Session,
};
use crate::client::{
    Collection, Filter,
    collection::{DELETED_IMAGES, DELETED_PUBLIC_KEYS, DELETED_RECIPES},
};

#[derive(Debug, Subcommand)]
pub(super) enum DeletedCommand {
    /// Manage deleted recipes.
    #[command(subcommand)]
    Recipes(DeletedRecords<ArchList>),
    /// Manage deleted images.
    #[command(subcommand)]
    Images(DeletedRecords<ArchList>),
    /// Manage deleted public keys.
    #[command(subcommand)]
    PublicKeys(DeletedRecords<NamedList>),
}

#[derive(Debug, Subcommand)]
pub(super) enum DeletedRecords<L: Args> {
    #[command(flatten)]
    Common(Common<L, Plain>),
    /// Restore a record.
    #[command(display_order = 4)]
    Update(Update),
    /// Restore a record: short for `update --operation undelete`.
    #[command(display_order = 4)]
    Undelete(Which),
}

#[derive(Debug, Args)]
pub(super) struct Update {
    #[command(flatten)]
    which: Which,

    /// The operation.
    #[arg(long, value_enum)]
    operation: Operation,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Operation {
    Undelete,
}

impl DeletedCommand {
    pub(super) async fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            DeletedCommand::Recipes(command) => command.run(&DELETED_RECIPES, session).await,
            DeletedCommand::Images(command) => command.run(&DELETED_IMAGES, session).await,
            DeletedCommand::PublicKeys(command) => command.run(&DELETED_PUBLIC_KEYS, session).await,
        }
    }
}

impl<L: Args + Into<Filter>> DeletedRecords<L> {
    async fn run(self, collection: &Collection, session: &Session) -> Result<(), Failure> {
        let which = match self {
            DeletedRecords::Common(command) => return command.run(collection, session).await,
            DeletedRecords::Undelete(which) => which,
            DeletedRecords::Update(update) => {
                let Operation::Undelete = update.operation;
                update.which
            }
        };
        let found = session.client.find(collection, &which.id).await?;
        let body = json!({ "operation": "undelete" });
        let answer = request(session, Method::PATCH, collection, &found, Some(&body)).await?;
        session
            .printer
            .note(format_args!("restored {}", called(collection, &found)));
        session.show(&answer)
    }
}
