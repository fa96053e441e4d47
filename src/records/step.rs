//! The steps of a job, in order. Pure: no I/O.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::JobType;

/// A stage of a job. A job goes through the steps of its type in this order, and never back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The sandbox is made and the emulator, if one is needed, registered and proved.
    Prepare,
    /// The recipe archive, or the image, is fetched and unpacked.
    Fetch,
    /// The recipe's template files are rendered.
    Template,
    /// The recipe's repositories are waited for.
    Repos,
    /// The root file system is made (kiwi).
    Build,
    /// The root file system is made once more, without native twins, and compared.
    Verify,
    /// The root of an image is changed.
    Customize,
    /// Squashfs, kernel and initrd are made from the root.
    Package,
    /// The artifacts go to S3.
    Upload,
}

impl Step {
    /// Every step, in order.
    pub const ALL: [Step; 9] = [
        Step::Prepare,
        Step::Fetch,
        Step::Template,
        Step::Repos,
        Step::Build,
        Step::Verify,
        Step::Customize,
        Step::Package,
        Step::Upload,
    ];

    /// The steps of a job of this type, in order. A create job may also have [`Step::Verify`].
    pub const fn of(job: JobType) -> &'static [Step] {
        use Step::{Build, Customize, Fetch, Package, Prepare, Repos, Template, Upload};
        match job {
            JobType::Create => &[Prepare, Fetch, Template, Repos, Build, Package, Upload],
            JobType::Customize => &[Prepare, Fetch, Customize, Package, Upload],
        }
    }

    /// The steps of a create job that verifies its twins, in order.
    pub const VERIFIED: &[Step] = &[
        Step::Prepare,
        Step::Fetch,
        Step::Template,
        Step::Repos,
        Step::Build,
        Step::Verify,
        Step::Package,
        Step::Upload,
    ];

    /// The steps of a job that only verifies the twins of another one, in order.
    pub const VERIFICATION: &[Step] = Self::VERIFIED.split_at(6).0;

    /// The steps of a recipe that is only read, in order.
    pub const READING: &[Step] = Self::VERIFIED.split_at(4).0;

    /// Whether programs of the image run in it.
    pub const fn runs_the_images_programs(self) -> bool {
        matches!(self, Step::Build | Step::Verify | Step::Customize)
    }

    /// The step's name as users see it.
    pub const fn name(self) -> &'static str {
        match self {
            Step::Prepare => "prepare",
            Step::Fetch => "fetch",
            Step::Template => "template",
            Step::Repos => "repos",
            Step::Build => "build",
            Step::Verify => "verify",
            Step::Customize => "customize",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verification_ends_with_the_comparison() {
        assert_eq!(Step::VERIFICATION.last(), Some(&Step::Verify));
        let others = Step::VERIFIED.iter().filter(|step| **step != Step::Verify);
        assert!(others.eq(Step::of(JobType::Create)));
    }
}
