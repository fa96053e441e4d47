//! `kiln config`: checks the configuration, and shows the settings in effect and the possible ones. Reads the file and
//! the environment.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use kiln_records::Failure;

use super::printer::Printer;
use crate::config::{self, Config, Problem};

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Look for mistakes in the configuration file and the environment.
    Check,
    /// Print the settings in effect and the origin of each. Secrets are not shown.
    Show,
    /// Print a configuration file with every key, its meaning and its default.
    Reference {
        /// Print tables for the manual.
        #[arg(long, hide = true)]
        markdown: bool,
    },
}

impl ConfigCommand {
    pub(super) fn run(self, path: Option<&Path>, data_dir: Option<PathBuf>, printer: &Printer) -> Result<(), Failure> {
        match self {
            ConfigCommand::Check => {
                let (problems, file) = match Config::read(path, data_dir)? {
                    Ok(config) => (config.problems(), config.file().map(Path::to_owned)),
                    Err(problems) => (problems, None),
                };
                tell(problems, printer)?;
                let file = file.map_or_else(|| "no file, all defaults".to_owned(), |file| file.display().to_string());
                printer.result(format_args!("ok: {file}"));
            }
            ConfigCommand::Show => printer.result(Config::load(path, data_dir)?.show().trim_end()),
            ConfigCommand::Reference { markdown: false } => printer.result(config::reference().trim_end()),
            ConfigCommand::Reference { markdown: true } => printer.result(config::reference_tables().trim_end()),
        }
        Ok(())
    }
}

/// Prints all problems except the last, with which the command fails.
fn tell(problems: Vec<Problem>, printer: &Printer) -> Result<(), Failure> {
    let mut last = None;
    for problem in problems {
        if let Some(earlier) = last.replace(Failure::from(problem)) {
            printer.failure(&earlier);
        }
    }
    last.map_or(Ok(()), Err)
}
