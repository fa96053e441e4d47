//! The table of metrics. `docs/metrics.md` is made from it. Pure: no I/O.

use kiln_records::{
    Code, JobType,
    arch::Arch,
    run::{DriverKind, How},
};

use super::definition::{Counter, Gauge, Histogram, Label, Metric, Source, Times, Values};

/// The value of a label for what has no word of its own.
pub(super) const OTHER: &str = "other";

/// Requests to S3 that Kiln makes.
pub(super) const S3_OPERATIONS: &[&str] = &[
    "AbortMultipartUpload",
    "CompleteMultipartUpload",
    "CopyObject",
    "CreateBucket",
    "CreateMultipartUpload",
    "DeleteObject",
    "GetObject",
    "HeadBucket",
    "HeadObject",
    "ListMultipartUploads",
    "ListObjectsV2",
    "ListParts",
    "PutObject",
    "UploadPart",
    "UploadPartCopy",
    OTHER,
];

/// Buckets for what takes from seconds to hours.
const LONG: &[f64] = &[
    1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14_400.0, 28_800.0,
];

/// Buckets for what takes from milliseconds to a minute.
const SHORT: &[f64] = &[0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0];

macro_rules! label {
    ($name:ident, $label:literal, $values:expr) => {
        const $name: Label = Label {
            name: $label,
            values: Values::Are($values),
        };
    };
}

label!(TYPE, "type", || JobType::ALL.map(JobType::name).to_vec());
label!(ARCH, "arch", || Arch::ALL.map(Arch::name).to_vec());
label!(DRIVER, "driver", || DriverKind::ALL.map(DriverKind::name).to_vec());
label!(ISOLATION, "isolation", || vec!["namespace", "container", "vm"]);
label!(HOW, "how", || [How::Native, How::Emulated].map(How::name).to_vec());
label!(OUTCOME, "outcome", || vec!["success", "error", "cancelled"]);
label!(CODE, "code", || Code::ALL.iter().map(|code| code.name()).collect());
label!(BLAME, "blame", || vec!["place", "storage", "killed", "twins"]);
label!(STEP, "step", super::steps);
label!(PROGRAM, "how", || vec!["twin", "emulated"]);
label!(S3_OPERATION, "operation", || S3_OPERATIONS.to_vec());
label!(ACCESS, "operation", || vec!["read", "write"]);
label!(CLASS, "status", || vec!["1xx", "2xx", "3xx", "4xx", "5xx", "closed"]);
label!(LOOP, "loop", || vec![
    "life", "launch", "watch", "commit", "shells", "settle", "sweep"
]);
label!(SWEPT_KIND, "kind", || vec!["sandbox", "sockets", "log", "object"]);
label!(RUN, "outcome", || vec!["made", "skipped", "missed", "failed"]);
label!(RESULT, "result", || vec!["hit", "miss"]);
label!(SENT, "result", || vec!["sent", "dropped"]);
label!(TRY, "result", || vec!["delivered", "failed", "dead"]);
label!(DROPPED_KIND, "kind", || vec![
    "audit_entry",
    "refused_audit_entry",
    "session",
    "webhook"
]);
label!(REMOVED_KIND, "kind", || vec![
    "image",
    "deleted_image",
    "deleted_recipe",
    "deleted_public_key",
    "job",
    "upload",
    "package",
    "toolbox",
]);
label!(STATE, "state", || vec![
    "queued",
    "launching",
    "running",
    "committing",
    "ended"
]);
label!(REASON, "reason", || vec![
    "slots",
    "memory",
    "disk",
    "inodes",
    "turn",
    "rest",
    "verification",
    "elsewhere",
    "toolbox",
    "unknown_places",
    "no_place",
    "busy",
    "version",
    "place_failed",
]);

const PLACE: Label = Label {
    name: "place",
    values: Values::Places,
};
const VERSION: Label = Label {
    name: "version",
    values: Values::Fixed,
};

