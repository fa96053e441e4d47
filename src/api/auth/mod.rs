//! Authentication and authorization: identifies callers, and checks their rights. Reads tokens from the database, and
//! keys from the issuer.

mod keys;
pub mod oidc;
pub mod policy;
mod principal;
pub mod sign_in;
pub mod token;
mod trust;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::{
    extract::{ConnectInfo, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use kiln_records::{
    Moment, Role,
    budget::{OPEN_QUESTIONS, OPEN_QUESTIONS_OF_ADDRESS},
};
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use self::{oidc::Oidc, policy::Need, token::TokenText, trust::Named};
pub use self::{
    principal::{Principal, PrincipalKind},
    trust::Trust,
};
use super::{
    connections::CameBy,
    problem::Problem,
    rate::{Key, Rate, too_often},
    request_log::Caller,
    turns::Turns,
};
use crate::{
    config::{LimitSettings, is_token},
    store::{SharedStore, StoreError},
};

/// How long a question without a token waits for its turn.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The entrance to the API. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Auth(Arc<Gate>);

#[derive(Debug)]
struct Gate {
    door: Door,
    /// The names that the server answers to, beside its addresses.
    hosts: Vec<String>,
    /// Whether the catalogue can be read without a token.
    is_catalogue_public: bool,
    requests: Rate,
    failed_logins: Rate,
    /// The turns of questions without a token.
    open_questions: Turns,
}

#[derive(Debug)]
enum Door {
    /// Every caller on this host may enter.
    Open,
    /// Callers with a valid token may enter.
    Guarded {
        tokens: SharedStore,
        oidc: Option<Arc<Oidc>>,
    },
    /// Callers with the token in this file may enter.
    TokenFile(PathBuf),
}

/// The reason for turning a caller away.
#[derive(Debug)]
enum Refusal {
    /// The request has no token.
    NoToken,
    /// The token is invalid.
    Wrong(&'static str),
    /// The token cannot be checked now.
    Unavailable(&'static str),
    /// The store does not answer.
    Store(StoreError),
    /// The request names another host.
    NotHere,
    /// The request names a host that this listener does not answer to.
    NotThere,
    /// The listener does not serve the caller's network.
    Stranger,
    /// The token is valid but gives no role.
    NoRole(Key),
}

impl Auth {
    /// Admits every caller that asks for this host or one of `hosts`. For servers that only their own host can reach.
    pub fn open(hosts: Vec<String>, limits: &LimitSettings) -> Self {
        Self::new(Door::Open, hosts, limits)
    }

    /// Admits callers with a token: one of `tokens`, or one of the issuer. Callers of a listener with a [`Trust`] need
    /// none if they ask for an address or one of `hosts`.
    pub fn guarded(tokens: SharedStore, oidc: Option<Arc<Oidc>>, hosts: Vec<String>, limits: &LimitSettings) -> Self {
        Self::new(Door::Guarded { tokens, oidc }, hosts, limits)
    }

    /// The same, but if `is_public`, the catalogue can be read without a token.
    #[must_use]
    pub fn with_public_catalogue(mut self, is_public: bool) -> Self {
        if let Some(gate) = Arc::get_mut(&mut self.0) {
            gate.is_catalogue_public = is_public;
        }
        self
    }

    /// Admits callers with the token in this file, to read.
    pub fn token_file(path: PathBuf, limits: &LimitSettings) -> Self {
        Self::new(Door::TokenFile(path), Vec::new(), limits)
    }

    fn new(door: Door, hosts: Vec<String>, limits: &LimitSettings) -> Self {
        Self(Arc::new(Gate {
            door,
            hosts,
            is_catalogue_public: false,
            requests: Rate::of_requests(limits),
            failed_logins: Rate::of_failed_logins(limits),
            open_questions: Turns::new(OPEN_QUESTIONS, OPEN_QUESTIONS_OF_ADDRESS),
        }))
    }
}

/// The middleware: identifies the caller, checks the rights, and counts the request.
pub(super) async fn authenticate(State(auth): State<Auth>, mut request: Request, next: Next) -> Response {
    let gate = &*auth.0;
    let peer = peer(&request);
    let need = policy::need(request.method(), request.uri().path());
    let is_open_catalogue = need == Need::Catalogue && gate.is_catalogue_public;
    let need = match need {
        Need::Catalogue if is_open_catalogue => Need::Nothing,
        Need::Catalogue => Need::Role(Role::Read),
        need => need,
    };
    let (principal, key) = match identify(gate, need, &Asked::by(peer, &request)).await {
        Ok(None) => (None, Key::peer(peer)),
        Ok(Some(principal)) => {
            CameBy::admitted(request.extensions());
            if let Some(caller) = request.extensions().get::<Caller>() {
                caller.is(&principal.name);
            }
            let key = match &principal.kind {
                PrincipalKind::Local | PrincipalKind::Network(_) => Key::peer(peer),
                PrincipalKind::Token(id) => Key::Token(*id),
                PrincipalKind::Subject(subject) => Key::Subject(subject.clone()),
            };
            (Some(principal), key)
        }
        Err(refusal) => return refuse(gate, peer, refusal),
    };
    if let Err(wait) = gate.requests.count(key.clone()) {
        return too_often("There are too many requests.", wait);
    }
    request.extensions_mut().insert(key.clone());
    let _turn = if is_open_catalogue {
        // Whoever is not known asks one thing after the other.
        match timeout(LONGEST_WAIT, gate.open_questions.turn(key)).await {
            Ok(turn) => turn,
            Err(_) => {
                return Problem::busy("Your address has asked too much at once. Try again later.").into_response();
            }
        }
    } else {
        None
    };
    match (principal, need) {
        (Some(principal), Need::Role(needed)) if principal.role < needed => forbidden(&principal, needed),
        (principal, _) => {
            if let Some(principal) = principal {
                request.extensions_mut().insert(principal);
            }
            next.run(request).await
        }
    }
}

/// The parts of a request that tell its caller.
#[derive(Debug)]
struct Asked<'a> {
    peer: IpAddr,
    headers: &'a HeaderMap,
    named: Named<'a>,
    /// The rule of the listener, if its callers need no token.
    trust: Option<&'a Trust>,
}

impl<'a> Asked<'a> {
    fn by(peer: IpAddr, request: &'a Request) -> Self {
        Self {
            peer,
            headers: request.headers(),
            named: Named::by(request.uri(), request.headers()),
            trust: request.extensions().get::<Arc<Trust>>().map(AsRef::as_ref),
        }
    }
}

/// The middleware before the agents' routes, which check tokens by themselves: counts the wrong ones.
pub(super) async fn count_wrong_tokens(State(auth): State<Auth>, request: Request, next: Next) -> Response {
    let peer = peer(&request);
    let response = next.run(request).await;
    if response.status() != StatusCode::UNAUTHORIZED {
        return response;
    }
    let gate = &*auth.0;
    let counted = gate.requests.count(Key::peer(peer));
    match counted.and_then(|()| gate.failed_logins.count(Key::peer(peer))) {
        Ok(()) => response,
        Err(wait) => too_often("There were too many wrong tokens from your address.", wait),
    }
}

fn peer(request: &Request) -> IpAddr {
    let connection = request.extensions().get::<ConnectInfo<SocketAddr>>();
    connection.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |info| info.0.ip())
}

/// The caller; none where no authentication is needed.
async fn identify(gate: &Gate, need: Need, asked: &Asked<'_>) -> Result<Option<Principal>, Refusal> {
    let Asked { headers, named, .. } = *asked;
    if let Some(trust) = asked.trust {
        let has_token = headers.contains_key(header::AUTHORIZATION);
        match &gate.door {
            _ if !trust.covers(asked.peer) => return Err(Refusal::Stranger),
            // A token says more about its holder than the network does. Without authentication there are no tokens.
            Door::Guarded { .. } if has_token => {}
            _ if named.is_address_or(&gate.hosts) => return Ok(Some(Principal::of_network(asked.peer, trust.role))),
            _ => return Err(Refusal::NotThere),
        }
    }
    let (tokens, oidc) = match &gate.door {
        Door::Open if named.is_here(&gate.hosts) => return Ok(Some(Principal::local())),
        Door::Open => return Err(Refusal::NotHere),
        Door::TokenFile(path) => return of_file(path, bearer(headers)?, asked.peer).await.map(Some),
        Door::Guarded { .. } if need == Need::Nothing => return Ok(None),
        Door::Guarded { tokens, oidc } => (tokens, oidc),
    };
    let text = bearer(headers)?;
    if let Some(token) = TokenText::parse(text) {
        return own(tokens, &token).await.map(Some);
    }
    match oidc {
        Some(oidc) if text.bytes().filter(|byte| *byte == b'.').count() == 2 => oidc.principal(text).await.map(Some),
        _ => Err(Refusal::Wrong("The token is not valid.")),
    }
}

/// The token of a request.
fn bearer(headers: &HeaderMap) -> Result<&str, Refusal> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let first = given.next().ok_or(Refusal::NoToken)?;
    if given.next().is_some() {
        return Err(Refusal::Wrong("There is more than one Authorization header."));
    }
    let wrong = Refusal::Wrong("The Authorization header has to be `Bearer` and a token.");
    match first.to_str().ok().and_then(|text| text.trim().split_once(' ')) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(token.trim()),
        _ => Err(wrong),
    }
}

