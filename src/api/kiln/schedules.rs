//! `/schedules`: jobs that are made repeatedly. Touches the database. The jobs themselves are made in
//! [`orchestrate`](crate::orchestrate::schedule).

use axum::{
    Json,
    extract::{RawQuery, State},
    http::StatusCode,
    response::Response,
};
use kiln_records::{Moment, Schedule, ScheduleId, schedule::Tick};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::{
    schedule_fields::{apply, settle, timing},
    schedule_requests::{ScheduleCreate, ScheduleUpdate},
};
use crate::{
    api::{
        Api,
        address::Path,
        body::{Answer, RawBody},
        fields,
        lists::{self, ListParameters, ListQuery},
        problem::{Problem, Result},
        v3::id,
    },
    store::{StoreError, Stored},
};

/// The number of future runs in an answer.
const RUNS_AHEAD: usize = 5;

/// The number of ticks in a history by default.
const USUAL_HISTORY: u32 = 100;

/// The most ticks in a history. The store keeps hardly more of a schedule.
const LONGEST_HISTORY: u32 = 1_000;

/// The most attempts at a change while other clients change the same schedule.
const TRIES: u32 = 10;

/// A schedule, with its times in words and its next runs.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ScheduleDetails {
    #[serde(flatten)]
    schedule: Schedule,
    /// The meaning of The meaning of `cron` in words.
    description: String,
    /// The next runs in the schedule's time zone, with the offset from UTC. Empty while the schedule is paused.
    next_runs: Vec<String>,
}

/// Documentation of the parameter of histories.
#[derive(Debug, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "documentation; history() reads it")]
pub(super) struct HistoryParameters {
    /// The maximum number of runs; the default is 100.
    #[param(nullable = false, minimum = 1, maximum = 1_000)]
    limit: Option<u32>,
}

/// List the schedules.
#[utoipa::path(get, path = "/schedules", tag = "schedules", params(ListParameters),
    responses((status = 200, body = Vec<Schedule>), (status = 400, body = Problem)))]
pub(super) async fn list(State(api): State<Api>, list: ListQuery<Schedule>) -> Result<Response> {
    list.answer(move |query| {
        let api = api.clone();
        async move { api.store.page_text_of_schedules(&query).await }
    })
    .await
}

/// Create a schedule.
#[utoipa::path(post, path = "/schedules", tag = "schedules", request_body = ScheduleCreate,
    responses((status = 201, body = ScheduleDetails)))]
pub(super) async fn create(State(api): State<Api>, body: RawBody) -> Answer<(StatusCode, Json<ScheduleDetails>)> {
    let mut schedule = Schedule::try_from(body.read::<ScheduleCreate>()?)?;
    settle(&api, &mut schedule, None).await?;
    api.store.insert_schedule(&schedule).await?;
    api.schedule_changed.notify_one();
    Ok((StatusCode::CREATED, details(schedule)?))
}

/// Show a schedule, in words and with its next runs.
#[utoipa::path(get, path = "/schedules/{id}", tag = "schedules", params(("id" = String, Path, description = "The id of the record")),
    responses((status = 200, body = ScheduleDetails), (status = 404, body = Problem)))]
pub(super) async fn get(State(api): State<Api>, Path(text): Path<String>) -> Result<Json<ScheduleDetails>> {
    details(find(&api, &text).await?.record)
}

/// Change a schedule. If its times change, the next run is computed from now.
#[utoipa::path(patch, path = "/schedules/{id}", tag = "schedules", request_body = ScheduleUpdate,
    params(("id" = String, Path, description = "The id of the record")),
    responses((status = 200, body = ScheduleDetails), (status = 404, body = Problem)))]
pub(super) async fn update(
    State(api): State<Api>,
    Path(text): Path<String>,
    body: RawBody,
) -> Answer<Json<ScheduleDetails>> {
    let current = find(&api, &text).await?;
    Ok(change(&api, current, &body.read()?).await?)
}

/// Delete a schedule and its history. Its jobs remain.
#[utoipa::path(delete, path = "/schedules/{id}", tag = "schedules", params(("id" = String, Path, description = "The id of the record")),
    responses((status = 204), (status = 404, body = Problem)))]
pub(super) async fn delete(State(api): State<Api>, Path(text): Path<String>) -> Result<StatusCode> {
    if api.store.delete_schedule(id(&text)?).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(Problem::not_found())
    }
}

