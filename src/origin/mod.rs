//! Says where an image comes from, signs it, and checks both: in-toto statements in DSSE envelopes. Reads key files, and
//! runs the site's own command for signing.

mod envelope;
mod key;
#[cfg(test)]
pub(crate) mod new_keys;
mod sign;
mod statement;
mod verify;

pub use envelope::{Envelope, MEDIA_TYPE as ENVELOPE_TYPE, NotSigned};
pub use key::{BadKey, PublicKey};
pub use sign::{Signer, SigningError};
pub use statement::{MEDIA_TYPE as STATEMENT_TYPE, PREDICATE_TYPE, Statement, Subject};
pub use verify::{Fault, Finding, check};

/// The name of the manifest among the subjects of a statement.
pub const MANIFEST: &str = "manifest.json";

/// The name of the object with an image's statement, beside its manifest.
pub const STATEMENT: &str = "provenance.json";

/// The name of the object with the signed statement.
pub const ENVELOPE: &str = "provenance.dsse.json";

/// The name of a repository's metadata among what an image was made from.
pub const REPOSITORY: &str = "repository";

/// The size below which a statement or an envelope stays, in bytes: 20 000 packages have some 8 MB.
pub const MAX_SIZE: usize = 16 << 20;
