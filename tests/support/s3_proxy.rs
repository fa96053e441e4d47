//! A proxy between Kiln and its S3 that makes some requests fail.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// How a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is answered with this status and not passed on.
    Status(u16),
    /// It is delayed for that long.
    Slow(Duration),
    /// The connection is closed after that many bytes of the request's body.
    Cut(usize),
    /// The connection is reset before an answer.
    Reset,
}

/// The requests that fail.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    pub fault: Fault,
    /// The request's method; empty for all.
    pub method: &'static str,
    /// A part of its target.
    pub target: &'static str,
    /// One in that many, in no regular order: a repetition may fail like the first request.
    pub every: u64,
}

#[derive(Debug, Default)]
struct State {
    rule: Mutex<Option<Rule>>,
    matched: AtomicU64,
    failed: AtomicU64,
}

/// A running proxy, which ends when dropped.
#[derive(Debug)]
pub struct S3Proxy {
    pub address: SocketAddr,
    state: Arc<State>,
    serving: JoinHandle<()>,
}

impl S3Proxy {
    /// Starts a proxy for the service at this address.
    pub async fn start(to: SocketAddr) -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), to).await
    }

    /// The same at an address of this host that others reach, too.
    pub async fn start_at(address: IpAddr, to: SocketAddr) -> Self {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state: Arc<State> = Arc::default();
        let shared = Arc::clone(&state);
        let serving = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let state = Arc::clone(&shared);
                // An error means that one side closed, which the other side sees.
                tokio::spawn(async move { pass(client, to, &state).await });
            }
        });
        Self {
            address,
            state,
            serving,
        }
    }

    /// Sets the requests that fail from now on, or none.
    pub fn set(&self, rule: Option<Rule>) {
        *self.state.rule.lock().unwrap() = rule;
    }

    /// The number of failed requests.
    pub fn failed(&self) -> u64 {
        self.state.failed.load(Ordering::Relaxed)
    }
}

impl Drop for S3Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Passes one request on. Each request has its own connection, so that each is seen.
async fn pass(mut client: TcpStream, to: SocketAddr, state: &State) -> std::io::Result<()> {
    let mut head = Vec::new();
    let end = loop {
        if let Some(at) = head.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 2;
        }
        if client.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    };
    match fault_of(&head[..end], state) {
        None => {}
        Some(Fault::Slow(time)) => tokio::time::sleep(time).await,
        Some(Fault::Status(status)) => {
            let code = if matches!(status, 429 | 503) {
                "SlowDown"
            } else {
                "InternalError"
            };
            let body = format!("<Error><Code>{code}</Code><Message>a fault</Message></Error>");
            let length = body.len();
            let answer =
                format!("HTTP/1.1 {status} Fault\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
            client.write_all(answer.as_bytes()).await?;
            client.shutdown().await?;
            // The rest of the request is read, or a reset would destroy the answer.
            let _ = tokio::time::timeout(
                Duration::from_secs(5),
                tokio::io::copy(&mut client, &mut tokio::io::sink()),
            )
            .await;
            return Ok(());
        }
        Some(Fault::Cut(bytes)) => {
            let mut server = TcpStream::connect(to).await?;
            server.write_all(&head).await?;
            let mut some = (&mut client).take(bytes as u64);
            tokio::io::copy(&mut some, &mut server).await?;
            return Ok(());
        }
        Some(Fault::Reset) => return client.set_zero_linger(),
    }
    let mut server = TcpStream::connect(to).await?;
    server.write_all(&head[..end]).await?;
    server.write_all(b"connection: close\r\n").await?;
    server.write_all(&head[end..]).await?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

fn fault_of(head: &[u8], state: &State) -> Option<Fault> {
    let rule = (*state.rule.lock().unwrap())?;
    let head = String::from_utf8_lossy(head);
    let mut words = head.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    if !(rule.method.is_empty() || rule.method == method) || !target.contains(rule.target) {
        return None;
    }
    // The first one fails, and the others as the golden ratio has it.
    let number = state.matched.fetch_add(1, Ordering::Relaxed);
    let mixed = number.wrapping_mul(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    mixed.is_multiple_of(rule.every).then(|| {
        state.failed.fetch_add(1, Ordering::Relaxed);
        rule.fault
    })
}
