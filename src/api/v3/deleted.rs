//! `/deleted/…`: records that can still be restored. Deleting and restoring change only a record's metadata in the
//! database. Nothing is moved in S3, so keys and entity tags stay the same.

use axum::{Json, extract::State, http::StatusCode, response::Response};
use kiln_records::{Image, PublicKey, Recipe};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{find, id, moved};
use crate::{
    api::{
        Api,
        address::Path,
        body::{Answer, RawBody},
        fields::{body, enumerations, error},
        lists::{self, ArchParameter, ListParameters, ListQuery},
        orphans,
        problem::{Problem, Result},
    },
    artifacts::Unusable,
    store::{Collection, Query, Record, Side, Stored},
};

body! {
    /// An operation on deleted records.
    pub(in crate::api) struct DeletedUpdate {
        operation: DeletedOperation,
    }
}

/// The operation on deleted records.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::api) enum DeletedOperation {
    /// Bring them back.
    Undelete,
}

impl DeletedOperation {
    const ALL: [Self; 1] = [Self::Undelete];

    const fn name(self) -> &'static str {
        match self {
            Self::Undelete => "undelete",
        }
    }
}

enumerations!(DeletedOperation);

/// A record that can be restored.
trait Restorable: Record {
    /// Checks that everything the record refers to exists. Returns the objects that are superfluous afterwards.
    ///
    /// # Errors
    ///
    /// 422 when an object is missing in S3.
    async fn prepare(api: &Api, stored: Stored<Self>) -> Result<Vec<String>>;
}

impl Restorable for PublicKey {
    async fn prepare(_: &Api, _: Stored<Self>) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}

impl Restorable for Recipe {
    async fn prepare(api: &Api, mut stored: Stored<Self>) -> Result<Vec<String>> {
        let Some(link) = &stored.record.link else {
            return Ok(Vec::new());
        };
        let Some(moved) = moved::recipe(api, link).await? else {
            api.artifacts.must_exist(&link.path).await?;
            return Ok(Vec::new());
        };
        stored.record.link = Some(moved.link);
        api.store
            .replace(&stored.record, stored.revision, &moved.objects)
            .await?;
        Ok(moved.superfluous)
    }
}

impl Restorable for Image {
    async fn prepare(api: &Api, mut stored: Stored<Self>) -> Result<Vec<String>> {
        let Some(link) = &stored.record.link else {
            return Ok(Vec::new());
        };
        let Some(moved) = moved::image(api, link).await? else {
            // Every mistake in the manifest prevents restoring, with the same status.
            return match api.artifacts.check_image(link).await {
                Ok(_) => Ok(Vec::new()),
                Err(fault @ (Unusable::TooLarge { .. } | Unusable::Rootfs { .. })) => {
                    Err(Problem::unprocessable(fault))
                }
                Err(fault) => Err(fault.into()),
            };
        };
        stored.record.link = Some(moved.link);
        api.store
            .replace(&stored.record, stored.revision, &moved.objects)
            .await?;
        Ok(moved.superfluous)
    }
}

/// Restores one record.
async fn restore<R: Restorable>(api: &Api, store: &(impl Collection<R> + ?Sized), stored: Stored<R>) -> Result<bool> {
    let id = stored.record.id();
    let superfluous = R::prepare(api, stored).await?;
    let restored = store.undelete(id).await?;
    if restored && !superfluous.is_empty() {
        store.forget_objects(id, &superfluous).await?;
        orphans::remove(api).await;
    }
    Ok(restored)
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
    let stored = find::<R>(store, Side::Deleted, text).await?;
    let DeletedUpdate {
        operation: DeletedOperation::Undelete,
    } = body.read()?;
    if restore(api, store, stored).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(Problem::not_found().into())
    }
}

