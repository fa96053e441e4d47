//! `/deleted/…`: what can still be restored. Deleting and restoring change a record's metadata only; nothing is moved in
//! S3, so keys and entity tags come back as they were.

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
    response::Response,
};
use futures::{StreamExt, stream};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{find, id};
use crate::{
    api::{
        Api,
        body::{Answer, RawBody},
        fields::{self, Fields, error},
        lists::{ListParameters, ListQuery},
        objects::{check_image, must_exist},
        orphans,
        problem::{Problem, Result},
    },
    records::{Image, PublicKey, Recipe},
    store::{Collection, Query, Record, Side},
};

/// What can be done with deleted records.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "documentation; fields are read by api::fields")]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct DeletedUpdate {
    operation: DeletedOperation,
}

/// What is done with deleted records.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::api) enum DeletedOperation {
    /// Bring them back.
    Undelete,
}

fn read_operation(body: &RawBody) -> Answer<()> {
    let mut fields = Fields::of(body.json()?)?;
    let operations = &[DeletedOperation::Undelete];
    let operation = fields.required(
        "operation",
        fields::one_of(operations, |DeletedOperation::Undelete| "undelete"),
    );
    fields.finish()?;
    operation.map_err(Problem::from)?;
    Ok(())
}

/// A record that can be asked whether it would be whole if it came back.
trait Restorable: Record {
    /// # Errors
    ///
    /// 422 when what it refers to is gone from S3.
    async fn check(&self, api: &Api) -> Result<()>;
}

impl Restorable for PublicKey {
    async fn check(&self, _: &Api) -> Result<()> {
        Ok(())
    }
}

impl Restorable for Recipe {
    async fn check(&self, api: &Api) -> Result<()> {
        match &self.link {
            Some(link) => must_exist(api, &link.path).await,
            None => Ok(()),
        }
    }
}

impl Restorable for Image {
    async fn check(&self, api: &Api) -> Result<()> {
        match &self.link {
            // Whatever is not right with it makes restoring impossible, as one status.
            Some(link) => check_image(api, link).await.map(drop).map_err(|mut problem| {
                if problem.status == StatusCode::BAD_REQUEST {
                    let same = Problem::unprocessable("");
                    (problem.status, problem.title) = (same.status, same.title);
                }
                problem
            }),
            None => Ok(()),
        }
    }
}

async fn undelete<R: Restorable>(
    api: &Api,
    store: &(impl Collection<R> + ?Sized),
    text: &str,
    body: &RawBody,
) -> Answer<StatusCode>
where
    R::Id: std::str::FromStr,
{
    let record = find::<R>(store, Side::Deleted, text).await?.record;
    read_operation(body)?;
    record.check(api).await?;
    if store.undelete(record.id()).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(Problem::not_found().into())
    }
}

/// Brings back every record that can be. Those that cannot stay, and the answer names them: one broken record is no
/// reason to leave the others.
async fn undelete_all<R: Restorable>(
    api: &Api,
    store: &(impl Collection<R> + ?Sized),
    body: &RawBody,
) -> Answer<StatusCode> {
    const CHUNK: u32 = 500;
    read_operation(body)?;
    let mut failed = Map::new();
    let mut query = Query {
        limit: CHUNK,
        ..Query::default()
    };
    loop {
        let page = store.page(Side::Deleted, &query).await?;
        let Some(last) = page.last() else { break };
        query.after = Some(crate::store::After {
            key: last.position.to_string(),
            id: last.record.id().to_string(),
        });
        let checks = stream::iter(page).map(|stored| async move {
            let outcome = stored.record.check(api).await;
            (stored.record, outcome)
        });
        // In order, so that the list keeps its order.
        let mut checks = Box::pin(checks.buffered(8));
        while let Some((record, outcome)) = checks.next().await {
            let outcome = match outcome {
                Ok(()) => store.undelete(record.id()).await.map(drop).map_err(Problem::from),
                refused => refused,
            };
            if let Err(problem) = outcome {
                if problem.status.is_server_error() {
                    return Err(problem.into());
                }
                failed.insert(record.id().to_string(), error(problem.detail.unwrap_or(problem.title)));
            }
        }
    }
    if failed.is_empty() {
        return Ok(StatusCode::NO_CONTENT);
    }
    let mut problem = Problem::unprocessable(format_args!("{} could not be restored; the others were.", failed.len()));
    problem.errors = Some(failed.into_iter().collect::<Map<String, Value>>());
    Err(problem.into())
}

