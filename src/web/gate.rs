//! The gate before the whole server, for addresses of pages: it turns the cookie of a session into the token that the
//! person signed in with, so that authentication, roles and limits are those of the API; and it answers people with pages
//! where the API answers programs with problems. Other requests pass untouched: no cookie opens the API.

use std::time::Duration;

use axum::{
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Redirect, Response},
};
use tokio::time::timeout;

use super::{
    Dashboard,
    forms::{self, Filled},
    issuer::{self, ATTEMPT, Fresh},
    layout, recipe_upload,
    sessions::Key,
    viewer::Passed,
};
use crate::api::auth::{Principal, sign_in::Held};

/// The largest form, in bytes.
const LARGEST_FORM: usize = 64 << 10;

/// The time in which a form has to arrive.
const FORM_TIME: Duration = Duration::from_secs(30);

/// The largest problem document that is made a page, in bytes.
const LARGEST_PROBLEM: usize = 256 << 10;

/// Pages use their own style and script only, and are in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The middleware.
pub(super) async fn gate(State(web): State<Dashboard>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let looks = matches!(*request.method(), Method::GET | Method::HEAD);
    if path == "/" && looks && wants_page(request.headers()) {
        return harden(Redirect::to("/ui").into_response());
    }
    if path != "/ui" && !path.starts_with("/ui/") {
        return next.run(request).await;
    }
    if path == "/ui/" {
        return harden(Redirect::permanent("/ui").into_response());
    }
    let (key, token) = match web.sessions.of(request.headers()) {
        None => (None, None),
        Some((key, tokens)) => match issuer::fresh(&web, key, &tokens).await {
            Fresh::Token(token) => (Some(key), Some(token)),
            Fresh::Ended => (None, None),
            // Somebody may sign in in another way meanwhile, and can always sign out.
            Fresh::Unavailable if path.starts_with("/ui/login") || is_asset(path) => (None, None),
            Fresh::Unavailable if path == "/ui/logout" => {
                let gone = web.sessions.end(Some(key));
                return harden(([(header::SET_COOKIE, gone)], Redirect::to("/ui/login")).into_response());
            }
            Fresh::Unavailable => {
                let (detail, hint) = (
                    "The issuer cannot be asked whether you are still signed in.",
                    "Try again later.",
                );
                let page = layout::message(StatusCode::SERVICE_UNAVAILABLE, detail, Some(hint), true);
                return harden(page);
            }
        },
    };
    let attempt = web.sessions.value(&ATTEMPT, request.headers()).map(str::to_owned);
    // Whatever else the browser adds is not about this server's pages.
    request.headers_mut().remove(header::COOKIE);
    if let Some(token) = &token {
        request.headers_mut().remove(header::AUTHORIZATION);
        set_token(request.headers_mut(), token);
    }
    request.extensions_mut().insert(Passed {
        session: key,
        form_token: web.sessions.form_token(key),
        attempt,
    });
    let response = if request.method() == Method::POST {
        post(&web, key, request, next).await
    } else {
        look(request, next).await
    };
    harden(response)
}

/// Whether an address is that of a part of all pages.
fn is_asset(path: &str) -> bool {
    matches!(path, "/ui/style.css" | "/ui/script.js" | "/ui/icon.svg")
}

/// Headers of every answer below `/ui`, beside those of every answer of the server.
pub(super) fn harden(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    let fresh = HeaderValue::from_static("no-store");
    headers.entry(header::CACHE_CONTROL).or_insert(fresh);
    response
}

async fn look(request: Request, next: Next) -> Response {
    let is_page = wants_page(request.headers());
    let uri = request.uri().clone();
    let passed = request.extensions().get::<Passed>().cloned();
    let response = next.run(request).await;
    if !is_page {
        return response;
    }
    if response.status() == StatusCode::UNAUTHORIZED {
        return Redirect::to(&forms::login_address(&uri)).into_response();
    }
    as_page(response, passed.is_some_and(|passed| passed.session.is_some())).await
}

async fn post(web: &Dashboard, key: Option<Key>, request: Request, next: Next) -> Response {
    if request.uri().path() == recipe_upload::ADDRESS {
        // Too large to be kept here: the handler reads it once its sender is known.
        let is_page = wants_page(request.headers());
        let response = next.run(request).await;
        if response.status() == StatusCode::UNAUTHORIZED && is_page {
            return Redirect::to("/ui/login?next=%2Fui%2Frecipes").into_response();
        }
        return if is_page {
            as_page(response, true).await
        } else {
            response
        };
    }
    let (parts, body) = request.into_parts();
    let body = match timeout(FORM_TIME, to_bytes(body, LARGEST_FORM)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => return layout::message(StatusCode::PAYLOAD_TOO_LARGE, "The form is too large.", None, true),
        Err(_) => {
            return layout::message(
                StatusCode::REQUEST_TIMEOUT,
                "The form did not arrive in time.",
                None,
                true,
            );
        }
    };
    if parts.uri.path() == "/ui/login" {
        return sign_in(web, key, parts, &body, next).await;
    }
    let uri = parts.uri.clone();
    let is_page = wants_page(&parts.headers);
    let response = next.run(Request::from_parts(parts, Body::from(body.clone()))).await;
    if uri.path() == "/ui/logout" && response.status().is_success() {
        let gone = web.sessions.end(key);
        return ([(header::SET_COOKIE, gone)], Redirect::to("/ui/login")).into_response();
    }
    if response.status() == StatusCode::UNAUTHORIZED && is_page {
        // The session ended while the form was filled in: nothing typed is lost.
        let filled = Filled {
            next: uri.path().to_owned(),
            form: String::from_utf8_lossy(&body).into_owned(),
        };
        let why = "Your session has ended. Sign in again; what you typed is kept.";
        return web.login_page(StatusCode::UNAUTHORIZED, Some(why), &filled);
    }
    if is_page {
        as_page(response, true).await
    } else {
        response
    }
}

