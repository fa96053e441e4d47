//! Makes and changes schedules as requested, and computes the consequences. Reads the database.

use kiln_records::{
    Moment, PublicKey, PublicKeyId, Recipe, RecipeId, Schedule, ScheduleId,
    job::JobOptions,
    schedule::{MissedRuns, Overlap, Timing, image_name},
};
use uuid::Uuid;

use super::schedule_requests::{ScheduleCreate, ScheduleUpdate, Settings};
use crate::{
    api::{
        Api,
        fields::error,
        problem::{Problem, Result},
    },
    store::{Collection, Side},
};

impl From<ScheduleCreate> for Schedule {
    fn from(given: ScheduleCreate) -> Self {
        let mut schedule = Self {
            id: ScheduleId::new(),
            created: Moment::now(),
            image_root_archive_name: given.name.clone(),
            name: given.name,
            recipe_id: RecipeId(given.recipe_id),
            cron: given.cron,
            timezone: "UTC".to_owned(),
            public_key_id: None,
            options: JobOptions::default(),
            missed_runs: MissedRuns::Once,
            missed_runs_limit: 10,
            overlap: Overlap::Forbid,
            paused: false,
            next_run: None,
            last_run: None,
            runs: 0,
        };
        given.settings.apply(&mut schedule);
        schedule
    }
}

impl ScheduleUpdate {
    /// Applies the members that the request sets.
    pub(super) fn apply(&self, schedule: &mut Schedule) {
        set(&mut schedule.name, self.name.as_ref());
        set(&mut schedule.recipe_id, self.recipe_id.map(RecipeId).as_ref());
        set(&mut schedule.cron, self.cron.as_ref());
        self.settings.apply(schedule);
    }
}

impl Settings {
    fn apply(&self, schedule: &mut Schedule) {
        set(&mut schedule.timezone, self.timezone.as_ref());
        set(
            &mut schedule.image_root_archive_name,
            self.image_root_archive_name.as_ref(),
        );
        let public_key_id = self.public_key_id.map(|id| id.map(PublicKeyId));
        set(&mut schedule.public_key_id, public_key_id.as_ref());
        self.options.apply(&mut schedule.options);
        set(&mut schedule.missed_runs, self.missed_runs.as_ref());
        set(&mut schedule.missed_runs_limit, self.missed_runs_limit.as_ref());
        set(&mut schedule.overlap, self.overlap.as_ref());
        set(&mut schedule.paused, self.paused.as_ref());
    }
}

fn set<T: Clone>(member: &mut T, given: Option<&T>) {
    if let Some(value) = given {
        member.clone_from(value);
    }
}

/// Checks that the references of a schedule exist, and computes its next run. Only changed members are checked, so that
/// a schedule whose recipe is gone can still be paused.
///
/// # Errors
///
/// 400 when the recipe or key does not exist, as for jobs; 422 for a line that never occurs, and for a name that no
/// image can have.
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

/// The timing of a schedule.
///
/// # Errors
///
/// 422 when the stored line or zone is no longer valid.
pub(super) fn timing(schedule: &Schedule) -> Result<Timing> {
    Timing::parse(&schedule.cron, &schedule.timezone).map_err(|why| wrong("cron", why))
}

fn wrong(field: &str, why: impl Into<String>) -> Problem {
    Problem::invalid([(field.to_owned(), error(why))].into_iter().collect())
}

/// As in IMS's jobs, a reference to a missing record is a 400.
fn unknown(kind: &str, id: Uuid) -> Problem {
    Problem::bad_request(format_args!("There is no {kind} with the id {id}."))
}
