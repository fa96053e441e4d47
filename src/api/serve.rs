//! Serves the API over the network: sockets, TLS, time limits for slow callers, and a clean stop.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, middleware};
use axum_server::{
    Handle, Server,
    accept::{Accept, DefaultAcceptor},
    tls_rustls::RustlsAcceptor,
};
use futures::future::BoxFuture;
use hyper_util::rt::TokioTimer;
use kiln_records::{Code, Failure};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpListener,
    task::JoinSet,
    time::{Sleep, sleep},
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tower_http::{catch_panic::CatchPanicLayer, compression::CompressionLayer};

use super::{
    address,
    auth::{self, Auth},
    limits::{self, Limits},
    request_log,
    tls::Certificate,
};

/// The time that requests in progress get when the server stops.
pub const GRACE: Duration = Duration::from_secs(10);

/// The longest time for the headers of a request, and for an idle connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest time for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The most header bytes of one request.
const MOST_HEADER_BYTES: u32 = 64 << 10;

/// The most headers of one request.
const MOST_HEADERS: usize = 100;

/// Requests on one HTTP/2 connection at a time.
const MOST_STREAMS: u32 = 128;

/// The bytes at a connection's beginning that tell HTTP/1 from HTTP/2.
const PREFACE: usize = 24;

/// The API with every layer before it: normalized addresses, the log, authentication, limits. `agents` are the routes
/// of the agents' protocol, where agents come over the network.
pub fn app(router: Router, agents: Option<Router>, auth: Auth, limits: Limits) -> Router {
    let inner = router
        .layer(CatchPanicLayer::custom(limits::panicked))
        .layer(middleware::from_fn_with_state(limits, limits::limit))
        .layer(middleware::from_fn_with_state(auth, auth::authenticate))
        .layer(CompressionLayer::new())
        .layer(middleware::from_fn(request_log::log));
    // Outside the router, because a router's own layers run after it has matched the address.
    let users = Router::new().fallback_service(inner.map_request(address::normalize));
    match agents {
        // Each of these calls bears the token of its job, and its requests are bounded there.
        Some(agents) => agents.layer(CatchPanicLayer::custom(limits::panicked)).merge(users),
        None => users,
    }
}

/// Sockets that are open but not served yet.
#[derive(Debug)]
pub struct Sockets {
    listeners: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
}

impl Sockets {
    /// Opens the sockets.
    ///
    /// # Errors
    ///
    /// `cannot_listen`, with the address.
    pub async fn open(addresses: &[SocketAddr]) -> Result<Self, Failure> {
        let mut sockets = Self {
            listeners: Vec::new(),
            addresses: Vec::new(),
        };
        for address in addresses {
            let opened = match TcpListener::bind(address).await {
                Ok(listener) => listener.local_addr().map(|address| (listener, address)),
                Err(error) => Err(error),
            };
            let (listener, address) = opened.map_err(|error| {
                let failure = Failure::new(Code::CannotListen, format_args!("cannot listen on {address}: {error}"));
                match error.kind() {
                    io::ErrorKind::AddrInUse => failure.hint(
                        "something else listens there, perhaps another kiln; stop it, or set another address as \
                         `listen` in [server] or as KILN__SERVER__LISTEN",
                    ),
                    _ => failure.hint("set another address as `listen` in [server] or as KILN__SERVER__LISTEN"),
                }
            })?;
            sockets.listeners.push(listener);
            sockets.addresses.push(address);
        }
        Ok(sockets)
    }

    /// The addresses of the sockets, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Serves the sockets until stopped. Then it accepts no more connections and waits for requests in progress, for
    /// [`GRACE`] at most.
    ///
    /// # Errors
    ///
    /// When a socket breaks.
    pub async fn serve(
        self,
        app: Router,
        certificate: Option<Certificate>,
        stop: &CancellationToken,
    ) -> io::Result<()> {
        let mut serving = JoinSet::new();
        let mut handles = Vec::new();
        let tls = certificate.as_ref().map(Certificate::config);
        for listener in self.listeners {
            let handle = Handle::new();
            handles.push(handle.clone());
            let server = server(listener, handle);
            let app = app.clone().into_make_service_with_connect_info::<SocketAddr>();
            match tls.clone() {
                Some(config) => {
                    let tls = RustlsAcceptor::new(config).handshake_timeout(HANDSHAKE_TIMEOUT);
                    serving.spawn(server.map(|plain| Hurrying(tls.acceptor(plain))).serve(app))
                }
                None => serving.spawn(server.map(Hurrying).serve(app)),
            };
        }
        let following = async {
            match certificate {
                Some(certificate) => certificate.follow().await,
                None => std::future::pending().await,
            }
        };
        // A socket ends by itself only when it is broken.
        let broken = tokio::select! {
            () = stop.cancelled() => None,
            () = following => None,
            ended = serving.join_next() => ended,
        };
        for handle in &handles {
            handle.graceful_shutdown(Some(GRACE));
        }
        let mut outcome = broken.map_or(Ok(()), flatten);
        while let Some(ended) = serving.join_next().await {
            outcome = outcome.and(flatten(ended));
        }
        outcome
    }
}

fn flatten(ended: Result<io::Result<()>, tokio::task::JoinError>) -> io::Result<()> {
    ended.unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn server(listener: TcpListener, handle: Handle<SocketAddr>) -> Server<SocketAddr, NoDelay> {
    let mut server = Server::from_listener(listener).acceptor(NoDelay).handle(handle);
    let http = server.http_builder();
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_headers(MOST_HEADERS)
        .max_buf_size(MOST_HEADER_BYTES as usize);
    http.http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(HEADER_TIMEOUT)
        .keep_alive_timeout(HEADER_TIMEOUT)
        .max_header_list_size(MOST_HEADER_BYTES)
        .max_concurrent_streams(MOST_STREAMS);
    server
}

/// Sends small packets at once. Otherwise a body would wait 40 ms until the client acknowledges the headers.
#[derive(Debug, Clone, Copy)]
struct NoDelay;

impl<S> Accept<tokio::net::TcpStream, S> for NoDelay {
    type Stream = tokio::net::TcpStream;
    type Service = S;
    type Future = std::future::Ready<io::Result<(Self::Stream, S)>>;

    fn accept(&self, stream: tokio::net::TcpStream, service: S) -> Self::Future {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "small packets will be delayed");
        }
        DefaultAcceptor::new().accept(stream, service)
    }
}

/// Accepts connections, and closes those that stay silent. The HTTP library itself would wait for ever for the first
/// bytes, which tell it the protocol.
#[derive(Debug, Clone)]
struct Hurrying<A>(A);

impl<A, I, S> Accept<I, S> for Hurrying<A>
where
    A: Accept<I, S>,
    A::Future: Send + 'static,
{
    type Stream = Hurried<A::Stream>;
    type Service = A::Service;
    type Future = BoxFuture<'static, io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: I, service: S) -> Self::Future {
        let accepting = self.0.accept(stream, service);
        Box::pin(async move {
            let (stream, service) = accepting.await?;
            let hurried = Hurried {
                stream,
                missing: PREFACE,
                until: Box::pin(sleep(HEADER_TIMEOUT)),
            };
            Ok((hurried, service))
        })
    }
}

/// A connection with a deadline for its first bytes.
#[derive(Debug)]
struct Hurried<S> {
    stream: S,
    missing: usize,
    until: Pin<Box<Sleep>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Hurried<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if self.missing > 0 {
            self.missing = self.missing.saturating_sub(buf.filled().len() - before);
            if read.is_pending() && self.until.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Hurried<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
