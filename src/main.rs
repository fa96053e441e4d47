//! `kiln`: starts the command line, or the hidden supervisor of a sandbox.

use std::process::ExitCode;

use kiln::{cli, sandbox::namespace};

fn main() -> ExitCode {
    // The supervisor forks, so it must run before anything starts a thread.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == namespace::SUPERVISOR_COMMAND)
    {
        return ExitCode::from(u8::try_from(namespace::supervisor::main()).unwrap_or(1));
    }
    cli::main()
}