/// The holder of the token in a file.
async fn of_file(path: &Path, given: &str, peer: IpAddr) -> Result<Principal, Refusal> {
    let text = fs_err::tokio::read_to_string(path).await.map_err(|error| {
        tracing::warn!("callers are turned away, because their token cannot be read: {error}");
        Refusal::Unavailable("The token cannot be checked now.")
    })?;
    let token = text.trim();
    if !is_token(token) {
        tracing::warn!("callers are turned away: {} has no token", path.display());
        return Err(Refusal::Unavailable("The token cannot be checked now."));
    }
    // The time that it takes to compare digests says nothing about the token.
    if Sha256::digest(token) != Sha256::digest(given) {
        return Err(Refusal::Wrong("The token is not valid."));
    }
    Ok(Principal {
        name: "metrics".to_owned(),
        role: Role::Read,
        kind: PrincipalKind::Network(peer),
    })
}

/// The holder of one of Kiln's own tokens.
async fn own(tokens: &SharedStore, token: &TokenText) -> Result<Principal, Refusal> {
    let record = tokens.token(&token.sha256()).await.map_err(Refusal::Store)?;
    let record = record.ok_or(Refusal::Wrong("The token is not valid."))?;
    if record.expires.is_some_and(|expires| expires <= Moment::now()) {
        return Err(Refusal::Wrong("The token has expired."));
    }
    Ok(Principal {
        name: principal::printable(&record.name),
        role: record.role,
        kind: PrincipalKind::Token(record.id),
    })
}

