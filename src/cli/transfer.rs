//! `kiln import` and `kiln export`: read and write an IMS's files of records. They use the database directly, whether a
//! server runs or not.

use std::path::PathBuf;

use clap::Subcommand;
use kiln_records::{Code, Failure};

use super::{disk::DiskArguments, multiarch::AffinityArguments, printer::Printer, session::ReadConfig};
use crate::{
    config::Config,
    import::{self, Note},
    site,
};

#[derive(Debug, Subcommand)]
pub(super) enum ImportCommand {
    /// Import the records of an IMS from its stored files. Can be repeated: existing records stay unchanged.
    Ims {
        /// A copy of `/var/ims/data` of the service, or what CSM's `export_ims_data.py` wrote: archive or directory.
        path: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum ExportCommand {
    /// Print the node affinity for pods of an image in a registry.
    Affinity(AffinityArguments),
    /// Export all records in the form in which an IMS stores them.
    Ims {
        /// The target directory; created if it does not exist.
        dir: PathBuf,
    },
    /// Write a disk image that boots an image by UEFI: GRUB, kernel, initrd, and the squashfs as root file system.
    Disk(Box<DiskArguments>),
}

impl ImportCommand {
    pub(super) async fn run(self, config: &Config, printer: &Printer) -> Result<(), Failure> {
        let ImportCommand::Ims { path } = self;
        let (records, mut notes) = import::read_ims(&path)?;
        // S3 is opened before anything is written: otherwise images with unreadable manifests would be imported without
        // their objects.
        let (artifacts, _embedded) = site::artifact_store(config).await?;
        let store = site::open_store(config).await?;
        let artifacts = &artifacts;
        let imported = import::import_into(&store, &records, |image| {
            let artifacts = artifacts.clone();
            async move { import::objects_of(&artifacts, &image).await }
        })
        .await?;
        store.close().await;
        notes.extend(imported.notes);
        tell(printer, &notes);
        printer.result(format_args!("imported   {}", imported.added));
        complete(&notes, "imported")
    }
}

impl ExportCommand {
    pub(super) async fn run(self, config: ReadConfig<'_>, printer: &Printer) -> Result<(), Failure> {
        let dir = match self {
            ExportCommand::Affinity(arguments) => return arguments.run(printer).await,
            ExportCommand::Disk(arguments) => return arguments.run(config, printer).await,
            ExportCommand::Ims { dir } => dir,
        };
        let store = site::open_store(&config()?).await?;
        let records = import::records_of(&store).await?;
        store.close().await;
        fs_err::create_dir_all(&dir).map_err(|error| Failure::io("cannot make the directory", &error))?;
        let notes = import::write_ims(&dir, &records)?;
        tell(printer, &notes);
        let left_out = notes.iter().filter(|note| note.left_out).count();
        printer.result(format_args!("exported   {}", records.len().saturating_sub(left_out)));
        complete(&notes, "exported")
    }
}

fn tell(printer: &Printer, notes: &[Note]) {
    for note in notes {
        printer.note(note);
    }
}

/// Fails when records were left behind, so that users and scripts notice it.
fn complete(notes: &[Note], done: &str) -> Result<(), Failure> {
    match notes.iter().filter(|note| note.left_out).count() {
        0 => Ok(()),
        left_out => Err(Failure::new(
            Code::TransferIncomplete,
            format_args!("{left_out} records were not {done}; the others were"),
        )
        .hint("the lines above name each record and the reason")),
    }
}
