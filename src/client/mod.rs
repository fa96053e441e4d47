//! The HTTP client of the REST API. It uses IMS's own paths, so that it also works with IMS, and Kiln's paths for
//! Kiln's additions. Talks to the server, and reads authorities and credentials from files.
//!
//! No request is sent twice: the user decides whether to repeat one that may have been carried out.

use std::{fmt, path::Path, sync::Arc as Shared, time::Duration};

use kiln_addresses::Guard;
use kiln_records::{Code, Failure};
use reqwest::{
    Certificate, Method, Url,
    header::{AUTHORIZATION, HeaderMap, HeaderValue},
    redirect::Policy,
};
use serde_json::Value;

pub mod collection;
pub mod credentials;
mod data;
mod job_log;
mod list;
mod lookup;
mod ranges;
mod refusal;
mod server;
mod sse;
mod upload;

pub use collection::Collection;
pub use data::Data;
pub use job_log::{Following, JobProgress, LogEntry, LogPage, News, Share};
pub use list::{Filter, SortKey};
pub use lookup::Found;
pub use ranges::Ranges;
pub use server::Server;
pub use upload::{Upload, UploadSource};

/// Timeout for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The most bytes of a file of authorities. Those of a whole distribution are a quarter of a megabyte.
const MAX_AUTHORITIES: u64 = 16 << 20;

/// How long an answer may stall.
const IDLE_TIMEOUT: Duration = Duration::from_mins(1);

/// A callback that is given a description of each request and answer.
type Observer = Shared<dyn Fn(&str) + Send + Sync>;

/// A connection to one server.
#[derive(Clone)]
pub struct Client {
    server: Server,
    http: reqwest::Client,
    /// Without the timeout of stalled answers, which runs while a body is still being sent.
    uploads: reqwest::Client,
    /// The authorities that the user named.
    authorities: Option<Vec<Certificate>>,
    observer: Option<Observer>,
}

/// An object in S3, and the client that reads it.
#[derive(Debug)]
pub struct Object {
    /// The client.
    pub http: reqwest::Client,
    /// The object's address, which may hold a signature.
    pub url: Url,
}

