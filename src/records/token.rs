//! API tokens and their roles. Pure: no I/O.

use serde::{Deserialize, Serialize};

use super::{Moment, TokenId};

/// The rights of a caller. Each role includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Read everything.
    Read,
    /// Create, change, delete and restore single records.
    Write,
    /// Everything: also whole collections at once, remote build nodes, tokens.
    Admin,
}

impl Role {
    /// Every role, the weakest first.
    pub const ALL: [Role; 3] = [Role::Read, Role::Write, Role::Admin];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Write => "write",
            Role::Admin => "admin",
        }
    }
}

/// A token's record. It holds the SHA-256 of the token, not the token itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Its id.
    pub id: TokenId,
    /// The time of its creation.
    pub created: Moment,
    /// Its purpose or owner.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// Its expiry; none means never.
    pub expires: Option<Moment>,
}
