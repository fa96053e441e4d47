//! The overview: the queue, what runs, the places, images, schedules and failures, on one screen. Reads the database, and
//! asks the orchestrator; the number of reads does not depend on the number of records.

use std::{collections::HashSet, sync::Arc};

use axum::{extract::State, response::Html};
use kiln_records::{Image, JobStatus, Moment, Schedule, run::State as RunState, schedule::Tick};
use maud::{Markup, html};

use super::{
    Dashboard,
    failures::{self, Failed},
    history::Usual,
    layout, matrix, places, schedules, steps,
    text::{bytes, cut, duration, name, shown, when},
    viewer::Viewer,
};
use crate::{
    api::problem::Result,
    orchestrate::PlaceRoom,
    store::{Collection, Pulse, Query, Side, StoredRun},
};

/// The waiting jobs that are shown.
const QUEUED: usize = 25;

/// The open jobs among which those that run are found, beside those whose status says so.
const OPEN: u32 = 100;

/// The running jobs whose resources are counted.
const RUNNING: u32 = 200;

/// The running jobs that are shown.
const SHOWN: usize = 25;

/// The images that the table of images is made of.
const IMAGES: u32 = 100;

/// The schedules that are shown.
const SCHEDULES: u32 = 8;

/// Jobs are counted up to this number.
const COUNTED: u32 = 10_000;

/// How often the script fetches the page, in seconds.
const EVERY: u32 = 5;

/// The statuses of jobs that run, by IMS's words.
const UNDER_WAY: [JobStatus; 6] = [
    JobStatus::FetchingImage,
    JobStatus::FetchingRecipe,
    JobStatus::WaitingForRepos,
    JobStatus::BuildingImage,
    JobStatus::WaitingOnUser,
    JobStatus::PackagingArtifacts,
];

/// All that the page shows.
struct Glance {
    queue: Vec<(StoredRun, String)>,
    queued: usize,
    running: Vec<Running>,
    /// Those beyond the ones that are shown.
    others: Vec<StoredRun>,
    rooms: Vec<PlaceRoom>,
    images: Vec<Image>,
    schedules: Vec<(Schedule, Option<Tick>)>,
    failed: (Vec<Arc<Failed>>, bool),
}

struct Running {
    stored: StoredRun,
    pulse: Option<Pulse>,
    usual: Option<Usual>,
    progress: Option<(u64, u64)>,
    held_up: Option<String>,
}

pub(super) async fn page(State(web): State<Dashboard>, viewer: Viewer) -> Result<Html<String>> {
    let glance = Glance::of(&web).await?;
    Ok(layout::page(
        &viewer,
        "Overview",
        "/ui",
        Some(EVERY),
        &glance.page(&web),
    ))
}

impl Glance {
    async fn of(web: &Dashboard) -> Result<Self> {
        let api = &web.api;
        let store = &api.store;
        let orchestrator = api.orchestrator.as_deref();
        let open = store.first_open_runs(OPEN).await?;
        let mut running = store.latest_runs(&UNDER_WAY, RUNNING).await?;
        let mut known: HashSet<_> = running.iter().map(|stored| stored.job.id).collect();
        let is_running = |run: &RunState| matches!(run, RunState::Launching | RunState::Running | RunState::Committing);
        let (more, queued): (Vec<_>, Vec<_>) = open
            .into_iter()
            .filter(|stored| !stored.run.state.is_final() && !known.contains(&stored.job.id))
            .partition(|stored| is_running(&stored.run.state));
        running.extend(more);
        // A job between two attempts keeps its status.
        let (mut running, resting): (Vec<_>, Vec<_>) =
            running.into_iter().partition(|stored| is_running(&stored.run.state));
        running.sort_by_key(|stored| stored.run.launched);
        known.clear();

        let waiting = orchestrator
            .map(|orchestrator| orchestrator.glance.queue())
            .unwrap_or_default();
        let mut count = waiting.len();
        let mut waiting: Vec<_> = waiting.into_iter().collect();
        waiting.sort_unstable_by_key(|(_, (position, _))| *position);
        let mut queue = Vec::new();
        for (id, (_, wait)) in waiting.into_iter().take(QUEUED) {
            if let Some(stored) = store
                .get_run(id)
                .await?
                .filter(|stored| stored.run.state == RunState::Queued)
            {
                known.insert(id);
                queue.push((stored, wait.why));
            }
        }
        // Those that no pass has looked at yet.
        for stored in queued.into_iter().chain(resting) {
            if queue.len() >= QUEUED {
                break;
            }
            let id = stored.job.id;
            if stored.run.state == RunState::Queued && known.insert(id) {
                let waiting = orchestrator.and_then(|orchestrator| orchestrator.glance.waiting(id));
                let reason = waiting.map_or_else(|| "it has just come in".to_owned(), |(_, reason)| reason);
                queue.push((stored, reason));
            }
        }
        let creating = store.count_jobs(JobStatus::Creating, COUNTED).await?;
        let launching = running
            .iter()
            .filter(|stored| stored.job.status == JobStatus::Creating)
            .count();
        count = count
            .max((creating as usize).saturating_sub(launching))
            .max(queue.len());

        let others = running.split_off(running.len().min(SHOWN));
        let mut shown = Vec::new();
        for stored in running {
            let id = stored.job.id;
            shown.push(Running {
                pulse: store
                    .pulse(id)
                    .await?
                    .filter(|pulse| pulse.attempt == stored.run.attempt),
                usual: web.histories.usual(api, &stored).await?,
                progress: orchestrator.and_then(|orchestrator| orchestrator.glance.progress(id)),
                held_up: orchestrator.and_then(|orchestrator| orchestrator.glance.held_up(id)),
                stored,
            });
        }
        let latest = Query {
            descending: true,
            limit: IMAGES,
            ..Query::default()
        };
        let images = Collection::<Image>::page(&**store, Side::Live, &latest).await?;
        let mut schedules = Vec::new();
        for stored in store.schedules_running_after(Moment::from_micros(0), SCHEDULES).await? {
            let last = store.ticks(stored.record.id, 1).await?.pop();
            schedules.push((stored.record, last));
        }
        let rooms = match orchestrator {
            Some(orchestrator) => orchestrator.rooms.all().await,
            None => Vec::new(),
        };
        Ok(Self {
            queue,
            queued: count,
            running: shown,
            others,
            rooms,
            images: images.into_iter().map(|stored| stored.record).collect(),
            schedules,
            failed: web.failures.of_week(api).await?,
        })
    }

