//! The audit log: which caller changed what. Types. Pure: no I/O.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Moment;

/// The longest text of an entry, in characters.
pub const LONGEST_TEXT: usize = 256;

/// One request that could change something. It is stored before the request is carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AuditEntry {
    /// Its number. Later entries have higher numbers.
    pub number: i64,
    /// When the request came.
    #[schema(value_type = String)]
    pub at: Moment,
    /// The name of the caller.
    pub who: String,
    /// How the server knows the caller.
    pub known_by: KnownBy,
    /// The id of the caller's token, or the issuer's `sub`; null without either.
    pub identity: Option<String>,
    /// The address from which the request came; null for a command on this host.
    pub from: Option<String>,
    /// The method of the request.
    pub method: String,
    /// The path of the request.
    pub path: String,
    /// The record that the path names, or that the request made; null if it is about several, or none.
    pub record_id: Option<Uuid>,
    /// The id of the request in the server's log.
    pub request_id: Option<String>,
    /// The status of the answer. Null while there is none; for good if the caller or the server went away before.
    pub status: Option<u16>,
}

/// How a server knows a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum KnownBy {
    /// The caller is on the server's host, and authentication is off.
    Host,
    /// The caller's network needs no token.
    Network,
    /// A token of this server.
    Token,
    /// The site's issuer.
    Issuer,
}

impl KnownBy {
    /// Each of them.
    pub const ALL: [Self; 4] = [Self::Host, Self::Network, Self::Token, Self::Issuer];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Network => "network",
            Self::Token => "token",
            Self::Issuer => "issuer",
        }
    }

    /// The one with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}
