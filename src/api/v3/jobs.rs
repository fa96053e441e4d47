//! `/jobs`: the records of jobs. Touches the database; the jobs run elsewhere.

use axum::{
    Extension, Json,
    extract::{RawQuery, State},
    http::StatusCode,
    response::Response,
};
use kiln_records::{Image, ImageId, Job, JobId, JobStatus, JobType, Moment};
use uuid::Uuid;

use super::{age, find, id, new_job::JobCreate};
use crate::{
    api::{
        Api,
        address::Path,
        auth::Principal,
        body::{Answer, RawBody},
        fields::body,
        lists::{self, ArchParameter, JobListParameters, ListParameters, ListQuery},
        problem::{Problem, Result},
    },
    store::{JobFilter, Side, StoreError},
};

body! {
    /// Changes to a job.
    pub(in crate::api) struct JobUpdate with at least 1 member {
        /// Its status. A status can only move forward, and a final one cannot change.
        status: Option<JobStatus>,
        /// The resulting image, which must exist.
        resultant_image_id: Option<Uuid>,
    }
}

/// The filters of deleting jobs.
#[derive(Debug, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "documentation; filter() reads them")]
pub(in crate::api) struct JobFilterParameters {
    /// Only jobs in one of these states, in any case.
    #[param(nullable = false, explode)]
    status: Option<Vec<JobStatus>>,
    /// Only jobs of this type.
    #[param(nullable = false)]
    job_type: Option<JobType>,
    /// Only jobs older than this: `30m`, `6h`, `1d`, `2w`, or several together (`1w2d`).
    // Units may also come in another order and be written out.
    #[param(
        nullable = false,
        example = "1w2d",
        pattern = r"^([0-9]{1,6}w([0-9]{1,6}d)?([0-9]{1,6}h)?([0-9]{1,6}m)?|[0-9]{1,6}d([0-9]{1,6}h)?([0-9]{1,6}m)?|[0-9]{1,6}h([0-9]{1,6}m)?|[0-9]{1,6}m)$"
    )]
    age: Option<String>,
}

/// List the jobs.
#[utoipa::path(get, path = "/jobs", tag = "jobs", params(ListParameters, ArchParameter, JobListParameters),
    responses((status = 200, body = Vec<Job>), (status = 400, body = Problem)))]
pub(in crate::api) async fn list(State(api): State<Api>, list: ListQuery<Job>) -> Result<Response> {
    list.answer(move |query| {
        let api = api.clone();
        async move { api.store.page_text_of_jobs(&query).await }
    })
    .await
}

/// Show a job.
#[utoipa::path(get, path = "/jobs/{id}", tag = "jobs", params(("id" = String, Path, description = "The id of the record")),
    responses((status = 200, body = Job), (status = 404, body = Problem)))]
pub(in crate::api) async fn get(State(api): State<Api>, Path(text): Path<String>) -> Result<Json<Job>> {
    let job = api.store.get_job(id(&text)?).await?;
    Ok(Json(job.ok_or_else(Problem::not_found)?.record))
}

/// Create a job. Its architecture is that of the recipe or image; the request cannot override it.
#[utoipa::path(post, path = "/jobs", tag = "jobs", request_body = JobCreate,
    responses((status = 201, body = Job), (status = 502, body = Problem)))]
pub(in crate::api) async fn create(
    State(api): State<Api>,
    principal: Option<Extension<Principal>>,
    body: RawBody,
) -> Answer<(StatusCode, Json<Job>)> {
    let given: JobCreate = body.read()?;
    let who = Principal::name_of(principal);
    let job = api.asker.ask(JobId::new(), given.into(), who).await?;
    Ok((StatusCode::CREATED, Json(job)))
}

/// Set the status of a job.
#[utoipa::path(patch, path = "/jobs/{id}", tag = "jobs", request_body = JobUpdate,
    params(("id" = String, Path, description = "The id of the record")),
    responses((status = 200, body = Job), (status = 404, body = Problem), (status = 409, body = Problem)))]
