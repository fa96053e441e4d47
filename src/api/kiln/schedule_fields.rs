//! Makes and changes schedules as requested, and computes the consequences. Reads the database.

use std::collections::BTreeSet;

use kiln_records::{
    Moment, PublicKey, PublicKeyId, Recipe, RecipeId, Schedule, ScheduleId,
    job::JobOptions,
    schedule::{MissedRuns, Overlap, ScheduledRecipe, ScheduledSet, Timing, image_name},
};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{
    schedule_requests::{ScheduleCreate, ScheduleUpdate, ScheduledSetFields, Settings},
    set_requests::each_once,
};
use crate::{
    api::{
        Api,
        fields::error,
        problem::{Problem, Result},
    },
    store::{Collection, Side},
};

impl TryFrom<ScheduleCreate> for Schedule {
    type Error = Problem;

    fn try_from(given: ScheduleCreate) -> Result<Self> {
        if given.recipe_id.is_some() == given.image_set.is_some() {
            return Err(wrong("recipe_id", "Either `recipe_id` or `image_set` has to be given."));
        }
        let mut schedule = Self {
            id: ScheduleId::new(),
            created: Moment::now(),
            image_root_archive_name: given.recipe_id.map(|_| given.name.clone()),
            name: given.name,
            recipe_id: given.recipe_id.map(RecipeId),
            image_set: given.image_set.map(Into::into),
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
        apply_settings(&given.settings, &mut schedule)?;
        Ok(schedule)
    }
}

impl From<ScheduledSetFields> for ScheduledSet {
    fn from(given: ScheduledSetFields) -> Self {
        let recipes = given.recipes.into_iter().map(|recipe| ScheduledRecipe {
            recipe_id: RecipeId(recipe.recipe_id),
            required: recipe.required.unwrap_or(true),
            time_limit_s: recipe.time_limit_s,
        });
        Self {
            name: given.name,
            version: given.version,
            recipes: recipes.collect(),
            requires: each_once(given.requires),
        }
    }
}

/// Applies the members that a request sets.
///
/// # Errors
///
/// 422 for a recipe where image sets are made, and the other way round.
pub(super) fn apply(update: &ScheduleUpdate, schedule: &mut Schedule) -> Result<()> {
    set(&mut schedule.name, update.name.as_ref());
    if let Some(recipe) = update.recipe_id {
        let known = schedule.recipe_id.as_mut();
        *known.ok_or_else(|| wrong("recipe_id", MAKES_SETS))? = RecipeId(recipe);
    }
    if let Some(given) = &update.image_set {
        let known = schedule.image_set.as_mut();
        *known.ok_or_else(|| wrong("image_set", BUILDS_ONE))? = given.clone().into();
    }
    set(&mut schedule.cron, update.cron.as_ref());
    apply_settings(&update.settings, schedule)
}

const MAKES_SETS: &str = "This schedule makes image sets: their recipes and names are in `image_set`.";
const BUILDS_ONE: &str = "This schedule builds one recipe. Create another one for image sets.";

fn apply_settings(settings: &Settings, schedule: &mut Schedule) -> Result<()> {
    set(&mut schedule.timezone, settings.timezone.as_ref());
    if let Some(names) = &settings.image_root_archive_name {
        let known = schedule.image_root_archive_name.as_mut();
        names.clone_into(known.ok_or_else(|| wrong("image_root_archive_name", MAKES_SETS))?);
    }
    let public_key_id = settings.public_key_id.map(|id| id.map(PublicKeyId));
    set(&mut schedule.public_key_id, public_key_id.as_ref());
    settings.options.apply(&mut schedule.options);
    set(&mut schedule.missed_runs, settings.missed_runs.as_ref());
    set(&mut schedule.missed_runs_limit, settings.missed_runs_limit.as_ref());
    set(&mut schedule.overlap, settings.overlap.as_ref());
    set(&mut schedule.paused, settings.paused.as_ref());
    Ok(())
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
    let due = timing.local(next_run);
    let number = schedule.runs + 1;
    let names = |schedule: &Schedule| (schedule.recipe_id, schedule.image_root_archive_name.clone());
    if let (Some(id), Some(template)) = names(schedule)
        && before.map(names) != Some(names(schedule))
    {
        let recipe = recipe(api, id).await?;
        let facts = image_name::Facts {
            due: &due,
            recipe: &recipe.name,
            arch: recipe.arch,
            number,
        };
        image_name::expand(&template, &facts).map_err(|why| wrong("image_root_archive_name", why))?;
    }
    if let Some(set) = &schedule.image_set
        && before.and_then(|before| before.image_set.as_ref()) != Some(set)
    {
        image_name::expand_version(&set.version, &due, number).map_err(|why| wrong_set("version", &error(why)))?;
        check_recipes(api, &set.recipes).await?;
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

/// Checks that there are recipes, each for another architecture, and that a set needs one of them.
async fn check_recipes(api: &Api, recipes: &[ScheduledRecipe]) -> Result<()> {
    if !recipes.iter().any(|recipe| recipe.required) {
        let why = "At least one recipe has to be required: a set would be complete without any image.";
        return Err(wrong_set("recipes", &error(why)));
    }
    let mut known = BTreeSet::new();
    for (at, scheduled) in recipes.iter().enumerate() {
        let recipe = recipe(api, scheduled.recipe_id).await?;
        if !known.insert(recipe.arch) {
            let why = error(format!("Another recipe is for {}, too.", recipe.arch));
            return Err(wrong_set("recipes", &json!({ at.to_string(): { "recipe_id": why } })));
        }
    }
    Ok(())
}

async fn recipe(api: &Api, id: RecipeId) -> Result<Recipe> {
    let recipe = Collection::<Recipe>::get(&*api.store, Side::Live, id).await?;
    let recipe = recipe.ok_or_else(|| unknown("recipe", id.into()))?;
    Ok(recipe.record)
}

/// The timing of a schedule.
///
/// # Errors
///
/// 422 when the stored line or zone is no longer valid.
pub(super) fn timing(schedule: &Schedule) -> Result<Timing> {
    Timing::parse(&schedule.cron, &schedule.timezone).map_err(|why| wrong("cron", why))
}

fn wrong_set(field: &str, why: &Value) -> Problem {
    let errors = json!({ field: why });
    Problem::invalid(Map::from_iter([("image_set".to_owned(), errors)]))
}

fn wrong(field: &str, why: impl Into<String>) -> Problem {
    Problem::invalid([(field.to_owned(), error(why))].into_iter().collect())
}

/// As in IMS's jobs, a reference to a missing record is a 400.
fn unknown(kind: &str, id: Uuid) -> Problem {
    Problem::bad_request(format_args!("There is no {kind} with the id {id}."))
}
