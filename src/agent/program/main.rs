//! `kiln-agent`: the process inside a sandbox. It is static, so that it runs in any root file system, and learns on its
//! standard input, in one line, where its server is and which job is its own. Called by the name of a program
//! in whose place it was put, it is that, and called `init` the first process of a virtual machine.

use std::{
    ffi::OsStr,
    io::{BufRead, Write},
    path::Path,
    process::ExitCode,
};

use kiln_agent::{
    container,
    containerfile::runtime,
    guest, job,
    template::apart,
    twins::{call, layout, probe, stand_in},
    watch,
};
use kiln_inside::room::{Release, order, process1};
use kiln_records::{
    Code, Failure,
    protocol::{AgentFacts, words},
};

/// What the watcher of programs is told about twins.
const TWINS: watch::Twins = watch::Twins {
    loader: layout::LOADER,
    words: call::of_program,
    variables: call::variables_of_program,
    hash: call::hash_of,
    given_up: layout::GIVEN_UP,
};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    if let Some(program) = stand_in::called(&name) {
        let error = stand_in::main(program, arguments);
        let _ = writeln!(std::io::stderr(), "{program}: {error}");
        // As chroot itself does when it fails.
        return ExitCode::from(125);
    }
    if runtime::is_called(&name) {
        return match runtime::main(arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "{error}");
                ExitCode::FAILURE
            }
        };
    }
    if Path::new(&name).file_name() == Some(guest::NAME.as_ref()) {
        guest::main();
    }
    let ended = match arguments.next() {
        Some(word) if word == order::COMMAND => return container::main(arguments),
        Some(word) if word == watch::COMMAND => watch::main(arguments, TWINS)
            .map(|code| ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
            .map_err(|error| Failure::io("cannot watch", &error)),
        Some(word) if word == apart::COMMAND => apart::main().map(|()| ExitCode::SUCCESS),
        Some(word) if word == stand_in::ENTER => Err(Failure::io("cannot run it", &stand_in::enter(arguments))),
        Some(word) if word == probe::COMMAND => Err(Failure::io("cannot run it in the root", &probe::main(arguments))),
        Some(word) if word == process1::RELEASE => run(arguments.next().as_deref()).map(|()| ExitCode::SUCCESS),
        _ => run(None).map(|()| ExitCode::SUCCESS),
    };
    match ended {
        Ok(code) => code,
        Err(failure) => {
            // The server does not know; whoever made the sandbox keeps what is said here.
            let _ = writeln!(std::io::stderr(), "{}", words::say(&failure));
            ExitCode::FAILURE
        }
    }
}

/// Does the job. `release` is the number of the file that says of which kernel programs are told.
fn run(release: Option<&OsStr>) -> Result<(), Failure> {
    // First of all, so that nothing inherits it. Where nobody answers for the kernel it is gone.
    let release = release.and_then(|number| Release::inherited(number.to_str()?.parse().ok()?).ok());
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.map_err(|error| Failure::io("cannot read the description of the job", &error))?;
    let facts: AgentFacts = serde_json::from_str(&line).map_err(|error| {
        Failure::new(
            Code::Protocol,
            format_args!("the description of the job is invalid: {error}"),
        )
    })?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::io("cannot start", &error))?;
    let ended = runtime.block_on(job::run(&facts, release));
    // Work that blocks is not waited for: it ends with the process.
    runtime.shutdown_background();
    ended
}