/// Restores every record that can be restored. The answer names the others, which stay: one broken record must not keep
/// the rest from being restored.
async fn undelete_all<R: Restorable>(
    api: &Api,
    store: &(impl Collection<R> + ?Sized),
    body: &RawBody,
) -> Answer<StatusCode> {
    const CHUNK: u32 = 16;
    let DeletedUpdate {
        operation: DeletedOperation::Undelete,
    } = body.read()?;
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
        // One after the other, to keep the order of the list.
        for stored in page {
            let id = stored.record.id();
            if let Err(problem) = restore(api, store, stored).await {
                if problem.status.is_server_error() {
                    return Err(problem.into());
                }
                failed.insert(id.to_string(), error(problem.detail.unwrap_or(problem.title)));
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

/// The six requests for one kind of record.
macro_rules! deleted {
    ($module:ident, $record:ty, $tag:literal, $all:literal, $one:literal, $parameters:tt) => {
        mod $module {
            use super::*;

            /// List the deleted records.
            #[utoipa::path(get, path = $all, tag = $tag, params $parameters,
                        responses((status = 200, body = Vec<$record>), (status = 400, body = Problem)))]
            pub(super) async fn list_deleted(State(api): State<Api>, list: ListQuery<$record>) -> Result<Response> {
                list.answer(move |query| {
                    let api = api.clone();
                    async move {
                        let store = &*api.store;
                        let limit = Collection::<$record>::fitting(store, Side::Deleted, &query).await?;
                        let one_more = Query { limit: limit.saturating_add(1), ..query };
                        let page = Collection::<$record>::page(store, Side::Deleted, &one_more).await;
                        page.map(|records| lists::write(records, limit))
                    }
                })
                .await
            }

            /// Restore every deleted record.
            #[utoipa::path(patch, path = $all, tag = $tag, request_body = DeletedUpdate,
                        responses((status = 204), (status = 502, body = Problem)))]
            pub(super) async fn undelete_all(State(api): State<Api>, body: RawBody) -> Answer<StatusCode> {
                super::undelete_all::<$record>(&api, &*api.store, &body).await
            }

            /// Delete every deleted record permanently, and its objects that no other record names.
            #[utoipa::path(delete, path = $all, tag = $tag, responses((status = 204)))]
            pub(super) async fn purge_all(State(api): State<Api>) -> Result<StatusCode> {
                Collection::<$record>::purge(&*api.store, Side::Deleted, None, false).await?;
                orphans::remove(&api).await;
                Ok(StatusCode::NO_CONTENT)
            }

            /// Show a deleted record.
            #[utoipa::path(get, path = $one, tag = $tag, params(("id" = String, Path, description = "The id of the record")),
                        responses((status = 200, body = $record), (status = 404, body = Problem)))]
            pub(super) async fn get_deleted(State(api): State<Api>, Path(text): Path<String>) -> Result<Json<$record>> {
                Ok(Json(
                    find::<$record>(&*api.store, Side::Deleted, &text).await?.record,
                ))
            }

            /// Restore a deleted record.
            #[utoipa::path(patch, path = $one, tag = $tag, request_body = DeletedUpdate,
                        params(("id" = String, Path, description = "The id of the record")),
                        responses((status = 204), (status = 404, body = Problem), (status = 409, body = Problem),
                            (status = 502, body = Problem)))]
            pub(super) async fn undelete(
                State(api): State<Api>,
                Path(text): Path<String>,
                body: RawBody,
            ) -> Answer<StatusCode> {
                super::undelete::<$record>(&api, &*api.store, &text, &body).await
            }

            /// Delete a deleted record permanently, and its objects that no other record names.
            #[utoipa::path(delete, path = $one, tag = $tag, params(("id" = String, Path, description = "The id of the record")),
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
    "/deleted/public-keys/{id}",
    (ListParameters)
);
deleted!(
    recipes,
    Recipe,
    "deleted recipes",
    "/deleted/recipes",
    "/deleted/recipes/{id}",
    (ListParameters, ArchParameter)
);
deleted!(
    images,
    Image,
    "deleted images",
    "/deleted/images",
    "/deleted/images/{id}",
    (ListParameters, ArchParameter)
);

pub(super) fn router() -> OpenApiRouter<Api> {
    public_keys::router().merge(recipes::router()).merge(images::router())
}
