//! Signing in at the site's issuer: the way there, the way back, and tokens that the issuer replaces in time. Asks the
//! issuer through [`SignIn`].

use std::{sync::Arc, time::Duration};

use axum::{
    Extension,
    extract::State,
    http::{HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Redirect, Response},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use kiln_records::Clock;
use maud::html;
use tokio::sync::OwnedMutexGuard;

use super::{
    Dashboard,
    forms::{Filled, pairs},
    layout,
    sessions::{Cookie, Key, Tokens},
    viewer::Passed,
};
use crate::api::{
    auth::sign_in::{Held, LONGEST_ATTEMPT, NotSignedIn, Return, SignIn},
    problem::{Problem, Result},
};

/// The cookie of an attempt. It has to come along when the issuer's page leads back.
pub(super) const ATTEMPT: Cookie = Cookie {
    name: "kiln_sign_in",
    same_site: "Lax",
};

/// The longest address that is led back to, in bytes.
const LONGEST_NEXT: usize = 1024;

/// The tokens of a session, as they are now.
#[derive(Debug)]
pub(super) enum Fresh {
    /// The token for requests.
    Token(String),
    /// The issuer no longer gives tokens: the session is over.
    Ended,
    /// The issuer cannot be asked now.
    Unavailable,
}

/// Leads to the issuer.
pub(super) async fn begin(State(web): State<Dashboard>, uri: Uri) -> Result<Response> {
    let sign_in = web.sign_in.as_ref().ok_or_else(Problem::not_found)?;
    let secret = SignIn::new_secret();
    let address = match sign_in.begin(&secret).await {
        Ok(address) => address,
        Err(why) => return Ok(refused(sign_in, why)),
    };
    let query = pairs(uri.query().unwrap_or_default().as_bytes());
    let next = field(&query, "next").filter(|next| next.len() <= LONGEST_NEXT);
    let value = format!("{secret}.{}", URL_SAFE_NO_PAD.encode(next.unwrap_or_default()));
    let cookie = [(
        header::SET_COOKIE,
        web.sessions.cookie(&ATTEMPT, &value, LONGEST_ATTEMPT),
    )];
    Ok((cookie, Redirect::to(address.as_str())).into_response())
}

/// The way back from the issuer, with a code or an error.
pub(super) async fn finish(
    State(web): State<Dashboard>,
    Extension(passed): Extension<Passed>,
    uri: Uri,
) -> Result<Response> {
    let sign_in = web.sign_in.as_ref().ok_or_else(Problem::not_found)?;
    let query = pairs(uri.query().unwrap_or_default().as_bytes());
    let given = |name: &str| field(&query, name).map(str::to_owned);
    let Some(code) = given("code") else {
        // `error` says why, in words for programmers. It signs nobody in, so it may be about whatever attempt.
        return Ok(refused(sign_in, NotSignedIn::Refused));
    };
    let attempt = passed.attempt.as_deref().and_then(|value| value.split_once('.'));
    let (Some((secret, next)), Some(state)) = (attempt, given("state")) else {
        return Ok(refused(sign_in, NotSignedIn::Wrong));
    };
    let back = Return {
        secret: secret.to_owned(),
        code,
        state,
        issuer: given("iss"),
    };
    let held = match sign_in.finish(back).await {
        Ok(held) => held,
        Err(why) => return Ok(refused(sign_in, why)),
    };
    let next = URL_SAFE_NO_PAD.decode(next).unwrap_or_default();
    let filled = Filled {
        next: String::from_utf8(next).unwrap_or_default(),
        form: String::new(),
    };
    let (_, session) = web.sessions.begin(held, &web.api.store).await;
    let gone = web.sessions.cookie(&ATTEMPT, "", Duration::ZERO);
    let mut page = signed_in(filled.next()).into_response();
    page.headers_mut().append(header::SET_COOKIE, session);
    page.headers_mut().append(header::SET_COOKIE, gone);
    Ok(page)
}

/// The token of a session. The issuer is asked for another one when it is about to expire.
pub(super) async fn fresh(web: &Dashboard, key: Key, tokens: &Tokens) -> Fresh {
    let held = Arc::clone(tokens).lock_owned().await;
    if !held.is_due(&web.sessions.clock) {
        return Fresh::of(&held, &web.sessions.clock);
    }
    // In a task of its own: a browser that goes away must not take tokens along that the issuer has just made.
    let renewing = tokio::spawn(renewed(web.clone(), key, held));
    renewing.await.unwrap_or(Fresh::Unavailable)
}

async fn renewed(web: Dashboard, key: Key, mut held: OwnedMutexGuard<Held>) -> Fresh {
    let Some(sign_in) = &web.sign_in else {
        return Fresh::of(&held, &web.sessions.clock);
    };
    match sign_in.renew(&held).await {
        Ok(new) => *held = new,
        // The old token may be good for a while yet, in which the issuer may come back.
        Err(NotSignedIn::Unavailable | NotSignedIn::NotOffered) => held.put_off(&web.sessions.clock),
        Err(NotSignedIn::Refused | NotSignedIn::Wrong | NotSignedIn::NoRole) => {
            web.sessions.end(Some(key));
            return Fresh::Ended;
        }
    }
    Fresh::of(&held, &web.sessions.clock)
}

impl Fresh {
    fn of(held: &Held, clock: &Clock) -> Self {
        if held.waits(clock) {
            Self::Unavailable
        } else {
            Self::Token(held.token.expose().to_owned())
        }
    }
}

/// A page that leads on. The cookie of the session is for this site's own pages, so a browser does not send it with a
/// redirect that another site began.
fn signed_in(next: &str) -> Response {
    let body = html! {
        h1 { "You are signed in" }
        p { a href=(next) { "Go on" } }
    };
    let mut page = layout::bare("Signed in", &body).into_response();
    if let Ok(refresh) = HeaderValue::from_str(&format!("0; url={next}")) {
        page.headers_mut().insert("refresh", refresh);
    }
    page
}

fn refused(sign_in: &SignIn, why: NotSignedIn) -> Response {
    let issuer = sign_in.name();
    let (status, detail, hint) = match why {
        NotSignedIn::Unavailable => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{issuer} cannot be asked now."),
            "Try again later, or sign in with a token. The server's log says what is wrong.",
        ),
        NotSignedIn::NotOffered => (
            StatusCode::NOT_IMPLEMENTED,
            format!("{issuer} does not say where people sign in by https."),
            "Sign in with a token. Its description has no authorization_endpoint and token_endpoint that can be used.",
        ),
        NotSignedIn::Refused => (
            StatusCode::FORBIDDEN,
            format!("{issuer} did not sign you in."),
            "Try again. If it stays so, the server's log says what the issuer answers.",
        ),
        NotSignedIn::Wrong => (
            StatusCode::BAD_REQUEST,
            "This is no answer to a sign-in that this browser began here within ten minutes.".to_owned(),
            "Sign in again, with cookies allowed.",
        ),
        NotSignedIn::NoRole => (
            StatusCode::FORBIDDEN,
            format!("{issuer} knows you, but gives you no role that Kiln knows."),
            "Ask the site for one of the roles in [oidc], or for tokens whose audience is Kiln's.",
        ),
    };
    layout::message(status, &detail, Some(hint), false)
}

fn field<'a>(query: &'a [(String, String)], name: &str) -> Option<&'a str> {
    query
        .iter()
        .find(|(given, _)| given == name)
        .map(|(_, value)| value.as_str())
}
