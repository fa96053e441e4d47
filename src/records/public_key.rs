//! Public keys: the keys that may log in to a job's shell. Pure: no I/O.

use serde::{Deserialize, Serialize};

use super::{Moment, PublicKeyId};

/// A public SSH key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PublicKey {
    /// Its identity.
    #[schema(value_type = uuid::Uuid)]
    pub id: PublicKeyId,
    /// When it was made.
    #[schema(value_type = String)]
    pub created: Moment,
    /// What people call it. Need not be unique.
    pub name: String,
    /// The key, as a line of `authorized_keys`; kept byte for byte.
    pub public_key: String,
    /// When it was deleted; only in the collection of deleted keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub deleted: Option<Moment>,
}
