//! The keys with which an issuer signs its tokens. Fetched from the issuer over HTTP.
//!
//! The keys are read at the start, then regularly, and whenever a token names an unknown key: but at most once a
//! minute, even when many such tokens arrive. While the issuer does not answer, the known keys stay in use for a day.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use futures::StreamExt;
use jsonwebtoken::{
    Algorithm, DecodingKey,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse},
};
use kiln_addresses::Guard;
use kiln_records::{Code, Failure, failure::chain};
use reqwest::{Certificate, Client, Url, redirect::Policy};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::sync::Mutex;

use crate::{
    config::{OidcSettings, is_private},
    settings::names_here,
};

/// The shortest interval between two readings.
const AT_MOST_EVERY: Duration = Duration::from_mins(1);

/// The pause before the next attempt when the issuer does not answer.
pub(super) const RETRY: Duration = Duration::from_secs(5);

/// The longest use of keys while the issuer does not answer.
const MOST_AGE: Duration = Duration::from_hours(24);

/// The longest time for an answer of the issuer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The largest answer of an issuer.
const MOST_BYTES: usize = 1 << 20;

/// An issuer's keys.
#[derive(Debug)]
pub(super) struct Keys {
    issuer: String,
    client: Client,
    /// Where the issuer may lead this server to.
    guard: Guard,
    refresh: Duration,
    known: RwLock<Option<Arc<Known>>>,
    /// The time and the success of the last request. Locked during a request, so that other callers wait for its
    /// result.
    asked: Mutex<Option<(Instant, bool)>>,
}

/// The keys from the last reading.
#[derive(Debug)]
struct Known {
    keys: Vec<Key>,
    endpoints: Option<Endpoints>,
    read: Instant,
}

/// The addresses at which an issuer signs people in.
#[derive(Debug, Clone)]
pub(super) struct Endpoints {
    pub(super) authorization: Url,
    pub(super) token: Url,
}

struct Key {
    id: Option<String>,
    algorithms: Vec<Algorithm>,
    decoding: DecodingKey,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({:?}, {:?})", self.id, self.algorithms)
    }
}

/// The result of a search for a key.
pub(super) enum Found {
    /// The key.
    Key(DecodingKey),
    /// The issuer has no such key.
    Unknown,
    /// The issuer cannot be asked.
    Unavailable,
}

/// The result of a search for an issuer's endpoints.
pub(super) enum Ends {
    /// They are these.
    Known(Endpoints),
    /// The issuer signs nobody in, or not by private addresses.
    None,
    /// The issuer cannot be asked.
    Unavailable,
}

impl Keys {
    pub(super) fn new(issuer: &str, settings: &OidcSettings) -> Result<Self, Failure> {
        let url = Url::parse(issuer)
            .map_err(|error| Failure::new(Code::OidcSettings, format!("`{issuer}` is no address: {error}")))?;
        let guard = Guard::of_namer(&url);
        Ok(Self {
            issuer: issuer.to_owned(),
            client: client(&url, &guard, settings)?,
            guard,
            refresh: settings.jwks_refresh.duration(),
            known: RwLock::new(None),
            asked: Mutex::new(None),
        })
    }

    /// The key named by a token's header.
    pub(super) async fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Found {
        let known = self.known();
        if let Some(key) = known.and_then(|known| known.select(id, algorithm)) {
            return Found::Key(key);
        }
        self.ask(AT_MOST_EVERY).await;
        match self.known() {
            None => Found::Unavailable,
            Some(known) => known.select(id, algorithm).map_or(Found::Unknown, Found::Key),
        }
    }

    /// Reads the keys at once and then at intervals; never ends.
    pub(super) async fn follow(&self) {
        loop {
            let wait = if self.ask(self.refresh).await {
                self.refresh
            } else {
                RETRY
            };
            tokio::time::sleep(wait).await;
        }
    }

