//! Recipes: their list, and the page of one with the history of its jobs. Reads the database.

use axum::{
    extract::{Path, Query as QueryString, State},
    response::Html,
};
use kiln_records::{ArtifactKind, PublicKey, Recipe, RecipeId, Run, run::State as RunState};
use maud::{Markup, html};

use super::{
    Dashboard,
    jobs::{List, cut_page},
    layout, plot, recipe_upload, steps,
    text::{between, bytes, cut, duration, millis, name, short, shown, when},
    viewer::Viewer,
};
use crate::{
    api::problem::{Problem, Result},
    store::{Collection, Query, Side, StoredRun},
};

/// The jobs of a history.
const HISTORY: u32 = 60;

/// The public keys to choose from.
const KEYS: u32 = 100;

pub(super) async fn list(
    State(web): State<Dashboard>,
    viewer: Viewer,
    QueryString(list): QueryString<List>,
) -> Result<Html<String>> {
    let mut rows = Collection::<Recipe>::page(&*web.api.store, Side::Live, &list.query()).await?;
    let bottom = cut_page(&mut rows).map(|last| (last.position, last.record.id.to_string()));
    let body = html! {
        h1 { "Recipes" }
        (list.search("/ui/recipes", &html! {}))
        @if rows.is_empty() { p.dim { "There is no such recipe. " code { "kiln recipes create" } " adds one." } }
        @else {
            div.wide tabindex="0" { table {
                thead { tr { th { "Name" } th { "Architecture" } th { "Distribution" } th { "Archive" } th { "Added" } } }
                tbody { @for stored in &rows {
                    @let recipe = &stored.record;
                    tr {
                        td { a href={ "/ui/recipes/" (recipe.id) } { (name(&recipe.name)) } }
                        td { (recipe.arch.name()) }
                        td { (format!("{:?}", recipe.linux_distribution).to_lowercase()) }
                        td { @if recipe.link.is_some() { "there" } @else { span.dim { "not uploaded" } } }
                        td { (when(recipe.created)) }
                    }
                } }
            } }
        }
        (list.next("/ui/recipes", bottom))
        @if viewer.may_write() { (recipe_upload::form(&viewer)) }
    };
    Ok(layout::page(&viewer, "Recipes", "/ui/recipes", None, &body))
}

pub(super) async fn page(
    State(web): State<Dashboard>,
    viewer: Viewer,
    Path(id): Path<RecipeId>,
) -> Result<Html<String>> {
    let store = &web.api.store;
    let mut found = Collection::<Recipe>::get(&**store, Side::Live, id).await?;
    if found.is_none() {
        found = Collection::<Recipe>::get(&**store, Side::Deleted, id).await?;
    }
    let recipe = found.ok_or_else(Problem::not_found)?.record;
    let runs = store.past_runs(id.0, HISTORY).await?;
    let can_build =
        viewer.may_write() && recipe.deleted.is_none() && recipe.link.is_some() && web.api.orchestrator.is_some();
    let keys = if can_build {
        let query = Query {
            limit: KEYS,
            ..Query::default()
        };
        let keys = Collection::<PublicKey>::page(&**store, Side::Live, &query).await?;
        keys.into_iter().map(|stored| stored.record).collect()
    } else {
        Vec::new()
    };
    let body = html! {
        h1 { (name(&recipe.name)) }
        @if recipe.deleted.is_some() { p.note { "This recipe is deleted." } }
        dl.facts {
            dt { "Architecture" } dd { (recipe.arch.name()) @if recipe.require_dkms { span.dim { " · needs a kernel of its own" } } }
            dt { "Added" } dd { (when(recipe.created)) }
            dt { "Archive" } dd { @match &recipe.link {
                Some(link) => code.digest { (cut(&link.path, 200)) },
                None => span.dim { "nothing was uploaded yet" },
            } }
            @for value in recipe.template_dictionary.iter().flatten().take(50) { dt { (cut(&value.key, 40)) } dd { (cut(&value.value, 120)) } }
            dt { "Id" } dd { code.digest { (recipe.id) } }
        }
        @if can_build { (build_form(&viewer, &recipe, &keys)) }
        section aria-labelledby="history-title" {
            h2 #history-title { "History" }
            (history(&runs))
        }
    };
    Ok(layout::page(&viewer, &recipe.name, "/ui/recipes", None, &body))
}

