//! The gate to the site's HTTP proxy: answers as a proxy, checks each request against the rules of its caller, and asks
//! the site's proxy with the site's credentials, which the caller never sees. Opens connections to that proxy, reads the
//! file of credentials, and looks names up.
//!
//! ```text
//!  a tool in a sandbox ──▶ 127.0.0.1 there, agent ──GET …/proxy, Upgrade──▶ server: gate ──▶ the site's proxy
//!  a tool on this host ──▶ 127.0.0.1 here, with a password of this process ───────────────▶ gate ──▶ the same
//! ```
//!
//! A proxy reaches what a sandbox may not: a request that it carries comes from the proxy's host. So a gate carries only
//! what the sandbox could have been allowed to reach by itself.

mod pass;
mod rules;

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use axum::body::Body;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use hyper::{Request, Response, body::Incoming, header, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use kiln_records::{Code, Failure, Secret};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{OnceCell, Semaphore},
};

pub use rules::Rules;

/// How long a caller may take for the head of a request, and the proxy for a connection.
const PATIENCE: Duration = Duration::from_secs(30);

/// The most connections at the same time; others wait. Each has a descriptor to the proxy.
const MOST: usize = 128;

/// The most of them that a port of this host accepts.
const MOST_HERE: usize = 64;

/// The largest file of credentials, in bytes.
const MOST_CREDENTIALS: u64 = 4096;

/// Host and port of a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The host: a name, or an address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// The site's proxies, and the file with the login for them.
#[derive(Debug, Clone, Default)]
pub struct Site {
    /// For addresses that begin with `http:`.
    pub http: Option<Address>,
    /// For those that begin with `https:`.
    pub https: Option<Address>,
    /// A file with `user:password`.
    pub credentials: Option<PathBuf>,
    /// Hosts that are not asked of a proxy.
    pub direct: Vec<String>,
}

/// The gate.
#[derive(Debug)]
pub struct Gate {
    site: Site,
    /// The address of the gate for programs on this host, once one is wanted.
    here: OnceCell<String>,
    /// The places for connections.
    places: Semaphore,
}

impl Gate {
    /// A gate to these proxies; `None` if there are none.
    pub fn to(site: Site) -> Option<Arc<Self>> {
        let is_any = site.http.is_some() || site.https.is_some();
        is_any.then(|| {
            Arc::new(Self {
                site,
                here: OnceCell::new(),
                places: Semaphore::new(MOST),
            })
        })
    }

    /// The hosts of the proxies.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        let all = [&self.site.http, &self.site.https];
        all.into_iter().flatten().map(|address| address.host.as_str())
    }

    /// The variables by which programs find the gate at `url`. They reach the hosts in `direct` without it.
    pub fn variables(&self, url: &str, direct: &[String]) -> Vec<(String, String)> {
        let mut hosts: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
        for host in self.site.direct.iter().chain(direct) {
            hosts.push(host.clone());
            // Some programs take a domain for all of its hosts only if it begins with a dot.
            if host.parse::<std::net::IpAddr>().is_err() {
                hosts.push(format!(".{host}"));
            }
        }
        let hosts = hosts.join(",");
        let values = [
            ("http_proxy", self.site.http.as_ref().map(|_| url)),
            ("https_proxy", self.site.https.as_ref().map(|_| url)),
            ("no_proxy", Some(hosts.as_str())),
        ];
        let both = |(name, value): (&str, Option<&str>)| {
            let value = value?;
            Some([name.to_owned(), name.to_uppercase()].map(|name| (name, value.to_owned())))
        };
        values.into_iter().filter_map(both).flatten().collect()
    }

    /// The variables for programs on this host, which may ask for everything. Opens a port of the loopback for them, with
    /// a password: other users of this host reach the port, too.
    ///
    /// # Errors
    ///
    /// `no_network` when no port can be opened.
    pub async fn variables_here(self: &Arc<Self>) -> Result<Vec<(String, String)>, Failure> {
        let url = self.here.get_or_try_init(|| self.listen()).await.map_err(|error| {
            Failure::new(
                Code::NoNetwork,
                format!("no port can be opened for the way to the proxy: {error}"),
            )
        })?;
        Ok(self.variables(url, &[]))
    }

    /// Serves programs of this host, as long as this process lives.
    async fn listen(self: &Arc<Self>) -> io::Result<String> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let password = hex::encode(rand::random::<[u8; 16]>());
        let url = format!("http://kiln:{password}@127.0.0.1:{port}");
        let (gate, expected) = (Arc::downgrade(self), basic(&format!("kiln:{password}")));
        let places = Arc::new(Semaphore::new(MOST_HERE));
        tokio::spawn(async move {
            let expected = Arc::new(Secret::from(expected));
            loop {
                let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                    return;
                };
                let Ok((stream, _)) = listener.accept().await else {
                    // Out of descriptors for the moment.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let Some(gate) = gate.upgrade() else { return };
                let expected = Arc::clone(&expected);
                tokio::spawn(async move {
                    gate.serve(stream, Rules::none(), Some(expected)).await;
                    drop(place);
                });
            }
        });
        Ok(url)
    }

    /// Serves a connection of a program that these rules apply to, until it is closed. With a `password`, which is the
    /// whole value of the header, the program has to send it.
    pub async fn serve<S>(self: Arc<Self>, stream: S, rules: Rules, password: Option<Arc<Secret>>)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        // It is never closed.
        let Ok(_place) = self.places.acquire().await else {
            return;
        };
        let rules = Arc::new(rules);
        let tunnels = pass::Tunnels::default();
        let service = service_fn(|request: Request<Incoming>| {
            let (gate, rules, tunnels) = (Arc::clone(&self), Arc::clone(&rules), tunnels.clone());
            let given = request.headers().get(header::PROXY_AUTHORIZATION);
            let is_known = password
                .as_ref()
                .is_none_or(|password| given.is_some_and(|given| same(given.as_bytes(), password.expose().as_bytes())));
            async move {
                Ok::<Response<Body>, std::convert::Infallible>(if is_known {
                    pass::on(&gate.site, &rules, &tunnels, request).await
                } else {
                    pass::unknown()
                })
            }
        });
        let served = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades()
            .await;
        if let Err(error) = served {
            tracing::debug!(%error, "a connection to the proxy ended");
        }
        tunnels.ended().await;
    }
}

impl Site {
    /// The value of `Proxy-Authorization`, if the site has a login. The file is read each time: it may change.
    async fn authorization(&self) -> io::Result<Option<Secret>> {
        let Some(path) = &self.credentials else { return Ok(None) };
        let too_large = || io::Error::new(io::ErrorKind::InvalidData, "it is no line of the form user:password");
        if fs_err::tokio::metadata(path).await?.len() > MOST_CREDENTIALS {
            return Err(too_large());
        }
        let text = fs_err::tokio::read_to_string(path).await?;
        let line = text.trim_end_matches(['\n', '\r']);
        if !line.contains(':') || line.contains(['\n', '\r']) {
            return Err(too_large());
        }
        Ok(Some(Secret::from(basic(line))))
    }
}

impl Address {
    async fn connect(&self) -> io::Result<TcpStream> {
        tokio::time::timeout(PATIENCE, TcpStream::connect((self.host.as_str(), self.port)))
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }
}

/// The value of a header that authorizes with `user:password`.
pub(crate) fn basic(login: &str) -> String {
    format!("Basic {}", STANDARD.encode(login))
}

/// Compares in a time that does not depend on where the texts differ.
pub(crate) fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

#[cfg(test)]
mod tests;
