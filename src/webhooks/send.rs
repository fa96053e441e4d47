//! Sends deliveries that are due, to each receiver on its own: one that hangs keeps no other waiting. Talks to receivers,
//! reads their secrets, and notes how tries end.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use kiln_records::{Moment, failure::chain, webhook::Delivery};
use reqwest::{Client, redirect::Policy};

use super::{guard, signature::SigningSecret};
use crate::{
    config::Receiver,
    metrics,
    settings::names_here,
    store::{SharedStore, StoreError},
};

/// The pause between two looks for deliveries that are due.
const EVERY: Duration = Duration::from_secs(2);

/// The pause after a look that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(30);

/// How long a receiver may take for its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The deliveries taken at a time, and of these the ones on their way at the same time.
const AT_A_TIME: (u32, usize) = (8, 4);

/// How long the deliveries taken are this server's: longer than all of their tries.
const OURS: Duration = Duration::from_mins(1);

/// The reason why nothing can be sent to a receiver.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    Secret(String),
    #[error("TLS cannot be used: {0}")]
    Client(String),
}

/// How a try failed.
#[derive(Debug)]
struct Failed {
    status: Option<u16>,
    why: String,
}

/// Sends what is due to a receiver, now and from now on. Never ends.
pub(super) async fn follow(store: &SharedStore, receiver: &Receiver) {
    let mut client = None;
    loop {
        let pause = match send_due(store, receiver, &mut client).await {
            // There may be more.
            Ok(sent) if sent == usize::try_from(AT_A_TIME.0).unwrap_or(usize::MAX) => continue,
            Ok(_) => EVERY,
            Err(trouble) => {
                tracing::warn!(
                    receiver = receiver.name,
                    "nothing is sent to a webhook's receiver: {trouble}"
                );
                AFTER_FAILURE
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Sends what is due to a receiver. Returns the number of deliveries tried.
async fn send_due(store: &SharedStore, receiver: &Receiver, made: &mut Option<Client>) -> Result<usize, Trouble> {
    // Read each time: the site may have replaced it.
    let secret = secret(receiver).await?;
    let client: &Client = match made {
        Some(client) => client,
        None => made.insert(client(receiver)?),
    };
    let now = Moment::now();
    let taken = store
        .take_deliveries(&receiver.name, now, now.plus(OURS), AT_A_TIME.0)
        .await?;
    let number = taken.len();
    let ends = stream::iter(taken).map(async |mut delivery| {
        let outcome = post(client, receiver, &secret, &delivery).await;
        let name = receiver.name.as_str();
        match outcome {
            Ok(status) => delivery.succeed(status),
            Err(Failed { status, why }) => {
                delivery.fail(status, why.clone(), Moment::now());
                let is_dead = delivery.next_try.is_none();
                let (number, attempts) = (delivery.number, delivery.attempts);
                tracing::warn!(
                    receiver = name,
                    number,
                    attempts,
                    is_dead,
                    "a webhook was not delivered: {why}"
                );
            }
        }
        metrics::webhook_tried(&delivery);
        store.end_delivery(&delivery).await
    });
    let ended: Vec<_> = ends.buffer_unordered(AT_A_TIME.1).collect().await;
    ended.into_iter().collect::<Result<(), _>>()?;
    Ok(number)
}

async fn post(
    client: &Client,
    receiver: &Receiver,
    secret: &SigningSecret,
    delivery: &Delivery,
) -> Result<u16, Failed> {
    let failed = |status, why: String| Failed { status, why };
    guard::of(receiver)
        .check(&receiver.url)
        .map_err(|error| failed(None, error.to_string()))?;
    let timestamp = u64::try_from(Moment::now().micros() / 1_000_000).unwrap_or(0);
    let answer = client
        .post(receiver.url.clone())
        .header("content-type", "application/json")
        .header("webhook-id", delivery.id.to_string())
        .header("webhook-timestamp", timestamp)
        .header("webhook-signature", secret.sign(delivery.id, timestamp, &delivery.body))
        .body(delivery.body.clone())
        .send()
        .await
        // An address may be as good as a password.
        .map_err(|error| failed(None, chain(&error.without_url())))?;
    // The answer's body is of no use here, and may be endless.
    let status = answer.status();
    if status.is_success() {
        return Ok(status.as_u16());
    }
    Err(failed(Some(status.as_u16()), format!("it answered {status}")))
}

async fn secret(receiver: &Receiver) -> Result<SigningSecret, Trouble> {
    let path = &receiver.secret_file;
    let text = fs_err::tokio::read_to_string(path).await;
    let text = text.map_err(|error| Trouble::Secret(error.to_string()))?;
    SigningSecret::read(&text).map_err(|why| Trouble::Secret(format!("the secret in {}: {why}", path.display())))
}

fn client(receiver: &Receiver) -> Result<Client, Trouble> {
    let mut builder = Client::builder()
        .user_agent(concat!("kiln/", env!("CARGO_PKG_VERSION")))
        .timeout(PATIENCE)
        .redirect(Policy::none())
        .dns_resolver(Arc::new(guard::of(receiver)));
    // A proxy cannot reach this host under its loopback names.
    if names_here(&receiver.url) {
        builder = builder.no_proxy();
    }
    builder.build().map_err(|error| Trouble::Client(chain(&error)))
}
