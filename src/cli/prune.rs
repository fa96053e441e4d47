//! `kiln prune`: removes what the server's section `[retention]` gives up. Talks to the server.

use bytesize::ByteSize;
use clap::Args;
use kiln_records::Failure;
use reqwest::Method;

use super::{
    printer::Printer,
    session::{ReadConfig, ServerOptions, Session},
};
use crate::client::{
    Data,
    collection::{KEPT_IMAGES, PRUNED},
};

#[derive(Debug, Args)]
pub(super) struct PruneArguments {
    /// Only show what would be removed.
    #[arg(long)]
    dry_run: bool,

    /// Also show the images that a rule names and that stay, and why.
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    options: ServerOptions,
}

impl PruneArguments {
    pub(super) async fn run(self, config: ReadConfig<'_>, printer: &Printer) -> Result<(), Failure> {
        let work = async |session: &Session| self.prune(session).await;
        self.options.with(config, printer, false, work).await
    }

    async fn prune(&self, session: &Session) -> Result<(), Failure> {
        let method = if self.dry_run { Method::GET } else { Method::POST };
        let (mut removed, mut freed) = (0, 0);
        loop {
            let path = ["kiln", "v1", "prune"];
            let answer = session.client.send(method.clone(), &path, &[], None).await?;
            self.show(session, &answer)?;
            let got = answer.items("removed").len();
            removed += got;
            freed += answer.number("freed_bytes").unwrap_or_default();
            let is_complete = *answer.get("complete") != Data::Bool(false);
            if self.dry_run && !is_complete {
                session
                    .printer
                    .warning("there is more than can be listed in time", None);
            }
            // Without progress, what stays has a reason that another pass would only repeat.
            if is_complete || self.dry_run || got == 0 {
                break;
            }
        }
        let verb = if self.dry_run { "would be removed" } else { "removed" };
        session
            .printer
            .note(format_args!("{removed} {verb}, which frees {}", ByteSize(freed)));
        Ok(())
    }

    fn show(&self, session: &Session, answer: &Data) -> Result<(), Failure> {
        if session.wants_data() {
            return session.show(answer);
        }
        for problem in answer.items("problems") {
            if let Data::Text(problem) = problem {
                session.printer.warning(problem, None);
            }
        }
        let (removed, kept) = (answer.items("removed"), answer.items("kept"));
        if !removed.is_empty() {
            session.show_table(&PRUNED, removed.to_vec())?;
        }
        if self.all && !kept.is_empty() {
            session.show_table(&KEPT_IMAGES, kept.to_vec())?;
        }
        Ok(())
    }
}
