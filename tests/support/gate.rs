//! A way to a TCP service on which a test can make the service go away: at once, or without a word.

#![allow(dead_code, reason = "every test program uses another part")]

use std::net::{Ipv4Addr, SocketAddr};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinHandle,
};

/// How the way is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Open,
    /// Connections stay and new ones are taken, but nothing passes: a network that drops every packet looks so.
    Silent,
    /// Connections are closed, and so is every new one.
    Closed,
}

/// A running way, on loopback. It ends when dropped.
#[derive(Debug)]
pub struct Gate {
    pub address: SocketAddr,
    way: watch::Sender<Way>,
    serving: JoinHandle<()>,
}

impl Gate {
    /// Starts an open way to the service at this address.
    pub async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (way, seen) = watch::channel(Way::Open);
        let serving = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let seen = seen.clone();
                tokio::spawn(async move { pass(client, to, seen).await });
            }
        });
        Self { address, way, serving }
    }

    /// Changes the way, for all connections.
    pub fn set(&self, way: Way) {
        self.way.send_replace(way);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn pass(client: TcpStream, to: SocketAddr, mut way: watch::Receiver<Way>) {
    let closed = {
        let mut way = way.clone();
        async move { drop(way.wait_for(|way| *way == Way::Closed).await) }
    };
    let passing = async {
        // A service that is silent does not take connections either; the kernel does.
        if way.wait_for(|way| *way != Way::Silent).await.is_err() {
            return;
        }
        let Ok(server) = TcpStream::connect(to).await else {
            return;
        };
        let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
        // An error means that one side closed, which the other side sees.
        let _ = tokio::try_join!(
            pump(from_client, to_server, way.clone()),
            pump(from_server, to_client, way),
        );
    };
    tokio::select! {
        () = passing => {}
        () = closed => {}
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut way: watch::Receiver<Way>) -> std::io::Result<()> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut bytes).await?;
        way.wait_for(|way| *way != Way::Silent)
            .await
            .map_err(std::io::Error::other)?;
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&bytes[..read]).await?;
    }
}
