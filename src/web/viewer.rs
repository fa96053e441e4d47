//! The person who looks at a page: their name and role, and the token that their forms carry. Pure: no I/O.

use std::net::SocketAddr;

use axum::{
    extract::{ConnectInfo, FromRequestParts},
    http::request::Parts,
};
use kiln_records::Role;
use maud::{Markup, html};

use super::sessions::Key;
use crate::api::{
    auth::{Principal, PrincipalKind},
    problem::Problem,
};

/// The name of the field with the token of a form.
pub(super) const FORM_TOKEN: &str = "form_token";

/// A request that came through the gate. It is one of the request's extensions.
#[derive(Debug, Clone)]
pub(super) struct Passed {
    /// The session, if the request has one.
    pub(super) session: Option<Key>,
    /// The token that forms of the session carry.
    pub(super) form_token: String,
    /// The cookie of an attempt to sign in at the issuer.
    pub(super) attempt: Option<String>,
}

/// A person with the right to see a page.
#[derive(Debug, Clone)]
pub(super) struct Viewer {
    pub(super) principal: Option<Principal>,
    pub(super) form_token: String,
    /// Whether the person can sign out.
    pub(super) has_session: bool,
    /// The address of the person's browser.
    pub(super) peer: Option<ConnectInfo<SocketAddr>>,
}

impl Viewer {
    /// Whether the person may change anything.
    pub(super) fn may_write(&self) -> bool {
        self.principal
            .as_ref()
            .is_some_and(|principal| principal.role >= Role::Write)
    }

    /// The field that every form has.
    pub(super) fn token_field(&self) -> Markup {
        html! { input type="hidden" name=(FORM_TOKEN) value=(self.form_token); }
    }

    /// How the person is called on pages.
    pub(super) fn name(&self) -> Option<&str> {
        let principal = self.principal.as_ref()?;
        match principal.kind {
            PrincipalKind::Local => None,
            _ => Some(&principal.name),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Viewer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        // Below IMS's prefix there are no pages.
        let passed = parts.extensions.get::<Passed>().ok_or_else(Problem::not_found)?;
        Ok(Self {
            principal: parts.extensions.get::<Principal>().cloned(),
            form_token: passed.form_token.clone(),
            has_session: passed.session.is_some(),
            peer: parts.extensions.get::<ConnectInfo<SocketAddr>>().copied(),
        })
    }
}