    fn known(&self) -> Option<Arc<Known>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.clone().filter(|known| known.read.elapsed() < MOST_AGE)
    }

    /// Requests the keys, unless the last request was too recent. Returns whether the last attempt succeeded.
    async fn ask(&self, at_most_every: Duration) -> bool {
        let mut asked = self.asked.lock().await;
        if let Some((when, worked)) = *asked {
            let pause = if worked { at_most_every } else { RETRY };
            if when.elapsed() < pause {
                return worked;
            }
        }
        let worked = match self.read().await {
            Ok(known) => {
                tracing::debug!(
                    issuer = self.issuer,
                    keys = known.keys.len(),
                    "the issuer's keys were read"
                );
                *self.known.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(known));
                true
            }
            Err(error) => {
                tracing::warn!(issuer = self.issuer, "cannot read the issuer's keys: {error}");
                false
            }
        };
        *asked = Some((Instant::now(), worked));
        worked
    }

    async fn read(&self) -> Result<Known, String> {
        #[derive(Deserialize)]
        struct Discovery {
            issuer: String,
            jwks_uri: String,
            // Texts: an issuer that signs nobody in may have empty ones.
            authorization_endpoint: Option<String>,
            token_endpoint: Option<String>,
        }
        #[derive(Deserialize)]
        struct KeySet {
            keys: Vec<serde_json::Value>,
        }
        let address = format!("{}/.well-known/openid-configuration", self.issuer.trim_end_matches('/'));
        self.guard.look().await;
        let discovery: Discovery = self.get(&address).await?;
        if discovery.issuer != self.issuer {
            return Err(format!("{address} is about another issuer: {}", discovery.issuer));
        }
        // An attacker who could change the keys on their way could sign any token.
        if !Url::parse(&discovery.jwks_uri).is_ok_and(|url| is_private(&url)) {
            return Err(format!(
                "its keys are at {}, which is no https address",
                discovery.jwks_uri
            ));
        }
        self.leads_to(&discovery.jwks_uri)?;
        let set: KeySet = self.get(&discovery.jwks_uri).await?;
        // Keys of unknown kinds are ignored.
        let keys: Vec<_> = set.keys.into_iter().filter_map(Key::read).collect();
        if keys.is_empty() {
            return Err(format!("there is no key at {} that Kiln can use", discovery.jwks_uri));
        }
        // Nor may a code or a token be read on its way.
        let private = |url: Option<String>| Url::parse(&url?).ok().filter(is_private);
        let ends = private(discovery.authorization_endpoint).zip(private(discovery.token_endpoint));
        if let Some((_, token)) = &ends {
            self.leads_to(token.as_str())?;
        }
        let endpoints = ends.map(|(authorization, token)| Endpoints { authorization, token });
        let read = Instant::now();
        Ok(Known { keys, endpoints, read })
    }

    /// Checks an address that the issuer names.
    fn leads_to(&self, address: &str) -> Result<(), String> {
        let url = Url::parse(address).map_err(|error| format!("{address}: {error}"))?;
        self.guard
            .check(&url)
            .map_err(|why| format!("it names {address}, and may not lead there: {why}"))
    }

    async fn get<T: DeserializeOwned>(&self, address: &str) -> Result<T, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("{address}: {error}");
        let response = self.client.get(address).send().await;
        let response = response.map_err(|error| wrong(&chain(&error)))?;
        if !response.status().is_success() {
            return Err(wrong(&format_args!("it answered {}", response.status())));
        }
        let body = whole(response).await.map_err(|error| wrong(&error))?;
        serde_json::from_slice(&body).map_err(|error| wrong(&error))
    }

    /// The addresses at which the issuer signs people in.
    pub(super) async fn endpoints(&self) -> Ends {
        if self.known().is_none() {
            self.ask(AT_MOST_EVERY).await;
        }
        let known = self.known();
        known.map_or(Ends::Unavailable, |known| {
            known.endpoints.clone().map_or(Ends::None, Ends::Known)
        })
    }

    /// The client that talks to the issuer: it follows no redirect, and no answer takes it long.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }
}

/// The body of an answer, up to a length.
pub(super) async fn whole(response: reqwest::Response) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    let mut stream = response.bytes_stream();
    while let Some(piece) = stream.next().await {
        body.extend_from_slice(&piece.map_err(|error| chain(&error))?);
        if body.len() > MOST_BYTES {
            return Err("the answer is too long".to_owned());
        }
    }
    Ok(body)
}

impl Known {
    /// The key with this id; without an id, the only key of this kind.
    fn select(&self, id: Option<&str>, algorithm: Algorithm) -> Option<DecodingKey> {
        let mut fitting = self
            .keys
            .iter()
            .filter(|key| key.algorithms.contains(&algorithm) && (id.is_none() || key.id.as_deref() == id));
        let first = fitting.next()?;
        fitting.next().is_none().then(|| first.decoding.clone())
    }
}

impl Key {
    fn read(value: serde_json::Value) -> Option<Self> {
        use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
        let jwk: Jwk = serde_json::from_value(value).ok()?;
        if matches!(&jwk.common.public_key_use, Some(meant) if *meant != PublicKeyUse::Signature) {
            return None;
        }
        // A key's type decides its algorithms, never a token. A symmetric key has none.
        let mut algorithms = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => vec![RS256, RS384, RS512, PS256, PS384, PS512],
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => vec![ES256],
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P384 => vec![ES384],
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => vec![EdDSA],
            _ => return None,
        };
        if let Some(only) = jwk.common.key_algorithm {
            algorithms.retain(|algorithm| KeyAlgorithm::from(*algorithm) == only);
        }
        let decoding = DecodingKey::from_jwk(&jwk).ok()?;
        (!algorithms.is_empty()).then_some(Self {
            id: jwk.common.key_id,
            algorithms,
            decoding,
        })
    }
}

fn client(issuer: &Url, guard: &Guard, settings: &OidcSettings) -> Result<Client, Failure> {
    let builder = || {
        let builder = Client::builder()
            .connect_timeout(TIMEOUT / 2)
            .timeout(TIMEOUT)
            .redirect(Policy::none())
            .dns_resolver(Arc::new(guard.clone()))
            .pool_max_idle_per_host(0);
        // A proxy cannot reach this host under its loopback names.
        if names_here(issuer) {
            builder.no_proxy()
        } else {
            builder
        }
    };
    let built = match &settings.ca_bundle {
        None => builder().build(),
        Some(path) => {
            let unusable = |error: &dyn std::fmt::Display| {
                Failure::new(
                    Code::OidcSettings,
                    format_args!("cannot trust the authorities in {}: {error}", path.display()),
                )
                .hint("[oidc] ca_bundle has to name a PEM file")
            };
            let pem = fs_err::read(path).map_err(|error| unusable(&error))?;
            let trusted = Certificate::from_pem_bundle(&pem).map_err(|error| unusable(&error))?;
            let besides = builder().tls_certs_merge(trusted.clone()).build();
            // On a system without certificates, only these are trusted.
            besides.or_else(|_| builder().tls_certs_only(trusted).build())
        }
    };
    built.map_err(|error| {
        let what = format!("cannot talk to the issuer: {}", chain(&error));
        Failure::new(Code::OidcSettings, what)
            .hint("install the system's certificate authorities, or set [oidc] ca_bundle")
    })
}
