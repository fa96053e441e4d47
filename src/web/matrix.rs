//! The table of images by name and architecture: which are complete, being built, failed or missing. Pure: no I/O.

use std::collections::BTreeSet;

use kiln_records::{Image, JobId, Moment, arch::Arch};
use maud::{Markup, html};

use super::{
    failures::Failed,
    steps::badge,
    text::{name, when},
};
use crate::store::StoredRun;

/// The names that are shown.
const MOST_NAMES: usize = 20;

/// What is known of one name and architecture.
#[derive(Debug)]
struct Cell {
    name: String,
    arch: Arch,
    /// When the image or job was asked for.
    time: Moment,
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Building(JobId),
    Waiting(JobId),
    Failed(JobId),
    /// An image, and whether it has its artifacts.
    Image(kiln_records::ImageId, bool),
}

impl What {
    /// A job that is under way says more than all that came before it.
    fn is_under_way(self) -> bool {
        matches!(self, Self::Building(_) | Self::Waiting(_))
    }
}

/// The table of the latest names among these.
pub(super) fn table<'a>(
    images: &[Image],
    running: impl Iterator<Item = &'a StoredRun>,
    waiting: impl Iterator<Item = &'a StoredRun>,
    failed: impl Iterator<Item = &'a Failed>,
) -> Markup {
    let mut cells: Vec<Cell> = Vec::new();
    cells.extend(images.iter().map(|image| Cell {
        name: image.name.clone(),
        arch: image.arch,
        time: image.created,
        what: What::Image(image.id, image.link.is_some()),
    }));
    let job = |stored: &StoredRun, what| Cell {
        name: stored.job.image_root_archive_name.clone(),
        arch: stored.job.arch,
        time: stored.job.created,
        what,
    };
    cells.extend(running.map(|stored| job(stored, What::Building(stored.job.id))));
    cells.extend(waiting.map(|stored| job(stored, What::Waiting(stored.job.id))));
    cells.extend(failed.map(|failed| Cell {
        name: failed.name.clone(),
        arch: failed.arch,
        time: failed.created,
        what: What::Failed(failed.id),
    }));
    cells.sort_by_key(|cell| std::cmp::Reverse((cell.what.is_under_way(), cell.time)));
    let mut names: Vec<&str> = Vec::new();
    let mut known = BTreeSet::new();
    let mut by_time: Vec<_> = cells.iter().collect();
    by_time.sort_by_key(|cell| std::cmp::Reverse(cell.time));
    for cell in by_time {
        if known.insert(cell.name.as_str()) {
            names.push(&cell.name);
        }
    }
    let more = names.len().saturating_sub(MOST_NAMES);
    names.truncate(MOST_NAMES);
    let shown: BTreeSet<&str> = names.iter().copied().collect();
    let archs: BTreeSet<&'static str> = cells
        .iter()
        .filter(|cell| shown.contains(cell.name.as_str()))
        .map(|cell| cell.arch.name())
        .collect();
    html! {
        @if names.is_empty() { p.dim { "There is no image yet. The page of a " a href="/ui/recipes" { "recipe" } " builds one." } }
        @else {
            div.wide tabindex="0" { table.matrix {
                thead { tr { th { "Name" } @for arch in &archs { th { (arch) } } } }
                tbody {
                    @for called in &names {
                        tr {
                            th scope="row" { (name(called)) }
                            @for arch in &archs {
                                td { (state(cells.iter().find(|cell| cell.name == **called && cell.arch.name() == *arch))) }
                            }
                        }
                    }
                }
            } }
            @if more > 0 { p.dim { (more) " earlier names are on the " a href="/ui/images" { "page of images" } "." } }
        }
    }
}

fn state(cell: Option<&Cell>) -> Markup {
    let Some(cell) = cell else {
        return html! { span.dim { "missing" } };
    };
    let (address, badge) = match cell.what {
        What::Building(job) => (format!("/ui/jobs/{job}"), badge("busy", "building")),
        What::Waiting(job) => (format!("/ui/jobs/{job}"), badge("calm", "waiting")),
        What::Failed(job) => (format!("/ui/jobs/{job}"), badge("bad", "failed")),
        What::Image(image, true) => (format!("/ui/images/{image}"), badge("good", "complete")),
        What::Image(image, false) => (format!("/ui/images/{image}"), badge("calm", "incomplete")),
    };
    html! { a href=(address) { (badge) } " " span.dim { (when(cell.time)) } }
}
