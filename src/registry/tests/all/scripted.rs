//! A registry that answers as a test says.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// A request.
#[derive(Debug)]
pub struct Asked {
    pub method: String,
    /// Path and query.
    pub target: String,
    /// The head, in lower case.
    pub head: String,
    pub body: Vec<u8>,
}

/// How the body of an answer comes.
#[derive(Debug, Clone)]
pub enum Body {
    Whole(Vec<u8>),
    /// Without end.
    Endless,
    /// A byte now and then.
    Drip,
    /// The announced length is more than what comes.
    Cut(Vec<u8>),
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Body,
}

impl Reply {
    pub fn new(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Body::Whole(Vec::new()),
        }
    }

    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Body::Whole(body.into());
        self
    }

    pub fn comes(mut self, body: Body) -> Self {
        self.body = body;
        self
    }
}

type Answer = dyn Fn(&Asked) -> Reply + Send + Sync;

/// Starts a registry on the loopback. It ends with the test's runtime.
pub async fn start(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer: Arc<Answer> = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            // A client that goes away is what some tests are about.
            tokio::spawn(async move { serve(stream, &*answer).await.ok() });
        }
    });
    address
}

async fn serve(mut stream: TcpStream, answer: &Answer) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let text = String::from_utf8_lossy(&head).into_owned();
    let lower = text.to_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.and_then(|length| length.trim().parse().ok()).unwrap_or(0)];
    stream.read_exact(&mut body).await?;
    let mut words = text.split(' ').map(str::to_owned);
    let asked = Asked {
        method: words.next().unwrap_or_default(),
        target: words.next().unwrap_or_default(),
        head: lower,
        body,
    };
    let reply = answer(&asked);
    let mut text = format!("HTTP/1.1 {} X\r\nconnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    let own_length = reply.headers.iter().any(|(name, _)| *name == "content-length");
    match &reply.body {
        Body::Whole(body) if !own_length => text.push_str(&format!("content-length: {}\r\n", body.len())),
        Body::Cut(body) => text.push_str(&format!("content-length: {}\r\n", body.len() * 2)),
        _ => {}
    }
    text.push_str("\r\n");
    stream.write_all(text.as_bytes()).await?;
    match reply.body {
        Body::Whole(_) if asked.method == "HEAD" => {}
        Body::Whole(body) | Body::Cut(body) => stream.write_all(&body).await?,
        Body::Endless => loop {
            stream.write_all(&vec![b' '; 65536]).await?;
        },
        Body::Drip => loop {
            stream.write_all(b" ").await?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        },
    }
    stream.shutdown().await
}
