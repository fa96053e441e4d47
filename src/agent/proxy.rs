//! The ways to the site's HTTP proxy and to its registries: ports of the sandbox's own loopback, whose connections are passed on to
//! the server.
//! Listens on 127.0.0.1, and calls the server.

use std::time::Duration;

use kiln_records::{Code, Failure, protocol::ProxyFacts};
use tokio::{
    net::{TcpListener, TcpStream},
    time::Instant,
};

use super::channel::Channel;

/// How long a connection waits for a server that is being restarted.
const RESTART: Duration = Duration::from_mins(1);

/// Pause between attempts to reach the server.
const RETRY: Duration = Duration::from_millis(200);

/// The variables by which programs find a proxy.
const VARIABLES: [&str; 6] = [
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
];

/// The variables of this process, for programs that do not inherit them.
pub fn variables() -> impl Iterator<Item = (String, String)> {
    VARIABLES
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)))
}

/// Opens the port, for as long as the agent runs.
///
/// # Errors
///
/// `no_door` when it cannot be opened.
pub async fn open(facts: Option<&ProxyFacts>, channel: &Channel) -> Result<(), Failure> {
    let Some(port) = facts.and_then(|facts| facts.port) else {
        return Ok(());
    };
    let listener = TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| Failure::new(Code::NoDoor, format!("cannot listen on port {port}: {error}")))?;
    tokio::spawn(serve(listener, channel.clone(), Way::Proxy));
    Ok(())
}

/// Opens a port of the loopback that leads to the site's registries, for as long as the agent runs. Returns its number.
///
/// # Errors
///
/// `no_door` when it cannot be opened.
pub async fn open_registries(channel: &Channel) -> Result<u16, Failure> {
    let failed = |error| {
        Failure::new(
            Code::NoDoor,
            format!("cannot listen for the site's registries: {error}"),
        )
    };
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    tokio::spawn(serve(listener, channel.clone(), Way::Registries));
    Ok(port)
}

/// What a port leads to.
#[derive(Debug, Clone, Copy)]
enum Way {
    Proxy,
    Registries,
}

async fn serve(listener: TcpListener, channel: Channel, way: Way) {
    loop {
        match listener.accept().await {
            Ok((inside, _)) => drop(tokio::spawn(pass_on(inside, channel.clone(), way))),
            // Out of descriptors for the moment.
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

async fn pass_on(mut inside: TcpStream, channel: Channel, way: Way) {
    // Tools give up at the first refusal, so they do not see one while a server is being restarted, or has no room.
    let until = Instant::now() + RESTART;
    while Instant::now() < until {
        let opened = match way {
            Way::Proxy => channel.open_proxy().await,
            Way::Registries => channel.open_registry().await,
        };
        if let Ok(mut outside) = opened {
            // An error means that one side closed, which the other side sees.
            let _ = tokio::io::copy_bidirectional(&mut inside, &mut outside).await;
            return;
        }
        tokio::time::sleep(RETRY).await;
    }
}
