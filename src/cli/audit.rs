//! `kiln audit`: shows who changed what on a server. Talks to the server.

use clap::Args;
use kiln_records::Failure;
use reqwest::Method;

use super::{
    printer::Printer,
    session::{ReadConfig, ServerOptions, Session},
};
use crate::client::collection::AUDIT;

#[derive(Debug, Args)]
pub(super) struct AuditArguments {
    /// Only requests of this caller.
    #[arg(long, value_name = "NAME")]
    who: Option<String>,

    /// Only requests about the record with this id.
    #[arg(long, value_name = "ID")]
    record: Option<String>,

    /// Only requests from this time on, such as 2026-11-01T00:00:00Z.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,

    /// Only requests before this time.
    #[arg(long, value_name = "TIME")]
    until: Option<String>,

    /// The maximum number of requests [default: 100].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: Option<u32>,

    #[command(flatten)]
    options: ServerOptions,
}

impl AuditArguments {
    pub(super) async fn run(self, config: ReadConfig<'_>, printer: &Printer) -> Result<(), Failure> {
        let work = async |session: &Session| self.list(session).await;
        self.options.with(config, printer, false, work).await
    }

    async fn list(&self, session: &Session) -> Result<(), Failure> {
        let limit = self.limit.map(|limit| limit.to_string());
        let query: Vec<_> = [
            ("who", &self.who),
            ("record_id", &self.record),
            ("since", &self.since),
            ("until", &self.until),
            ("limit", &limit),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key, value.as_deref()?)))
        .collect();
        let path = ["kiln", "v1", "audit"];
        let entries = session.client.send(Method::GET, &path, &query, None).await?;
        session.show_table(&AUDIT, entries.into_items())
    }
}
