//! `/sets`: images for several architectures under one name and version. Touches the database and S3. What is done is in
//! [`orchestrate`](crate::orchestrate::sets).

use axum::{Extension, Json, extract::State, http::StatusCode, response::Response};
use kiln_records::{
    ImageId, JobId, Moment, RecipeId, SetId,
    arch::Arch,
    run::How,
    set::{
        Requirement,
        state::{self, ArchState, SetState},
    },
};
use serde::Serialize;
use utoipa::ToSchema;

use super::set_requests::{SetCreate, SetGrow, wanted};
use crate::{
    api::{
        Api,
        address::Path,
        auth::Principal,
        body::{Answer, RawBody},
        lists::{self, ListParameters, ListQuery},
        problem::{Problem, Result},
        v3::id,
    },
    orchestrate::sets::{Change, Looked, NewSet, SetRefusal},
    store::{SetDeleted, Stored},
};

/// A set, and what is known of each of its architectures.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(in crate::api) struct SetDetails {
    /// Its id.
    #[schema(value_type = uuid::Uuid)]
    pub(in crate::api) id: SetId,
    /// The time of its creation.
    #[schema(value_type = String)]
    created: Moment,
    /// Its name.
    pub(in crate::api) name: String,
    /// Its version.
    version: String,
    /// Its state: `complete` only if the manifest of every required architecture was read and is the one verified before.
    state: SetState,
    /// Each architecture that is not complete, and why.
    remarks: Vec<String>,
    /// Since when it has been complete without a break, as far as that was noticed.
    #[schema(value_type = Option<String>)]
    complete_since: Option<Moment>,
    /// What each of its images needs before it counts as complete.
    requires: Vec<Requirement>,
    /// Its architectures.
    arches: Vec<SetArchDetails>,
}

/// An architecture of a set.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(in crate::api) struct SetArchDetails {
    /// The architecture.
    arch: Arch,
    /// Whether the set is incomplete without it.
    required: bool,
    /// Its state.
    state: ArchState,
    /// The reason for its state.
    why: Option<String>,
    /// Its image.
    #[schema(value_type = Option<uuid::Uuid>)]
    image_id: Option<ImageId>,
    /// SHA-256 of the image's manifest when it was first read.
    manifest_sha256: Option<String>,
    /// When the manifest was last read.
    #[schema(value_type = Option<String>)]
    looked: Option<Moment>,
    /// How the programs of its last job ran: `native` or `emulated`.
    #[schema(value_type = Option<String>)]
    how: Option<How>,
    /// How long its last job has taken, in seconds.
    seconds: Option<u64>,
    /// The recipe that its jobs build.
    #[schema(value_type = Option<uuid::Uuid>)]
    recipe_id: Option<RecipeId>,
    /// How long an attempt of its job may take, in seconds.
    time_limit_s: Option<u32>,
    /// Its jobs, the latest last.
    #[schema(value_type = Vec<uuid::Uuid>)]
    jobs: Vec<JobId>,
}

impl From<Looked> for SetDetails {
    fn from(looked: Looked) -> Self {
        let state = looked.state();
        let Looked { stored, judged } = looked;
        let remarks = state::remarks(&stored.record, &judged);
        let set = stored.record;
        let arches = set
            .members
            .into_iter()
            .zip(judged)
            .map(|(member, judged)| SetArchDetails {
                arch: member.arch,
                required: member.required,
                state: judged.state,
                why: judged.why,
                image_id: member.image.as_ref().map(|image| image.id),
                manifest_sha256: member
                    .image
                    .as_ref()
                    .and_then(|image| Some(image.proof.as_ref()?.sha256.clone())),
                looked: member.image.as_ref().and_then(|image| image.looked),
                how: member.last().and_then(|last| last.how),
                seconds: member.last().and_then(|last| last.seconds),
                recipe_id: member.recipe_id,
                time_limit_s: member.time_limit_s,
                jobs: member.attempts.iter().map(|attempt| attempt.job_id).collect(),
            });
        Self {
            id: set.id,
            created: set.created,
            name: set.name,
            version: set.version,
            state,
            remarks,
            complete_since: set.complete_since,
            requires: set.requires,
            arches: arches.collect(),
        }
    }
}

/// List the sets. Their states are those of the last look into S3, and of the records now.
#[utoipa::path(get, path = "/sets", tag = "sets", params(ListParameters),
    responses((status = 200, body = Vec<SetDetails>), (status = 400, body = Problem)))]
pub(super) async fn list(State(api): State<Api>, list: ListQuery<SetDetails>) -> Result<Response> {
    list.answer(move |query| {
        let api = api.clone();
        async move {
            let limit = api.store.fitting_sets(&query).await?;
            let more = crate::store::Query {
                limit: limit.saturating_add(1),
                ..query.clone()
            };
            let sets = api.sets();
            let mut shown = Vec::new();
            for Stored {
                record,
                revision,
                position,
            } in api.store.page_sets(&more).await?
            {
                let judged = sets.look.judge(&record).await?;
                let stored = Stored {
                    record,
                    revision,
                    position,
                };
                shown.push(Stored {
                    record: SetDetails::from(Looked { stored, judged }),
                    revision,
                    position,
                });
            }
            Ok(lists::write(shown, limit))
        }
    })
    .await
}

