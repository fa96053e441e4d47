//! The result of a boot check, as it is kept beside an image. Types. Pure: no I/O.

use serde::{Deserialize, Serialize};

use crate::Moment;

/// The name of the object with the result, beside the image's manifest.
pub const BOOT_CHECK: &str = "boot-check.json";

/// The name of the object with what the console said.
pub const CONSOLE: &str = "console.log";

/// The size below which a result stays, in bytes.
pub const MAX_SIZE: usize = 64 << 10;

/// The most of a console that is kept, in bytes: its end.
pub const MOST_CONSOLE: usize = 512 << 10;

/// The longest text of a result, in bytes.
pub const LONGEST_TEXT: usize = 1024;

/// The result of a boot check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct BootCheck {
    /// SHA-256 of the manifest of the image that was booted. The result is one for that content only.
    pub manifest_sha256: String,
    /// Whether it came up.
    pub up: bool,
    /// The sign by which it was up, or why it was not.
    pub detail: String,
    /// The time that it took, in seconds.
    pub seconds: u32,
    /// The machine.
    pub machine: String,
    /// When the result was stored.
    #[schema(value_type = String)]
    pub checked: Moment,
    /// The user who checked it, if known.
    pub by: Option<String>,
}
