//! `kiln man`: writes a manual page for each command into a directory.

use std::path::PathBuf;

use clap::Args;
use kiln_records::Failure;

use super::printer::Printer;

#[derive(Debug, Args)]
pub(super) struct ManArguments {
    /// The target directory; created if it does not exist.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

impl ManArguments {
    pub(super) fn run(self, command: clap::Command, printer: &Printer) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::io("cannot write the manual pages", &error);
        fs_err::create_dir_all(&self.dir).map_err(failed)?;
        clap_mangen::generate_to(command, &self.dir).map_err(failed)?;
        printer.note(format_args!("wrote manual pages to {}", self.dir.display()));
        Ok(())
    }
}
