//! The verbs that all kinds of records share: list, describe, delete, deleteall. Network only.

use clap::{Args, Subcommand, builder::PossibleValuesParser, builder::TypedValueParser};
use kiln_records::{Code, Failure, JobStatus, JobType, arch::Arch};
use reqwest::Method;

use super::{
    session::Session,
    values::{arch, job_status, job_type},
};
use crate::client::{Collection, Data, Filter, Found, SortKey};

#[derive(Debug, Subcommand)]
pub(super) enum Common<L: Args, D: Args> {
    /// List records.
    #[command(display_order = 1)]
    List(L),
    /// Show a record.
    #[command(display_order = 2)]
    Describe(Which),
    /// Delete a record.
    #[command(display_order = 5)]
    Delete(Which),
    /// Delete all records.
    #[command(display_order = 6)]
    Deleteall(D),
}

/// One record.
#[derive(Debug, Args)]
pub(super) struct Which {
    /// The id, its first four or more characters if they are unique, or the name.
    #[arg(value_name = "ID")]
    pub(super) id: String,
}

/// No options.
#[derive(Debug, Args)]
pub(super) struct Plain {}

/// The records with names to list.
#[derive(Debug, Args)]
pub(super) struct NamedList {
    /// Only records with exactly this name.
    #[arg(long)]
    name: Option<String>,

    /// The sort order; a leading hyphen reverses it [default: created].
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, value_parser = sort())]
    sort: Option<(SortKey, bool)>,

    /// Reverse the order.
    #[arg(long)]
    reverse: bool,

    /// The maximum number of records [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
}

/// The records with an architecture to list.
#[derive(Debug, Args)]
pub(super) struct ArchList {
    /// Only records of this architecture.
    #[arg(long, value_parser = arch())]
    arch: Option<Arch>,

    #[command(flatten)]
    named: NamedList,
}

/// The jobs to list.
#[derive(Debug, Args)]
pub(super) struct JobList {
    /// Only jobs in these states, separated by commas.
    #[arg(long, value_delimiter = ',', value_parser = job_status())]
    status: Vec<JobStatus>,

    /// Only jobs of this type.
    #[arg(long, value_parser = job_type())]
    job_type: Option<JobType>,

    #[command(flatten)]
    of_arch: ArchList,
}

/// The jobs to delete.
#[derive(Debug, Args)]
pub(super) struct JobChoice {
    /// Only jobs in these states, separated by commas.
    #[arg(long, value_delimiter = ',', value_parser = job_status())]
    status: Vec<JobStatus>,

    /// Only jobs of this type.
    #[arg(long, value_parser = job_type())]
    job_type: Option<JobType>,

    /// Only jobs older than this, such as 1d, 6h or 2w3d.
    #[arg(long)]
    age: Option<String>,
}

fn sort() -> impl TypedValueParser<Value = (SortKey, bool)> {
    PossibleValuesParser::new(["created", "name", "-created", "-name"]).map(|text| {
        let key = if text.ends_with("name") {
            SortKey::Name
        } else {
            SortKey::Created
        };
        (key, text.starts_with('-'))
    })
}

/// The query for a choice of records.
pub(super) trait Query {
    fn pairs(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

impl Query for Plain {}

impl Query for JobChoice {
    fn pairs(&self) -> Vec<(&'static str, String)> {
        let mut pairs: Vec<_> = self
            .status
            .iter()
            .map(|status| ("status", status.name().to_owned()))
            .collect();
        pairs.extend(self.job_type.map(|job_type| ("job_type", job_type.name().to_owned())));
        pairs.extend(self.age.clone().map(|age| ("age", age)));
        pairs
    }
}

impl From<Plain> for Filter {
    fn from(_: Plain) -> Self {
        Filter::default()
    }
}

impl From<NamedList> for Filter {
    fn from(list: NamedList) -> Self {
        let (sort, is_reversed) = list.sort.unzip();
        Filter {
            name: list.name,
            sort,
            // Reversing twice restores the order.
            reverse: list.reverse != is_reversed.unwrap_or(false),
            limit: list.limit.and_then(|limit| usize::try_from(limit).ok()),
            ..Filter::default()
        }
    }
}

impl From<ArchList> for Filter {
    fn from(list: ArchList) -> Self {
        Filter {
            arch: list.arch,
            ..list.named.into()
        }
    }
}

impl From<JobList> for Filter {
    fn from(list: JobList) -> Self {
        Filter {
            statuses: list.status,
            job_type: list.job_type,
            ..list.of_arch.into()
        }
    }
}

impl<L: Args + Into<Filter>, D: Args + Query> Common<L, D> {
    pub(super) async fn run(self, collection: &Collection, session: &Session) -> Result<(), Failure> {
        let client = &session.client;
        let for_good = if collection.is_deleted { " for good" } else { "" };
        match self {
            Common::List(list) => session.show_list(collection, client.list(collection, &list.into()).await?),
            Common::Describe(which) => session.show(&describe(session, collection, &which.id).await?),
            Common::Delete(which) => {
                let found = client.find(collection, &which.id).await?;
                request(session, Method::DELETE, collection, &found, None).await?;
                session
                    .printer
                    .note(format_args!("deleted {}{for_good}", called(collection, &found)));
                Ok(())
            }
            Common::Deleteall(choice) => {
                let pairs = choice.pairs();
                let query: Vec<_> = pairs.iter().map(|(key, value)| (*key, value.as_str())).collect();
                client.send(Method::DELETE, collection.path, &query, None).await?;
                let which = if query.is_empty() { "" } else { "matching " };
                session
                    .printer
                    .note(format_args!("deleted all {which}{}s{for_good}", collection.noun));
                Ok(())
            }
        }
    }
}

/// Finds a record and requests it.
pub(super) async fn describe(session: &Session, collection: &Collection, given: &str) -> Result<Data, Failure> {
    let found = session.client.find(collection, given).await?;
    request(session, Method::GET, collection, &found, None).await
}

/// A request about one record.
pub(super) async fn request(
    session: &Session,
    method: Method,
    collection: &Collection,
    found: &Found,
    body: Option<&serde_json::Value>,
) -> Result<Data, Failure> {
    let mut segments = collection.path.to_vec();
    segments.push(&found.id);
    let answer = session.client.send(method, &segments, &[], body).await;
    answer.map_err(|failure| missing(collection, failure))
}

/// Adds a hint where to find a missing record.
pub(super) fn missing(collection: &Collection, failure: Failure) -> Failure {
    match failure.code {
        Code::NotFound => failure.hint(format!("`kiln {} list` shows what there is", collection.command)),
        _ => failure,
    }
}

/// Creates a record and prints it.
pub(super) async fn create(
    session: &Session,
    collection: &Collection,
    body: &serde_json::Value,
) -> Result<(), Failure> {
    let record = session
        .client
        .send(Method::POST, collection.path, &[], Some(body))
        .await?;
    session.show(&record)
}

/// A record's description in messages: with its name if known.
pub(super) fn called(collection: &Collection, found: &Found) -> String {
    match &found.name {
        Some(name) => format!("{} {name} ({})", collection.noun, found.id),
        None => format!("{} {}", collection.noun, found.id),
    }
}
