//! The forms for signing in and out, and forms that are shown again so that nothing typed is lost. No I/O.

use axum::{
    Extension,
    extract::State,
    http::{StatusCode, Uri},
    response::{IntoResponse, Redirect, Response},
};
use maud::html;

use super::{
    Dashboard, layout,
    text::shown,
    viewer::{FORM_TOKEN, Viewer},
};
use crate::api::{
    auth::{Principal, PrincipalKind, sign_in::SignIn},
    problem::{Problem, Result},
};

/// A form that was sent without a session, and its address.
#[derive(Debug, Default)]
pub(super) struct Filled {
    pub(super) next: String,
    /// As it was sent: names and values, encoded. Empty if there was none.
    pub(super) form: String,
}

impl Filled {
    /// The address, if it is one of this server's pages.
    pub(super) fn next(&self) -> &str {
        own_address(&self.next)
    }
}

/// A page that is shown instead of carrying out a form.
#[derive(Debug)]
pub(super) struct NotSent(Box<Response>);

impl From<Response> for NotSent {
    fn from(page: Response) -> Self {
        Self(Box::new(page))
    }
}

impl IntoResponse for NotSent {
    fn into_response(self) -> Response {
        *self.0
    }
}

/// The names and values of a form, or of a query.
pub(super) fn pairs(text: &[u8]) -> Vec<(String, String)> {
    form_urlencoded::parse(text).into_owned().collect()
}

/// Checks the token of a form.
///
/// # Errors
///
/// 403 when the form is not one of this session, with a page that offers to send it anew.
pub(super) fn check(
    viewer: &Viewer,
    address: &Uri,
    body: &[u8],
) -> std::result::Result<Vec<(String, String)>, NotSent> {
    let form = pairs(body);
    let given = form.iter().find(|(name, _)| name == FORM_TOKEN);
    if given.is_some_and(|(_, token)| *token == viewer.form_token) {
        return Ok(form);
    }
    let filled = Filled {
        next: address.path().to_owned(),
        form: String::from_utf8_lossy(body).into_owned(),
    };
    let mut page = again_page(
        &filled,
        &viewer.form_token,
        "This form is from another session, or from before the server started.",
    );
    *page.status_mut() = StatusCode::FORBIDDEN;
    Err(page.into())
}

/// The address of the form for signing in, which leads back to a page.
pub(super) fn login_address(back: &Uri) -> String {
    let back = back
        .path_and_query()
        .map_or("/ui", axum::http::uri::PathAndQuery::as_str);
    leading_back("/ui/login", back)
}

/// The address that leads to the issuer, and from there to a page.
fn issuer_address(back: &str) -> String {
    leading_back("/ui/login/issuer", back)
}

fn leading_back(address: &str, back: &str) -> String {
    if back == "/ui" {
        return address.to_owned();
    }
    let query: String = form_urlencoded::Serializer::new(String::new())
        .append_pair("next", back)
        .finish();
    format!("{address}?{query}")
}

/// The form for signing in.
pub(super) async fn login(State(web): State<Dashboard>, viewer: Viewer, uri: Uri) -> Response {
    if viewer.principal.is_some() {
        return Redirect::to("/ui").into_response();
    }
    let query = pairs(uri.query().unwrap_or_default().as_bytes());
    let next = query.into_iter().find(|(name, _)| name == "next");
    let filled = Filled {
        next: next.map(|(_, next)| next).unwrap_or_default(),
        form: String::new(),
    };
    web.login_page(StatusCode::OK, None, &filled)
}

/// The answer to a token that opens the server. The gate turns it into a session.
pub(super) async fn logged_in(viewer: Viewer) -> Result<Response> {
    let principal = viewer.principal.ok_or_else(Problem::not_found)?;
    Ok((StatusCode::NO_CONTENT, Extension(principal)).into_response())
}

