//! Provides an S3 service that refuses requests for a while: a proxy on loopback.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use kiln_s3::EmbeddedS3;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
};

use crate::artifacts::{ArtifactStore, S3Settings};

/// The answer to give instead of S3's: a status, for requests that have this text in their first line.
pub(in crate::orchestrate) type Fault = Arc<Mutex<Option<(u16, &'static str)>>>;

/// A client of S3 through a proxy.
pub(in crate::orchestrate) async fn proxy(s3: &EmbeddedS3) -> (ArtifactStore, Fault) {
    let settings = S3Settings::from(s3);
    let endpoint = settings.endpoint.as_ref().unwrap().strip_prefix("http://").unwrap();
    let (address, fault) = stand_before(endpoint.parse().unwrap()).await;
    let settings = S3Settings {
        endpoint: Some(format!("http://{address}")),
        ..settings
    };
    (ArtifactStore::connect(&settings).await.unwrap(), fault)
}

async fn stand_before(to: SocketAddr) -> (SocketAddr, Fault) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, fault) = (listener.local_addr().unwrap(), Fault::default());
    let shared = Arc::clone(&fault);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let fault = Arc::clone(&shared);
            tokio::spawn(async move { pass(client, to, &fault).await });
        }
    });
    (address, fault)
}

/// Passes one request on, or answers it.
async fn pass(mut client: TcpStream, to: SocketAddr, fault: &Fault) -> std::io::Result<()> {
    let mut head = Vec::new();
    let end = loop {
        if let Some(at) = head.windows(2).position(|window| window == b"\r\n") {
            break at + 2;
        }
        if client.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    };
    let line = String::from_utf8_lossy(&head[..end]).into_owned();
    let fault = *fault.lock().unwrap();
    if let Some((status, _)) = fault.filter(|(_, target)| line.contains(target)) {
        let body = "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>";
        let length = body.len();
        let answer = format!("HTTP/1.1 {status} No\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
        client.write_all(answer.as_bytes()).await?;
        client.shutdown().await?;
        // The answer is lost if the rest of the request is not read.
        tokio::io::copy(&mut client, &mut tokio::io::sink()).await?;
        return Ok(());
    }
    let mut server = TcpStream::connect(to).await?;
    server.write_all(&head[..end]).await?;
    server.write_all(b"connection: close\r\n").await?;
    server.write_all(&head[end..]).await?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}