/// The form for a new job. Its architecture is the recipe's, so there is nothing to choose.
fn build_form(viewer: &Viewer, recipe: &Recipe, keys: &[PublicKey]) -> Markup {
    html! {
        details.box {
            summary { "Build an image for " (recipe.arch.name()) "…" }
            @if keys.is_empty() {
                p { "A job needs a public key first: " code { "kiln public-keys create" } "." }
            } @else {
                form.stack method="post" action={ "/ui/recipes/" (recipe.id) "/build" } {
                    (viewer.token_field())
                    label for="image-name" { "Name of the image" }
                    input #image-name name="name" required maxlength="1024" value=(recipe.name);
                    label for="image-key" { "Public key that may log in to its shell" }
                    select #image-key name="key" { @for key in keys { option value=(key.id) { (shown(&key.name)) } } }
                    label for="image-memory" { "Memory limit, in GiB (empty: the server's)" }
                    input #image-memory name="memory" type="number" min="1" max="100000";
                    label for="image-disk" { "Disk limit, in GiB (empty: the server's)" }
                    input #image-disk name="disk" type="number" min="1" max="100000";
                    label for="image-profiles" { "Profiles, by names with blanks between them (empty: the recipe's)" }
                    input #image-profiles name="profiles" maxlength="4096" value=(recipe.profiles.as_deref().unwrap_or_default().join(" "));
                    label { input type="checkbox" name="debug" value="true"; " Open a shell if the build fails" }
                    button type="submit" { "Build" }
                }
            }
        }
    }
}

const DURATIONS: plot::Figure = plot::Figure {
    noun: "Durations",
    written: millis,
};

const SIZES: plot::Figure = plot::Figure {
    noun: "Sizes of roots",
    written: bytes,
};

/// The size of the root that a job has uploaded, in bytes.
fn root_size(run: &Run) -> Option<u64> {
    let mut uploads = run.uploads.iter();
    let root = uploads.find(|known| known.upload.kind == ArtifactKind::Rootfs)?;
    Some(root.upload.size)
}

/// The last jobs, as plots and as a table.
pub(super) fn history(runs: &[StoredRun]) -> Markup {
    let points = |value: fn(&Run) -> Option<u64>| -> Vec<_> {
        let point = |stored: &StoredRun| {
            let run = &stored.run;
            Some(plot::Point {
                job: stored.job.id,
                arch: stored.job.arch,
                how: run.plan.how,
                began: run.launched?,
                value: value(run)?,
                is_good: run.state == RunState::Success,
            })
        };
        runs.iter().filter_map(point).collect()
    };
    let durations = points(|run| u64::try_from(between(run.launched?, run.ended?).as_millis()).ok());
    let sizes = points(|run| root_size(run).filter(|_| run.state == RunState::Success));
    html! {
        @if runs.is_empty() { p.dim { "No job was made from it." } }
        @else {
            (plot::plots(DURATIONS, &durations))
            (plot::plots(SIZES, &sizes))
            div.wide tabindex="0" { table {
                thead { tr { th { "Job" } th { "State" } th { "Architecture" } th { "How" } th { "Place" } th.num { "Took" } th.num { "Build" } th.num { "Memory" } th.num { "Root" } th { "Asked for" } } }
                tbody { @for stored in runs {
                    @let (job, run) = (&stored.job, &stored.run);
                    tr {
                        td { a href={ "/ui/jobs/" (job.id) } { (cut(&job.image_root_archive_name, 40)) } }
                        td { (steps::state(run)) " " (steps::warned(&run.warnings)) @if let Some(failure) = run.failure() { " " code { (failure.code.name()) } } }
                        td { (job.arch.name()) }
                        td { (steps::how(run)) }
                        td { (steps::place(run)) }
                        td.num { @if let (Some(began), Some(ended)) = (run.launched, run.ended) { (duration(between(began, ended))) } }
                        td.num { @if let Some(time) = run.steps.iter().find(|time| time.step == kiln_records::Step::Build) { (millis(time.wall_ms)) } }
                        td.num { @if let Some(used) = run.used { (bytes(used.memory)) } }
                        td.num { @if let Some(size) = root_size(run) { (bytes(size)) } }
                        td { (when(job.created)) @if let Some(image) = job.resultant_image_id { " " a href={ "/ui/images/" (image) } { "image " (short(image)) } } }
                    }
                } }
            } }
        }
    }
}