/// The answer to a form for signing out. The gate ends the session.
pub(super) async fn logged_out(viewer: Viewer, uri: Uri, body: axum::body::Bytes) -> Response {
    match check(&viewer, &uri, &body) {
        Ok(_) => StatusCode::NO_CONTENT.into_response(),
        Err(page) => page.into_response(),
    }
}

/// Whether somebody came with a token.
pub(super) fn has_token(principal: &Principal) -> bool {
    matches!(principal.kind, PrincipalKind::Token(_) | PrincipalKind::Subject(_))
}

impl Dashboard {
    /// The page with the ways of signing in.
    pub(super) fn login_page(&self, status: StatusCode, why: Option<&str>, filled: &Filled) -> Response {
        let issuer = self.sign_in.as_ref().map(SignIn::name);
        let is_kept = !filled.form.is_empty();
        let kept = html! {
            input type="hidden" name="next" value=(filled.next());
            @if is_kept { input type="hidden" name="form" value=(filled.form); }
        };
        let body = html! {
            h1 { "Sign in" }
            @if let Some(why) = why { p.note.bad role="alert" { (why) } }
            @if let Some(issuer) = &issuer {
                @if is_kept {
                    // This page keeps what was typed, so the way to the issuer is in another one.
                    p { a.button href=(issuer_address("/ui")) target="_blank" { "Sign in at " (shown(issuer)) " (in a new window)" } }
                    form.stack method="post" action="/ui/login" { (kept) button type="submit" { "I am signed in: go on" } }
                } @else {
                    p { a.button href=(issuer_address(filled.next())) { "Sign in at " (shown(issuer)) } }
                }
                p.dim { "Or with a token:" }
            }
            form.stack method="post" action="/ui/login" {
                (kept)
                label for="token" { "Token" }
                input #token type="password" name="token" required autofocus[issuer.is_none()] autocomplete="current-password"
                    spellcheck="false" aria-describedby="token-help";
                p #token-help.dim {
                    "A token of Kiln (" code { "kiln tokens create --name you --role read" }
                    ") or of the site's issuer. It stays in the memory of this server, and the session ends after 12 hours or \
                     with the server."
                }
                button type="submit" { "Sign in" }
            }
        };
        (status, layout::bare("Sign in", &body)).into_response()
    }
}

/// The page that offers to send a form anew.
pub(super) fn again_page(filled: &Filled, form_token: &str, why: &str) -> Response {
    let fields = pairs(filled.form.as_bytes());
    let fields: Vec<_> = fields.into_iter().filter(|(name, _)| name != FORM_TOKEN).collect();
    let body = html! {
        h1 { "Send it again?" }
        p { (why) " Nothing has been changed yet." }
        form.stack method="post" action=(filled.next()) {
            input type="hidden" name=(FORM_TOKEN) value=(form_token);
            @if !fields.is_empty() {
                dl.facts {
                    @for (name, value) in &fields {
                        dt { (shown(name)) } dd { (shown(value)) }
                    }
                }
            }
            @for (name, value) in &fields { input type="hidden" name=(name) value=(value); }
            p { code { (filled.next()) } }
            button type="submit" autofocus { "Send it" } " "
            a href="/ui" { "Leave it" }
        }
    };
    layout::bare("Send it again?", &body).into_response()
}

/// An address of a page, from a form that may be of another site: any other address leads home.
fn own_address(text: &str) -> &str {
    let is_own = text == "/ui" || text.starts_with("/ui/") || text.starts_with("/ui?");
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    let fits = is_own && is_plain && text.parse::<Uri>().is_ok();
    if fits { text } else { "/ui" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_led_elsewhere() {
        for own in ["/ui", "/ui/jobs/1?from=3", "/ui?x=%0a"] {
            assert_eq!(own_address(own), own);
        }
        for other in [
            "",
            "//evil.example",
            "/\\evil",
            "https://evil.example/ui",
            "/uix",
            "/ui/a\r\nb",
            "/v3/jobs",
        ] {
            assert_eq!(own_address(other), "/ui", "{other:?}");
        }
    }
}