impl Object {
    /// A request for it.
    pub fn get(self) -> reqwest::RequestBuilder {
        self.http.get(self.url)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// A client of `server`. The authorities in `ca_file` (PEM) are trusted instead of the system's.
    ///
    /// # Errors
    ///
    /// `token_insecure` when the token would cross a network unencrypted, `token_invalid`, `ca_file_invalid`.
    pub fn new(server: Server, token: Option<&str>, ca_file: Option<&Path>) -> Result<Self, Failure> {
        Self::over(server, None, token, ca_file)
    }

    /// A client of the server at a socket in the file system.
    ///
    /// # Errors
    ///
    /// `tls_unusable`.
    pub fn at_socket(socket: &Path) -> Result<Self, Failure> {
        Self::over(Server::parse(Server::DEFAULT)?, Some(socket), None, None)
    }

    fn over(
        server: Server,
        socket: Option<&Path>,
        token: Option<&str>,
        ca_file: Option<&Path>,
    ) -> Result<Self, Failure> {
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            if !server.keeps_secrets() {
                return Err(Failure::new(
                    Code::TokenInsecure,
                    format!("your token is not sent to {server}: anyone on the way could read it"),
                )
                .hint("use https://"));
            }
            let invalid = |_| {
                Failure::new(Code::TokenInvalid, "the token holds characters that no token has")
                    .hint("a token is one line of letters, digits and punctuation")
            };
            let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(invalid)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let authorities = ca_file.map(read_authorities).transpose()?;
        let builder = || {
            let mut builder = reqwest::Client::builder()
                .default_headers(headers.clone())
                .user_agent(concat!("kiln/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT_TIMEOUT)
                // Following a redirect could send a token elsewhere, or turn a PATCH into a GET.
                .redirect(Policy::none());
            if server.is_loopback() {
                // What is sent in plain HTTP goes nowhere else, whatever a resolver says of `localhost`.
                builder = builder.no_proxy().dns_resolver(Shared::new(Guard::loopback_only()));
            }
            if let Some(socket) = socket {
                builder = builder.unix_socket(socket);
            }
            match &authorities {
                Some(authorities) => builder = builder.tls_certs_only(authorities.clone()),
                // A machine without any authorities can still speak plain HTTP.
                None if !server.is_https() => builder = builder.tls_certs_only([]),
                None => {}
            }
            builder
        };
        Ok(Self {
            http: build(builder().read_timeout(IDLE_TIMEOUT))?,
            uploads: build(builder())?,
            authorities,
            server,
            observer: None,
        })
    }

    /// Reports every request and answer to `observer`.
    #[must_use]
    pub fn observed_by(mut self, observer: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.observer = Some(Shared::new(observer));
        self
    }

    /// A client for an object in S3 at an address that the server gives, which is of the server's site: S3 is not told who
    /// asks. It may speak TLS where the server does not.
    ///
    /// # Errors
    ///
    /// `tls_unusable`; `s3_unreachable` if the server leads to this machine or its surroundings, and is not there itself.
    pub async fn object(&self, address: &str) -> Result<Object, Failure> {
        let refused = |why: String| {
            Failure::new(
                Code::S3Unreachable,
                format!("the server names an object that is not read: {why}"),
            )
            .hint("`s3.public_endpoint` of the server has to lead there from everywhere")
        };
        let url = Url::parse(address).map_err(|error| refused(error.to_string()))?;
        let guard = Guard::of_site(&self.server.address(&[]));
        guard.look().await;
        guard.check(&url).map_err(|why| refused(why.to_string()))?;
        let builder = || {
            let builder = reqwest::Client::builder()
                .user_agent(concat!("kiln/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT_TIMEOUT)
                .redirect(Policy::none())
                .dns_resolver(Shared::new(guard.clone()));
            if self.server.is_loopback() {
                builder.no_proxy()
            } else {
                builder
            }
        };
        let http = match &self.authorities {
            Some(authorities) => build(builder().tls_certs_merge(authorities.clone()))?,
            // A machine without any authorities can still speak plain HTTP.
            None => builder().build().or_else(|_| build(builder().tls_certs_only([])))?,
        };
        Ok(Object { http, url })
    }

    /// The server of this client.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// GET of the resource at `segments`.
    pub async fn get(&self, segments: &[&str]) -> Result<Data, Failure> {
        Ok(self.get_page(self.server.address(segments)).await?.0)
    }

    /// A request with an optional JSON body and query.
    pub async fn send(
        &self,
        method: Method,
        segments: &[&str],
        query: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<Data, Failure> {
        let mut address = self.server.address(segments);
        if !query.is_empty() {
            address.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self.http.request(method, address);
        if let Some(body) = body {
            request = request.json(body);
        }
        Ok(self.exchange(&self.http, request).await?.0)
    }

    /// One page of a list, and the query of the next one.
    async fn get_page(&self, address: Url) -> Result<(Data, Option<String>), Failure> {
        self.exchange(&self.http, self.http.get(address)).await
    }

    /// Sends a request. Returns a successful answer, whose body is still to come.
    async fn respond(
        &self,
        http: &reqwest::Client,
        request: reqwest::RequestBuilder,
    ) -> Result<reqwest::Response, Failure> {
        let request = request
            .build()
            .map_err(|error| refusal::unreachable(&self.server, &error))?;
        self.tell(|| format!("{} {}", request.method(), request.url()));
        let response = http.execute(request).await;
        let response = response.map_err(|error| refusal::unreachable(&self.server, &error))?;
        self.tell(|| format!("{}", response.status()));
        if !response.status().is_success() {
            return Err(refusal::from_answer(&self.server, response).await);
        }
        Ok(response)
    }

    async fn exchange(
        &self,
        http: &reqwest::Client,
        request: reqwest::RequestBuilder,
    ) -> Result<(Data, Option<String>), Failure> {
        let response = self.respond(http, request).await?;
        let next = list::next_query(response.headers());
        let body = response
            .bytes()
            .await
            .map_err(|error| refusal::unreachable(&self.server, &error))?;
        if body.is_empty() {
            return Ok((Data::Null, next));
        }
        let data = serde_json::from_slice(&body).map_err(|_| refusal::no_such_server(&self.server))?;
        Ok((data, next))
    }

    fn tell(&self, what: impl FnOnce() -> String) {
        if let Some(observer) = &self.observer {
            observer(&what());
        }
    }
}

fn build(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, Failure> {
    builder.build().map_err(|error| {
        Failure::new(
            Code::TlsUnusable,
            format!("TLS cannot be used: {}", refusal::innermost(&error)),
        )
        .hint("install ca-certificates, or name your authority with --ca-file")
    })
}

fn read_authorities(path: &Path) -> Result<Vec<Certificate>, Failure> {
    let invalid = |why: &dyn fmt::Display| {
        Failure::new(
            Code::CaFileInvalid,
            format!("the authorities to trust cannot be used: {why}"),
        )
        .hint("--ca-file and KILN_CA_FILE name a PEM file of certificates")
    };
    let pem = kiln_files::read_given(path, MAX_AUTHORITIES).map_err(|error| invalid(&error))?;
    let certificates = Certificate::from_pem_bundle(&pem).map_err(|error| invalid(&refusal::innermost(&error)))?;
    if certificates.is_empty() {
        return Err(invalid(&format_args!("{} holds no certificate", path.display())));
    }
    Ok(certificates)
}
