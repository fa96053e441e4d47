//! `/webhooks`: the receivers of webhooks, and what became of their deliveries. Reads and writes rows of the database.

use axum::{
    Json,
    extract::{RawQuery, State},
    http::StatusCode,
};
use kiln_records::{
    Moment,
    webhook::{Delivery, DeliveryState, Event},
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{
    api::{
        Api,
        address::Path,
        lists,
        problem::{Problem, Result},
    },
    store::DeliveryQuery,
};

/// The number of deliveries by default.
const USUAL: u32 = 100;

/// The most deliveries.
const MOST: u32 = 1000;

/// A service that is told of events.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ListedReceiver {
    /// Its name.
    name: String,
    /// The host that it is on. The rest of its address may be as good as a password.
    host: String,
    /// What it is told of.
    events: Vec<Event>,
    /// The number of deliveries that wait.
    waiting: u64,
    /// The number of deliveries that it has taken, as far as they are kept.
    delivered: u64,
    /// The number of deliveries that were given up, as far as they are kept.
    dead: u64,
}

/// The deliveries to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "documentation; deliveries() reads it")]
pub(super) struct DeliveryParameters {
    /// Only those to this receiver.
    #[param(nullable = false)]
    receiver: Option<String>,
    /// Only those in this state.
    #[param(nullable = false, value_type = Option<DeliveryState>)]
    state: Option<String>,
    /// The maximum number of deliveries; the default is 100.
    #[param(nullable = false, minimum = 1, maximum = 1_000)]
    limit: Option<u32>,
}

/// A delivery that was made.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Made {
    /// Its number.
    number: i64,
}

/// List the receivers in the configuration.
#[utoipa::path(get, path = "/webhooks", tag = "webhooks", responses((status = 200, body = Vec<ListedReceiver>)))]
pub(super) async fn list(State(api): State<Api>) -> Result<Json<Vec<ListedReceiver>>> {
    let counts = api.store.count_deliveries().await?;
    let listed = api.asker.webhooks.receivers().iter().map(|receiver| {
        let count = |state: DeliveryState| {
            let of = counts
                .iter()
                .find(|(name, of, _)| *name == receiver.name && *of == state);
            of.map_or(0, |(_, _, count)| *count)
        };
        ListedReceiver {
            name: receiver.name.clone(),
            host: receiver.url.host_str().unwrap_or_default().to_owned(),
            events: receiver.events.clone(),
            waiting: count(DeliveryState::Waiting),
            delivered: count(DeliveryState::Delivered),
            dead: count(DeliveryState::Dead),
        }
    });
    Ok(Json(listed.collect()))
}

/// List deliveries, latest first: those that wait, and the latest of those that do not.
#[utoipa::path(get, path = "/webhooks/deliveries", tag = "webhooks", params(DeliveryParameters),
    responses((status = 200, body = Vec<Delivery>), (status = 400, body = Problem)))]
pub(super) async fn deliveries(State(api): State<Api>, RawQuery(query): RawQuery) -> Result<Json<Vec<Delivery>>> {
    let mut wanted = DeliveryQuery {
        limit: USUAL,
        ..DeliveryQuery::default()
    };
    for (key, value) in lists::pairs(query.as_deref())? {
        let wrong = |what: &str| Problem::bad_request(format_args!("`{key}` has to be: {what}."));
        match key.as_str() {
            "receiver" => wanted.receiver = Some(value),
            "state" => {
                let state = DeliveryState::named(&value);
                wanted.state = Some(state.ok_or_else(|| wrong("waiting, delivered or dead"))?);
            }
            "limit" => {
                let number = value.parse().ok().filter(|limit| (1..=MOST).contains(limit));
                wanted.limit = number.ok_or_else(|| wrong(&format!("a number from 1 to {MOST}")))?;
            }
            _ => return Err(Problem::bad_request(format_args!("There is no parameter `{key}`."))),
        }
    }
    Ok(Json(api.store.deliveries(&wanted).await?))
}

/// Try a delivery again that was given up, or taken already, from now on as a new one. One that waits stays as it is.
#[utoipa::path(post, path = "/webhooks/deliveries/{number}/retry", tag = "webhooks",
    params(("number" = i64, Path, description = "The number of the delivery")),
    responses((status = 204), (status = 404, body = Problem)))]
pub(super) async fn retry(State(api): State<Api>, Path(number): Path<i64>) -> Result<StatusCode> {
    if api.store.retry_delivery(number, Moment::now()).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(Problem::not_found())
    }
}

/// Send a receiver an event of the type `test`.
#[utoipa::path(post, path = "/webhooks/{receiver}/test", tag = "webhooks",
    params(("receiver" = String, Path, description = "The name of the receiver")),
    responses((status = 202, body = Made), (status = 404, body = Problem)))]
pub(super) async fn test(State(api): State<Api>, Path(receiver): Path<String>) -> Result<(StatusCode, Json<Made>)> {
    let number = api.asker.webhooks.try_out(&receiver).await?;
    let number = number.ok_or_else(|| {
        let detail = format!("There is no receiver `{receiver}` in [webhooks].");
        Problem::new(StatusCode::NOT_FOUND, detail)
    })?;
    Ok((StatusCode::ACCEPTED, Json(Made { number })))
}
