//! Lines: how those who log in to a job's shell come into its sandbox, which nobody can connect to.
//!
//! ```text
//!  ssh ──TCP──▶ server ◀──GET …/shell, Upgrade── agent ──stdin, stdout── sshd -i
//! ```
//!
//! The agent keeps a line open that nobody uses. When somebody connects to the job's port, the server writes one byte
//! ([`GO`]) and from then on passes on what either side says; the agent starts sshd on the line and opens another one.
//! What goes through is SSH, end to end: the server can neither read nor change it.

/// What a line is called in the `Upgrade` header.
pub const UPGRADE: &str = "kiln-shell";

/// What the server writes first, when somebody is there.
pub const GO: u8 = b'!';
