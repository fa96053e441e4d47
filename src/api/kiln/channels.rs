//! `/channels`: which set each channel of a name leads to, and has led to. Touches the database; a set that is promoted is
//! looked at in S3.

use axum::{
    Extension, Json,
    extract::{RawQuery, State},
    http::StatusCode,
};
use kiln_records::{
    Moment,
    set::{
        name::{check_channel, check_name},
        promotion::Promotion,
    },
};

use super::set_requests::SetVersion;
use crate::{
    api::{
        Api,
        address::Path,
        auth::Principal,
        body::{Answer, RawBody},
        fields::body,
        lists,
        problem::{Problem, Result},
    },
    orchestrate::sets::ChannelChange,
};

/// The most changes in a history, and the most channels in a list.
const MOST: u32 = 1000;

body! {
    /// A promotion.
    pub(super) struct Promote {
        /// The version of the set that the channel is to lead to.
        version: SetVersion,
        /// The number of the channel's latest change that the caller knows of, 0 for none: a later one is a conflict.
        after: Option<u32>,
    }
}

body! {
    /// A rollback.
    pub(super) struct Rollback with at least 1 member {
        /// The number of the channel's latest change that the caller knows of: a later one is a conflict.
        after: Option<u32>,
    }
}

/// List where the channels lead now.
#[utoipa::path(get, path = "/channels", tag = "catalogue",
    params(("name" = Option<String>, Query, description = "Only channels of sets of this name")),
    responses((status = 200, body = Vec<Promotion>)))]
pub(super) async fn list(State(api): State<Api>, RawQuery(query): RawQuery) -> Result<Json<Vec<Promotion>>> {
    let pairs = lists::pairs(query.as_deref())?;
    let name = pairs
        .iter()
        .find(|(key, _)| key == "name")
        .map(|(_, value)| value.as_str());
    if name.is_some_and(|name| check_name(name).is_err()) {
        return Ok(Json(Vec::new()));
    }
    Ok(Json(api.store.channels(name, MOST).await?))
}

/// List the changes of a channel, the latest first.
#[utoipa::path(get, path = "/channels/{name}/{channel}/history", tag = "catalogue",
    params(("name" = String, Path, description = "The name of the sets"), ("channel" = String, Path, description = "The channel")),
    responses((status = 200, body = Vec<Promotion>), (status = 404, body = Problem)))]
pub(super) async fn history(
    State(api): State<Api>,
    Path((name, channel)): Path<(String, String)>,
) -> Result<Json<Vec<Promotion>>> {
    let change = change(name, channel, None, None)?;
    let changes = api.store.promotions(&change.name, &change.channel, MOST).await?;
    if changes.is_empty() {
        return Err(Problem::not_found());
    }
    Ok(Json(changes))
}

/// Let a channel lead to a version, whose manifests are read first. All callers see the new set from the same moment on.
#[utoipa::path(post, path = "/channels/{name}/{channel}/promote", tag = "catalogue", request_body = Promote,
    params(("name" = String, Path, description = "The name of the sets"), ("channel" = String, Path, description = "The channel")),
    responses((status = 200, body = Promotion), (status = 404, body = Problem), (status = 409, body = Problem)))]
pub(super) async fn promote(
    State(api): State<Api>,
    principal: Option<Extension<Principal>>,
    Path((name, channel)): Path<(String, String)>,
    body: RawBody,
) -> Answer<Json<Promotion>> {
    let given: Promote = body.read()?;
    let change = change(name, channel, given.after, principal)?;
    Ok(Json(
        api.sets()
            .catalogue
            .promote(change, &given.version, Moment::now())
            .await?,
    ))
}

/// Let a channel lead to the set that it led to before. Once more goes back further.
#[utoipa::path(post, path = "/channels/{name}/{channel}/rollback", tag = "catalogue",
    params(("name" = String, Path, description = "The name of the sets"), ("channel" = String, Path, description = "The channel")),
    responses((status = 200, body = Promotion), (status = 404, body = Problem), (status = 409, body = Problem)))]
pub(super) async fn rollback(
    State(api): State<Api>,
    principal: Option<Extension<Principal>>,
    Path((name, channel)): Path<(String, String)>,
    body: RawBody,
) -> Answer<Json<Promotion>> {
    let after = body.read_if_any::<Rollback>()?.and_then(|given| given.after);
    let change = change(name, channel, after, principal)?;
    Ok(Json(api.sets().catalogue.roll_back(change, Moment::now()).await?))
}

/// Empty a channel. Its history remains.
#[utoipa::path(delete, path = "/channels/{name}/{channel}", tag = "catalogue",
    params(("name" = String, Path, description = "The name of the sets"), ("channel" = String, Path, description = "The channel")),
    responses((status = 204), (status = 404, body = Problem), (status = 409, body = Problem)))]
pub(super) async fn withdraw(
    State(api): State<Api>,
    principal: Option<Extension<Principal>>,
    Path((name, channel)): Path<(String, String)>,
) -> Result<StatusCode> {
    let change = change(name, channel, None, principal)?;
    api.sets().catalogue.withdraw(change, Moment::now()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A change of the channel in an address.
///
/// # Errors
///
/// 404 for a channel that cannot be.
fn change(
    name: String,
    channel: String,
    after: Option<u32>,
    principal: Option<Extension<Principal>>,
) -> Result<ChannelChange> {
    let unknown = |why: &str| Problem::new(StatusCode::NOT_FOUND, format_args!("There is no such channel: {why}"));
    check_name(&name).map_err(unknown)?;
    check_channel(&channel).map_err(unknown)?;
    Ok(ChannelChange {
        name,
        channel,
        after,
        by: Principal::name_of(principal),
    })
}
