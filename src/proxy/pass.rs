//! Passes single requests on to the site's proxy. Opens connections to it.

use std::{io, time::Duration};

use axum::body::Body;
use hyper::{
    Method, Request, Response, StatusCode, Uri, Version,
    body::Incoming,
    client::conn::http1::{self, SendRequest},
    header::{self, HeaderMap, HeaderName, HeaderValue},
    upgrade::Upgraded,
};
use hyper_util::rt::TokioIo;
use reqwest::Url;
use tokio_util::task::TaskTracker;

use super::{Address, Rules, Site};

/// How long the proxy may take for the head of an answer.
const ANSWER: Duration = Duration::from_mins(3);

/// Headers that are for the next hop only.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// The tunnels of one connection, which go on when its last request has been answered.
#[derive(Debug, Clone, Default)]
pub(super) struct Tunnels(TaskTracker);

impl Tunnels {
    /// Returns when all have ended.
    pub(super) async fn ended(&self) {
        self.0.close();
        self.0.wait().await;
    }
}

/// Why a request is not carried.
struct Refused(StatusCode, String);

/// Answers one request.
pub(super) async fn on(site: &Site, rules: &Rules, tunnels: &Tunnels, request: Request<Incoming>) -> Response<Body> {
    let carried = if request.method() == Method::CONNECT {
        tunnel(site, rules, tunnels, request).await
    } else {
        carry(site, rules, request).await
    };
    carried.unwrap_or_else(|Refused(status, why)| said(status, &why))
}

/// The answer to a program that does not know this process's password.
pub(super) fn unknown() -> Response<Body> {
    let mut response = said(
        StatusCode::PROXY_AUTHENTICATION_REQUIRED,
        "this proxy is for Kiln's own programs",
    );
    let challenge = HeaderValue::from_static("Basic realm=\"kiln\"");
    response.headers_mut().insert(header::PROXY_AUTHENTICATE, challenge);
    response
}

