//! `kiln build`.
use super::printer::Printer;
use crate::{config::Config, records::Failure};
/// x
#[derive(Debug, clap::Args)]
pub(super) struct BuildArguments {}
impl BuildArguments {
    pub(super) async fn run(self, _: &Config, _: &Printer) -> Result<(), Failure> {
        Ok(())
    }
}
