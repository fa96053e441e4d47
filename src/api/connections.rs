//! Accepts connections, and limits their number and their silence. Touches the given sockets only.
//!
//! Each connection has a place from before its first byte until its descriptor is closed. Connections
//! that say nothing, that take too long for the headers of a request, or that are idle for too long are closed, and so
//! are those whose peer takes no byte of an answer for too long. An answer that has nothing to say, such as the lines of
//! a quiet job, may take any time.

use std::{
    convert::Infallible,
    hash::Hash,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{ConnectInfo, Request},
    http::{Extensions, StatusCode},
    response::Response,
};
use axum_server::{
    accept::Accept,
    tls_rustls::{RustlsAcceptor, RustlsConfig},
};
use hyper::{
    body::{Frame, Incoming, SizeHint},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::Notify,
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

use super::{
    hurried::{Begun, Hurried},
    places::{Hold, Place, Places},
    rate::Key,
    security_headers,
};

/// The longest time for the headers of a request, and for an idle connection.
const IDLE: Duration = Duration::from_secs(30);

/// The longest time for a TLS handshake, and until the first bytes of a connection.
const FIRST_BYTES: Duration = Duration::from_secs(10);

/// The longest time until the peer takes the next byte of an answer.
const STALL: Duration = Duration::from_mins(1);

/// The most header bytes of one request.
const MOST_HEADER_BYTES: u32 = 64 << 10;

/// The most headers of one request.
const MOST_HEADERS: usize = 100;

/// Requests on one HTTP/2 connection at a time.
const MOST_STREAMS: u32 = 128;

/// Bytes of an answer that wait on an HTTP/2 connection until the peer takes them.
const MOST_WAITING: usize = 64 << 10;

/// The pause after a connection could not be accepted. Most likely no descriptor is free; one will be soon.
const PAUSE: Duration = Duration::from_millis(100);

/// The interval between reports of connections that could not be accepted.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// The place of the connection by which a request came. Requests have it among their extensions.
#[derive(Debug, Clone)]
pub(super) struct CameBy(Arc<dyn Hold>);

impl CameBy {
    /// Notes that the caller was admitted, so that the connection no longer counts as that of a stranger.
    pub(super) fn admitted(request: &Extensions) {
        if let Some(Self(place)) = request.get::<Self>() {
            place.admit();
        }
    }
}

/// What accepts connections.
trait Listener: Send {
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;
    type Peer: Send;

    fn next(&mut self) -> impl Future<Output = io::Result<(Self::Stream, Self::Peer)>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;
    type Peer = SocketAddr;

    async fn next(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        self.accept().await
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;
    type Peer = ();

    async fn next(&mut self) -> io::Result<(UnixStream, ())> {
        Ok((self.accept().await?.0, ()))
    }
}

/// The next connection, however many could not be accepted before it.
async fn accept<L: Listener>(listener: &mut L) -> (L::Stream, L::Peer) {
    let mut reported: Option<Instant> = None;
    loop {
        match listener.next().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                if reported.is_none_or(|at| at.elapsed() >= REPORT_EVERY) {
                    tracing::warn!(%error, "a connection was not accepted");
                    reported = Some(Instant::now());
                }
                sleep(PAUSE).await;
            }
        }
    }
}

/// How connections end when the server does.
#[derive(Debug, Clone)]
pub(super) struct Ends {
    /// Fires when no new connections and requests are taken.
    pub(super) stop: CancellationToken,
    /// Fires when whatever goes on is broken off.
    pub(super) end: CancellationToken,
    /// The connections.
    pub(super) tasks: TaskTracker,
}

/// The places for connections to the API, shared by all its addresses.
#[derive(Debug, Clone)]
pub struct ApiPlaces {
    of_one: usize,
    places: Places<Key>,
}

impl ApiPlaces {
    /// So many in all. An address of the network may have a quarter of them, and this host half of them.
    pub fn new(most: usize) -> Self {
        Self {
            of_one: most / 4,
            places: Places::new(most),
        }
    }

    /// Serves a socket until stopped.
    pub(super) async fn serve(
        self,
        mut listener: TcpListener,
        tls: Option<RustlsConfig>,
        app: Router,
        Ends { stop, end, tasks }: Ends,
    ) {
        let tls = tls.map(|config| RustlsAcceptor::new(config).handshake_timeout(FIRST_BYTES));
        loop {
            let (stream, peer) = tokio::select! {
                () = stop.cancelled() => return,
                accepted = accept(&mut listener) => accepted,
            };
            let ip = peer.ip().to_canonical();
            let of_one = if ip.is_loopback() { self.of_one * 2 } else { self.of_one };
            let Some(place) = self.places.take(Key::peer(ip), of_one.max(1)) else {
                tracing::debug!(%peer, "a connection was refused: there are too many");
                if tls.is_none() {
                    let _ = stream.try_write(TOO_MANY);
                }
                continue;
            };
            // Otherwise a body would wait 40 ms until the client acknowledges the headers.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "small packets will be delayed");
            }
            let place = Arc::new(place);
            let (app, tls, stop, end) = (app.clone(), tls.clone(), stop.clone(), end.clone());
            let serving = async move {
                let stream = Hurried::new(stream, place.clone(), STALL);
                let Some(tls) = tls else {
                    return serve(stream, place, Some(peer), app, &stop).await;
                };
                let shaken = tokio::select! {
                    shaken = tls.accept(stream, ()) => shaken,
                    () = place.given_up.cancelled() => return,
                    () = stop.cancelled() => return,
                };
                match shaken {
                    Ok((stream, ())) => serve(stream, place, Some(peer), app, &stop).await,
                    Err(error) => tracing::debug!(%error, "a handshake failed"),
                }
            };
            tasks.spawn(async move { end.run_until_cancelled(serving).await });
        }
    }
}

