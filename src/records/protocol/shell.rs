//! Lines: how logins to a job's shell enter its sandbox, which accepts no connections. Pure: no I/O.
//!
//! ```text
//!  ssh ──TCP──▶ server ◀──GET …/shell, Upgrade── agent ──stdin, stdout── sshd -i
//! ```
//!
//! The agent keeps an idle line open. When a user connects to the job's port, the server writes one byte ([`GO`]) and
//! from then on relays both directions; the agent starts sshd on the line and opens another one. The content is SSH,
//! end to end: the server can neither read nor change it.

/// The name of a line in the `Upgrade` header.
pub const UPGRADE: &str = "kiln-shell";

/// The server's first byte on a line, once a user has connected.
pub const GO: u8 = b'!';
