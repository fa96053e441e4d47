//! Requests to one registry: login, redirects, patience. Talks to the registry, to the service that its tokens come from,
//! and to the stores that it keeps blobs in.

use std::{
    collections::HashMap,
    fmt,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, stream};
use kiln_addresses::Guard;
use kiln_records::{Code, Failure};
use reqwest::{
    Body, Certificate, Method, Response, StatusCode, Url,
    header::{AUTHORIZATION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, LOCATION, WWW_AUTHENTICATE},
    redirect::Policy,
};
use serde::Deserialize;
use tokio::sync::OnceCell;

use crate::{
    challenge::{self, Challenge},
    credentials::{Login, Logins},
    refusal,
};

/// The longest answer of a token service.
const MAX_TOKEN: usize = 64 << 10;

/// The most bytes of a file of authorities. Those of a whole distribution are a quarter of a megabyte.
const MAX_AUTHORITIES: u64 = 16 << 20;

/// How many redirects are followed.
const MAX_HOPS: usize = 5;

/// Bytes of a body that are handed over at a time: progress is seen in these steps.
const PIECE: usize = 64 << 10;

/// Fewer bytes than these are no progress.
const DRIP: u64 = 16 << 10;

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Opening a connection.
    pub connect: Duration,
    /// Time without progress.
    pub idle: Duration,
    /// The answer to the end of an upload, for which some registries read it all again.
    pub finish: Duration,
    /// All waiting together that a registry asks for, for one request.
    pub asked: Duration,
    /// The first pause before a repetition; it doubles each time.
    pub pause: Duration,
    /// How often something is tried without any progress.
    pub tries: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            idle: Duration::from_mins(1),
            finish: Duration::from_mins(10),
            asked: Duration::from_mins(2),
            pause: Duration::from_millis(500),
            tries: 6,
        }
    }
}

impl Patience {
    /// The pause before a repetition, counted from 1.
    pub fn pause(&self, tried: u32) -> Duration {
        self.pause
            .saturating_mul(1 << tried.saturating_sub(1).min(6))
            .min(Duration::from_secs(15))
    }
}

/// How registries are reached.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Plain HTTP instead of TLS.
    pub insecure: bool,
    /// A PEM file of authorities to trust beside the system's.
    pub authorities: Option<PathBuf>,
    /// Where logins are stored.
    pub logins: Logins,
    /// A login that is used instead of a stored one.
    pub login: Option<Login>,
    /// How long things may take.
    pub patience: Patience,
}

/// A request. Its body can be sent again.
#[derive(Debug, Clone)]
pub struct Ask<'a> {
    /// Its method.
    pub method: Method,
    /// Its address.
    pub url: Url,
    /// The attempt, such as "cannot read r.example/x:1".
    pub what: &'a str,
    /// The rights that it needs, in the form of token services.
    pub scope: &'a str,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
    /// Whether it may be sent again when no answer comes.
    pub repeat: bool,
    /// Whether the answer may take as long as that to the end of an upload.
    pub finishes: bool,
}

impl<'a> Ask<'a> {
    /// A request without headers and body, which may be repeated.
    pub fn new(method: Method, url: Url, what: &'a str, scope: &'a str) -> Self {
        Self {
            method,
            url,
            what,
            scope,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            repeat: true,
            finishes: false,
        }
    }

    /// Adds a header. Values are of this crate's making, or were checked.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
        self
    }

    /// Adds a body.
    #[must_use]
    pub fn body(mut self, body: Bytes) -> Self {
        self.body = body;
        self
    }

    /// Is sent once only.
    #[must_use]
    pub fn once(mut self) -> Self {
        self.repeat = false;
        self
    }
}

struct Token {
    value: HeaderValue,
    until: Instant,
}