/// Tries the token of a form by a request that needs one, so that wrong tokens count as they do everywhere.
async fn sign_in(web: &Dashboard, key: Option<Key>, parts: Parts, body: &Bytes, next: Next) -> Response {
    let form = forms::pairs(body);
    let field = |name: &str| {
        form.iter()
            .find(|(key, _)| key == name)
            .map_or("", |(_, value)| value.as_str())
    };
    let filled = Filled {
        next: field("next").to_owned(),
        form: field("form").to_owned(),
    };
    let token = field("token").trim();
    if token.is_empty() && key.is_none() && !filled.form.is_empty() {
        let why = "You are not signed in yet.";
        return web.login_page(StatusCode::UNAUTHORIZED, Some(why), &filled);
    }
    if token.is_empty() && key.is_some() && !filled.form.is_empty() {
        // The person signed in at the issuer meanwhile, in another window.
        return forms::again_page(&filled, &web.sessions.form_token(key), "You are signed in again.");
    }
    let mut request = Request::from_parts(parts, Body::empty());
    for name in [header::AUTHORIZATION, header::CONTENT_LENGTH, header::TRANSFER_ENCODING] {
        request.headers_mut().remove(name);
    }
    if !set_token(request.headers_mut(), token) {
        let why = "That is no token: a token is one line of plain letters.";
        return web.login_page(StatusCode::UNAUTHORIZED, Some(why), &filled);
    }
    let response = next.run(request).await;
    match response.status() {
        StatusCode::NO_CONTENT => {}
        StatusCode::UNAUTHORIZED => {
            let why = "The token is not valid, or has expired.";
            return web.login_page(StatusCode::UNAUTHORIZED, Some(why), &filled);
        }
        _ => return as_page(response, false).await,
    }
    // Where no token is asked for, there is nothing to keep.
    let Some(person) = response
        .extensions()
        .get::<Principal>()
        .filter(|one| forms::has_token(one))
    else {
        return Redirect::to("/ui").into_response();
    };
    let (key, cookie) = web
        .sessions
        .begin(Held::plain(token, person.caller()), &web.api.store)
        .await;
    let cookie = [(header::SET_COOKIE, cookie)];
    if filled.form.is_empty() {
        (cookie, Redirect::to(filled.next())).into_response()
    } else {
        let again = forms::again_page(&filled, &web.sessions.form_token(Some(key)), "You are signed in again.");
        (cookie, again).into_response()
    }
}

/// Whether it could be set.
fn set_token(headers: &mut HeaderMap, token: &str) -> bool {
    match HeaderValue::from_str(&format!("Bearer {token}")) {
        Ok(mut value) if !token.is_empty() => {
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
            true
        }
        _ => false,
    }
}

/// Whether a browser asks for a page to show.
pub(super) fn wants_page(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(header::ACCEPT).iter();
    accepts
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.contains("text/html"))
}

/// A problem, for a person.
async fn as_page(response: Response, can_go_home: bool) -> Response {
    let status = response.status();
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is = |name: &[u8]| kind.is_some_and(|kind| kind.as_bytes().starts_with(name));
    let (is_page, is_plain) = (is(b"text/html"), is(b"text/plain"));
    if is_page || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let retry = response.headers().get(header::RETRY_AFTER).cloned();
    let body = to_bytes(response.into_body(), LARGEST_PROBLEM)
        .await
        .unwrap_or_default();
    let problem: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let text = |name: &str| problem[name].as_str().map(str::to_owned);
    // The framework says in plain text which part of an address makes no sense.
    let plain = || is_plain.then(|| String::from_utf8_lossy(&body).into_owned());
    let detail = text("detail").or_else(plain);
    let detail = detail.unwrap_or_else(|| status.canonical_reason().unwrap_or("Error").to_owned());
    let mut page = layout::message(status, &detail, text("hint").as_deref(), can_go_home);
    if let Some(retry) = retry {
        page.headers_mut().insert(header::RETRY_AFTER, retry);
    }
    page
}