/// Lists metrics, each as a static, and all of them together.
macro_rules! metrics {
    ($visibility:vis $all:ident: $($name:ident: $kind:ty = $new:expr;)+) => {
        $(#[doc = "A metric; the table says which."] $visibility static $name: $kind = $new;)+

        pub(super) static $all: &[&dyn Metric] = &[$(&$name),+];
    };
}

/// Counted by this process, from its start.
pub(super) mod counters {
    #[allow(clippy::wildcard_imports, reason = "the other half of the table")]
    use super::*;
    pub(in crate::metrics) use super::{OTHER, S3_OPERATIONS};

    metrics! {
        pub(in crate::metrics) ALL:
        JOBS_ASKED: Counter<2> = Counter::new(
            "kiln_jobs_asked_total",
            "Jobs that were accepted, by users, schedules and repeats",
            &[TYPE, ARCH],
        );
        JOBS_ENDED: Counter<6> = Counter::new(
            "kiln_jobs_ended_total",
            "Jobs that ended; each is counted by the one server that ended it",
            &[TYPE, ARCH, DRIVER, ISOLATION, HOW, OUTCOME],
        );
        JOB_FAILURES: Counter<1> = Counter::new(
            "kiln_job_failures_total",
            "Jobs that ended without an image, by the code of the cause as in docs/errors.md",
            &[CODE],
        );
        ATTEMPTS_FAILED: Counter<1> = Counter::new(
            "kiln_job_attempts_failed_total",
            "Attempts of jobs that failed and were followed by another one, by what failed",
            &[BLAME],
        );
        JOB_SECONDS: Histogram<3> = Histogram::new(
            "kiln_job_duration_seconds",
            "Time from the launch of a job's last attempt to the job's end",
            &[TYPE, HOW, OUTCOME],
            LONG,
        );
        QUEUE_SECONDS: Histogram<0> = Histogram::new(
            "kiln_job_queue_duration_seconds",
            "Time from the request for a job to its first launch",
            &[],
            LONG,
        );
        STEP_SECONDS: Histogram<2> = Histogram::new(
            "kiln_step_duration_seconds",
            "Time that steps took which succeeded; the mean of emulated ones through that of native ones is the price of emulation",
            &[STEP, HOW],
            LONG,
        );
        PROGRAMS: Counter<1> = Counter::new(
            "kiln_programs_total",
            "Starts of programs of emulated images, as native twins or under the emulator",
            &[PROGRAM],
        );
        S3_SECONDS: Histogram<1> = Histogram::new(
            "kiln_s3_request_duration_seconds",
            "Time of this server's own requests to S3 until the answer begins, with all attempts",
            &[S3_OPERATION],
            SHORT,
        );
        S3_ERRORS: Counter<1> = Counter::new(
            "kiln_s3_request_errors_total",
            "Requests to S3 without a proper answer after all attempts; an object that is missing is a proper answer",
            &[S3_OPERATION],
        );
        DATABASE_SECONDS: Histogram<1> = Histogram::new(
            "kiln_database_operation_duration_seconds",
            "Time of statements that read and of transactions that write, with the wait for a connection",
            &[ACCESS],
            SHORT,
        );
        DATABASE_ERRORS: Counter<1> = Counter::new(
            "kiln_database_errors_total",
            "Operations that the database did not carry out",
            &[ACCESS],
        );
        API_SECONDS: Histogram<1> = Histogram::new(
            "kiln_api_request_duration_seconds",
            "Time until answers of the API begin, by the class of their status; closed: the caller went away before",
            &[CLASS],
            SHORT,
        );
        LOOP_SECONDS: Histogram<1> = Histogram::new(
            "kiln_loop_pass_duration_seconds",
            "Time of passes of the loops that carry out jobs",
            &[LOOP],
            SHORT,
        );
        LOOP_FAILURES: Counter<1> = Counter::new(
            "kiln_loop_failures_total",
            "Passes of the loops that failed, at least in part",
            &[LOOP],
        );
        LOOP_SUCCESS: Times = Times::new(
            "kiln_loop_last_success_timestamp_seconds",
            "When a pass of the loop last succeeded",
            &[LOOP],
        );
        SWEPT: Counter<1> = Counter::new(
            "kiln_swept_total",
            "Things that no record needed any more, found and removed",
            &[SWEPT_KIND],
        );
        SCHEDULE_RUNS: Counter<1> = Counter::new(
            "kiln_schedule_runs_total",
            "Runs of schedules: made into jobs, skipped as they were told to, missed by a minute or more because no server ran, or without a job because it could not be made. A missed run counts with its other outcome too",
            &[RUN],
        );
        SHARED_PACKAGES: Counter<1> = Counter::new(
            "kiln_shared_packages_total",
            "Packages that jobs asked for before a download: stored by an earlier job or not",
            &[RESULT],
        );
        TRACES: Counter<1> = Counter::new(
            "kiln_traces_total",
            "Traces of jobs: taken by the collector, or dropped because it did not take them",
            &[SENT],
        );
        WEBHOOK_TRIES: Counter<1> = Counter::new(
            "kiln_webhook_tries_total",
            "Tries to deliver a webhook: taken by its receiver, failed, or failed for the last time",
            &[TRY],
        );
        DROPPED: Counter<1> = Counter::new(
            "kiln_dropped_total",
            "Things that were dropped before their promised age, because there were too many",
            &[DROPPED_KIND],
        );
        RETENTION_REMOVED: Counter<1> = Counter::new(
            "kiln_retention_removed_total",
            "Things that were removed by the section [retention]",
            &[REMOVED_KIND],
        );
        RETENTION_BYTES: Counter<1> = Counter::new(
            "kiln_retention_removed_bytes_total",
            "Bytes in S3 that these removals freed",
            &[REMOVED_KIND],
        );
        RETENTION_PROBLEMS: Counter<0> = Counter::new(
            "kiln_retention_problems_total",
            "Things that retention could not remove, or not look at",
            &[],
        );
    }
}

/// Written anew for each answer.
pub mod gauges {
    #[allow(clippy::wildcard_imports, reason = "the other half of the table")]
    use super::*;

    metrics! {
        pub ALL:
        BUILD_INFO: Gauge<2> = Gauge::new(
            "kiln_build_info",
            "Always 1: the version of Kiln, and the architecture of its host",
            Source::Server,
            &[VERSION, ARCH],
        );
        START_TIME: Gauge<0> = Gauge::new(
            "kiln_start_time_seconds",
            "When this process started",
            Source::Server,
            &[],
        );
        JOBS: Gauge<4> = Gauge::new(
            "kiln_jobs",
            "Jobs with something left to do or to clear away, by their state; ended: not all that they left is removed yet",
            Source::Records,
            &[STATE, ARCH, DRIVER, HOW],
        );
        QUEUE_JOBS: Gauge<1> = Gauge::new(
            "kiln_queue_jobs",
            "Jobs that wait, by what they wait for, as this server sees it; elsewhere: their turn at another server's host",
            Source::Server,
            &[REASON],
        );
        QUEUE_OLDEST: Gauge<0> = Gauge::new(
            "kiln_queue_oldest_seconds",
            "How long ago the oldest of the waiting jobs was asked for; 0 when none waits",
            Source::Records,
            &[],
        );
        UNREAD: Gauge<0> = Gauge::new(
            "kiln_jobs_unread",
            "Open jobs that this server cannot read, because a server of another version has written them",
            Source::Server,
            &[],
        );
        HEARTBEAT_AGE: Gauge<0> = Gauge::new(
            "kiln_job_heartbeat_age_seconds",
            "The longest time for which this server has not heard the agent of a job that it carries out; agents call every 10 s",
            Source::Server,
            &[],
        );
        PLACE_JOBS: Gauge<1> = Gauge::new(
            "kiln_place_jobs",
            "Jobs that hold room at a place; local: at the hosts of all servers",
            Source::Records,
            &[PLACE],
        );
        PLACE_SANDBOXES: Gauge<1> = Gauge::new(
            "kiln_place_sandboxes",
            "Sandboxes at a place, and remains of some, as found by the last sweep; none for a place that did not answer",
            Source::Server,
            &[PLACE],
        );
        PLACE_USABLE: Gauge<1> = Gauge::new(
            "kiln_place_usable",
            "1 if the place can make sandboxes of some kind, else 0, as of the last look, at most some minutes ago",
            Source::Server,
            &[PLACE],
        );
        PLACE_CPUS: Gauge<1> = Gauge::new(
            "kiln_place_cpus",
            "CPUs of a place, as of the last look",
            Source::Server,
            &[PLACE],
        );
        PLACE_MEMORY: Gauge<1> = Gauge::new(
            "kiln_place_memory_bytes",
            "Memory of a place, as of the last look",
            Source::Server,
            &[PLACE],
        );
        PLACE_DISK_FREE: Gauge<1> = Gauge::new(
            "kiln_place_disk_free_bytes",
            "Free disk space of a place, as of the last look",
            Source::Server,
            &[PLACE],
        );
        DATA_SIZE: Gauge<0> = Gauge::new(
            "kiln_data_directory_size_bytes",
            "Size of the file system of the data directory",
            Source::Server,
            &[],
        );
        DATA_FREE: Gauge<0> = Gauge::new(
            "kiln_data_directory_free_bytes",
            "Space on it that Kiln may still use",
            Source::Server,
            &[],
        );
        DATA_FILES: Gauge<0> = Gauge::new(
            "kiln_data_directory_files",
            "Inodes of that file system; missing if it does not count them",
            Source::Server,
            &[],
        );
        DATA_FILES_FREE: Gauge<0> = Gauge::new(
            "kiln_data_directory_files_free",
            "Inodes on it that Kiln may still use",
            Source::Server,
            &[],
        );
        DATABASE_UP: Gauge<0> = Gauge::new(
            "kiln_database_up",
            "1 if the database answered within 2 s, else 0",
            Source::Server,
            &[],
        );
    }
}

/// Every metric, in the order of the page.
pub(super) fn all() -> Vec<&'static dyn Metric> {
    [gauges::ALL, counters::ALL].concat()
}
