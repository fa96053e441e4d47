//! Reading what requests say of a schedule, and what follows from it.

use serde_json::Value;
use uuid::Uuid;

use crate::{
    api::{
        Api,
        fields::{self, Fields, Parsed, checked, error, one_of, text},
        problem::{Problem, Result},
    },
    records::{
        Moment, PublicKey, PublicKeyId, Recipe, RecipeId, Schedule, ScheduleId,
        job::JobOptions,
        names::check_file_name,
        schedule::{MOST_MISSED, MissedRuns, Overlap, Timing, image_name, timing::check_zone},
    },
    store::{Collection, Side},
};

/// A schedule of which nothing was said.
pub(super) fn blank() -> Schedule {
    Schedule {
        id: ScheduleId::new(),
        created: Moment::now(),
        name: String::new(),
        recipe_id: RecipeId(Uuid::nil()),
        cron: String::new(),
        timezone: "UTC".to_owned(),
        image_root_archive_name: String::new(),
        public_key_id: None,
        options: JobOptions::default(),
        missed_runs: MissedRuns::Once,
        missed_runs_limit: 10,
        overlap: Overlap::Forbid,
        paused: false,
        next_run: None,
        last_run: None,
        runs: 0,
    }
}

/// The schedule with what a request says of it. Of a new one some things have to be said.
pub(super) fn with(mut schedule: Schedule, body: Value, is_new: bool) -> Result<Schedule> {
    let mut fields = Fields::of(body)?;
    let (name, recipe, cron) = if is_new {
        (
            fields.required("name", fields::name).map(Some),
            fields.required("recipe_id", fields::uuid).map(Some),
            fields.required("cron", cron).map(Some),
        )
    } else {
        (
            fields.optional("name", fields::name),
            fields.optional("recipe_id", fields::uuid),
            fields.optional("cron", cron),
        )
    };
    let file = |value: &Value| checked(check_file_name)(value);
    let timezone = fields.optional("timezone", timezone);
    let image_name = fields.optional("image_root_archive_name", checked(|_| Ok(())));
    let public_key = fields.nullable("public_key_id", fields::uuid);
    let build_env_size = fields.nullable("build_env_size", fields::size);
    let job_mem_size = fields.nullable("job_mem_size", fields::size);
    let kernel = fields.nullable("kernel_file_name", file);
    let initrd = fields.nullable("initrd_file_name", file);
    let parameters = fields.nullable("kernel_parameters_file_name", file);
    let require_dkms = fields.nullable("require_dkms", fields::boolean);
    let twins = fields.nullable("twins", fields::twins);
    let missed_runs = fields.optional("missed_runs", one_of(&MissedRuns::ALL, MissedRuns::name));
    let missed_runs_limit = fields.optional("missed_runs_limit", missed_runs_limit);
    let overlap = fields.optional("overlap", one_of(&Overlap::ALL, Overlap::name));
    let paused = fields.optional("paused", fields::boolean);
    fields.finish()?;

    set(&mut schedule.name, name?);
    set(&mut schedule.recipe_id, recipe?.map(RecipeId));
    set(&mut schedule.cron, cron?);
    set(&mut schedule.timezone, timezone?);
    match image_name? {
        None if is_new => schedule.image_root_archive_name.clone_from(&schedule.name),
        given => set(&mut schedule.image_root_archive_name, given),
    }
    set(&mut schedule.public_key_id, public_key?.map(|id| id.map(PublicKeyId)));
    let options = &mut schedule.options;
    set(&mut options.build_env_size, build_env_size?);
    set(&mut options.job_mem_size, job_mem_size?);
    set(&mut options.kernel_file_name, kernel?);
    set(&mut options.initrd_file_name, initrd?);
    set(&mut options.kernel_parameters_file_name, parameters?);
    set(&mut options.require_dkms, require_dkms?);
    set(&mut options.twins, twins?);
    set(&mut schedule.missed_runs, missed_runs?);
    set(&mut schedule.missed_runs_limit, missed_runs_limit?);
    set(&mut schedule.overlap, overlap?);
    set(&mut schedule.paused, paused?);
    Ok(schedule)
}

fn set<T>(member: &mut T, given: Option<T>) {
    if let Some(value) = given {
        *member = value;
    }
}

/// Sees whether what a schedule refers to is there, and says when it runs next; as far as that is not what it was, so
/// that a schedule whose recipe is gone can still be paused.
///
/// # Errors
///
/// 400 when recipe or key is not there, as for jobs; 422 for a line that never comes, and for a name that no image can
/// have.
pub(super) async fn settle(api: &Api, schedule: &mut Schedule, before: Option<&Schedule>) -> Result<()> {
    let now = Moment::now();
    let timing = timing(schedule)?;
    let next_run = timing.next_after(now);
    let next_run = next_run.ok_or_else(|| wrong("cron", "There is no such day, so it never comes."))?;
    let names = |schedule: &Schedule| (schedule.recipe_id, schedule.image_root_archive_name.clone());
    if before.map(names) != Some(names(schedule)) {
        let recipe = Collection::<Recipe>::get(&*api.store, Side::Live, schedule.recipe_id).await?;
        let recipe = recipe
            .ok_or_else(|| unknown("recipe", schedule.recipe_id.into()))?
            .record;
        let facts = image_name::Facts {
            due: &timing.local(next_run),
            recipe: &recipe.name,
            arch: recipe.arch,
            number: schedule.runs + 1,
        };
        image_name::expand(&schedule.image_root_archive_name, &facts)
            .map_err(|why| wrong("image_root_archive_name", why))?;
    }
    let key_before = before.and_then(|before| before.public_key_id);
    if let Some(id) = schedule.public_key_id.filter(|id| Some(*id) != key_before) {
        let key = Collection::<PublicKey>::get(&*api.store, Side::Live, id).await?;
        key.ok_or_else(|| unknown("public key", id.into()))?;
    }
    let times = |schedule: &Schedule| (schedule.cron.clone(), schedule.timezone.clone(), schedule.paused);
    if before.map(times) != Some(times(schedule)) {
        schedule.next_run = (!schedule.paused).then_some(next_run);
    }
    Ok(())
}

/// When a schedule runs.
///
/// # Errors
///
/// 422 when that cannot be known any more.
pub(super) fn timing(schedule: &Schedule) -> Result<Timing> {
    Timing::parse(&schedule.cron, &schedule.timezone).map_err(|why| wrong("cron", why))
}

fn cron(value: &Value) -> Parsed<String> {
    let line = text(value)?;
    let zone = jiff::tz::TimeZone::UTC;
    Timing::new(&line, zone).map_err(error)?;
    Ok(line.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn timezone(value: &Value) -> Parsed<String> {
    let zone = check_zone(&text(value)?).map_err(error)?;
    Ok(zone.iana_name().unwrap_or("UTC").to_owned())
}

fn missed_runs_limit(value: &Value) -> Parsed<u32> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    let number = number.filter(|number| (1..=MOST_MISSED).contains(number));
    number.ok_or_else(|| error(format!("Must be a number from 1 to {MOST_MISSED}.")))
}

fn wrong(field: &str, why: impl Into<String>) -> Problem {
    Problem::invalid([(field.to_owned(), error(why))].into_iter().collect())
}

/// As in IMS's jobs, what is referred to and is not there is a 400.
fn unknown(kind: &str, id: Uuid) -> Problem {
    Problem::bad_request(format_args!("There is no {kind} with the id {id}."))
}
