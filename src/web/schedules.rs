//! Schedules: their list, the page of one, and the next runs of a line that is being typed. Reads the database.

use axum::{
    Json,
    extract::{Path, Query as QueryString, State},
    response::Html,
};
use kiln_records::{
    Moment, Recipe, Schedule, ScheduleId,
    schedule::{Outcome, Tick, Timing},
};
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use super::{
    Dashboard, layout,
    steps::badge,
    text::{cut, name, short, shown, when},
    viewer::Viewer,
};
use crate::{
    api::problem::{Problem, Result},
    store::{Collection, Query, Side},
};

/// The schedules that are listed.
const LISTED: u32 = 200;

/// The runs of a history.
const HISTORY: u32 = 50;

/// The recipes to choose from.
const RECIPES: u32 = 200;

/// The next runs that are shown.
const AHEAD: usize = 5;

pub(super) async fn list(State(web): State<Dashboard>, viewer: Viewer) -> Result<Html<String>> {
    let store = &web.api.store;
    let query = Query {
        limit: LISTED,
        ..Query::default()
    };
    let page = store.page_text_of_schedules(&query).await?;
    let schedules: Vec<Schedule> = serde_json::from_str(&format!("[{}]", page.text))
        .map_err(|error| Problem::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, error))?;
    let mut rows = Vec::new();
    for schedule in schedules {
        let last = store.ticks(schedule.id, 1).await?.pop();
        rows.push((schedule, last));
    }
    let recipes = if viewer.may_write() {
        let query = Query {
            descending: true,
            limit: RECIPES,
            ..Query::default()
        };
        Collection::<Recipe>::page(&**store, Side::Live, &query).await?
    } else {
        Vec::new()
    };
    let recipes: Vec<Recipe> = recipes.into_iter().map(|stored| stored.record).collect();
    let body = html! {
        h1 { "Schedules" }
        (table(&rows))
        @if page.more { p.dim { "Only the first " (LISTED) " are listed." } }
        @if viewer.may_write() { (new_form(&viewer, &recipes)) }
    };
    Ok(layout::page(&viewer, "Schedules", "/ui/schedules", None, &body))
}

/// Schedules with their next and last runs.
pub(super) fn table(rows: &[(Schedule, Option<Tick>)]) -> Markup {
    html! {
        @if rows.is_empty() { p.dim { "No schedule is running." } }
        @else {
            div.wide tabindex="0" { table {
                thead { tr { th { "Name" } th { "Times" } th { "Next run" } th { "Last run" } } }
                tbody { @for (schedule, last) in rows {
                    tr {
                        td { a href={ "/ui/schedules/" (schedule.id) } { (name(&schedule.name)) } }
                        td { code { (cut(&schedule.cron, 60)) } " " span.dim { (cut(&schedule.timezone, 40)) } }
                        td { @match schedule.next_run { Some(next) => (when(next)), None => (badge("calm", "paused")) } }
                        td { @match last { Some(tick) => (tick_words(tick)), None => span.dim { "never" } } }
                    }
                } }
            } }
        }
    }
}

fn tick_words(tick: &Tick) -> Markup {
    let class = match tick.outcome {
        Outcome::Failed => "bad",
        Outcome::Skipped => "warn",
        Outcome::Made | Outcome::Ended => "good",
        _ => "calm",
    };
    html! {
        (badge(class, tick.outcome.name())) " " (when(tick.due))
        @if let Some(job) = tick.job_id { " " a href={ "/ui/jobs/" (job) } { "job " (short(job)) } }
        @if let Some(set) = tick.set_id { " " a href={ "/ui/sets/" (set) } { "image set " (short(set)) } }
        @if let Some(why) = &tick.why { div.dim { (cut(why, 160)) } }
    }
}