/// Pause a schedule. Runs until it is resumed do not count as missed.
#[utoipa::path(post, path = "/schedules/{id}/pause", tag = "schedules",
    params(("id" = String, Path, description = "The id of the record")),
    responses((status = 200, body = ScheduleDetails), (status = 404, body = Problem)))]
pub(super) async fn pause(State(api): State<Api>, Path(text): Path<String>) -> Result<Json<ScheduleDetails>> {
    set_paused(&api, &text, true).await
}

/// Resume a schedule.
#[utoipa::path(post, path = "/schedules/{id}/resume", tag = "schedules",
    params(("id" = String, Path, description = "The id of the record")),
    responses((status = 200, body = ScheduleDetails), (status = 404, body = Problem)))]
pub(super) async fn resume(State(api): State<Api>, Path(text): Path<String>) -> Result<Json<ScheduleDetails>> {
    set_paused(&api, &text, false).await
}

/// Run a schedule now, even if it is paused or its earlier runs have not ended.
#[utoipa::path(post, path = "/schedules/{id}/run", tag = "schedules",
    params(("id" = String, Path, description = "The id of the record")),
    responses((status = 201, body = Tick), (status = 404, body = Problem)))]
pub(super) async fn run(State(api): State<Api>, Path(text): Path<String>) -> Result<(StatusCode, Json<Tick>)> {
    let tick = api.scheduler().run_now(id(&text)?, Moment::now()).await?;
    Ok((StatusCode::CREATED, Json(tick.ok_or_else(Problem::not_found)?)))
}

/// List the outcomes of a schedule's last runs, the latest first.
#[utoipa::path(get, path = "/schedules/{id}/history", tag = "schedules",
    params(("id" = String, Path, description = "The id of the record"), HistoryParameters),
    responses((status = 200, body = Vec<Tick>), (status = 400, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn history(
    State(api): State<Api>,
    Path(text): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<Tick>>> {
    let schedule = find(&api, &text).await?.record;
    let mut limit = USUAL_HISTORY;
    for (_, value) in lists::pairs(query.as_deref())?.iter().filter(|(key, _)| key == "limit") {
        let number = value.parse().ok().filter(|limit| (1..=LONGEST_HISTORY).contains(limit));
        limit = number.ok_or_else(|| {
            Problem::bad_request(format_args!("`limit` has to be: a number from 1 to {LONGEST_HISTORY}."))
        })?;
    }
    Ok(Json(api.store.ticks(schedule.id, limit).await?))
}

async fn find(api: &Api, text: &str) -> Result<Stored<Schedule>> {
    let found = api.store.get_schedule(id::<ScheduleId>(text)?).await?;
    found.ok_or_else(Problem::not_found)
}

async fn set_paused(api: &Api, text: &str, paused: bool) -> Result<Json<ScheduleDetails>> {
    let current = find(api, text).await?;
    if current.record.paused == paused {
        return details(current.record);
    }
    change(api, current, &fields::read(json!({ "paused": paused }))?).await
}

/// Changes a schedule. After a concurrent change it starts again from the new state.
async fn change(api: &Api, mut current: Stored<Schedule>, update: &ScheduleUpdate) -> Result<Json<ScheduleDetails>> {
    let id = current.record.id;
    for _ in 0..TRIES {
        let mut schedule = current.record.clone();
        apply(update, &mut schedule)?;
        settle(api, &mut schedule, Some(&current.record)).await?;
        match api.store.replace_schedule(&schedule, current.revision, &[]).await {
            Ok(()) => {
                api.schedule_changed.notify_one();
                return details(schedule);
            }
            Err(StoreError::Stale) => {
                let found = api.store.get_schedule(id).await?;
                current = found.ok_or_else(Problem::not_found)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(StoreError::Stale.into())
}

fn details(schedule: Schedule) -> Result<Json<ScheduleDetails>> {
    let timing = timing(&schedule)?;
    // Starts just before the next run, to include it.
    let from = schedule.next_run.map(|next| Moment::from_micros(next.micros() - 1));
    let next_runs = from.into_iter().flat_map(|from| timing.after(from).take(RUNS_AHEAD));
    let next_runs = next_runs
        .map(|run| timing.local(run).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string())
        .collect();
    Ok(Json(ScheduleDetails {
        description: timing.describe(),
        next_runs,
        schedule,
    }))
}
