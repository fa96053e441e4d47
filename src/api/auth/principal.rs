//! The identity of a caller. Pure: no I/O.

use std::net::IpAddr;

use axum::Extension;
use kiln_records::{Role, TokenId};

use crate::api::rate::of_one_host;

/// An authenticated caller. Handlers find it in the request's extensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The caller's name.
    pub name: String,
    /// The caller's role.
    pub role: Role,
    /// The source of the identity.
    pub kind: PrincipalKind,
}

/// The source of a caller's identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrincipalKind {
    /// None: authentication is off, and only this host can call.
    Local,
    /// The network that the request came from, from this address.
    Network(IpAddr),
    /// One of Kiln's own tokens.
    Token(TokenId),
    /// The issuer, under this `sub`.
    Subject(String),
}

impl Principal {
    /// The name of a request's caller, for records; none where the request has no known caller.
    pub fn name_of(caller: Option<Extension<Self>>) -> Option<String> {
        caller.map(|Extension(principal)| principal.name)
    }

    /// The name under which the caller's use of budgets is counted: another token of the same name is another caller.
    pub fn caller(&self) -> String {
        match &self.kind {
            PrincipalKind::Local => "local".to_owned(),
            PrincipalKind::Network(address) => format!("address {}", of_one_host(*address)),
            PrincipalKind::Token(id) => format!("token {id}"),
            PrincipalKind::Subject(subject) => format!("subject {subject}"),
        }
    }

    /// The caller when authentication is off.
    pub(super) fn local() -> Self {
        Self {
            name: "local".to_owned(),
            role: Role::Admin,
            kind: PrincipalKind::Local,
        }
    }

    /// The caller without a token at a listener that needs none.
    pub(super) fn of_network(address: IpAddr, role: Role) -> Self {
        Self {
            name: "trusted-network".to_owned(),
            role,
            kind: PrincipalKind::Network(address),
        }
    }
}

/// The longest name in the log.
const LONGEST_NAME: usize = 128;

/// A name, made fit for one line of a log.
pub(super) fn printable(name: &str) -> String {
    let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    name.chars().take(LONGEST_NAME).map(plain).collect()
}