pub(super) async fn page(
    State(web): State<Dashboard>,
    viewer: Viewer,
    Path(id): Path<ScheduleId>,
) -> Result<Html<String>> {
    let store = &web.api.store;
    let schedule = store.get_schedule(id).await?.ok_or_else(Problem::not_found)?.record;
    let ticks = store.ticks(id, HISTORY).await?;
    let mut recipes = Vec::new();
    let of_set = schedule.image_set.iter().flat_map(|set| &set.recipes);
    for id in schedule
        .recipe_id
        .into_iter()
        .chain(of_set.map(|recipe| recipe.recipe_id))
    {
        recipes.push((id, Collection::<Recipe>::get(&**store, Side::Live, id).await?));
    }
    let preview = Preview::of(&schedule.cron, &schedule.timezone);
    let action = |what: &str, words: &str| {
        html! {
            form.inline method="post" action={ "/ui/schedules/" (schedule.id) "/" (what) } {
                (viewer.token_field()) button type="submit" { (words) }
            }
        }
    };
    let body = html! {
        h1 { (name(&schedule.name)) }
        @if schedule.paused { p.note { "This schedule is paused." } }
        @if viewer.may_write() {
            div.line.actions {
                @if schedule.paused { (action("resume", "Resume")) } @else { (action("pause", "Pause")) }
                (action("run", "Run now"))
            }
        }
        dl.facts {
            @for (id, recipe) in &recipes {
                dt { "Recipe" } dd { @match recipe {
                    Some(stored) => a href={ "/ui/recipes/" (id) } { (name(&stored.record.name)) " (" (stored.record.arch.name()) ")" },
                    None => strong.bad { "deleted: its runs fail" },
                } }
            }
            @if let Some(names) = &schedule.image_root_archive_name { dt { "Image" } dd { (name(names)) } }
            @if let Some(set) = &schedule.image_set { dt { "Image set" } dd { (name(&set.name)) "@" (name(&set.version)) } }
            dt { "Times" } dd { code { (cut(&schedule.cron, 200)) } " " (cut(&schedule.timezone, 60)) " " span.dim { (shown(&preview.words)) } }
            @if !schedule.paused { dt { "Next runs" } dd { ol.plain { @for run in &preview.runs { li { (run) } } } } }
            dt { "Missed runs" } dd { (schedule.missed_runs.name()) }
            dt { "Overlap" } dd { (schedule.overlap.name()) }
            dt { "Id" } dd { code.digest { (schedule.id) } }
        }
        h2 { "History" }
        @if ticks.is_empty() { p.dim { "It has not run yet." } }
        @else { ol.plain { @for tick in &ticks { li { "Run " (tick.number) ": " (tick_words(tick)) } } } }
    };
    Ok(layout::page(&viewer, &schedule.name, "/ui/schedules", None, &body))
}

/// The form for a new schedule. Its architecture is the recipe's.
fn new_form(viewer: &Viewer, recipes: &[Recipe]) -> Markup {
    html! {
        details.box {
            summary { "New schedule…" }
            @if recipes.is_empty() { p { "There is no recipe yet." } }
            @else {
                form.stack #new-schedule method="post" action="/ui/schedules" {
                    (viewer.token_field())
                    label for="schedule-name" { "Name" }
                    input #schedule-name name="name" required maxlength="1024";
                    label for="schedule-recipe" { "Recipe, which decides the architecture" }
                    select #schedule-recipe name="recipe" {
                        @for recipe in recipes { option value=(recipe.id) { (shown(&recipe.name)) " (" (recipe.arch.name()) ")" } }
                    }
                    label for="schedule-image" { "Names of its images; " code { "{date} {time} {recipe} {arch} {n}" } " are replaced" }
                    input #schedule-image name="image" required maxlength="1024" value="{recipe}-{arch}-{date}";
                    label for="schedule-cron" { "Times: minute, hour, day, month, day of the week" }
                    input #schedule-cron name="cron" required maxlength="200" value="0 3 * * *" spellcheck="false" aria-describedby="preview";
                    label for="schedule-zone" { "Time zone" }
                    input #schedule-zone name="zone" required maxlength="100" value="UTC" spellcheck="false";
                    div #preview.dim aria-live="polite" { "The next runs are shown here by the script, and on the page of the schedule." }
                    button type="submit" { "Create" }
                }
            }
        }
    }
}

/// A line that is being typed.
#[derive(Debug, Deserialize)]
pub(super) struct Typed {
    #[serde(default)]
    cron: String,
    #[serde(default)]
    zone: String,
}

/// The next runs of a line, in its own time zone.
#[derive(Debug, Serialize)]
pub(super) struct Preview {
    words: String,
    runs: Vec<String>,
    /// Why the line is not valid.
    error: Option<String>,
}

impl Preview {
    fn of(cron: &str, zone: &str) -> Self {
        match Timing::parse(cron, zone) {
            Ok(timing) => Self {
                words: timing.describe(),
                runs: timing
                    .after(Moment::now())
                    .take(AHEAD)
                    .map(|run| timing.local(run).strftime("%a %Y-%m-%d %H:%M %:z").to_string())
                    .collect(),
                error: None,
            },
            Err(why) => Self {
                words: String::new(),
                runs: Vec::new(),
                error: Some(shown(&why).into_owned()),
            },
        }
    }
}

pub(super) async fn preview(_: Viewer, QueryString(typed): QueryString<Typed>) -> Json<Preview> {
    Json(Preview::of(&typed.cron, &typed.zone))
}
