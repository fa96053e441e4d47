//! `kiln doctor`: prints the findings about this host.

use clap::Args;
use kiln_records::{Code, Failure, JobId};
use owo_colors::OwoColorize;

use super::printer::Printer;
use crate::{
    config::Config,
    doctor::{self, Finding, State},
    site,
};

/// Check whether this host can build images, and suggest remedies.
#[derive(Debug, Args)]
pub(super) struct DoctorArguments {
    /// Print JSON.
    #[arg(long)]
    json: bool,

    /// Use the native twin again that failed in this job, instead of a check of the host.
    #[arg(long, value_name = "JOB", conflicts_with = "json")]
    use_twin: Option<JobId>,
}

impl DoctorArguments {
    pub(super) async fn run(self, config: &Config, printer: &Printer) -> Result<(), Failure> {
        if let Some(job) = self.use_twin {
            return use_twin(job, config, printer).await;
        }
        let findings = doctor::examine(config).await;
        if self.json {
            let text = serde_json::to_string_pretty(&findings).map_err(|error| Failure::new(Code::Io, error))?;
            printer.result(text);
        } else {
            for finding in &findings {
                show(finding, printer);
            }
        }
        let lacking = findings
            .iter()
            .filter(|finding| finding.required && finding.state != State::Ok);
        match lacking.count() {
            0 => Ok(()),
            count => Err(Failure::new(
                Code::HostUnfit,
                format!("{count} requirements of every job are not met"),
            )
            .hint("follow the advice in the lines above, then run `kiln doctor` again")),
        }
    }
}

/// Forgets that a native twin failed in this job.
async fn use_twin(job: JobId, config: &Config, printer: &Printer) -> Result<(), Failure> {
    let store = site::open_store(config).await?;
    let known = store.forget_failed_twin(job).await;
    store.close().await;
    if !known? {
        return Err(Failure::new(
            Code::RecordUnknown,
            format!("no native twin is listed that failed in job {job}"),
        )
        .hint("`kiln doctor` lists them"));
    }
    printer.note(format_args!("the native twin that failed in job {job} is used again"));
    Ok(())
}

fn show(finding: &Finding, printer: &Printer) {
    // Padded before colouring, because the bytes of the colours would count.
    let state = format!("{:<8}", finding.state.name());
    let state = match (finding.state, finding.required) {
        (State::Ok, _) => state.green().to_string(),
        (_, true) => state.red().bold().to_string(),
        (_, false) => state.yellow().to_string(),
    };
    printer.result(format_args!("{state} {:<32} {}", finding.what, finding.detail));
    if let Some(next) = finding.next.as_ref().filter(|next| !next.is_empty()) {
        printer.result(format_args!("{:<41} → {next}", ""));
    }
}
