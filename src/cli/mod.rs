//! The command line: parses it and runs the command. Results go to standard output, everything else to standard error.

use std::{path::PathBuf, process::ExitCode};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use kiln_records::Failure;

use crate::{config::Config, host};
use printer::Printer;

mod adding;
mod artifacts;
mod audit;
mod backup;
mod boot;
mod build;
mod build_set;
mod catalogue;
mod check;
mod check_recipe;
mod client_help;
mod command_line;
mod config;
mod customize;
mod deleted;
mod demo;
mod diagnostics;
mod disk;
mod distribution;
mod doctor;
#[cfg(test)]
mod documented;
mod explain;
mod follow;
mod foreground;
mod format;
mod glance;
mod image_files;
mod image_source;
mod images;
mod import_image;
mod ims;
mod inspect;
mod isolation;
mod job_logs;
mod job_options;
mod job_progress;
mod jobs;
mod lock_file;
mod locking;
mod login;
mod man;
mod mirror;
mod multiarch;
mod of_containerfile;
mod openchami;
mod packages;
mod printer;
mod progress;
mod prune;
mod public_keys;
mod publish;
mod read_recipe;
mod recipe_reading;
mod recipes;
mod records;
mod registry;
mod remote_build_nodes;
mod root_files;
mod sandboxes;
mod schedules;
mod serve;
mod session;
mod sets;
mod shell;
mod signals;
mod tokens;
mod toolbox;
mod top;
mod transfer;
mod upload;
mod values;
mod verify;
mod warnings;
mod webhooks;
mod why;

/// Build operating-system images for any CPU architecture on the hosts you have.
#[derive(Debug, Parser)]
#[command(name = "kiln", version, max_term_width = 100)]
struct Arguments {
    /// The directory for toolboxes, sandboxes, records and the embedded S3 store.
    #[arg(long, global = true, env = "KILN_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// The configuration file [default: ~/.config/kiln/kiln.toml if it exists].
    #[arg(long, global = true, env = "KILN_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    /// Print only errors and results.
    #[arg(long, short, global = true)]
    quiet: bool,

    /// Print all output of tools.
    #[arg(long, short, global = true, overrides_with = "verbose")]
    verbose: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build an image from a recipe.
    Build(Box<build::BuildCommand>),
    /// Write the packages of a recipe's images into a lock file.
    Lock(Box<locking::LockArguments>),
    #[command(flatten)]
    Records(ims::RecordsCommand),
    /// Make a new image from an existing one, with commands, scripts and playbooks.
    Customize(Box<customize::CustomizeArguments>),
    /// Log in to the shell of a job.
    Shell(shell::ShellArguments),
    /// Manage the recurring jobs of a server.
    Schedules(ims::Group<schedules::SchedulesCommand>),
    /// Show the jobs and places of a server on one screen.
    Top(top::TopArguments),
    /// Remove what the retention rules of a server give up.
    Prune(prune::PruneArguments),
    /// Show who changed what on a server.
    Audit(audit::AuditArguments),
    /// Show who is told of jobs and image sets, and what did not arrive.
    Webhooks(ims::Group<webhooks::WebhooksCommand>),
    /// Manage the image sets of a server.
    Sets(ims::Group<sets::SetsCommand>),
    /// Find the images of complete sets, and move channels.
    Catalogue(ims::Group<catalogue::CatalogueCommand>),
    /// Check that an image is what its builder made.
    Verify(Box<verify::VerifyArguments>),
    /// Check images and recipes.
    Check(ims::Group<check::CheckCommand>),
    /// Accept the commands of `cray ims`, such as `kiln ims images list`.
    Ims(ims::ImsArguments),
    /// Store a server and the token for it.
    Login(login::LoginArguments),
    /// Delete the stored token of a server.
    Logout(login::LogoutArguments),
    /// Manage the toolbox: the root file system that builds run in.
    #[command(subcommand)]
    Toolbox(toolbox::ToolboxCommand),
    /// Manage the sandboxes kept by `kiln build --keep`.
    #[command(subcommand)]
    Sandboxes(sandboxes::SandboxesCommand),
    /// Check whether this host can build images, and suggest remedies.
    Doctor(doctor::DoctorArguments),
    /// Manage the artifacts of builds in S3.
    #[command(subcommand)]
    Artifacts(artifacts::ArtifactsCommand),
    /// Publish images under one tag of a registry, or to OpenStack.
    Publish(Box<publish::PublishArguments>),
    /// Show what a name in a registry stands for.
    Inspect(inspect::InspectArguments),
    /// Copy an image between registries and directories.
    Mirror(mirror::MirrorArguments),
    /// Manage the logins to registries.
    #[command(subcommand)]
    Registry(registry::RegistryCommand),
    /// Run the server: the REST API of IMS and Kiln's own
    Serve(serve::ServeArguments),
    /// Build a small recipe for two architectures, and show the dashboard.
    Demo(demo::DemoArguments),
    /// Manage the tokens for the API of `kiln serve`.
    #[command(subcommand)]
    Tokens(tokens::TokensCommand),
    /// Import the records of another service.
    #[command(subcommand)]
    Import(transfer::ImportCommand),
    /// Export records for another service, an image as a disk, or a rule for pods.
    #[command(subcommand)]
    Export(transfer::ExportCommand),
    /// Copy the records of SQLite to a file. Servers may run.
    Backup(backup::BackupArguments),
    /// Put records from a backup where there are none.
    Restore(backup::RestoreArguments),
    /// Check and show the configuration.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write a manual page for each command.
    Man(man::ManArguments),
}