    fn page(&self, web: &Dashboard) -> Markup {
        let all: Vec<&StoredRun> = self
            .running
            .iter()
            .map(|running| &running.stored)
            .chain(&self.others)
            .collect();
        let (failed, more_failed) = &self.failed;
        html! {
            h1.hidden { "Overview" }
            p #summary.summary role="status" {
                strong { (all.len()) } " running · "
                strong { (if self.queued >= COUNTED as usize { format!("{COUNTED} or more") } else { self.queued.to_string() }) } " waiting · "
                strong { (failed.len()) @if *more_failed { "+" } } " failed in seven days"
            }
            section #queue aria-labelledby="queue-title" {
                h2 #queue-title { "Queue" }
                (self.queue_table())
            }
            section #running aria-labelledby="running-title" {
                h2 #running-title { "Running" }
                (self.running_list(web))
            }
            section #places aria-labelledby="places-title" {
                h2 #places-title { "Places" }
                (places::cards(&self.rooms, &all))
            }
            section #failures aria-labelledby="failures-title" {
                h2 #failures-title { "Failures of the last seven days" }
                (failures::table(failed, *more_failed))
            }
            section #images aria-labelledby="images-title" {
                h2 #images-title { "Images" }
                (matrix::table(
                    &self.images,
                    all.iter().copied(),
                    self.queue.iter().map(|(stored, _)| stored),
                    failed.iter().map(AsRef::as_ref),
                ))
            }
            section #schedules aria-labelledby="schedules-title" {
                h2 #schedules-title { "Schedules" }
                (schedules::table(&self.schedules))
            }
        }
    }

    fn queue_table(&self) -> Markup {
        html! {
            @if self.queue.is_empty() { p.dim { "No job waits." } }
            @else {
                div.wide tabindex="0" { table {
                    thead { tr { th.num { "#" } th { "Job" } th { "Waits because" } th { "Needs" } th { "Place" } th { "Since" } } }
                    tbody {
                        @for (at, (stored, reason)) in self.queue.iter().enumerate() {
                            @let (job, run) = (&stored.job, &stored.run);
                            tr {
                                td.num { (at + 1) }
                                td { a href={ "/ui/jobs/" (job.id) } { (name(&job.image_root_archive_name)) } div.dim { (steps::arch_and_how(job, run)) } }
                                td.reason {
                                    (shown(reason))
                                    @if run.attempt > 1 { div.dim { "attempt " (run.attempt) } }
                                }
                                td { (bytes(run.plan.needs.memory)) " memory" div { (bytes(run.plan.needs.disk)) " disk" } }
                                td { (steps::place(run)) }
                                td { (when(job.created)) }
                            }
                        }
                    }
                } }
                @if self.queued > self.queue.len() {
                    p.dim { (self.queued - self.queue.len()) " more wait: " a href="/ui/jobs?status=creating" { "all waiting jobs" } "." }
                }
            }
        }
    }

    fn running_list(&self, web: &Dashboard) -> Markup {
        let heartbeat = web
            .api
            .orchestrator
            .as_ref()
            .map(|orchestrator| orchestrator.watch.longest_unheard());
        let now = Moment::now();
        html! {
            @if self.running.is_empty() { p.dim { "No job is running." } }
            @else {
                ul.jobs {
                    @for Running { stored, pulse, usual, progress, held_up } in &self.running {
                        @let (job, run) = (&stored.job, &stored.run);
                        li {
                            div.line {
                                a href={ "/ui/jobs/" (job.id) } { (name(&job.image_root_archive_name)) }
                                span.dim { (steps::arch_and_how(job, run)) " · " (steps::place(run)) }
                                span.push {
                                    @match usual {
                                        Some(usual) => (usual.left(run, now)),
                                        None => span.dim { "no earlier build to compare with" },
                                    }
                                }
                            }
                            (steps::bar(run, *progress, usual.as_ref()))
                            div.line.small {
                                (steps::state(run))
                                @if let Some(launched) = run.launched { span { "started " (when(launched)) } }
                                @match pulse {
                                    Some(pulse) => {
                                        @let is_late = heartbeat.is_some_and(|limit| pulse.unheard > limit / 2);
                                        span class=[is_late.then_some("bad")] { "heartbeat " (duration(pulse.unheard)) " ago" }
                                        span { "last progress " (duration(pulse.silent)) " ago" }
                                    }
                                    None => span.dim { "its agent has not called yet" },
                                }
                                @if let Some(used) = run.used { span { (bytes(used.memory)) " memory, " (bytes(used.disk)) " disk at most" } }
                                @if run.attempt > 1 { span { "attempt " (run.attempt) } }
                            }
                            @if let Some(why) = held_up { p.note { (cut(why, 300)) } }
                        }
                    }
                }
                @if !self.others.is_empty() { p.dim { (self.others.len()) " more are running." } }
            }
        }
    }
}
