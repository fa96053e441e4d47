//! Relays from ports of a sandbox's own loopback to the server's sockets, for a virtual machine, whose network reaches
//! this loopback but no file. Listens on 127.0.0.1 inside the sandbox.

use std::{
    net::{Ipv4Addr, TcpListener as StdTcpListener},
    path::PathBuf,
    time::Duration,
};

use kiln_records::{Code, Failure};
use tokio::{
    net::{TcpListener, TcpStream, UnixStream},
    time::Instant,
};

use super::DOORS;
use crate::sandbox::microvm::Relay;

/// How long a connection waits for a server that is being restarted: tools in the machine give up at the first
/// refusal.
const RESTART: Duration = Duration::from_mins(1);

/// Pause between attempts to reach the server, or to get a descriptor.
const RETRY: Duration = Duration::from_millis(100);

/// Opens the relays, for as long as this process lives.
///
/// # Errors
///
/// `no_door` when a port cannot be opened.
pub(super) fn open(relays: &[Relay]) -> Result<(), Failure> {
    if relays.is_empty() {
        return Ok(());
    }
    let failed =
        |error: std::io::Error| Failure::new(Code::NoDoor, format!("cannot relay the machine's ports: {error}"));
    let listen = |relay: &Relay| {
        let listener = StdTcpListener::bind((Ipv4Addr::LOCALHOST, relay.port))?;
        listener.set_nonblocking(true)?;
        Ok((listener, PathBuf::from(DOORS).join(&relay.socket)))
    };
    let listeners: Vec<_> = relays.iter().map(listen).collect::<Result<_, _>>().map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(failed)?;
    std::thread::spawn(move || runtime.block_on(serve_all(listeners)));
    Ok(())
}

async fn serve_all(listeners: Vec<(StdTcpListener, PathBuf)>) {
    let mut tasks = tokio::task::JoinSet::new();
    for (listener, socket) in listeners {
        if let Ok(listener) = TcpListener::from_std(listener) {
            tasks.spawn(serve(listener, socket));
        }
    }
    tasks.join_all().await;
}

async fn serve(listener: TcpListener, socket: PathBuf) {
    loop {
        match listener.accept().await {
            Ok((from_machine, _)) => drop(tokio::spawn(relay(from_machine, socket.clone()))),
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

async fn relay(mut from_machine: TcpStream, socket: PathBuf) {
    let until = Instant::now() + RESTART;
    loop {
        if let Ok(mut server) = UnixStream::connect(&socket).await {
            // An error means that one side closed, which the other side sees.
            let _ = tokio::io::copy_bidirectional(&mut from_machine, &mut server).await;
            return;
        }
        if Instant::now() > until {
            return;
        }
        tokio::time::sleep(RETRY).await;
    }
}