/// The answer to a caller that is turned away.
fn refuse(gate: &Gate, peer: IpAddr, refusal: Refusal) -> Response {
    // The address is charged for the request, since the caller is unknown.
    let key = match &refusal {
        Refusal::NoRole(key) => key.clone(),
        _ => Key::peer(peer),
    };
    if let Err(wait) = gate.requests.count(key) {
        return too_often("There are too many requests.", wait);
    }
    let (detail, challenge) = match refusal {
        Refusal::NoToken => (
            "This needs a token: send `Authorization: Bearer` with it.",
            "Bearer realm=\"kiln\"",
        ),
        Refusal::Wrong(detail) => {
            if let Err(wait) = gate.failed_logins.count(Key::peer(peer)) {
                tracing::debug!(%peer, "too many wrong tokens");
                return too_often("There were too many wrong tokens from your address.", wait);
            }
            tracing::info!(%peer, "request refused: {detail}");
            (detail, "Bearer realm=\"kiln\", error=\"invalid_token\"")
        }
        Refusal::Unavailable(detail) => {
            let mut response = Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).into_response();
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from(oidc::RETRY.as_secs()));
            return response;
        }
        Refusal::Store(error) => return Problem::from(error).into_response(),
        Refusal::NotHere => {
            let detail = "Authentication is off, so requests have to name this host: localhost, a loopback address, or a \
                          name in [server] hosts.";
            return Problem::new(StatusCode::FORBIDDEN, detail).into_response();
        }
        Refusal::NotThere => {
            let detail = "Requests without a token have to name this host: by an address, or a name in [server] hosts.";
            return Problem::new(StatusCode::FORBIDDEN, detail).into_response();
        }
        Refusal::Stranger => {
            tracing::info!(%peer, "request refused: the address is in no network of [trusted_listener]");
            let detail = "This address of the server is for other networks: use the one for callers with tokens.";
            return Problem::new(StatusCode::FORBIDDEN, detail).into_response();
        }
        Refusal::NoRole(_) => {
            let detail = "The token is valid, but the issuer gives its holder no role that Kiln knows.";
            return Problem::new(StatusCode::FORBIDDEN, detail).into_response();
        }
    };
    let mut response = Problem::new(StatusCode::UNAUTHORIZED, detail).into_response();
    let headers = response.headers_mut();
    headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    response
}

/// The answer to a caller without the necessary role.
fn forbidden(principal: &Principal, needed: Role) -> Response {
    let detail = format!(
        "This needs the role `{}`; `{}` has `{}`.",
        needed.name(),
        principal.name,
        principal.role.name(),
    );
    Problem::new(StatusCode::FORBIDDEN, detail).into_response()
}

#[cfg(test)]
mod tests;
