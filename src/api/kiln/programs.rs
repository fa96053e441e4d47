//! `/kiln/v1/jobs/{id}/programs`: how each program of an emulated root was run, and why. Reads the database and S3.

use axum::{Json, extract::State};
use kiln_records::{
    Run, TwinLevel,
    account::{Counts, Ground},
    arch::Arch,
    run::{How, TwinsFallback},
    twins::no_twins_between,
};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::jobs::carried_out;
use crate::{
    api::{
        Api,
        address::Path,
        problem::{Problem, Result},
        v3::id,
    },
    artifacts::KeptAccount,
    store::StoredRun,
};

/// How the programs of a job's root were run, and why.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct JobPrograms {
    /// The job.
    id: Uuid,
    /// Whether the decisions were recorded; if not, `note` says why.
    recorded: bool,
    /// What else there is to know, in one sentence.
    note: Option<String>,
    /// The attempt that the decisions are of.
    attempt: Option<u32>,
    /// The architecture of native twins.
    #[schema(value_type = Option<String>)]
    host: Option<Arch>,
    /// How many programs and modules were run in each way.
    counts: Counts,
    /// Each of them, by path.
    programs: Vec<JobProgram>,
    /// The number of further ones, which are left out.
    omitted: u64,
}

/// How a program, or a module of an interpreter, was run.
#[derive(Debug, Serialize, ToSchema)]
struct JobProgram {
    /// Its path in the image.
    path: String,
    /// Its package.
    package: String,
    /// The version of that.
    version: String,
    /// Whether it was a native twin. If not, it was emulated.
    twin: bool,
    /// The kind of reason.
    ground: Ground,
    /// The reason in one sentence.
    why: String,
    /// The rule, finding, library or module that decided; empty if `ground` says it all.
    detail: String,
}

/// Show how each program of an emulated root was run, and why: as a native twin, by rule or by an entry of the table, or
/// emulated.
#[utoipa::path(get, path = "/jobs/{id}/programs", tag = "jobs", params(("id" = String, Path, description = "The id of the record")),
    responses((status = 200, body = JobPrograms), (status = 404, body = Problem), (status = 409, body = Problem)))]
pub(super) async fn get(State(api): State<Api>, Path(text): Path<String>) -> Result<Json<JobPrograms>> {
    let StoredRun { job, run, .. } = carried_out(&api, id(&text)?).await?;
    let kept = match nothing_to_record(&run, job.arch) {
        Some(_) => None,
        None => api.artifacts.account(job.id).await?,
    };
    let mut programs = JobPrograms {
        id: job.id.0,
        recorded: kept.is_some(),
        note: nothing_to_record(&run, job.arch),
        attempt: None,
        host: None,
        counts: Counts::default(),
        programs: Vec::new(),
        omitted: 0,
    };
    match kept {
        Some(kept) => programs.fill(kept, &run),
        None => {
            programs.note.get_or_insert_with(|| not_recorded(&run).to_owned());
        }
    }
    Ok(Json(programs))
}

impl JobPrograms {
    fn fill(&mut self, KeptAccount { attempt, account }: KeptAccount, run: &Run) {
        self.attempt = Some(attempt);
        self.host = Some(account.host);
        self.counts = account.counts();
        self.omitted = account.omitted;
        self.programs = account
            .rows()
            .map(|(path, package, reason)| JobProgram {
                path: path.to_owned(),
                package: package.name.clone(),
                version: package.version.clone(),
                twin: reason.ground.is_twin(),
                ground: reason.ground,
                why: reason.to_string(),
                detail: reason.detail.clone(),
            })
            .collect();
        let fallback = run.twins_fallback.as_ref().map(|TwinsFallback { attempt, .. }| {
            format!("try {attempt}, which this shows, failed, and the job was tried again without native twins")
        });
        let ended = account
            .ended
            .map(|why| format!("no native twins were made from some time on: {why}"));
        self.note = fallback.or(ended);
    }
}

/// Why there is nothing to record for a job, if that is so.
fn nothing_to_record(run: &Run, target: Arch) -> Option<String> {
    if run.plan.how == How::Native {
        return Some("the build is native: there are no twins, and nothing is emulated".to_owned());
    }
    if run.plan.twins == TwinLevel::Off {
        return Some("the level of native twins is off, so everything is emulated".to_owned());
    }
    no_twins_between(target, Arch::host())
}

fn not_recorded(run: &Run) -> &'static str {
    if run.state.is_final() {
        "not recorded: the job is older than this record, or did not get as far as the programs of the image"
    } else {
        "not recorded yet: the agent reports it when the root is built"
    }
}
