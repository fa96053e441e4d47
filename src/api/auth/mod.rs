//! Authentication and authorization: identifies callers, and checks their rights. Reads tokens from the database, and
//! keys from the issuer.

mod keys;
pub mod oidc;
pub mod policy;
mod principal;
pub mod token;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use axum::{
    extract::{ConnectInfo, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use kiln_records::{Moment, Role};

pub use self::principal::{Principal, PrincipalKind};
use self::{oidc::Oidc, policy::Need, token::TokenText};
use super::{
    problem::Problem,
    rate::{Key, Rate, too_often},
    request_log::Caller,
};
use crate::{
    config::LimitSettings,
    settings::is_loopback,
    store::{SharedStore, StoreError},
};

/// The entrance to the API. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Auth(Arc<Gate>);

#[derive(Debug)]
struct Gate {
    door: Door,
    requests: Rate,
    failed_logins: Rate,
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
    /// The token is valid but gives no role.
    NoRole(Key),
}

impl Auth {
    /// Admits every caller. For servers that only their own host can reach.
    pub fn open(limits: &LimitSettings) -> Self {
        Self::new(Door::Open, limits)
    }

    /// Admits callers with a token: one of `tokens`, or one of the issuer.
    pub fn guarded(tokens: SharedStore, oidc: Option<Arc<Oidc>>, limits: &LimitSettings) -> Self {
        Self::new(Door::Guarded { tokens, oidc }, limits)
    }

    fn new(door: Door, limits: &LimitSettings) -> Self {
        Self(Arc::new(Gate {
            door,
            requests: Rate::of_requests(limits),
            failed_logins: Rate::of_failed_logins(limits),
        }))
    }
}

/// The middleware: identifies the caller, checks the rights, and counts the request.
pub(super) async fn authenticate(State(auth): State<Auth>, mut request: Request, next: Next) -> Response {
    let gate = &*auth.0;
    let peer = request
        .extensions()
        .get::<ConnectInfo<SocketAddr>>()
        .map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |info| info.0.ip());
    let need = policy::need(request.method(), request.uri().path());
    let (principal, key) = match identify(gate, need, request.uri(), request.headers()).await {
        Ok(None) => (None, Key::peer(peer)),
        Ok(Some(principal)) => {
            if let Some(caller) = request.extensions().get::<Caller>() {
                caller.is(&principal.name);
            }
            let key = match &principal.kind {
                PrincipalKind::Local => Key::peer(peer),
                PrincipalKind::Token(id) => Key::Token(*id),
                PrincipalKind::Subject(subject) => Key::Subject(subject.clone()),
            };
            (Some(principal), key)
        }
        Err(refusal) => return refuse(gate, peer, refusal),
    };
    if let Err(wait) = gate.requests.count(key) {
        return too_often("There are too many requests.", wait);
    }
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

/// The caller; none where no authentication is needed.
async fn identify(gate: &Gate, need: Need, uri: &Uri, headers: &HeaderMap) -> Result<Option<Principal>, Refusal> {
    let (tokens, oidc) = match &gate.door {
        Door::Open if is_asked_here(uri, headers) => return Ok(Some(Principal::local())),
        Door::Open => return Err(Refusal::NotHere),
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

/// Whether the request names this very host. A hostile web page that points its own domain at Kiln's address does not,
/// and must not enter through the browser of its reader.
fn is_asked_here(uri: &Uri, headers: &HeaderMap) -> bool {
    let named = headers.get(header::HOST).map(HeaderValue::to_str);
    let authority = match (uri.authority(), &named) {
        (Some(authority), _) => authority.as_str(),
        (None, Some(Ok(named))) => named,
        // Browsers always send it.
        (None, None) => return true,
        (None, Some(Err(_))) => return false,
    };
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|c| c.is_ascii_digit()) => host,
        _ => authority,
    };
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(is_loopback)
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
            let detail = "Authentication is off, so requests have to name this host: localhost, or a loopback address.";
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
