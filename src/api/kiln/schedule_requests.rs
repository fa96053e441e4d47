//! The bodies of requests about schedules. Pure: no I/O.

use jiff::tz::TimeZone;
use kiln_records::{
    schedule::{MOST_MISSED, MissedRuns, Overlap, Timing, timing::check_zone},
    set::Requirement,
};
use serde_json::Value;
use utoipa::openapi::{
    ObjectBuilder, RefOr, Schema,
    schema::{KnownFormat, SchemaFormat, Type},
};
use uuid::Uuid;

use super::set_requests::{SetName, TimeLimit};
use crate::api::{
    fields::{
        Field, Flatten, List, Name, Nullable, Parsed, body, checked, error, members, string, text, texts, whole_number,
    },
    job_options::ScheduledJobOptions,
};

body! {
    /// A new schedule.
    pub(super) struct ScheduleCreate {
        /// Its name.
        name: Name,
        /// The recipe to build. Either this or `image_set` has to be given.
        recipe_id: Option<Uuid>,
        /// The image sets that its runs make.
        image_set: Option<ScheduledSetFields>,
        /// The time of its runs: minute, hour, day of the month, month, day of the week.
        cron: Cron,
        settings: Flatten<Settings>,
    }
}

body! {
    /// Changes to a schedule. Null resets an option of its jobs to the default.
    pub(super) struct ScheduleUpdate with at least 1 member {
        /// Its name.
        name: Option<Name>,
        /// The recipe to build. A schedule that makes image sets has none.
        recipe_id: Option<Uuid>,
        /// The image sets that its runs make. A schedule that builds one recipe has none.
        image_set: Option<ScheduledSetFields>,
        /// The time of its runs.
        cron: Option<Cron>,
        settings: Flatten<Settings>,
    }
}

members! {
    /// The members that a schedule's bodies have in common. None of them has to be there.
    pub(super) struct Settings {
        /// The time zone of `cron`; the default for a new schedule is UTC.
        timezone: Option<ZoneName>,
        /// The names of the resulting images, with the placeholders `{date}`, `{time}`, `{recipe}`, `{arch}` and `{n}`.
        /// The default for a new schedule is `name`. A schedule that makes image sets has none: their images are called
        /// `NAME-VERSION.ARCH`.
        image_root_archive_name: Option<ImageNames>,
        /// The public key of its jobs.
        public_key_id: Nullable<Uuid>,
        options: Flatten<ScheduledJobOptions>,
        /// The treatment of missed runs; the default for a new schedule is `once`.
        missed_runs: Option<MissedRuns>,
        /// The maximum number of missed runs that `all` makes up for; the default for a new schedule is 10.
        missed_runs_limit: Option<MissedRunsLimit>,
        /// The treatment of a run while an earlier one has not ended; the default for a new schedule is `forbid`.
        overlap: Option<Overlap>,
        /// Whether the schedule is paused.
        paused: Option<bool>,
    }
}

body! {
    /// The image sets of a schedule, one for each run.
    pub(super) struct ScheduledSetFields {
        /// Their name.
        name: SetName,
        /// Their versions, with at least one of the placeholders `{date}`, `{time}` and `{n}`.
        version: SetVersions,
        /// The recipes to build, each for another architecture.
        recipes: List<ScheduledRecipeFields>,
        /// What each image of a set needs before it counts as complete; the default is nothing but its own manifest.
        requires: Option<List<Requirement>>,
    }
}

body! {
    /// A recipe of scheduled image sets.
    pub(super) struct ScheduledRecipeFields {
        /// The recipe.
        recipe_id: Uuid,
        /// Whether a set is incomplete without its architecture; the default is true.
        required: Option<bool>,
        /// How long an attempt of its job may take from its launch, in seconds; the default is no limit.
        time_limit_s: Option<TimeLimit>,
    }
}

texts! {
    /// Versions of image sets, with placeholders; what comes of them is seen later.
    pub(super) SetVersions = |value| checked(value, |_| Ok(())),
        string().min_length(Some(1)).examples(["{date}"]);
    /// Five fields; what they may hold is in docs/schedules.md.
    pub(super) Cron = cron,
        string().max_length(Some(256)).pattern(Some(r"^\s*\S+(\s+\S+){4}\s*$")).examples(["0 2 * * *"]);
    /// The name of a time zone.
    pub(super) ZoneName = zone_name, string().examples(["Europe/Berlin"]);
    /// Names of images, with placeholders; what comes of them is seen later.
    pub(super) ImageNames = |value| checked(value, |_| Ok(())),
        string().min_length(Some(1)).examples(["nightly-{date}"]);
}

fn cron(value: &Value) -> Parsed<String> {
    let line = text(value)?;
    Timing::new(&line, TimeZone::UTC).map_err(error)?;
    Ok(line.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn zone_name(value: &Value) -> Parsed<String> {
    let zone = check_zone(&text(value)?).map_err(error)?;
    Ok(zone.iana_name().unwrap_or("UTC").to_owned())
}

/// How many missed runs are made up for.
#[derive(Debug)]
pub(super) enum MissedRunsLimit {}

impl Field for MissedRunsLimit {
    type Read = u32;

    fn read(value: &Value) -> Parsed<u32> {
        let number = whole_number(value).filter(|number| (1..=MOST_MISSED).contains(number));
        number.ok_or_else(|| error(format!("Must be a number from 1 to {MOST_MISSED}.")))
    }

    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::Integer)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int32)))
            .minimum(Some(1))
            .maximum(Some(MOST_MISSED))
            .into()
    }
}
