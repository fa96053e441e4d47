//! `kiln check multiarch` and `kiln export affinity`: whether an image runs where it should, and a rule that pods of it
//! run only there. Read registries and layouts.

use clap::Args;
use kiln_records::{Code, Failure, arch::Arch};
use kiln_registry::{
    Location, affinity,
    check::{self, Finding},
    inspect, open,
};
use owo_colors::OwoColorize;

use super::{printer::Printer, registry::RegistryOptions, values::arch};

/// Check that an image has a working variant for each architecture: all of it is pulled and looked at.
#[derive(Debug, Args)]
pub(super) struct MultiarchArguments {
    /// The images: REGISTRY/NAME:TAG, REGISTRY/NAME@sha256:…, or oci:DIR:TAG.
    #[arg(value_name = "REF", required = true)]
    references: Vec<Location>,

    /// The architectures, with commas between them.
    #[arg(long, required = true, value_delimiter = ',', value_parser = arch())]
    arch: Vec<Arch>,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    registry: RegistryOptions,
}

impl MultiarchArguments {
    pub(super) async fn run(self, printer: &Printer) -> Result<(), Failure> {
        let access = self.registry.access();
        let mut findings = Vec::new();
        for reference in &self.references {
            let place = open(reference, &access, false).await?;
            findings.extend(check::check(&place, reference.which(), &self.arch).await?);
        }
        if self.json {
            let text = serde_json::to_string_pretty(&findings).map_err(|error| Failure::new(Code::Format, error))?;
            printer.result(text);
        } else {
            show(&findings, printer);
        }
        match findings.iter().filter(|finding| !finding.ok).count() {
            0 => Ok(()),
            faults => {
                let cause = match faults {
                    1 => "1 check failed".to_owned(),
                    more => format!("{more} checks failed"),
                };
                Err(Failure::new(Code::MultiarchFailed, cause).hint("the lines that say `no` give the reasons"))
            }
        }
    }
}

fn show(findings: &[Finding], printer: &Printer) {
    let mut last = None;
    for finding in findings {
        if last.replace(&finding.reference) != Some(&finding.reference) {
            printer.result(&finding.reference);
        }
        let arch = finding.arch.map_or("", Arch::name);
        let (check, detail) = (finding.check.name(), &finding.detail);
        if finding.ok {
            printer.result(format_args!("  {arch:<8}  {check:<8}  {}  {detail}", "ok".green()));
        } else {
            printer.result(format_args!("  {arch:<8}  {check:<8}  {}  {detail}", "no".red().bold()));
        }
    }
}

/// Print the node affinity for pods of an image, as YAML.
#[derive(Debug, Args)]
pub(super) struct AffinityArguments {
    /// The image: REGISTRY/NAME:TAG, REGISTRY/NAME@sha256:…, or oci:DIR:TAG.
    #[arg(value_name = "REF")]
    reference: Location,

    /// The architectures to prefer, the best one first [default: the order of the index].
    #[arg(long, value_delimiter = ',', value_parser = arch())]
    prefer: Vec<Arch>,

    #[command(flatten)]
    registry: RegistryOptions,
}

impl AffinityArguments {
    pub(super) async fn run(self, printer: &Printer) -> Result<(), Failure> {
        let place = open(&self.reference, &self.registry.access(), false).await?;
        let found = inspect::inspect(&place, self.reference.which()).await?;
        let there = affinity::architectures(&found)?;
        let preferred: Vec<String> = self.prefer.iter().map(|arch| arch.oci().to_owned()).collect();
        if let Some(absent) = preferred.iter().find(|arch| !there.contains(arch)) {
            return Err(Failure::new(
                Code::RegistryMissing,
                format!(
                    "{} has no image for linux/{absent}; it has {}",
                    found.reference,
                    there.join(", ")
                ),
            ));
        }
        let preferred = if preferred.is_empty() { &there } else { &preferred };
        printer.result(affinity::yaml(&there, preferred).trim_end());
        Ok(())
    }
}