/// The six requests, for one kind of record.
macro_rules! deleted {
    ($module:ident, $record:ty, $tag:literal, $all:literal, $one:literal) => {
        mod $module {
            use super::*;

            /// List the deleted records.
            #[utoipa::path(get, path = $all, tag = $tag, params(ListParameters),
                        responses((status = 200, body = Vec<$record>), (status = 400, body = Problem)))]
            pub(super) async fn list_deleted(State(api): State<Api>, list: ListQuery) -> Result<Response> {
                list.answer(move |query| {
                    let api = api.clone();
                    async move { Collection::<$record>::page(&*api.store, Side::Deleted, &query).await }
                })
                .await
            }

            /// Restore every deleted record.
            #[utoipa::path(patch, path = $all, tag = $tag, request_body = DeletedUpdate,
                        responses((status = 204), (status = 502, body = Problem)))]
            pub(super) async fn undelete_all(State(api): State<Api>, body: RawBody) -> Answer<StatusCode> {
                super::undelete_all::<$record>(&api, &*api.store, &body).await
            }

            /// Delete every deleted record for good, and its objects that no other record names.
            #[utoipa::path(delete, path = $all, tag = $tag, responses((status = 204)))]
            pub(super) async fn purge_all(State(api): State<Api>) -> Result<StatusCode> {
                Collection::<$record>::purge(&*api.store, Side::Deleted, None, false).await?;
                orphans::remove(&api).await;
                Ok(StatusCode::NO_CONTENT)
            }

            /// One deleted record.
            #[utoipa::path(get, path = $one, tag = $tag, params(("id" = String, Path, description = "Its id")),
                        responses((status = 200, body = $record), (status = 404, body = Problem)))]
            pub(super) async fn get_deleted(State(api): State<Api>, Path(text): Path<String>) -> Result<Json<$record>> {
                Ok(Json(
                    find::<$record>(&*api.store, Side::Deleted, &text).await?.record,
                ))
            }

            /// Restore a deleted record.
            #[utoipa::path(patch, path = $one, tag = $tag, request_body = DeletedUpdate,
                        params(("id" = String, Path, description = "Its id")),
                        responses((status = 204), (status = 404, body = Problem), (status = 409, body = Problem),
                            (status = 502, body = Problem)))]
            pub(super) async fn undelete(
                State(api): State<Api>,
                Path(text): Path<String>,
                body: RawBody,
            ) -> Answer<StatusCode> {
                super::undelete::<$record>(&api, &*api.store, &text, &body).await
            }

            /// Delete a deleted record for good, and its objects that no other record names.
            #[utoipa::path(delete, path = $one, tag = $tag, params(("id" = String, Path, description = "Its id")),
                        responses((status = 204), (status = 404, body = Problem)))]
            pub(super) async fn purge(State(api): State<Api>, Path(text): Path<String>) -> Result<StatusCode> {
                let purged = Collection::<$record>::purge(&*api.store, Side::Deleted, Some(id(&text)?), false).await?;
                if purged == 0 {
                    return Err(Problem::not_found());
                }
                orphans::remove(&api).await;
                Ok(StatusCode::NO_CONTENT)
            }

            pub(super) fn router() -> OpenApiRouter<Api> {
                OpenApiRouter::new()
                    .routes(routes!(list_deleted, undelete_all, purge_all))
                    .routes(routes!(get_deleted, undelete, purge))
            }
        }
    };
}

deleted!(
    public_keys,
    PublicKey,
    "deleted public-keys",
    "/deleted/public-keys",
    "/deleted/public-keys/{id}"
);
deleted!(
    recipes,
    Recipe,
    "deleted recipes",
    "/deleted/recipes",
    "/deleted/recipes/{id}"
);
deleted!(
    images,
    Image,
    "deleted images",
    "/deleted/images",
    "/deleted/images/{id}"
);

pub(super) fn router() -> OpenApiRouter<Api> {
    public_keys::router().merge(recipes::router()).merge(images::router())
}
