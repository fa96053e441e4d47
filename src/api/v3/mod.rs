//! IMS's API, version 3. One file per resource.

mod age;
pub(super) mod deleted;
pub(super) mod images;
pub(super) mod jobs;
mod moved;
pub(super) mod new_job;
pub(super) mod public_keys;
pub(super) mod recipes;
pub(super) mod remote_build_nodes;

use std::{fmt::Display, str::FromStr};

use kiln_records::Link;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Api,
    problem::{Problem, Result},
};
use crate::store::{Collection, Record, Side, StoreError, Stored};

/// Resources common to all versions, in the form of `/v3`: reading, creating and changing.
pub(super) fn common() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(public_keys::create))
        .routes(routes!(recipes::create))
        .routes(routes!(images::create))
        .routes(routes!(recipes::update))
        .routes(routes!(images::update))
        .routes(routes!(public_keys::list))
        .routes(routes!(recipes::list))
        .routes(routes!(images::list))
        .routes(routes!(public_keys::get))
        .routes(routes!(recipes::get))
        .routes(routes!(images::get))
        .routes(routes!(jobs::list, jobs::create, jobs::delete_all))
        .routes(routes!(jobs::get, jobs::update, jobs::delete))
}

/// All routes of `/v3`.
pub(super) fn router() -> OpenApiRouter<Api> {
    common()
        .routes(routes!(public_keys::delete))
        .routes(routes!(public_keys::delete_all))
        .routes(routes!(recipes::delete))
        .routes(routes!(recipes::delete_all))
        .routes(routes!(images::delete))
        .routes(routes!(images::delete_all))
        .merge(deleted::router())
        .merge(remote_build_nodes::router())
}

/// An id from an address. Ids are compared as text: another spelling of the same UUID is unknown.
///
/// # Errors
///
/// 404: no such record.
pub(super) fn id<T: FromStr + Display>(text: &str) -> Result<T> {
    let id = text.parse::<T>().ok().filter(|id| id.to_string() == text);
    id.ok_or_else(Problem::not_found)
}

/// One record, or a 404.
pub(super) async fn find<R: Record>(store: &(impl Collection<R> + ?Sized), side: Side, text: &str) -> Result<Stored<R>>
where
    R::Id: FromStr + Display,
{
    store.get(side, id(text)?).await?.ok_or_else(Problem::not_found)
}

/// Refuses to replace a link: other services may have read it already.
///
/// # Errors
///
/// 409: the record has a link.
pub(in crate::api) fn must_have_no_link(link: Option<&Link>) -> Result<()> {
    match link {
        None => Ok(()),
        Some(link) => Err(Problem::conflict(format_args!(
            "The record has a link already ({}), and a link cannot be changed.",
            link.path
        ))),
    }
}

/// The change of a record that a request asks for.
pub(super) trait Change<R>: Send + Sync {
    /// Changes the record. Returns the objects that it newly refers to.
    fn apply(&self, api: &Api, record: &mut R) -> impl Future<Output = Result<Vec<String>>> + Send;
}

/// Changes a record and stores it. After a concurrent change it starts again from the new state.
pub(super) async fn change<R: Record>(
    api: &Api,
    store: &(impl Collection<R> + ?Sized),
    mut current: Stored<R>,
    change: &impl Change<R>,
) -> Result<R> {
    const TRIES: u32 = 10;
    let id = current.record.id();
    for _ in 0..TRIES {
        let mut record = current.record;
        let objects = change.apply(api, &mut record).await?;
        match store.replace(&record, current.revision, &objects).await {
            Ok(()) => return Ok(record),
            Err(StoreError::Stale) => {
                current = store.get(Side::Live, id).await?.ok_or_else(Problem::not_found)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(StoreError::Stale.into())
}
