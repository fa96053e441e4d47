//! Images: their list, and the page of one: where it came from, and what was made from it. Reads the database.

use axum::{
    extract::{Path, Query as QueryString, State},
    response::Html,
};
use kiln_records::{Image, ImageId, JobType};
use maud::{Markup, html};

use super::{
    Dashboard, differences,
    failures::artifact_name,
    jobs::{List, cut_page},
    layout,
    origin::{found, origin},
    recipes::history,
    steps::badge,
    text::{cut, name, short, shown, when},
    viewer::Viewer,
};
use crate::{
    api::problem::Result,
    store::{Collection, Side},
};

/// The jobs that are shown of those that started from an image.
const MADE: u32 = 50;

/// The tags that are shown.
const TAGS: usize = 100;

pub(super) async fn list(
    State(web): State<Dashboard>,
    viewer: Viewer,
    QueryString(list): QueryString<List>,
) -> Result<Html<String>> {
    let mut rows = Collection::<Image>::page(&*web.api.store, Side::Live, &list.query()).await?;
    let bottom = cut_page(&mut rows).map(|last| (last.position, last.record.id.to_string()));
    let body = html! {
        h1 { "Images" }
        (list.search("/ui/images", &html! {}))
        @if rows.is_empty() { p.dim { "There is no such image." } }
        @else {
            div.wide tabindex="0" { table {
                thead { tr { th { "Name" } th { "Architecture" } th { "State" } th { "Made" } th { "Id" } } }
                tbody { @for stored in &rows {
                    @let image = &stored.record;
                    tr {
                        td { a href={ "/ui/images/" (image.id) } { (name(&image.name)) } }
                        td { (image.arch.name()) }
                        td { (state(image)) }
                        td { (when(image.created)) }
                        td { (short(image.id)) }
                    }
                } }
            } }
        }
        (list.next("/ui/images", bottom))
    };
    Ok(layout::page(&viewer, "Images", "/ui/images", None, &body))
}

fn state(image: &Image) -> Markup {
    if image.link.is_some() {
        badge("good", "complete")
    } else {
        badge("calm", "incomplete")
    }
}

pub(super) async fn page(
    State(web): State<Dashboard>,
    viewer: Viewer,
    Path(id): Path<ImageId>,
) -> Result<Html<String>> {
    let store = &web.api.store;
    let image = found(&web, id).await?;
    let origin = origin(&web, &image).await?;
    let source = match &origin {
        Some(job) => Some((
            job.job_type,
            job.artifact_id,
            artifact_name(&web.api, job.job_type, job.artifact_id).await?,
        )),
        None => None,
    };
    let made = store.past_runs(id.0, MADE).await?;
    let body = html! {
        h1 { (name(&image.name)) }
        @if image.deleted.is_some() { p.note { "This image is deleted." } }
        p.line { (state(&image)) span { (image.arch.name()) } span.dim { "made " (when(image.created)) } }
        section aria-labelledby="origin-title" {
            h2 #origin-title { "Where it came from" }
            @match (&origin, &source) {
                (Some(job), Some((job_type, artifact, called))) => ol.chain {
                    li {
                        @let pages = match job_type { JobType::Create => "recipes", JobType::Customize => "images" };
                        span.dim { @match job_type { JobType::Create => "recipe ", JobType::Customize => "image " } }
                        @match called {
                            Some(called) => a href={ "/ui/" (pages) "/" (artifact) } { (name(called)) },
                            None => span.dim { "deleted, or given with the job: " (short(artifact)) },
                        }
                    }
                    li { span.dim { "job " } a href={ "/ui/jobs/" (job.id) } { (short(job.id)) } " " (when(job.created)) }
                    li aria-current="true" { span.dim { "image " } (name(&image.name)) }
                },
                _ => p.dim { "No job of its name made it that is still known: it was uploaded, renamed, or its job is deleted." },
            }
        }
        section aria-labelledby="facts-title" {
            h2 #facts-title { "Record" }
            dl.facts {
                dt { "Manifest" } dd { @match &image.link { Some(link) => code.digest { (cut(&link.path, 200)) }, None => span.dim { "none" } } }
                @for (key, value) in image.metadata.iter().take(TAGS) { dt { (cut(key, 60)) } dd { (cut(value, 200)) } }
                @if image.metadata.len() > TAGS { dt { "…" } dd.dim { (image.metadata.len() - TAGS) " more tags" } }
                dt { "Id" } dd { code.digest { (shown(&image.id.to_string())) } }
            }
        }
        section aria-labelledby="since-title" {
            h2 #since-title { "What changed" }
            (differences::earlier(&web, &image).await?)
        }
        section aria-labelledby="made-title" {
            h2 #made-title { "What was made from it" }
            (history(&made))
        }
    };
    Ok(layout::page(&viewer, &image.name, "/ui/images", None, &body))
}