pub(in crate::api) async fn update(
    State(api): State<Api>,
    Path(text): Path<String>,
    body: RawBody,
) -> Answer<Json<Job>> {
    const TRIES: u32 = 10;
    let job_id: JobId = id(&text)?;
    let mut current = api.store.get_job(job_id).await?.ok_or_else(Problem::not_found)?;
    if api.store.get_run(job_id).await?.is_some() {
        return Err(Problem::conflict(
            "Kiln carries this job out itself and says where it is; `kiln jobs cancel` ends it.",
        )
        .into());
    }
    let change: JobUpdate = body.read()?;
    let (status, image) = (change.status, change.resultant_image_id.map(ImageId));
    if let Some(image) = image {
        find::<Image>(&*api.store, Side::Live, &image.to_string())
            .await
            .map_err(|problem| match problem.status {
                StatusCode::NOT_FOUND => Problem::unprocessable(format_args!("There is no image with the id {image}.")),
                _ => problem,
            })?;
    }
    for _ in 0..TRIES {
        let mut job = current.record;
        // Clients read the image when the job has ended; what they have read must stay true.
        let settled = job.resultant_image_id.filter(|_| job.status.is_final());
        if settled.is_some() && image.is_some() && image != settled {
            return Err(Problem::conflict("The job has ended with another image.").into());
        }
        if let Some(next) = status {
            if !job.status.may_become(next) {
                return Err(Problem::conflict(format_args!(
                    "A job that is in the state {} cannot go to {}.",
                    job.status.name(),
                    next.name()
                ))
                .into());
            }
            job.status = next;
        }
        job.resultant_image_id = image.or(job.resultant_image_id);
        match api.store.replace_job(&job, current.revision).await {
            Ok(()) => return Ok(Json(job)),
            Err(StoreError::Stale) => {
                current = api.store.get_job(job_id).await?.ok_or_else(Problem::not_found)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(StoreError::Stale.into())
}

/// Delete a job. A running job is ended.
#[utoipa::path(delete, path = "/jobs/{id}", tag = "jobs", params(("id" = String, Path, description = "The id of the record")),
    responses((status = 204), (status = 404, body = Problem)))]
pub(in crate::api) async fn delete(State(api): State<Api>, Path(text): Path<String>) -> Result<StatusCode> {
    if api.store.delete_job(id(&text)?).await? {
        api.wake_orchestrator();
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(Problem::not_found())
    }
}

/// Delete every job that matches the filters. An invalid or unknown filter is refused, because ignoring it would delete
/// more than intended.
#[utoipa::path(delete, path = "/jobs", tag = "jobs", params(JobFilterParameters),
    responses((status = 204), (status = 400, body = Problem)))]
pub(in crate::api) async fn delete_all(State(api): State<Api>, RawQuery(query): RawQuery) -> Result<StatusCode> {
    let filter = filter(&lists::pairs(query.as_deref())?, Moment::now())?;
    api.store.delete_jobs(&filter).await?;
    api.wake_orchestrator();
    Ok(StatusCode::NO_CONTENT)
}

fn filter(pairs: &[(String, String)], now: Moment) -> Result<JobFilter> {
    // IMS's clients expect the reason in the title here.
    let refused = |reason: String| Problem {
        title: reason,
        detail: None,
        ..Problem::bad_request("")
    };
    let mut filter = JobFilter::default();
    for (key, value) in pairs {
        match key.as_str() {
            "status" => {
                let status = lists::one_of(key, &value.to_lowercase(), &JobStatus::ALL, JobStatus::name);
                filter
                    .statuses
                    .push(status.map_err(|problem| refused(problem.detail.unwrap_or_default()))?);
            }
            "job_type" => {
                let job_type = lists::one_of(key, value, &JobType::ALL, JobType::name);
                filter.job_type = Some(job_type.map_err(|problem| refused(problem.detail.unwrap_or_default()))?);
            }
            "age" => {
                let age = age::parse(value).map_err(|reason| refused(format!("`age` {reason}")))?;
                filter.created_before = Some(Moment::from_micros(now.micros().saturating_sub(age)));
            }
            _ => {
                return Err(refused(format!(
                    "`{key}` is no filter of jobs; there are status, job_type and age."
                )));
            }
        }
    }
    Ok(filter)
}