/// A connection to a registry.
pub struct Transport {
    /// Its name, as users write it.
    pub registry: String,
    base: Url,
    http: reqwest::Client,
    guard: Guard,
    access: Access,
    login: OnceCell<Option<Login>>,
    tokens: Mutex<HashMap<String, Token>>,
    /// It wants name and password in each request.
    wants_basic: AtomicBool,
    /// It has answered before, so that it may come back.
    has_answered: AtomicBool,
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport")
            .field("registry", &self.registry)
            .finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
    expires_in: Option<u64>,
}

impl Transport {
    /// A connection to `registry`. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// `ca_file_invalid`, `tls_unusable`, `registry_reference`.
    pub async fn open(registry: &str, access: &Access) -> Result<Self, Failure> {
        let host = match registry {
            // The API of Docker's registry is at another name than its images have.
            "docker.io" => "registry-1.docker.io",
            other => other,
        };
        let scheme = if access.insecure { "http" } else { "https" };
        let base = Url::parse(&format!("{scheme}://{host}/"))
            .map_err(|error| Failure::new(Code::RegistryReference, format!("`{registry}` names no host: {error}")))?;
        let guard = Guard::of_namer(&base);
        guard.look().await;
        let mut builder = client(access, guard.clone());
        if guard.is_loopback() {
            builder = builder.no_proxy();
        }
        if let Some(path) = &access.authorities {
            builder = builder.tls_certs_merge(read_authorities(path)?);
        } else if access.insecure {
            // A machine without any authorities can still speak plain HTTP.
            builder = builder.tls_certs_only([]);
        }
        let http = builder.build().map_err(|error| {
            Failure::new(Code::TlsUnusable, format!("TLS cannot be used: {error}"))
                .hint("install ca-certificates, or name an authority with --ca")
        })?;
        Ok(Self {
            registry: registry.to_owned(),
            base,
            http,
            guard,
            access: access.clone(),
            login: OnceCell::new(),
            tokens: Mutex::default(),
            wants_basic: AtomicBool::new(false),
            has_answered: AtomicBool::new(false),
        })
    }

    /// How long things may take.
    pub fn patience(&self) -> &Patience {
        &self.access.patience
    }

    /// The address of something below the registry's own.
    pub fn url(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(path);
        url
    }

    /// The address that an answer names, if this client may go there.
    pub fn target(&self, from: &Url, response: &Response, what: &str) -> Result<Url, Failure> {
        let text = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let text = text.ok_or_else(|| refusal::senseless(&self.registry, what, "it does not say where to go on"))?;
        let url = from
            .join(text)
            .map_err(|_| refusal::senseless(&self.registry, what, "it goes on at what is no address"))?;
        self.check(&url, what)?;
        Ok(url)
    }

    fn check(&self, url: &Url, what: &str) -> Result<(), Failure> {
        let refuse = |to: &str| Err(refusal::redirect(&self.registry, what, to));
        match url.scheme() {
            "https" => {}
            "http" if self.access.insecure => {}
            "http" => return refuse("plain HTTP"),
            _ => return refuse("an address of another protocol"),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refuse("an address with a name in it");
        }
        match self.guard.check(url) {
            Ok(()) => Ok(()),
            Err(why) => refuse(why.noun()),
        }
    }

