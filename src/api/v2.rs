//! `/v2` and the paths without a version: the same records, but deleting is final. Touches the database and S3.

use axum::{
    extract::{RawQuery, State},
    http::StatusCode,
};
use kiln_records::{Image, PublicKey, Recipe};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Api,
    address::Path,
    lists, orphans,
    problem::{Problem, Result},
    v3,
};
use crate::store::{Collection, Side};

/// How much goes.
#[derive(Debug, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "documentation; keeps_objects() reads it")]
struct Cascade {
    /// Whether to delete the objects in S3 too, unless other records name them. The default is true; any value other
    /// than `true`, `yes`, `t` and `1`, in any case, means false.
    #[param(nullable = false, example = "true")]
    cascade: Option<String>,
}

/// As in IMS: true, yes, t and 1 mean yes, everything else means no.
fn keeps_objects(query: Option<&str>) -> Result<bool> {
    let pairs = lists::pairs(query)?;
    let cascade = pairs.iter().rev().find(|(key, _)| key == "cascade");
    Ok(cascade.is_some_and(|(_, value)| !matches!(value.to_lowercase().as_str(), "true" | "yes" | "t" | "1")))
}

macro_rules! hard_delete {
    ($module:ident, $record:ty, $tag:literal, $all:literal, $one:literal) => {
        mod $module {
            use super::*;

            /// Delete a record permanently.
            #[utoipa::path(delete, path = $one, tag = $tag,
                                                        params(("id" = String, Path, description = "The id of the record"), Cascade),
                                                        responses((status = 204), (status = 404, body = Problem)))]
            pub(super) async fn delete(
                State(api): State<Api>,
                Path(text): Path<String>,
                RawQuery(query): RawQuery,
            ) -> Result<StatusCode> {
                let keep = keeps_objects(query.as_deref())?;
                match Collection::<$record>::purge(&*api.store, Side::Live, Some(v3::id(&text)?), keep).await? {
                    0 => Err(Problem::not_found()),
                    _ => {
                        orphans::remove(&api).await;
                        Ok(StatusCode::NO_CONTENT)
                    }
                }
            }

            /// Delete every record permanently.
            #[utoipa::path(delete, path = $all, tag = $tag, params(Cascade), responses((status = 204)))]
            pub(super) async fn delete_all(State(api): State<Api>, RawQuery(query): RawQuery) -> Result<StatusCode> {
                let keep = keeps_objects(query.as_deref())?;
                Collection::<$record>::purge(&*api.store, Side::Live, None, keep).await?;
                orphans::remove(&api).await;
                Ok(StatusCode::NO_CONTENT)
            }
        }
    };
}

hard_delete!(
    public_keys,
    PublicKey,
    "public-keys",
    "/public-keys",
    "/public-keys/{id}"
);
hard_delete!(recipes, Recipe, "recipes", "/recipes", "/recipes/{id}");
hard_delete!(images, Image, "images", "/images", "/images/{id}");

/// All routes of `/v2`.
pub(super) fn router() -> OpenApiRouter<Api> {
    v3::common()
        .routes(routes!(public_keys::delete))
        .routes(routes!(public_keys::delete_all))
        .routes(routes!(recipes::delete))
        .routes(routes!(recipes::delete_all))
        .routes(routes!(images::delete))
        .routes(routes!(images::delete_all))
}
