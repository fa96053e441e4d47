//! `kiln sandboxes`: lists and removes the files of sandboxes that were kept, by `kiln build --keep` or for another
//! attempt. They belong to ids of the sandbox, so `rm` alone cannot remove them.

use clap::Subcommand;
use kiln_records::{Code, Failure, JobId};

use super::printer::Printer;
use crate::{
    config::Config,
    sandbox::{Driver, Scratch},
    site,
};

#[derive(Debug, Subcommand)]
pub(super) enum SandboxesCommand {
    /// List the kept sandboxes.
    List,
    /// Remove kept sandboxes.
    Remove {
        /// The jobs of the sandboxes [default: all].
        jobs: Vec<JobId>,
    },
}

impl SandboxesCommand {
    pub(super) async fn run(self, config: &Config, printer: &Printer) -> Result<(), Failure> {
        let driver = site::namespace_driver(config)?;
        let kept = driver.kept()?;
        match self {
            SandboxesCommand::List => {
                for job in kept {
                    printer.result(format_args!("{job}  {}", driver.kept_at(job)?.display()));
                }
            }
            SandboxesCommand::Remove { jobs } => {
                let wanted = if jobs.is_empty() { kept.clone() } else { jobs };
                for job in wanted {
                    if !kept.contains(&job) {
                        return Err(
                            Failure::new(Code::NoSandbox, format!("no sandbox of job {job} was kept"))
                                .hint("`kiln sandboxes list` shows all of them"),
                        );
                    }
                    driver.destroy(job, Scratch::Remove).await?;
                    printer.note(format_args!("removed {job}"));
                }
            }
        }
        Ok(())
    }
}
