//! `kiln check`: whether what was built does what it should, and what is understood of a recipe.

use clap::Subcommand;
use kiln_records::Failure;

use super::{
    boot::BootArguments,
    check_recipe::CheckRecipeArguments,
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
    /// Say what is understood of a recipe, and build nothing.
    ///
    /// It is read as for a build, by the agent in a sandbox on this host: its templates are rendered, its description is
    /// converted and given to kiwi, and its repositories are asked for their indexes. Exit code 0 means that it is
    /// understood, 1 that a build would be refused, with the build's own error. No record is made.
    Recipe(Box<CheckRecipeArguments>),
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
            CheckCommand::Recipe(arguments) => arguments.run(options, config, printer).await,
            CheckCommand::Multiarch(arguments) => arguments.run(printer).await,
        }
    }
}
