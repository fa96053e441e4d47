//! API tokens and what they allow.

use serde::{Deserialize, Serialize};

use super::{Moment, TokenId};

/// What a caller may do. Each role includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Look at everything.
    Read,
    /// Create, change, delete and restore single records.
    Write,
    /// Everything: also whole collections at once, remote build nodes, tokens.
    Admin,
}

impl Role {
    /// Every role, the least first.
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

/// A token's record. The token itself is not kept, only its SHA-256.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Its identity.
    pub id: TokenId,
    /// When it was made.
    pub created: Moment,
    /// Whom or what it is for.
    pub name: String,
    /// What it allows.
    pub role: Role,
    /// When it ends; none means never.
    pub expires: Option<Moment>,
}
