//! What both sides of the sandbox's wall share: the parts of a sandbox on a shared kernel, the routes of its network, and
//! emulation. Touches the kernel of the sandbox that it is called in, and measures sandboxes from outside.

pub mod emulation;
pub mod room;
pub mod routes;
