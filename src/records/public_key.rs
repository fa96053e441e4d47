//! Public keys: the keys that may log in to a job's shell. Pure: no I/O.

use serde::{Deserialize, Serialize};

use super::{Moment, PublicKeyId};

/// A public SSH key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PublicKey {
    /// Its id.
    #[schema(value_type = uuid::Uuid)]
    pub id: PublicKeyId,
    /// The time of its creation.
    #[serde(serialize_with = "Moment::as_ims")]
    #[schema(value_type = String)]
    pub created: Moment,
    /// Its name, which need not be unique.
    pub name: String,
    /// The key, as a line of `authorized_keys`, stored unchanged.
    pub public_key: String,
    /// The time of its deletion; only in the collection of deleted keys.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "Moment::as_ims_if_any"
    )]
    #[schema(value_type = Option<String>, nullable = false)]
    pub deleted: Option<Moment>,
}