/// Parses the command line, runs the command, and prints its failure, if any.
pub fn main() -> ExitCode {
    let arguments = parse();
    let printer = Printer::new(arguments.quiet, arguments.verbose);
    let serves = matches!(arguments.command, Command::Serve(_) | Command::Demo(_));
    // A server's log follows its configuration.
    if !matches!(arguments.command, Command::Serve(_)) {
        diagnostics::start(&printer);
    }
    // One provider for the whole process: with two linked and none chosen, the first use would panic.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();

    let mut runtime = if serves {
        serve::runtime()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    let outcome = runtime
        .enable_all()
        .build()
        .map_err(|error| Failure::io("cannot start", &error))
        .and_then(|runtime| runtime.block_on(run(arguments, &printer)));
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            printer.failure(&failure);
            ExitCode::from(failure.code.exit())
        }
    }
}

fn parse() -> Arguments {
    let mut matches = command().get_matches_from(command_line::tidy(std::env::args_os()));
    Arguments::from_arg_matches_mut(&mut matches).unwrap_or_else(|error| error.format(&mut command()).exit())
}

fn command() -> clap::Command {
    client_help::complete(Arguments::command())
}

async fn run(arguments: Arguments, printer: &Printer) -> Result<ExitCode, Failure> {
    let config = || {
        Config::load(arguments.config.as_deref(), arguments.data_dir.clone()).inspect(|Config { trust, .. }| {
            host::trust::use_files(trust.ca.clone(), trust.keep_ca, trust.signing_keys.clone());
        })
    };
    let outcome = match arguments.command {
        Command::Build(command) => command.run(&config()?, printer).await,
        Command::Lock(command) => command.run(&config, printer).await,
        Command::Toolbox(command) => command.run(&config()?, printer).await,
        Command::Doctor(arguments) => arguments.run(&config()?, printer).await,
        Command::Sandboxes(command) => command.run(&config()?, printer).await,
        Command::Artifacts(command) => command.run(&config()?, printer).await,
        Command::Publish(command) => command.run(&config, printer).await,
        Command::Inspect(command) => command.run(printer).await,
        Command::Mirror(command) => command.run(printer).await,
        Command::Registry(command) => command.run(printer).await,
        Command::Serve(command) => command.run(&config()?, printer).await,
        Command::Demo(arguments) => arguments.run(&config()?, printer).await,
        Command::Tokens(command) => command.run(&config()?, printer).await,
        Command::Import(command) => command.run(&config()?, printer).await,
        Command::Export(command) => command.run(&config, printer).await,
        Command::Backup(arguments) => arguments.run(&config()?, printer).await,
        Command::Restore(arguments) => arguments.run(&config()?, printer).await,
        Command::Config(command) => command.run(arguments.config.as_deref(), arguments.data_dir, printer),
        Command::Records(command) => command.run(&config, printer).await,
        Command::Customize(arguments) => arguments.run(&config, printer).await,
        Command::Shell(arguments) => return arguments.run(printer).await,
        Command::Schedules(group) => group.command.run(&group.options.open(printer)?).await,
        Command::Top(arguments) => arguments.run(printer).await,
        Command::Prune(arguments) => arguments.run(&config, printer).await,
        Command::Audit(arguments) => arguments.run(&config, printer).await,
        Command::Webhooks(group) => {
            let run = async |session: &session::Session| group.command.run(session).await;
            group.options.with(&config, printer, false, run).await
        }
        Command::Sets(group) => {
            let run = async |session: &session::Session| group.command.run(session).await;
            group.options.with(&config, printer, false, run).await
        }
        Command::Catalogue(group) => {
            let run = async |session: &session::Session| group.command.run(session).await;
            group.options.with(&config, printer, false, run).await
        }
        Command::Verify(arguments) => arguments.run(&config, printer).await,
        Command::Check(group) => group.command.run(&group.options, &config, printer).await,
        Command::Ims(arguments) => arguments.run(&config, printer).await,
        Command::Login(arguments) => arguments.run(printer).await,
        Command::Logout(arguments) => arguments.run(printer),
        Command::Man(arguments) => arguments.run(command(), printer),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command(), "kiln", &mut script);
            printer.result(String::from_utf8_lossy(&script).trim_end());
            Ok(())
        }
    };
    outcome.map(|()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }
}
