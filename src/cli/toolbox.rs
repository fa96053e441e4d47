//! `kiln toolbox`.

use clap::Subcommand;

use super::{printer::Printer, progress::Spinner};
use crate::{
    config::Config,
    host::{self, AptMirror},
    records::Failure,
    sandbox::toolbox::Toolbox,
};

#[derive(Debug, Subcommand)]
pub(super) enum ToolboxCommand {
    /// Build the toolbox, unless the one described is there already.
    Build {
        /// Debian mirror to take packages from [default: the one this host uses].
        #[arg(long, value_name = "URL")]
        mirror: Option<String>,
    },
    /// Show the toolbox that builds here use.
    Show,
    /// Remove toolboxes of other versions' descriptions. No build may be running.
    Prune,
}

impl ToolboxCommand {
    pub(super) async fn run(self, config: &Config, printer: &Printer) -> Result<(), Failure> {
        let toolbox = match self {
            ToolboxCommand::Prune => {
                for name in config.toolboxes()?.prune().await? {
                    printer.result(format_args!("removed {name}"));
                }
                return Ok(());
            }
            ToolboxCommand::Build { mirror } => ensure(config, printer, mirror).await?,
            ToolboxCommand::Show => config.toolboxes()?.find().ok_or_else(|| {
                Failure::new("no_toolbox", "no toolbox was built from this version's description yet")
                    .hint("run `kiln toolbox build`")
            })?,
        };
        show(&toolbox, printer);
        Ok(())
    }
}

/// The toolbox, built if it must be.
pub(super) async fn ensure(config: &Config, printer: &Printer, mirror: Option<String>) -> Result<Toolbox, Failure> {
    let toolboxes = config.toolboxes()?;
    if let Some(toolbox) = toolboxes.find() {
        return Ok(toolbox);
    }
    printer.note("Building the toolbox (once; about 900 MB, a few minutes): kiwi, package managers, emulators");
    let mirror = mirror
        .map(|archive| AptMirror {
            archive,
            security: None,
        })
        .or_else(host::apt_mirror);
    let spinner = Spinner::new(printer, "toolbox");
    toolboxes.ensure(mirror, |line| spinner.line(line)).await
}

fn show(toolbox: &Toolbox, printer: &Printer) {
    printer.result(format_args!("toolbox   {}", toolbox.name));
    printer.result(format_args!("squashfs  {}", toolbox.squashfs.display()));
    printer.result(format_args!("sha256    {}", toolbox.facts.sha256));
    printer.result(format_args!("size      {}", bytesize::ByteSize(toolbox.facts.size)));
    printer.result(format_args!("arch      {}", toolbox.facts.arch));
    printer.result(format_args!("built     {:.0}", toolbox.facts.built));
    printer.result(format_args!("packages  {}", toolbox.facts.packages.len()));
}
