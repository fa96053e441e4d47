//! `/public-keys`: the records of public keys. Touches the database.

use axum::{Json, extract::State, http::StatusCode, response::Response};
use kiln_records::{Moment, PublicKey, PublicKeyId};

use super::{find, id};
use crate::{
    api::{
        Api,
        address::Path,
        body::{Answer, RawBody},
        fields::{Name, PublicKeyText, body},
        lists::{ListParameters, ListQuery},
        problem::{Problem, Result},
    },
    store::{Collection, Side},
};

body! {
    /// A new public key.
    pub(in crate::api) struct PublicKeyCreate {
        /// Its name.
        name: Name,
        /// One line of `authorized_keys`.
        public_key: PublicKeyText,
    }
}

/// List the public keys.
#[utoipa::path(get, path = "/public-keys", tag = "public-keys", params(ListParameters),
    responses((status = 200, body = Vec<PublicKey>), (status = 400, body = Problem)))]
pub(in crate::api) async fn list(State(api): State<Api>, list: ListQuery<PublicKey>) -> Result<Response> {
    list.answer(move |query| {
        let api = api.clone();
        async move { Collection::<PublicKey>::page_text(&*api.store, &query).await }
    })
    .await
}

/// Create a public key.
#[utoipa::path(post, path = "/public-keys", tag = "public-keys", request_body = PublicKeyCreate,
    responses((status = 201, body = PublicKey)))]
pub(in crate::api) async fn create(State(api): State<Api>, body: RawBody) -> Answer<(StatusCode, Json<PublicKey>)> {
    let PublicKeyCreate { name, public_key } = body.read()?;
    let key = PublicKey {
        id: PublicKeyId::new(),
        created: Moment::now(),
        name,
        public_key,
        deleted: None,
    };
    Collection::<PublicKey>::insert(&*api.store, &key, &[]).await?;
    Ok((StatusCode::CREATED, Json(key)))
}

/// Show a public key.
#[utoipa::path(get, path = "/public-keys/{id}", tag = "public-keys", params(("id" = String, Path, description = "The id of the record")),
    responses((status = 200, body = PublicKey), (status = 404, body = Problem)))]
pub(in crate::api) async fn get(State(api): State<Api>, Path(text): Path<String>) -> Result<Json<PublicKey>> {
    Ok(Json(find::<PublicKey>(&*api.store, Side::Live, &text).await?.record))
}

/// Delete a public key. It can be restored.
#[utoipa::path(delete, path = "/public-keys/{id}", tag = "public-keys", params(("id" = String, Path, description = "The id of the record")),
    responses((status = 204), (status = 404, body = Problem)))]
pub(in crate::api) async fn delete(State(api): State<Api>, Path(text): Path<String>) -> Result<StatusCode> {
    match Collection::<PublicKey>::delete(&*api.store, Some(id(&text)?), Moment::now()).await? {
        0 => Err(Problem::not_found()),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}

/// Delete every public key. They can be restored.
#[utoipa::path(delete, path = "/public-keys", tag = "public-keys", responses((status = 204)))]
pub(in crate::api) async fn delete_all(State(api): State<Api>) -> Result<StatusCode> {
    Collection::<PublicKey>::delete(&*api.store, None, Moment::now()).await?;
    Ok(StatusCode::NO_CONTENT)
}
