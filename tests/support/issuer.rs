//! An OpenID Connect issuer, as far as Kiln uses one.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    Form, Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::IntoResponse,
    routing::{get, post},
};
use axum_server::tls_rustls::RustlsConfig;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, jwk::Jwk};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256, RsaKeySize};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// The audience of tokens.
pub const AUDIENCE: &str = "kiln";

/// A signing key of an issuer.
#[derive(Clone)]
pub struct SigningKey {
    pub id: String,
    pub algorithm: Algorithm,
    pub encoding: EncodingKey,
    /// The public half, as the issuer publishes it.
    pub public: Value,
    /// The public half as PEM.
    pub public_pem: String,
}

impl SigningKey {
    pub fn new(id: &str, algorithm: Algorithm) -> Self {
        super::serve::client(None);
        let pair = match algorithm {
            Algorithm::ES256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
            Algorithm::ES384 => KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384),
            Algorithm::EdDSA => KeyPair::generate_for(&PKCS_ED25519),
            _ => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
        }
        .unwrap();
        let pem = pair.serialize_pem();
        let encoding = match algorithm {
            Algorithm::ES256 | Algorithm::ES384 => EncodingKey::from_ec_pem(pem.as_bytes()),
            Algorithm::EdDSA => EncodingKey::from_ed_pem(pem.as_bytes()),
            _ => EncodingKey::from_rsa_pem(pem.as_bytes()),
        }
        .unwrap();
        let mut public = match algorithm {
            // The library cannot parse rcgen's key.
            Algorithm::EdDSA => json!({
                "kty": "OKP",
                "crv": "Ed25519",
                "alg": "EdDSA",
                "x": URL_SAFE_NO_PAD.encode(pair.public_key_raw()),
            }),
            _ => serde_json::to_value(Jwk::from_encoding_key(&encoding, algorithm).unwrap()).unwrap(),
        };
        public["kid"] = id.into();
        public["use"] = "sig".into();
        Self {
            id: id.to_owned(),
            algorithm,
            encoding,
            public,
            public_pem: pair.public_key_pem(),
        }
    }
}

struct Shared {
    url: String,
    keys: Mutex<Vec<Value>>,
    /// The name that it claims instead of its own.
    name: Mutex<Option<String>>,
    down: Mutex<bool>,
    fetches: AtomicUsize,
    /// What its token endpoint answers next.
    answers: Mutex<VecDeque<(u16, Value)>>,
    /// What its token endpoint was asked.
    asked: Mutex<Vec<BTreeMap<String, String>>>,
}

/// An issuer on a loopback port.
pub struct TestIssuer(Arc<Shared>);

impl TestIssuer {
    pub async fn start(keys: &[&SigningKey]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (issuer, app) = Self::new("http", listener.local_addr().unwrap(), keys);
        tokio::spawn(async move { axum::serve(listener, app).await });
        issuer
    }

    /// Starts with TLS, with this certificate and key.
    pub fn start_tls(keys: &[&SigningKey], certificate: &Path, key: &Path) -> Self {
        super::serve::client(None);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (issuer, app) = Self::new("https", listener.local_addr().unwrap(), keys);
        let config = RustlsConfig::from_config(kiln::tls::server_config(certificate, key).unwrap());
        let server = axum_server::from_tcp_rustls(listener, config).unwrap();
        tokio::spawn(server.serve(app.into_make_service()));
        issuer
    }

    fn new(scheme: &str, address: SocketAddr, keys: &[&SigningKey]) -> (Self, Router) {
        let shared = Arc::new(Shared {
            url: format!("{scheme}://{address}/realms/site"),
            keys: Mutex::new(keys.iter().map(|key| key.public.clone()).collect()),
            name: Mutex::new(None),
            down: Mutex::new(false),
            fetches: AtomicUsize::new(0),
            answers: Mutex::default(),
            asked: Mutex::default(),
        });
        let app = Router::new()
            .route("/realms/site/.well-known/openid-configuration", get(discovery))
            .route("/realms/site/keys", get(key_set))
            .route("/realms/site/token", post(token))
            .with_state(Arc::clone(&shared));
        (Self(shared), app)
    }

    pub fn url(&self) -> &str {
        &self.0.url
    }

    /// Variables for a server that trusts this issuer.
    pub fn variables(&self) -> [(&str, &str); 2] {
        [("KILN__OIDC__ISSUER", self.url()), ("KILN__OIDC__AUDIENCE", AUDIENCE)]
    }

    pub fn set_keys(&self, keys: &[Value]) {
        *self.0.keys.lock().unwrap() = keys.to_vec();
    }

    pub fn set_name(&self, name: Option<&str>) {
        *self.0.name.lock().unwrap() = name.map(str::to_owned);
    }

    pub fn set_down(&self, down: bool) {
        *self.0.down.lock().unwrap() = down;
    }

    /// The next answer of its token endpoint. Without one it fails.
    pub fn will_answer(&self, status: u16, answer: Value) {
        self.0.answers.lock().unwrap().push_back((status, answer));
    }

    /// The forms that its token endpoint got since this was asked last, each with its `Authorization`.
    pub fn was_asked(&self) -> Vec<BTreeMap<String, String>> {
        std::mem::take(&mut self.0.asked.lock().unwrap())
    }

    /// How often its keys were read.
    pub fn fetches(&self) -> usize {
        self.0.fetches.load(Ordering::SeqCst)
    }

    /// The claims of its tokens.
    pub fn claims(&self, role: &str) -> Value {
        let now = now();
        json!({
            "iss": self.url(),
            "aud": [AUDIENCE, "account"],
            "sub": "0b1c",
            "preferred_username": "ada",
            "iat": now,
            "exp": now + 300,
            "realm_access": { "roles": ["offline_access", role] },
        })
    }

    /// A valid token.
    pub fn token(&self, key: &SigningKey, role: &str) -> String {
        sign(key, &self.claims(role))
    }
}

pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

pub fn sign(key: &SigningKey, claims: &Value) -> String {
    let mut header = Header::new(key.algorithm);
    header.kid = Some(key.id.clone());
    encode(&header, claims, &key.encoding).unwrap()
}

async fn discovery(State(issuer): State<Arc<Shared>>) -> impl IntoResponse {
    if *issuer.down.lock().unwrap() {
        return (StatusCode::INTERNAL_SERVER_ERROR, Json(json!({})));
    }
    let name = issuer.name.lock().unwrap().clone();
    let document = json!({
        "issuer": name.unwrap_or_else(|| issuer.url.clone()),
        "jwks_uri": format!("{}/keys", issuer.url),
        "authorization_endpoint": format!("{}/authorize?kc=1", issuer.url),
        "token_endpoint": format!("{}/token", issuer.url),
    });
    (StatusCode::OK, Json(document))
}

async fn key_set(State(issuer): State<Arc<Shared>>) -> Json<Value> {
    issuer.fetches.fetch_add(1, Ordering::SeqCst);
    Json(json!({ "keys": *issuer.keys.lock().unwrap() }))
}

async fn token(
    State(issuer): State<Arc<Shared>>,
    headers: HeaderMap,
    Form(mut form): Form<BTreeMap<String, String>>,
) -> (StatusCode, Json<Value>) {
    let given = headers.get("authorization").map(|value| value.to_str().unwrap());
    form.insert("authorization".to_owned(), given.unwrap_or_default().to_owned());
    issuer.asked.lock().unwrap().push(form);
    let answer = issuer.answers.lock().unwrap().pop_front();
    let (status, answer) = answer.unwrap_or((503, json!({})));
    (StatusCode::from_u16(status).unwrap(), Json(answer))
}
