//! Tests what Kiln's doors let through: what others send, bring, or leave behind costs neither the server nor anybody's work.

mod addresses;
mod files;
mod shells;
