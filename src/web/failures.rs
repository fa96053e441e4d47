//! The failures of the last week, grouped by their causes. Reads the database, each failed job once: a job that has ended
//! does not change.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use kiln_records::{Blame, Code, Image, ImageId, JobId, JobStatus, JobType, Moment, Recipe, RecipeId, arch::Arch};
use maud::{Markup, html};
use tokio::sync::Mutex;
use uuid::Uuid;

use super::text::{cut, name, shown, when};
use crate::{
    api::Api,
    store::{Collection, Result, Side, StoredRun},
};

/// How far back failures are shown.
const WEEK: Duration = Duration::from_hours(7 * 24);

/// The most failures that are grouped, the latest ones.
const MOST: u32 = 500;

/// The causes that are shown.
const MOST_CAUSES: usize = 12;

/// The recipes and the places that are named for each cause.
const NAMED: usize = 3;

/// The failures that were read.
#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    failed: HashMap<JobId, Arc<Failed>>,
    /// Names of recipes and images, as they were when a job of theirs was read.
    names: HashMap<Uuid, String>,
}

/// A job that failed.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) id: JobId,
    pub(super) name: String,
    pub(super) arch: Arch,
    pub(super) created: Moment,
    ended: Moment,
    code: Code,
    detail: String,
    place: Option<String>,
    artifact: (JobType, Uuid, String),
}

impl Failures {
    /// The failures of the last week, newest first, and whether there may be more. Jobs that a user cancelled are none.
    pub(super) async fn of_week(&self, api: &Api) -> Result<(Vec<Arc<Failed>>, bool)> {
        let since = Moment::now().minus(WEEK);
        let ids = api.store.latest_jobs(JobStatus::Error, since, MOST).await?;
        let mut known = self.0.lock().await;
        let current: HashSet<_> = ids.iter().copied().collect();
        let before = known.failed.len();
        known.failed.retain(|id, _| current.contains(id));
        if known.failed.len() < before {
            let named: HashSet<_> = known.failed.values().map(|failed| failed.artifact.1).collect();
            known.names.retain(|id, _| named.contains(id));
        }
        for id in &ids {
            if known.failed.contains_key(id) {
                continue;
            }
            // A job of another version, or one that another service carries out, has no cause that could be told.
            let Ok(Some(stored)) = api.store.get_run(*id).await else {
                continue;
            };
            let artifact = stored.job.artifact_id;
            let called = if let Some(called) = known.names.get(&artifact) {
                called.clone()
            } else {
                let called = artifact_name(api, stored.job.job_type, artifact).await?;
                let called = called.unwrap_or_else(|| "(deleted)".to_owned());
                known.names.insert(artifact, called.clone());
                called
            };
            if let Some(failed) = Failed::of(&stored, called) {
                known.failed.insert(*id, Arc::new(failed));
            }
        }
        let failed = ids.iter().filter_map(|id| known.failed.get(id));
        let failed = failed.filter(|failed| failed.code != Code::Cancelled).cloned();
        Ok((failed.collect(), ids.len() >= MOST as usize))
    }
}

/// The name of a recipe or image, also if it was deleted.
pub(super) async fn artifact_name(api: &Api, job_type: JobType, id: Uuid) -> Result<Option<String>> {
    for side in [Side::Live, Side::Deleted] {
        let name = match job_type {
            JobType::Create => {
                let found = Collection::<Recipe>::get(&*api.store, side, RecipeId(id)).await?;
                found.map(|stored| stored.record.name)
            }
            JobType::Customize => {
                let found = Collection::<Image>::get(&*api.store, side, ImageId(id)).await?;
                found.map(|stored| stored.record.name)
            }
        };
        if name.is_some() {
            return Ok(name);
        }
    }
    Ok(None)
}

impl Failed {
    fn of(stored: &StoredRun, artifact: String) -> Option<Self> {
        let StoredRun { job, run, .. } = stored;
        let failure = run.failure()?;
        Some(Self {
            id: job.id,
            name: job.image_root_archive_name.clone(),
            arch: job.arch,
            created: job.created,
            ended: run.ended.unwrap_or(job.created),
            code: failure.code,
            detail: failure.detail.clone(),
            place: run.plan.place.clone(),
            artifact: (job.job_type, job.artifact_id, artifact),
        })
    }
}