/// Opens a tunnel, as programs ask for it to speak TLS with a server.
async fn tunnel(
    site: &Site,
    rules: &Rules,
    tunnels: &Tunnels,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Refused> {
    let target = target(request.uri(), 443)?;
    let mut sender = open(site, site.https.as_ref(), rules, &target).await?;
    let asked = Request::connect(target.authority())
        .header(header::HOST, target.authority())
        .body(Body::empty());
    let mut asked = asked.map_err(|error| bad(&error))?;
    authorize(site, asked.headers_mut()).await?;
    let mut answer = send(&mut sender, asked).await?;
    if answer.status() != StatusCode::OK {
        return Ok(passed_on(answer));
    }
    let near = hyper::upgrade::on(&mut request);
    let far = hyper::upgrade::on(&mut answer);
    tunnels.0.spawn(async move {
        if let (Ok(near), Ok(far)) = tokio::join!(near, far) {
            let (mut near, mut far): (TokioIo<Upgraded>, TokioIo<Upgraded>) = (TokioIo::new(near), TokioIo::new(far));
            // Either side may end it.
            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        }
    });
    Ok(Response::new(Body::empty()))
}

/// Passes on a request for an address that begins with `http:`.
async fn carry(site: &Site, rules: &Rules, request: Request<Incoming>) -> Result<Response<Body>, Refused> {
    if request.uri().scheme_str() != Some("http") {
        return Err(bad(&"a proxy is asked for a whole address that begins with http://"));
    }
    let target = target(request.uri(), 80)?;
    let mut sender = open(site, site.http.as_ref(), rules, &target).await?;
    let (mut parts, body) = request.into_parts();
    let rest = parts.uri.path_and_query().map_or("/", |rest| rest.as_str());
    // Some proxies have rules for addresses, which are usually written so.
    let authority = match target.port {
        80 => target.host.clone(),
        _ => target.authority(),
    };
    let uri: Result<Uri, _> = format!("http://{authority}{rest}").parse();
    parts.uri = uri.map_err(|error| bad(&error))?;
    remove_hop_by_hop(&mut parts.headers);
    parts.version = Version::HTTP_11;
    let host = HeaderValue::from_str(&authority).map_err(|error| bad(&error))?;
    parts.headers.insert(header::HOST, host);
    authorize(site, &mut parts.headers).await?;
    let answer = send(&mut sender, Request::from_parts(parts, Body::new(body))).await?;
    Ok(passed_on(answer))
}

/// Host and port in the normal form of URLs, in which `2130706433` is 127.0.0.1, too.
struct Target {
    host: String,
    port: u16,
}

impl Target {
    fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

fn target(uri: &Uri, usual_port: u16) -> Result<Target, Refused> {
    let authority = uri.authority().ok_or_else(|| bad(&"no host is named"))?;
    if authority.as_str().contains('@') {
        return Err(bad(&"a login belongs into a header"));
    }
    let port = authority.port_u16().unwrap_or(usual_port);
    let url = Url::parse(&format!("http://{}:{port}/", authority.host())).map_err(|error| bad(&error))?;
    let host = url.host_str().ok_or_else(|| bad(&"no host is named"))?.to_owned();
    Ok(Target { host, port })
}

/// Connects with the proxy for a target that may be asked for.
async fn open(
    site: &Site,
    proxy: Option<&Address>,
    rules: &Rules,
    target: &Target,
) -> Result<SendRequest<Body>, Refused> {
    rules
        .check(&target.host)
        .await
        .map_err(|why| Refused(StatusCode::FORBIDDEN, why))?;
    let own = [&site.http, &site.https].into_iter().flatten();
    let asks_for_itself = own
        .into_iter()
        .any(|own| own.port == target.port && own.host.eq_ignore_ascii_case(target.host.trim_matches(['[', ']'])));
    if asks_for_itself {
        return Err(Refused(
            StatusCode::FORBIDDEN,
            "the proxy is not asked for itself".to_owned(),
        ));
    }
    let unreachable = |why: &dyn std::fmt::Display| {
        tracing::warn!("the site's proxy cannot be used: {why}");
        Refused(
            StatusCode::BAD_GATEWAY,
            format!("the site's proxy cannot be used: {why}"),
        )
    };
    let proxy = proxy.ok_or_else(|| unreachable(&"[network] names none for addresses of this kind"))?;
    let stream = proxy.connect().await.map_err(|error| unreachable(&error))?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| unreachable(&error))?;
    tokio::spawn(async move {
        // Its end is seen by the sender.
        let _ = connection.with_upgrades().await;
    });
    Ok(sender)
}

async fn send(sender: &mut SendRequest<Body>, request: Request<Body>) -> Result<Response<Incoming>, Refused> {
    let gateway = |why: &dyn std::fmt::Display| {
        Refused(
            StatusCode::BAD_GATEWAY,
            format!("the site's proxy gave no answer: {why}"),
        )
    };
    match tokio::time::timeout(ANSWER, sender.send_request(request)).await {
        Ok(answer) => answer.map_err(|error| gateway(&error)),
        Err(_) => Err(gateway(&"it took too long")),
    }
}

async fn authorize(site: &Site, headers: &mut HeaderMap) -> Result<(), Refused> {
    let unusable = |error: &dyn std::fmt::Display| {
        tracing::warn!("the credentials for the site's proxy cannot be used: {error}");
        // The path is none of the caller's business.
        let why = "the credentials for the site's proxy cannot be used; the server's log says why";
        Refused(StatusCode::BAD_GATEWAY, why.to_owned())
    };
    let found = site.authorization().await;
    if let Some(secret) = found.map_err(|error: io::Error| unusable(&error))? {
        let value = HeaderValue::from_str(secret.expose());
        let mut value = value.map_err(|_| unusable(&"they are no text for a header"))?;
        value.set_sensitive(true);
        headers.insert(header::PROXY_AUTHORIZATION, value);
    }
    Ok(())
}

/// The proxy's answer, without what was for this host.
fn passed_on(answer: Response<Incoming>) -> Response<Body> {
    if answer.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
        tracing::warn!("the site's proxy refuses the credentials; see `proxy_credentials` in [network]");
        return said(
            StatusCode::BAD_GATEWAY,
            "the site's proxy wants a login that this server does not have: see `proxy_credentials` in [network]",
        );
    }
    let (mut parts, body) = answer.into_parts();
    remove_hop_by_hop(&mut parts.headers);
    parts.version = Version::HTTP_11;
    Response::from_parts(parts, Body::new(body))
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

fn bad(why: &dyn std::fmt::Display) -> Refused {
    Refused(StatusCode::BAD_REQUEST, format!("it cannot be asked of a proxy: {why}"))
}

fn said(status: StatusCode, why: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(format!("kiln: {why}\n")));
    *response.status_mut() = status;
    response
}