/// Create a set, and a job for each of its architectures that has no image. Everything is checked before any job is made.
#[utoipa::path(post, path = "/sets", tag = "sets", request_body = SetCreate,
    responses((status = 201, body = SetDetails), (status = 409, body = Problem), (status = 502, body = Problem)))]
pub(super) async fn create(
    State(api): State<Api>,
    principal: Option<Extension<Principal>>,
    body: RawBody,
) -> Answer<(StatusCode, Json<SetDetails>)> {
    let new = NewSet::try_from(body.read::<SetCreate>()?)?;
    let who = Principal::name_of(principal);
    let looked = api.sets().create(new, who, Moment::now()).await?;
    Ok((StatusCode::CREATED, Json(looked.into())))
}

/// Show a set, after a look at its jobs and the manifests of its images.
#[utoipa::path(get, path = "/sets/{id}", tag = "sets", params(("id" = String, Path, description = "The id of the record")),
    responses((status = 200, body = SetDetails), (status = 404, body = Problem)))]
pub(super) async fn get(State(api): State<Api>, Path(text): Path<String>) -> Result<Json<SetDetails>> {
    let looked = api.sets().look.look(id(&text)?, Moment::now()).await?;
    Ok(Json(looked.ok_or_else(Problem::not_found)?.into()))
}

/// Delete a set that no channel leads to. Its jobs and images remain.
#[utoipa::path(delete, path = "/sets/{id}", tag = "sets", params(("id" = String, Path, description = "The id of the record")),
    responses((status = 204), (status = 404, body = Problem), (status = 409, body = Problem)))]
pub(super) async fn delete(State(api): State<Api>, Path(text): Path<String>) -> Result<StatusCode> {
    match api.store.delete_set(id(&text)?).await? {
        SetDeleted::Done => Ok(StatusCode::NO_CONTENT),
        SetDeleted::Unknown => Err(Problem::not_found()),
        SetDeleted::InChannel(channel) => Err(Problem::conflict(format_args!(
            "The channel `{channel}` leads to this set; promote another set, or empty the channel first."
        ))),
    }
}

/// Add architectures to a set. Only what is missing is built: an architecture that is complete or under way stays as it is.
#[utoipa::path(post, path = "/sets/{id}/arches", tag = "sets", request_body = SetGrow,
    params(("id" = String, Path, description = "The id of the record")),
    responses((status = 200, body = SetDetails), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 502, body = Problem)))]
pub(super) async fn add_arch(
    State(api): State<Api>,
    principal: Option<Extension<Principal>>,
    Path(text): Path<String>,
    body: RawBody,
) -> Answer<Json<SetDetails>> {
    let id: SetId = id(&text)?;
    let wanted = wanted(body.read::<SetGrow>()?.arches)?;
    let looked = api
        .sets()
        .change(id, Change::Add(wanted), Principal::name_of(principal), Moment::now())
        .await?;
    Ok(Json(looked.into()))
}

/// Build again what has failed, was deleted or has changed, and nothing else.
#[utoipa::path(post, path = "/sets/{id}/rebuild", tag = "sets",
    params(("id" = String, Path, description = "The id of the record")),
    responses((status = 200, body = SetDetails), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 502, body = Problem)))]
pub(super) async fn rebuild(
    State(api): State<Api>,
    principal: Option<Extension<Principal>>,
    Path(text): Path<String>,
) -> Result<Json<SetDetails>> {
    let change = Change::Rebuild;
    let looked = api
        .sets()
        .change(id(&text)?, change, Principal::name_of(principal), Moment::now())
        .await?;
    Ok(Json(looked.into()))
}

impl From<SetRefusal> for Problem {
    fn from(refusal: SetRefusal) -> Self {
        match refusal {
            SetRefusal::Unknown => Self::not_found(),
            SetRefusal::Exists { .. } | SetRefusal::NoRecipe(_) => Self::conflict(refusal),
            SetRefusal::NoArch | SetRefusal::NoneRequired | SetRefusal::Twice(_) | SetRefusal::OtherArch { .. } => {
                Self::unprocessable(refusal)
            }
            SetRefusal::Job(arch, refusal) => {
                let mut problem = Self::from(refusal);
                problem.detail = problem.detail.map(|detail| format!("{arch}: {detail}"));
                problem
            }
            SetRefusal::Store(error) => error.into(),
        }
    }
}

impl lists::Listed for SetDetails {
    const FILTERS: &'static [&'static str] = &[];

    fn id(&self) -> String {
        self.id.to_string()
    }

    fn name(&self) -> &str {
        &self.name
    }
}
