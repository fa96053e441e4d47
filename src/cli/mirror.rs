//! `kiln mirror`: copies an image with everything that belongs to it. Reads one registry or layout and writes another.

use clap::Args;
use kiln_records::{Code, Failure};
use kiln_registry::{Location, mirror, open};

use super::{printer::Printer, registry::RegistryOptions};

/// Copy an image with all its platforms, and everything that refers to it, to another registry or to a directory.
#[derive(Debug, Args)]
pub(super) struct MirrorArguments {
    /// The image: REGISTRY/NAME:TAG, REGISTRY/NAME@sha256:…, or oci:DIR:TAG.
    #[arg(value_name = "REF")]
    from: Location,

    /// Where to: REGISTRY/NAME, oci:DIR, or either of them with a tag [default: the same tag].
    #[arg(value_name = "TO")]
    to: Location,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    registry: RegistryOptions,
}

impl MirrorArguments {
    pub(super) async fn run(self, printer: &Printer) -> Result<(), Failure> {
        let interrupted = super::signals::cancel_on_signal()?;
        let copying = async {
            let access = self.registry.access();
            let from = open(&self.from, &access, false).await?;
            let to = open(&self.to, &access, true).await?;
            mirror::mirror(
                &from,
                self.from.which(),
                &to,
                self.to.which(),
                &self.registry.notes(printer),
            )
            .await
        };
        let mirrored = tokio::select! {
            mirrored = copying => mirrored?,
            () = interrupted.cancelled() => {
                return Err(Failure::new(Code::Interrupted, "copying was interrupted; no tag was set"));
            }
        };
        if self.json {
            let text = serde_json::to_string_pretty(&mirrored).map_err(|error| Failure::new(Code::Format, error))?;
            printer.result(text);
        } else {
            printer.result(format_args!("{}\n{}", mirrored.reference, mirrored.digest));
        }
        Ok(())
    }
}