/// The part of a site that a failure points at, in a word.
pub(super) fn points_at(code: Code) -> &'static str {
    use Code::{
        DiskFull, EmulatorBroken, EmulatorFault, EmulatorMissing, ExecFormat, HeartbeatLost, NoCapacity, OutOfMemory,
        PackageNotFound, RepoInconsistent, RepoSignature, RepoUnreachable, Silent, TwinsDiffer, UnmetDependency,
        WallLimit,
    };
    match code {
        RepoUnreachable | RepoSignature | RepoInconsistent | PackageNotFound | UnmetDependency => "repository",
        EmulatorFault | EmulatorBroken | EmulatorMissing | ExecFormat | TwinsDiffer => "emulation",
        OutOfMemory | DiskFull | NoCapacity => "resources",
        Silent | WallLimit | HeartbeatLost => "time",
        _ => match code.blame() {
            Some(Blame::Place) => "place",
            Some(Blame::Storage) => "storage",
            Some(Blame::Killed) => "killed",
            None => "recipe",
        },
    }
}

/// The table of causes.
pub(super) fn table(failed: &[Arc<Failed>], more: bool) -> Markup {
    let mut causes: BTreeMap<Code, Vec<&Failed>> = BTreeMap::new();
    for failed in failed {
        causes.entry(failed.code).or_default().push(failed);
    }
    let mut causes: Vec<_> = causes.into_iter().collect();
    causes.sort_by_key(|(_, jobs)| std::cmp::Reverse(jobs.len()));
    let left_out: usize = causes.iter().skip(MOST_CAUSES).map(|(_, jobs)| jobs.len()).sum();
    html! {
        @if causes.is_empty() { p.dim { "No job has failed in the last seven days." } }
        @else {
            div.wide tabindex="0" { table {
                thead { tr { th { "Cause" } th.num { "Jobs" } th { "Of" } th { "At" } th { "Latest" } } }
                tbody {
                    @for (code, jobs) in causes.iter().take(MOST_CAUSES) {
                        @let latest = jobs[0];
                        tr {
                            td { code { (code.name()) } " " span.badge.calm { (points_at(*code)) } }
                            td.num { (jobs.len()) }
                            td { (recipes(jobs)) }
                            td { (places(jobs)) }
                            td {
                                a href={ "/ui/jobs/" (latest.id) } { (name(&latest.name)) } " " span.dim { (latest.arch.name()) " · " (when(latest.ended)) }
                                div.detail title=(shown(&latest.detail)) { (cut(&latest.detail, 160)) }
                            }
                        }
                    }
                }
            } }
            @if left_out > 0 { p.dim { (left_out) " more with rarer causes." } }
            @if more { p.dim { "Only the latest " (MOST) " failures are counted." } }
        }
    }
}

fn recipes(jobs: &[&Failed]) -> Markup {
    let mut counts: HashMap<Uuid, (usize, &Failed)> = HashMap::new();
    for failed in jobs {
        counts.entry(failed.artifact.1).or_insert((0, failed)).0 += 1;
    }
    let mut counts: Vec<_> = counts.into_values().collect();
    counts.sort_by_key(|(count, failed)| (std::cmp::Reverse(*count), failed.artifact.1));
    let kind = |job_type| match job_type {
        JobType::Create => "recipes",
        JobType::Customize => "images",
    };
    html! {
        @for (count, failed) in counts.iter().take(NAMED) {
            @let (job_type, id, called) = &failed.artifact;
            div { a href={ "/ui/" (kind(*job_type)) "/" (id) } { (cut(called, 30)) } span.dim { " × " (count) } }
        }
        @if counts.len() > NAMED { div.dim { (counts.len() - NAMED) " more" } }
    }
}

fn places(jobs: &[&Failed]) -> Markup {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for failed in jobs {
        *counts.entry(failed.place.as_deref().unwrap_or("no place")).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    html! {
        @for (place, count) in counts.iter().take(NAMED) { div { (cut(place, 30)) span.dim { " × " (count) } } }
        @if counts.len() > NAMED { div.dim { (counts.len() - NAMED) " more" } }
    }
}
