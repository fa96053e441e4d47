//! The inner side of doors: ports of the sandbox's own loopback that lead to the same ports of the host's. Listens on
//! 127.0.0.1, and connects to sockets or the gateway.

use std::{net::IpAddr, time::Duration};

use kiln_records::{Code, Failure};
use tokio::{
    net::{TcpListener, TcpStream, UnixStream},
    time::Instant,
};

/// The directory of the server's sockets inside a sandbox.
const SOCKETS: &str = "/run/kiln";

/// How long a connection waits for a server that is being restarted.
const RESTART: Duration = Duration::from_mins(1);

/// Pause between attempts to reach the server.
const RETRY: Duration = Duration::from_millis(100);

/// Opens the doors, for as long as the agent runs.
///
/// # Errors
///
/// `no_door` when a port cannot be opened.
pub async fn open(ports: &[u16], gateway: Option<IpAddr>) -> Result<(), Failure> {
    for &port in ports {
        let listener = TcpListener::bind(("127.0.0.1", port))
            .await
            .map_err(|error| Failure::new(Code::NoDoor, format!("cannot listen on port {port}: {error}")))?;
        tokio::spawn(serve(listener, port, gateway));
    }
    Ok(())
}

async fn serve(listener: TcpListener, port: u16, gateway: Option<IpAddr>) {
    loop {
        match listener.accept().await {
            Ok((inside, _)) => drop(tokio::spawn(relay(inside, port, gateway))),
            // Out of descriptors for the moment.
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

async fn relay(mut inside: TcpStream, port: u16, gateway: Option<IpAddr>) {
    // Tools give up at the first refusal, so they do not see one while a server is being restarted.
    let until = Instant::now() + RESTART;
    // An error means that one side closed, which the other side sees.
    loop {
        match gateway {
            Some(gateway) => {
                if let Ok(mut outside) = TcpStream::connect((gateway, port)).await {
                    let _ = tokio::io::copy_bidirectional(&mut inside, &mut outside).await;
                    return;
                }
            }
            None => {
                if let Ok(mut outside) = UnixStream::connect(format!("{SOCKETS}/port-{port}.sock")).await {
                    let _ = tokio::io::copy_bidirectional(&mut inside, &mut outside).await;
                    return;
                }
            }
        }
        if Instant::now() > until {
            return;
        }
        tokio::time::sleep(RETRY).await;
    }
}
