//! kiln-agent
fn main() {}