    /// Sends a request, again if it is worth it, and follows redirects of what is read. Returns any answer but a wish
    /// for a login or for patience.
    pub async fn send(&self, ask: &Ask<'_>) -> Result<Response, Failure> {
        let mut ask = ask.clone();
        let (mut renewed, mut tried, mut hops, mut waited) = (false, 0, 0, Duration::ZERO);
        let patience = *self.patience();
        loop {
            let response = match self.once(&ask).await {
                Ok(response) => response,
                Err(failure) => {
                    let may_pass = match failure.code {
                        Code::RegistryLost => true,
                        Code::RegistryUnreachable => self.has_answered.load(Ordering::Relaxed),
                        _ => false,
                    };
                    tried += 1;
                    if !ask.repeat || !may_pass || tried >= patience.tries {
                        return Err(failure);
                    }
                    tokio::time::sleep(patience.pause(tried)).await;
                    continue;
                }
            };
            self.has_answered.store(true, Ordering::Relaxed);
            let status = response.status();
            if status == StatusCode::UNAUTHORIZED && !renewed && self.is_own(&ask.url) {
                renewed = true;
                if self.log_in(&response, ask.scope, ask.what).await? {
                    continue;
                }
                return Ok(response);
            }
            if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
                tried += 1;
                let wait = refusal::retry_after(&response).unwrap_or_else(|| patience.pause(tried));
                waited = waited.saturating_add(wait);
                if waited > patience.asked || tried >= patience.tries.saturating_mul(2) {
                    let said = refusal::read(response).await;
                    return Err(refusal::refused(&self.registry, ask.what, status, &said, Some(wait)));
                }
                tokio::time::sleep(wait).await;
                continue;
            }
            // A full disk does not pass.
            if status.is_server_error() && status != StatusCode::INSUFFICIENT_STORAGE && ask.repeat {
                tried += 1;
                if tried < patience.tries {
                    tokio::time::sleep(patience.pause(tried)).await;
                    continue;
                }
            }
            let reads = matches!(ask.method, Method::GET | Method::HEAD);
            if reads && status.is_redirection() && status != StatusCode::NOT_MODIFIED {
                hops += 1;
                if hops > MAX_HOPS {
                    return Err(refusal::senseless(&self.registry, ask.what, "it leads on and on"));
                }
                ask.url = self.target(&ask.url, &response, ask.what)?;
                continue;
            }
            return Ok(response);
        }
    }

    /// The failure for an answer that is not one of those that were hoped for.
    pub async fn refuse(&self, response: Response, what: &str) -> Failure {
        let (status, wait) = (response.status(), refusal::retry_after(&response));
        if status.is_success() {
            return refusal::senseless(&self.registry, what, format_args!("status {}", status.as_u16()));
        }
        let said = refusal::read(response).await;
        refusal::refused(&self.registry, what, status, &said, wait)
    }

    async fn once(&self, ask: &Ask<'_>) -> Result<Response, Failure> {
        let mut request = self
            .http
            .request(ask.method.clone(), ask.url.clone())
            .headers(ask.headers.clone());
        if self.is_own(&ask.url)
            && let Some(value) = self.authorization(ask.scope).await?
        {
            request = request.header(AUTHORIZATION, value);
        }
        let (size, sent) = (ask.body.len() as u64, Arc::new(AtomicU64::new(0)));
        let has_body = matches!(ask.method, Method::POST | Method::PUT | Method::PATCH);
        if size > 0 {
            let pieces = (0..ask.body.len()).step_by(PIECE);
            let pieces: Vec<Bytes> = pieces
                .map(|at| ask.body.slice(at..ask.body.len().min(at + PIECE)))
                .collect();
            let counted = Arc::clone(&sent);
            request = request
                .header(CONTENT_LENGTH, size)
                .body(Body::wrap_stream(stream::iter(pieces).map(move |piece| {
                    counted.fetch_add(piece.len() as u64, Ordering::Relaxed);
                    Ok::<_, std::io::Error>(piece)
                })));
        } else if has_body {
            request = request.header(CONTENT_LENGTH, 0);
        }
        let last = if ask.finishes {
            self.patience().finish
        } else {
            self.patience().idle
        };
        tokio::select! {
            answer = request.send() => answer.map_err(|error| refusal::unanswered(&self.registry, ask.what, &error)),
            () = stalled(&sent, size, self.patience().idle, last) => Err(refusal::slow(&self.registry, ask.what)),
        }
    }

    /// Reads a whole answer of at most `limit` bytes.
    pub async fn small(&self, response: Response, limit: usize, what: &str) -> Result<Bytes, Failure> {
        let too_large = || refusal::senseless(&self.registry, what, format_args!("it has more than {limit} bytes"));
        if response.content_length().is_some_and(|length| length > limit as u64) {
            return Err(too_large());
        }
        let mut response = response;
        let reading = async {
            let mut body = BytesMut::new();
            while let Some(chunk) = response
                .chunk()
                .await
                .map_err(|error| refusal::unanswered(&self.registry, what, &error))?
            {
                if body.len() + chunk.len() > limit {
                    return Err(too_large());
                }
                body.extend_from_slice(&chunk);
            }
            Ok(body.freeze())
        };
        // So small an answer is either there or not.
        tokio::time::timeout(self.patience().idle, reading)
            .await
            .map_err(|_| refusal::slow(&self.registry, what))?
    }

    /// Whether an address is the registry's own, which alone is given credentials.
    fn is_own(&self, url: &Url) -> bool {
        url.origin() == self.base.origin()
    }

    async fn login(&self) -> Result<Option<&Login>, Failure> {
        let find = || async {
            match &self.access.login {
                Some(login) => Ok(Some(login.clone())),
                None => self.access.logins.find(&self.registry).await,
            }
        };
        let login = self.login.get_or_try_init(find).await?.as_ref();
        if login.is_some() && self.access.insecure && !self.guard.is_loopback() {
            return Err(Failure::new(
                Code::RegistryLogin,
                format!(
                    "your password is not sent to {}: with plain HTTP, anyone on the way could read it",
                    self.registry
                ),
            )
            .hint("leave out --insecure"));
        }
        Ok(login)
    }

    async fn authorization(&self, scope: &str) -> Result<Option<HeaderValue>, Failure> {
        if self.wants_basic.load(Ordering::Relaxed) {
            return Ok(self.login().await?.and_then(basic));
        }
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.retain(|_, token| token.until > Instant::now());
        Ok(tokens.get(scope).map(|token| token.value.clone()))
    }

    /// Does what a refusal asks for. Returns whether another attempt may succeed.
    async fn log_in(&self, response: &Response, scope: &str, what: &str) -> Result<bool, Failure> {
        let headers = response.headers().get_all(WWW_AUTHENTICATE).iter();
        match challenge::parse(headers.filter_map(|value| value.to_str().ok())) {
            Some(Challenge::Basic) => {
                // The same password once more would only count as another wrong one.
                let was = self.wants_basic.swap(true, Ordering::Relaxed);
                Ok(!was && self.login().await?.and_then(basic).is_some())
            }
            Some(Challenge::Bearer {
                realm,
                service,
                scope: asked,
            }) => {
                let token = self
                    .token(&realm, service.as_deref(), asked.as_deref().unwrap_or(scope), what)
                    .await?;
                let Some(token) = token else { return Ok(false) };
                let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
                tokens.insert(scope.to_owned(), token);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Asks the token service; none if it refuses.
    async fn token(
        &self,
        realm: &str,
        service: Option<&str>,
        scope: &str,
        what: &str,
    ) -> Result<Option<Token>, Failure> {
        let mut url = Url::parse(realm)
            .map_err(|_| refusal::senseless(&self.registry, what, "its tokens come from what is no address"))?;
        self.check(&url, what)?;
        let login = self.login().await?;
        // The realm is the registry's word, and the password goes there.
        let mut private = None;
        if login.is_some() && url.scheme() == "http" {
            let only = Guard::loopback_only();
            only.check(&url)
                .map_err(|why| refusal::redirect(&self.registry, what, why.noun()))?;
            let built = client(&self.access, only).no_proxy().tls_certs_only([]).build();
            private =
                Some(built.map_err(|error| Failure::new(Code::TlsUnusable, format!("TLS cannot be used: {error}")))?);
        }
        let http = private.as_ref().unwrap_or(&self.http);
        let mut fields: Vec<(&str, &str)> = service.map(|service| ("service", service)).into_iter().collect();
        fields.extend((!scope.is_empty()).then_some(("scope", scope)));
        let request = match login {
            Some(Login::Token(token)) => {
                fields.extend([
                    ("grant_type", "refresh_token"),
                    ("client_id", "kiln"),
                    ("refresh_token", token),
                ]);
                let mut form = Url::parse("form:").unwrap_or_else(|_| url.clone());
                form.query_pairs_mut().clear().extend_pairs(&fields);
                let form = form.query().unwrap_or_default().to_owned();
                http.post(url)
                    .header(reqwest::header::CONTENT_TYPE, "application/x-www-form-urlencoded")
                    .body(form)
            }
            login => {
                url.query_pairs_mut().extend_pairs(&fields);
                let request = http.get(url);
                match login.and_then(basic) {
                    Some(value) => request.header(AUTHORIZATION, value),
                    None => request,
                }
            }
        };
        let answer = tokio::time::timeout(self.patience().idle, request.send()).await;
        let answer = answer.map_err(|_| refusal::slow(&self.registry, what))?;
        let answer = answer.map_err(|error| refusal::unanswered(&self.registry, what, &error))?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Ok(None),
            _ => return Err(self.refuse(answer, what).await),
        }
        let body = self.small(answer, MAX_TOKEN, what).await?;
        let senseless = || refusal::senseless(&self.registry, what, "its token service gives no token");
        let answer: TokenAnswer = serde_json::from_slice(&body).map_err(|_| senseless())?;
        let text = answer.token.or(answer.access_token).ok_or_else(senseless)?;
        let mut value = HeaderValue::from_str(&format!("Bearer {text}")).map_err(|_| senseless())?;
        value.set_sensitive(true);
        // The specification's own default, and some room for the way.
        let valid = answer.expires_in.unwrap_or(60).clamp(10, 3600);
        Ok(Some(Token {
            value,
            until: Instant::now() + Duration::from_secs(valid * 4 / 5),
        }))
    }
}

/// A client that goes where the guard lets it, and follows nobody elsewhere.
fn client(access: &Access, guard: Guard) -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .user_agent(concat!("kiln/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(access.patience.connect)
        .dns_resolver(Arc::new(guard))
        .redirect(Policy::none())
}

fn basic(login: &Login) -> Option<HeaderValue> {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let Login::Password { user, password } = login else {
        return None;
    };
    let text = BASE64_STANDARD.encode(format!("{user}:{password}"));
    let mut value = HeaderValue::from_str(&format!("Basic {text}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Returns when too little was sent for too long.
async fn stalled(sent: &AtomicU64, size: u64, idle: Duration, last: Duration) {
    let (mut seen, mut since) = (0, Instant::now());
    loop {
        tokio::time::sleep((idle / 10).min(Duration::from_millis(500))).await;
        let now = sent.load(Ordering::Relaxed);
        if now >= seen + DRIP || (now == size && now != seen) {
            (seen, since) = (now, Instant::now());
        }
        if since.elapsed() > if now >= size { last } else { idle } {
            return;
        }
    }
}

/// Watches that bytes keep coming.
#[derive(Debug)]
pub struct Pace {
    idle: Duration,
    since: Instant,
    bytes: u64,
}

impl Pace {
    /// Begins now.
    pub fn new(idle: Duration) -> Self {
        Self {
            idle,
            since: Instant::now(),
            bytes: 0,
        }
    }

    /// The time that is left for the next bytes.
    pub fn left(&self) -> Duration {
        self.idle.saturating_sub(self.since.elapsed())
    }

    /// Notes bytes that came.
    pub fn came(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        if self.bytes >= DRIP {
            (self.bytes, self.since) = (0, Instant::now());
        }
    }
}

fn read_authorities(path: &std::path::Path) -> Result<Vec<Certificate>, Failure> {
    let invalid = |why: &dyn fmt::Display| {
        Failure::new(
            Code::CaFileInvalid,
            format!("the authorities to trust cannot be used: {why}"),
        )
        .hint("--ca names a PEM file of certificates")
    };
    let pem = kiln_files::read_given(path, MAX_AUTHORITIES).map_err(|error| invalid(&error))?;
    let certificates = Certificate::from_pem_bundle(&pem).map_err(|error| invalid(&error))?;
    if certificates.is_empty() {
        return Err(invalid(&format_args!("{} holds no certificate", path.display())));
    }
    Ok(certificates)
}
