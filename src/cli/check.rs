//! `kiln check`: whether what was built does what it should.

use clap::Subcommand;
use kiln_records::Failure;

use super::{
    boot::BootArguments,
    multiarch::MultiarchArguments,
    printer::Printer,
    session::{ReadConfig, ServerOptions},
};

#[derive(Debug, Subcommand)]
pub(super) enum CheckCommand {
    /// Boot an image in a virtual machine, and see whether it comes up.
    ///
    /// The machine has the image's kernel and initrd, its root file system as a disk, and a network that leads nowhere. It
    /// runs in a sandbox on this host. Exit code 0 means that the image is up, 1 that it is not.
    Boot(Box<BootArguments>),
    /// Check that an image in a registry has a working variant for each architecture.
    Multiarch(MultiarchArguments),
}

impl CheckCommand {
    pub(super) async fn run(
        self,
        options: &ServerOptions,
        config: ReadConfig<'_>,
        printer: &Printer,
    ) -> Result<(), Failure> {
        match self {
            CheckCommand::Boot(arguments) => arguments.run(options, config, printer).await,
            CheckCommand::Multiarch(arguments) => arguments.run(printer).await,
        }
    }
}
