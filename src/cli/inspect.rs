//! `kiln inspect`: what a name in a registry or layout stands for. Reads the registry or layout.

use bytesize::ByteSize;
use clap::Args;
use kiln_records::{Code, Failure, names::shown};
use kiln_registry::{
    Location,
    inspect::{self, Entry, Inspected},
    open,
};

use super::{printer::Printer, registry::RegistryOptions};

/// Show the platforms, digests and sizes of an image in a registry or an OCI layout.
#[derive(Debug, Args)]
pub(super) struct InspectArguments {
    /// REGISTRY/NAME:TAG, REGISTRY/NAME@sha256:…, or oci:DIR:TAG.
    #[arg(value_name = "REF")]
    reference: Location,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    registry: RegistryOptions,
}

impl InspectArguments {
    pub(super) async fn run(self, printer: &Printer) -> Result<(), Failure> {
        let place = open(&self.reference, &self.registry.access(), false).await?;
        let found = inspect::inspect(&place, self.reference.which()).await?;
        if self.json {
            let text = serde_json::to_string_pretty(&found).map_err(|error| Failure::new(Code::Format, error))?;
            printer.result(text);
        } else {
            show(&found, printer);
        }
        Ok(())
    }
}

fn show(found: &Inspected, printer: &Printer) {
    printer.result(format_args!(
        "{}\n{} {}\n{}\n",
        found.reference,
        found.kind.name(),
        found.digest,
        shown(&found.media_type)
    ));
    let width = found.entries.iter().map(|entry| what(entry).chars().count() + 2);
    let nested = found.entries.iter().flat_map(|entry| &entry.referrers);
    let width = width.chain(nested.map(|entry| what(entry).chars().count() + 4)).max();
    let width = width.unwrap_or_default().max(10);
    for entry in &found.entries {
        line(entry, "", width, printer);
        for referrer in &entry.referrers {
            line(referrer, "  ", width, printer);
        }
    }
}

/// The platform of an image, or the kind of anything else.
fn what(entry: &Entry) -> String {
    let name = entry.platform.as_ref().or(entry.artifact_type.as_ref());
    shown(name.unwrap_or(&entry.media_type)).into_owned()
}

fn line(entry: &Entry, indent: &str, width: usize, printer: &Printer) {
    let size = entry
        .size
        .map_or_else(|| "?".to_owned(), |size| ByteSize(size).to_string());
    let name = format!("{indent}{}", what(entry));
    let files = match entry.files.as_slice() {
        [] => String::new(),
        files => format!("  {}", shown(&files.join(", "))),
    };
    printer.result(format_args!("{name:<width$}  {}  {size:>10}{files}", entry.digest));
}
