//! What requests about schedules look like, for the API's description.

use serde::Deserialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::records::{
    TwinLevel,
    schedule::{MissedRuns, Overlap},
};

/// What makes a schedule.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "documentation; fields are read by api::fields")]
#[serde(deny_unknown_fields)]
pub(super) struct ScheduleCreate {
    /// What people call it.
    #[schema(min_length = 1, max_length = 1024)]
    name: String,
    /// The recipe that is built.
    recipe_id: Uuid,
    /// When it runs: minute, hour, day of the month, month, day of the week.
    #[schema(max_length = 256, example = "0 2 * * *")]
    cron: String,
    /// The time zone whose clock `cron` is read by; UTC if it is not given.
    #[schema(nullable = false, example = "Europe/Berlin")]
    timezone: Option<String>,
    /// The names of the images that come out, with the placeholders `{date}`, `{time}`, `{recipe}`, `{arch}` and `{n}`.
    /// If it is not given, `name`.
    #[schema(nullable = false, min_length = 1, example = "nightly-{date}")]
    image_root_archive_name: Option<String>,
    /// The key that jobs get.
    public_key_id: Option<Uuid>,
    /// Disk for the build, GiB.
    #[schema(minimum = 1, maximum = 1_048_576)]
    build_env_size: Option<u32>,
    /// Memory for the build, GiB.
    #[schema(minimum = 1, maximum = 1_048_576)]
    job_mem_size: Option<u32>,
    /// The kernel's file name in `/boot`.
    #[schema(min_length = 1, max_length = 255)]
    kernel_file_name: Option<String>,
    /// The initial RAM disk's file name in `/boot`.
    #[schema(min_length = 1, max_length = 255)]
    initrd_file_name: Option<String>,
    /// The file of kernel parameters in `/boot`; it need not be there.
    #[schema(min_length = 1, max_length = 255)]
    kernel_parameters_file_name: Option<String>,
    /// Whether jobs need a kernel of their own.
    require_dkms: Option<bool>,
    /// Which tools may run as native twins in emulated builds.
    twins: Option<TwinLevel>,
    /// What happens to runs that were missed; `once` if it is not given.
    #[schema(nullable = false)]
    missed_runs: Option<MissedRuns>,
    /// How many missed runs `all` makes up for; 10 if it is not given.
    #[schema(nullable = false, minimum = 1, maximum = 100)]
    missed_runs_limit: Option<u32>,
    /// What happens to a run while an earlier one has not ended; `forbid` if it is not given.
    #[schema(nullable = false)]
    overlap: Option<Overlap>,
    /// Whether it stands still at first.
    #[schema(nullable = false)]
    paused: Option<bool>,
}

/// What can be changed of a schedule. Null takes an option of jobs back to what is usual.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "documentation; fields are read by api::fields")]
#[serde(deny_unknown_fields)]
pub(super) struct ScheduleUpdate {
    /// What people call it.
    #[schema(nullable = false, min_length = 1, max_length = 1024)]
    name: Option<String>,
    /// The recipe that is built.
    #[schema(nullable = false)]
    recipe_id: Option<Uuid>,
    /// When it runs.
    #[schema(nullable = false, max_length = 256, example = "0 2 * * *")]
    cron: Option<String>,
    /// The time zone whose clock `cron` is read by.
    #[schema(nullable = false, example = "Europe/Berlin")]
    timezone: Option<String>,
    /// The names of the images that come out.
    #[schema(nullable = false, min_length = 1, example = "nightly-{date}")]
    image_root_archive_name: Option<String>,
    /// The key that jobs get.
    public_key_id: Option<Uuid>,
    /// Disk for the build, GiB.
    #[schema(minimum = 1, maximum = 1_048_576)]
    build_env_size: Option<u32>,
    /// Memory for the build, GiB.
    #[schema(minimum = 1, maximum = 1_048_576)]
    job_mem_size: Option<u32>,
    /// The kernel's file name in `/boot`.
    #[schema(min_length = 1, max_length = 255)]
    kernel_file_name: Option<String>,
    /// The initial RAM disk's file name in `/boot`.
    #[schema(min_length = 1, max_length = 255)]
    initrd_file_name: Option<String>,
    /// The file of kernel parameters in `/boot`.
    #[schema(min_length = 1, max_length = 255)]
    kernel_parameters_file_name: Option<String>,
    /// Whether jobs need a kernel of their own.
    require_dkms: Option<bool>,
    /// Which tools may run as native twins in emulated builds.
    twins: Option<TwinLevel>,
    /// What happens to runs that were missed.
    #[schema(nullable = false)]
    missed_runs: Option<MissedRuns>,
    /// How many missed runs `all` makes up for.
    #[schema(nullable = false, minimum = 1, maximum = 100)]
    missed_runs_limit: Option<u32>,
    /// What happens to a run while an earlier one has not ended.
    #[schema(nullable = false)]
    overlap: Option<Overlap>,
    /// Whether it stands still.
    #[schema(nullable = false)]
    paused: Option<bool>,
}
