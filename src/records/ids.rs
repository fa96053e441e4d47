//! Identifiers. Each kind is its own type, so that an identifier cannot be passed in place of another. Pure: no I/O,
//! except for the randomness of new ones.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident, $new:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// Makes a fresh, random identifier.
            #[expect(clippy::new_without_default, reason = "a default that differs each time would surprise")]
            pub fn new() -> Self {
                Self(Uuid::$new())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl From<$name> for Uuid {
            fn from(id: $name) -> Uuid {
                id.0
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::from_str(text).map(Self)
            }
        }
    };
}

id_type!(
    /// One run, of a create or customize job.
    JobId, new_v4
);
id_type!(
    /// One image record; also the first part of its objects' keys in S3.
    ImageId, new_v4
);
id_type!(
    /// One recipe record.
    RecipeId, new_v4
);
id_type!(
    /// One public key.
    PublicKeyId, new_v4
);
id_type!(
    /// One API token.
    TokenId, new_v4
);
id_type!(
    /// One server among those that share a database.
    ServerId, new_v4
);
id_type!(
    /// One schedule.
    ScheduleId, new_v4
);
id_type!(
    /// One image set.
    SetId, new_v4
);