/// What a peer is told that has too many connections, if it listens.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n\
    Content-Length: 0\r\n\r\n";

/// The places of agents on their jobs' own sockets, by the id of the job.
#[derive(Debug, Clone)]
pub(crate) struct AgentPlaces<K> {
    of_one: usize,
    places: Places<K>,
}

impl<K: Eq + Hash + Clone + std::fmt::Debug + Send + 'static> AgentPlaces<K> {
    /// So many in all, and of one job.
    pub(crate) fn new((of_all, of_one): (usize, usize)) -> Self {
        Self {
            of_one,
            places: Places::new(of_all),
        }
    }

    /// Serves the socket of one job; dropping the future closes its connections, except those that were handed over.
    pub(crate) async fn serve(&self, mut listener: UnixListener, job: K, app: Router) {
        let stop = CancellationToken::new();
        let _ended = stop.clone().drop_guard();
        loop {
            let (stream, ()) = accept(&mut listener).await;
            let Some(place) = self.places.take(job.clone(), self.of_one) else {
                let _ = stream.try_write(TOO_MANY);
                continue;
            };
            let (place, app, stop) = (Arc::new(place), app.clone(), stop.clone());
            let stream = Hurried::new(stream, place.clone(), STALL);
            tokio::spawn(async move {
                let never = CancellationToken::new();
                stop.run_until_cancelled(serve(stream, place, None, app, &never)).await
            });
        }
    }
}

/// Serves one connection.
async fn serve<S, K>(stream: S, place: Arc<Place<K>>, peer: Option<SocketAddr>, app: Router, stop: &CancellationToken)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    K: Eq + Hash + Clone + std::fmt::Debug + Send + 'static,
{
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_headers(MOST_HEADERS)
        .max_buf_size(MOST_HEADER_BYTES as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(IDLE)
        .keep_alive_timeout(IDLE)
        .max_header_list_size(MOST_HEADER_BYTES)
        .max_send_buf_size(MOST_WAITING)
        .max_concurrent_streams(MOST_STREAMS);
    let busy = Arc::new(Busy {
        place: Arc::clone(&place) as Arc<dyn Hold>,
        ended: Notify::new(),
        requests: AtomicUsize::new(0),
    });
    let answer = {
        let busy = Arc::clone(&busy);
        service_fn(move |request: hyper::Request<Incoming>| {
            let (app, held) = (app.clone(), Held::new(Arc::clone(&busy)));
            async move {
                let mut request: Request = request.map(Body::new);
                let extensions = request.extensions_mut();
                extensions.insert(CameBy(Arc::clone(&held.0.place)));
                if let Some(peer) = peer {
                    extensions.insert(ConnectInfo(peer));
                }
                let mut answer: Response = match app.oneshot(request).await {
                    Ok(answer) => answer,
                    Err(never) => match never {},
                };
                // Here, every answer of every listener passes, whichever layer gave it.
                security_headers::complete(&mut answer);
                if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
                    held.0.place.hand_over();
                }
                Ok::<_, Infallible>(answer.map(|body| Counted { body, _held: held }))
            }
        })
    };
    let io = TokioIo::new(Begun::new(stream, FIRST_BYTES));
    let given_up = place.given_up.clone();
    let mut connection = std::pin::pin!(builder.serve_connection_with_upgrades(io, answer));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = given_up.cancelled() => return,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = given_up.cancelled() => return,
            }
        }
        // HTTP/1 has its own limit, and HTTP/2 would go on as long as the peer answers pings.
        () = busy.is_over() => {
            connection.as_mut().graceful_shutdown();
            let _ = timeout(IDLE, connection.as_mut()).await;
            return;
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

/// The requests in progress on a connection.
#[derive(Debug)]
struct Busy {
    place: Arc<dyn Hold>,
    ended: Notify,
    requests: AtomicUsize,
}

impl Busy {
    /// Waits until the connection has been idle for too long, well beyond the limit of HTTP/1.
    async fn is_over(&self) {
        loop {
            let idle = self.requests.load(Ordering::Relaxed) == 0;
            let until = if idle { 2 * IDLE } else { Duration::MAX };
            match timeout(until, self.ended.notified()).await {
                Err(_) if idle => return,
                _ => {}
            }
        }
    }
}

/// A request in progress.
#[derive(Debug)]
struct Held(Arc<Busy>);

impl Held {
    fn new(busy: Arc<Busy>) -> Self {
        busy.place.begin();
        busy.requests.fetch_add(1, Ordering::Relaxed);
        busy.ended.notify_one();
        Self(busy)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.place.end();
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
        self.0.ended.notify_one();
    }
}

/// The body of an answer, which counts as a request in progress until it has been sent or the connection is gone.
#[derive(Debug)]
struct Counted {
    body: Body,
    _held: Held,
}

impl hyper::body::Body for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
