//! The list of jobs, newest first, page by page. Reads the database.

use std::collections::HashMap;

use axum::{
    extract::{Query as QueryString, State},
    response::Html,
};
use kiln_records::{Job, JobId, JobStatus, Warnings};
use maud::{Markup, html};
use serde::Deserialize;

use super::{
    Dashboard, layout,
    steps::{badge, warned},
    text::{name, when},
    viewer::Viewer,
};
use crate::{
    api::problem::Result,
    store::{After, JobFilter, Query, Stored},
};

/// Records per page.
pub(super) const PAGE: u32 = 50;

/// The query of a list.
#[derive(Debug, Default, Deserialize)]
pub(super) struct List {
    #[serde(default)]
    status: String,
    #[serde(default)]
    name: String,
    /// `POSITION.ID` of the last record of the page before.
    #[serde(default)]
    before: String,
}

impl List {
    /// The page that was asked for, and one record more.
    pub(super) fn query(&self) -> Query {
        let statuses = JobStatus::ALL.into_iter().filter(|status| status.name() == self.status);
        let after = self.before.split_once('.').map(|(key, id)| After {
            key: key.to_owned(),
            id: id.to_owned(),
        });
        Query {
            descending: true,
            after,
            limit: PAGE + 1,
            name: Some(self.name.clone()).filter(|name| !name.is_empty()),
            jobs: JobFilter {
                statuses: statuses.collect(),
                ..JobFilter::default()
            },
            ..Query::default()
        }
    }

    /// The form that finds records by their name.
    pub(super) fn search(&self, action: &str, more: &Markup) -> Markup {
        html! {
            form.inline method="get" action=(action) role="search" {
                label for="name" { "Name" } input #name name="name" value=(self.name) placeholder="exactly";
                (more)
                button type="submit" { "Show" }
            }
        }
    }

    /// The link to the next page.
    pub(super) fn next(&self, address: &str, last: Option<(i64, String)>) -> Markup {
        let Some((position, id)) = last else {
            return html! {};
        };
        let mut query = form_urlencoded::Serializer::new(String::new());
        for (key, value) in [("status", &self.status), ("name", &self.name)] {
            if !value.is_empty() {
                query.append_pair(key, value);
            }
        }
        query.append_pair("before", &format!("{position}.{id}"));
        html! { p { a rel="next" href={ (address) "?" (query.finish()) } { "Earlier ones" } } }
    }
}

/// Cuts a page that has one record more than it shows. Returns the last record that it shows if there are later ones.
pub(super) fn cut_page<R: Clone>(rows: &mut Vec<Stored<R>>) -> Option<Stored<R>> {
    if rows.len() <= PAGE as usize {
        return None;
    }
    rows.truncate(PAGE as usize);
    rows.last().cloned()
}

pub(super) async fn page(
    State(web): State<Dashboard>,
    viewer: Viewer,
    QueryString(list): QueryString<List>,
) -> Result<Html<String>> {
    let mut rows = web.api.store.page_jobs(&list.query()).await?;
    let bottom = cut_page(&mut rows).map(|last| (last.position, last.record.id.to_string()));
    let ids: Vec<_> = rows.iter().map(|stored| stored.record.id).collect();
    let runs = web.api.store.get_runs(&ids).await?.into_iter();
    let warnings = runs.map(|stored| (stored.job.id, stored.run.warnings)).collect();
    let filter = html! {
        label for="status" { "Status" }
        select #status name="status" {
            option value="" { "all" }
            @for status in JobStatus::ALL { option value=(status.name()) selected[status.name() == list.status] { (status.name()) } }
        }
    };
    let body = html! {
        h1 { "Jobs" }
        (list.search("/ui/jobs", &filter))
        (table(rows.iter().map(|stored| &stored.record), &warnings))
        (list.next("/ui/jobs", bottom))
    };
    Ok(layout::page(&viewer, "Jobs", "/ui/jobs", None, &body))
}

/// A table of jobs, some of which have warned.
fn table<'a>(jobs: impl Iterator<Item = &'a Job>, warnings: &HashMap<JobId, Warnings>) -> Markup {
    let mut jobs = jobs.peekable();
    html! {
        @if jobs.peek().is_none() { p.dim { "There is no such job." } }
        @else {
            div.wide tabindex="0" { table {
                thead { tr { th { "Image" } th { "Architecture" } th { "Status" } th { "Type" } th { "Asked for" } } }
                tbody {
                    @for job in jobs {
                        tr {
                            td { a href={ "/ui/jobs/" (job.id) } { (name(&job.image_root_archive_name)) } }
                            td { (job.arch.name()) }
                            td { (status(job.status)) @if let Some(warnings) = warnings.get(&job.id) { " " (warned(warnings)) } }
                            td { (job.job_type.name()) }
                            td { (when(job.created)) }
                        }
                    }
                }
            } }
        }
    }
}

/// A status as a word with a colour.
pub(super) fn status(status: JobStatus) -> Markup {
    let class = match status {
        JobStatus::Success => "good",
        JobStatus::Error => "bad",
        JobStatus::Creating => "calm",
        _ => "busy",
    };
    badge(class, status.name())
}
