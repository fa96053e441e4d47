//! Who asks.

use crate::records::{Role, TokenId};

/// Who asks. Handlers find it in the request's extensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// What people call them.
    pub name: String,
    /// What they may do.
    pub role: Role,
    /// How they are known.
    pub kind: PrincipalKind,
}

/// How somebody is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrincipalKind {
    /// Not at all: authentication is off, and only this host can ask.
    Local,
    /// By a token of Kiln's own.
    Token(TokenId),
    /// By the issuer, under this `sub`.
    Subject(String),
}

impl Principal {
    /// Whoever asks when nobody has to say who they are.
    pub(super) fn local() -> Self {
        Self {
            name: "local".to_owned(),
            role: Role::Admin,
            kind: PrincipalKind::Local,
        }
    }
}

/// The longest name that is shown.
const LONGEST_NAME: usize = 128;

/// A name as it can stand in one line of a log.
pub(super) fn printable(name: &str) -> String {
    let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    name.chars().take(LONGEST_NAME).map(plain).collect()
}
