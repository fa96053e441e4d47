//! Which addresses Kiln connects to on somebody's word. Asks for this machine's own addresses, and resolves names; opens no
//! connection.
//!
//! What others name could lead Kiln to services that only it reaches: its loopback, what listens on its machine, the site's network, a
//! cloud's metadata. So every client that goes where others say has a [`Guard`], which also resolves names for the
//! connections: what was checked is what is connected to.

mod guard;
mod kind;

pub use guard::{Guard, NotAllowed};
pub use kind::{Kind, own};
