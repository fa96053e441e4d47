//! Serves the API over the network: sockets, the layers before the routes, and a clean stop.

use std::{io, net::SocketAddr, time::Duration};

use axum::{Router, middleware};
use kiln_records::{Code, Failure};
use tokio::{net::TcpListener, task::JoinSet, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;
use tower_http::{catch_panic::CatchPanicLayer, compression::CompressionLayer};

use super::{
    address,
    auth::{self, Auth},
    connections::{ApiPlaces, Ends},
    limits::{self, Limits},
    origin, request_log,
    tls::Certificate,
};

/// The time that requests in progress get when the server stops.
pub const GRACE: Duration = Duration::from_secs(10);

/// The API with every layer before it: normalized addresses, the log, authentication, limits. `agents` are the routes
/// of the agents' protocol, where agents come over the network.
pub fn app(router: Router, agents: Option<Router>, auth: Auth, limits: Limits) -> Router {
    let inner = router
        .layer(CatchPanicLayer::custom(limits::panicked))
        .layer(middleware::from_fn_with_state(limits, limits::limit))
        .layer(middleware::from_fn_with_state(auth.clone(), auth::authenticate))
        .layer(middleware::from_fn(origin::check))
        .layer(CompressionLayer::new())
        .layer(middleware::from_fn(request_log::log));
    // Outside the router, because a router's own layers run after it has matched the address.
    let users = Router::new().fallback_service(inner.map_request(address::normalize));
    match agents {
        // Each of these calls bears the token of its job, and its body is bounded there.
        Some(agents) => agents
            .layer(CatchPanicLayer::custom(limits::panicked))
            .layer(middleware::from_fn_with_state(auth, auth::count_wrong_tokens))
            .layer(middleware::from_fn(origin::check))
            .layer(middleware::from_fn(request_log::log))
            .merge(users),
        None => users,
    }
}

/// The routes of an address that serves metrics alone, with the layers before them.
pub fn metrics_app(router: Router, auth: Auth, limits: Limits) -> Router {
    let inner = router
        .layer(CatchPanicLayer::custom(limits::panicked))
        .layer(middleware::from_fn_with_state(limits, limits::limit))
        .layer(middleware::from_fn_with_state(auth, auth::authenticate))
        .layer(middleware::from_fn(request_log::log));
    Router::new().fallback_service(inner.map_request(address::normalize))
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

    /// Serves the sockets until stopped, with connections in `places`. Then it accepts no more of them and waits for
    /// requests in progress, for [`GRACE`] at most.
    ///
    /// # Errors
    ///
    /// When a socket breaks.
    pub async fn serve(
        self,
        app: Router,
        certificate: Option<Certificate>,
        places: &ApiPlaces,
        stop: &CancellationToken,
    ) -> io::Result<()> {
        let ends = Ends {
            stop: CancellationToken::new(),
            end: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        let _end = ends.end.clone().drop_guard();
        let mut serving = JoinSet::new();
        let tls = certificate.as_ref().map(Certificate::config);
        for listener in self.listeners {
            let (places, tls, app) = (places.clone(), tls.clone(), app.clone());
            serving.spawn(places.serve(listener, tls, app, ends.clone()));
        }
        let following = async {
            match certificate {
                Some(certificate) => certificate.follow().await,
                None => std::future::pending().await,
            }
        };
        // A socket ends by itself only when its task is broken.
        let broken = tokio::select! {
            () = stop.cancelled() => None,
            () = following => None,
            ended = serving.join_next() => ended,
        };
        ends.stop.cancel();
        let mut outcome = broken.map_or(Ok(()), |ended| ended.map_err(io::Error::other));
        while let Some(ended) = serving.join_next().await {
            outcome = outcome.and(ended.map_err(io::Error::other));
        }
        ends.tasks.close();
        if timeout(GRACE, ends.tasks.wait()).await.is_err() {
            let connections = ends.tasks.len();
            tracing::warn!(
                connections,
                "requests in progress take longer than {GRACE:?}, and are broken off"
            );
        }
        outcome
    }
}
