//! The rules for types that records and bodies share. Pure: no I/O.

use super::{OrDefault, Text, body, checked, enumerations, string, texts};
use kiln_records::{
    CacheDepth, ChangeKind, JobStatus, JobType, Link, LinuxDistribution, RecipeType, StoreType, TemplateValue,
    TwinLevel,
    arch::Arch,
    schedule::{MissedRuns, Overlap},
    set::Requirement,
};

enumerations!(
    // Only by its main name: the stored value is the one that was sent.
    Arch,
    ChangeKind,
    JobStatus,
    JobType,
    LinuxDistribution,
    MissedRuns,
    Overlap,
    RecipeType,
    Requirement,
    StoreType,
    TwinLevel,
    CacheDepth,
);

texts! {
    /// A path in S3. An invalid one is refused at the search for the object.
    S3Path = |value| checked(value, |_| Ok(())),
        string().pattern(Some(r"^s3://[A-Za-z0-9._-]{3,255}/[^\u0000-\u001f\u007f-\u009f]{1,1024}$"));
}

body! {
    /// The location of an object.
    impl Link {
        /// `s3://bucket/key`.
        path: S3Path,
        /// Entity tag without quotes; informative.
        etag: OrDefault<Text>,
        /// The kind of store.
        store as "type": StoreType,
    }
}

body! {
    /// A value for a recipe's templates.
    impl TemplateValue {
        /// The variable.
        key: Text,
        /// Its value.
        value: Text,
    }
}
