//! `kiln artifacts`.
use super::printer::Printer;
use crate::{config::Config, records::Failure};
/// x
#[derive(Debug, clap::Subcommand)]
pub(super) enum ArtifactsCommand {
    /// x
    List,
}
impl ArtifactsCommand {
    pub(super) async fn run(self, _: &Config, _: &Printer) -> Result<(), Failure> {
        Ok(())
    }
}
