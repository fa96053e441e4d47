//! The steps of a job, in their order.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A stage of a create job. A job goes through them in this order and never back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub enum Step {
    /// The sandbox is made and the emulator, if one is needed, registered and proved.
    Prepare,
    /// The recipe archive is fetched and unpacked.
    Fetch,
    /// The recipe's template files are rendered.
    Template,
    /// The recipe's repositories are waited for.
    Repos,
    /// The root file system is made (kiwi).
    Build,
    /// Squashfs, kernel and initrd are made from the root.
    Package,
    /// The artifacts go to S3.
    Upload,
}

impl Step {
    /// Every step, in order.
    pub const ALL: [Step; 7] = [
        Step::Prepare,
        Step::Fetch,
        Step::Template,
        Step::Repos,
        Step::Build,
        Step::Package,
        Step::Upload,
    ];

    /// The step's name as users see it.
    pub const fn name(self) -> &'static str {
        match self {
            Step::Prepare => "prepare",
            Step::Fetch => "fetch",
            Step::Template => "template",
            Step::Repos => "repos",
            Step::Build => "build",
            Step::Package => "package",
            Step::Upload => "upload",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
