//! The inner side of doors: ports of the sandbox's own loopback that lead to the same ports of the host's.

use tokio::net::{TcpListener, TcpStream, UnixStream};

use crate::records::Failure;

/// Where the server's sockets are inside a sandbox.
const SOCKETS: &str = "/run/kiln";

/// Opens the doors, for as long as the agent runs.
///
/// # Errors
///
/// `no_door` when a port cannot be listened on.
pub async fn open(ports: &[u16]) -> Result<(), Failure> {
    for &port in ports {
        let listener = TcpListener::bind(("127.0.0.1", port))
            .await
            .map_err(|error| Failure::new("no_door", format!("cannot listen on port {port}: {error}")))?;
        tokio::spawn(serve(listener, port));
    }
    Ok(())
}

async fn serve(listener: TcpListener, port: u16) {
    loop {
        match listener.accept().await {
            Ok((inside, _)) => drop(tokio::spawn(relay(inside, port))),
            // Out of descriptors, for the moment.
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(100)).await,
        }
    }
}

async fn relay(mut inside: TcpStream, port: u16) {
    // A server that is being restarted has no socket; who asked tries again, as after any lost connection.
    if let Ok(mut outside) = UnixStream::connect(format!("{SOCKETS}/port-{port}.sock")).await {
        let _ = tokio::io::copy_bidirectional(&mut inside, &mut outside).await;
    }
}
