//! `kiln-agent`: the process inside a sandbox. It is static, so that it runs in any root file system, and takes all
//! its orders over the socket on its standard input.

use std::{
    os::{fd::AsFd, unix::net::UnixStream},
    process::ExitCode,
};

use kiln::agent::{channel::Channel, job};

fn main() -> ExitCode {
    // Whatever runs below must not be able to read the channel, so it moves away from the standard descriptors.
    let Ok(socket) = std::io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from) else {
        return ExitCode::FAILURE;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let code = runtime.map(|runtime| {
        let _entered = runtime.enter();
        let socket = socket
            .set_nonblocking(true)
            .and_then(|()| tokio::net::UnixStream::from_std(socket));
        socket.map(|socket| runtime.block_on(job::run(Channel::new(socket))))
    });
    match code {
        Ok(Ok(code)) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Ok(Err(_)) | Err(_) => ExitCode::FAILURE,
    }
}
