//! The places and their resources, as bars. Pure: no I/O.

use std::time::Duration;

use kiln_records::JobId;
use maud::{Markup, html};

use super::text::{bytes, cut, duration, name, shown};
use crate::{orchestrate::PlaceRoom, store::StoredRun};

/// Figures that are older are marked.
const OLD: Duration = Duration::from_secs(150);

/// What running jobs hold of a place.
#[derive(Debug, Default)]
struct Held<'a> {
    jobs: u32,
    memory: u64,
    /// Disk that is set aside and not used yet.
    disk_to_come: u64,
    /// The job that uses the most disk.
    largest: Option<(JobId, &'a str, u64)>,
}

impl<'a> Held<'a> {
    fn of(room: &PlaceRoom, running: &[&'a StoredRun]) -> Self {
        let mut held = Self::default();
        for stored in running {
            let run = &stored.run;
            // Another server's own place has a host; its jobs are told apart by that.
            let is_there = run.plan.place.as_deref() == Some(&room.place.name) && run.holds_place();
            if !is_there || room.place.host.is_some() {
                continue;
            }
            let used = run.used.unwrap_or_default();
            held.jobs += 1;
            held.memory += run.plan.needs.memory;
            held.disk_to_come += run.plan.needs.disk.saturating_sub(used.disk);
            if used.disk > held.largest.map_or(0, |(_, _, disk)| disk) {
                held.largest = Some((stored.job.id, &stored.job.image_root_archive_name, used.disk));
            }
        }
        held
    }
}

/// A card for each place.
pub(super) fn cards(rooms: &[PlaceRoom], running: &[&StoredRun]) -> Markup {
    html! {
        @if rooms.is_empty() { p.dim { "This server only keeps the records of jobs; it has no places." } }
        @else { ul.cards { @for room in rooms { li.card { (card(room, running)) } } } }
    }
}

fn card(room: &PlaceRoom, running: &[&StoredRun]) -> Markup {
    let place = &room.place;
    let held = Held::of(room, running);
    html! {
        h3 {
            (cut(&place.name, 40))
            @if let Some(host) = &place.host { span.dim { " on " (cut(host, 40)) } }
        }
        p.dim {
            (place.arch.name())
            @if let Some(cpus) = place.cpus { " · " (cpus) @if cpus == 1 { " CPU" } @else { " CPUs" } }
            @for driver in &place.makes { " · " (driver.name()) }
        }
        @if let Some(lacks) = &place.lacks { p.note.bad { "Makes no sandboxes: " (shown(lacks)) } }
        @if let Some(awaits) = &place.awaits { p.note { (shown(awaits)) } }
        @match (&place.capacity, room.most) {
            (Some(capacity), Some((jobs, memory))) => {
                (meter("Jobs", u64::from(held.jobs), u64::from(jobs), &format!("{} of {jobs} at once", held.jobs), false))
                (meter("Memory", held.memory, memory, &format!("{} of {} set aside", bytes(held.memory), bytes(memory)), false))
                @let used = capacity.disk_total.saturating_sub(capacity.disk_free);
                @let spare = capacity.disk_free.saturating_sub(room.disk_floor);
                @let is_full = spare == 0;
                (meter("Disk", used, capacity.disk_total,
                    &format!("{} of {} free", bytes(capacity.disk_free), bytes(capacity.disk_total)), is_full))
                @if is_full {
                    p.note.bad {
                        "The disk is full: " (bytes(capacity.disk_free)) " are free, and " (bytes(room.disk_floor))
                        " are to stay free (" code { "disk_floor" } "). No job starts here until "
                        (bytes(room.disk_floor.saturating_sub(capacity.disk_free))) " or more are freed: "
                        code { "kiln prune" } " shows what retention would remove."
                        @if let Some((job, called, disk)) = held.largest {
                            " The running job that uses the most is " a href={ "/ui/jobs/" (job) } { (name(called)) } " with " (bytes(disk)) "."
                        }
                    }
                } @else if held.disk_to_come > 0 {
                    p.dim { (bytes(held.disk_to_come)) " more are set aside for running jobs; "
                        (bytes(spare.saturating_sub(held.disk_to_come))) " are left for others." }
                }
                @if capacity.inodes_total > 0 {
                    @let used = capacity.inodes_total.saturating_sub(capacity.inodes_free);
                    @let is_full = capacity.inodes_free <= room.inode_floor;
                    @if is_full || capacity.inodes_free < capacity.inodes_total / 10 {
                        (meter("Inodes", used, capacity.inodes_total, &format!("{} free", capacity.inodes_free), is_full))
                    }
                }
                @if place.age > OLD { p.note { "These figures are " (duration(place.age)) " old." } }
            }
            _ if place.host.is_some() => p.dim { "Its own server knows its resources." },
            _ => p.dim { "Its resources have not been measured yet." },
        }
    }
}

fn meter(what: &str, value: u64, most: u64, words: &str, is_bad: bool) -> Markup {
    let percent = if most == 0 {
        100
    } else {
        (u128::from(value.min(most)) * 100 / u128::from(most)).min(100)
    };
    let class = match percent {
        _ if is_bad => "meter bad",
        95.. => "meter warn",
        _ => "meter",
    };
    html! {
        div class=(class) {
            span { (what) }
            svg viewBox="0 0 100 4" preserveAspectRatio="none" role="img" aria-label={ (what) ": " (words) } {
                rect.track width="100" height="4" {}
                rect.fill width=(percent) height="4" {}
            }
            span.small { (words) }
        }
    }
}
