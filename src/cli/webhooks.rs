//! `kiln webhooks`: the receivers of a server's webhooks, and what became of their deliveries. Talks to the server.

use std::time::{Duration, Instant};

use clap::{Args, Subcommand, builder::PossibleValuesParser};
use kiln_records::{Code, Failure, webhook::DeliveryState};
use reqwest::Method;

use super::session::Session;
use crate::client::{
    Data,
    collection::{DELIVERIES, RECEIVERS},
};

/// How long `kiln webhooks test` waits for the outcome: longer than a receiver may take.
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Debug, Subcommand)]
pub(super) enum WebhooksCommand {
    /// List the receivers, with their deliveries that wait, were taken and were given up
    List,
    /// List deliveries, latest first
    Deliveries(Deliveries),
    /// Try a delivery again that was given up
    Retry(Retry),
    /// Send a receiver something to see whether it arrives
    Test(Test),
}

#[derive(Debug, Args)]
pub(super) struct Deliveries {
    /// Only those to this receiver.
    #[arg(long, value_name = "NAME")]
    receiver: Option<String>,

    /// Only those in this state: `dead` ones were given up.
    #[arg(long, value_parser = PossibleValuesParser::new(DeliveryState::ALL.map(DeliveryState::name)))]
    state: Option<String>,

    /// The maximum number of deliveries [default: 100].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: Option<u32>,
}

#[derive(Debug, Args)]
pub(super) struct Retry {
    /// The number of the delivery.
    number: i64,
}

#[derive(Debug, Args)]
pub(super) struct Test {
    /// The name of the receiver.
    receiver: String,
}

impl WebhooksCommand {
    pub(super) async fn run(self, session: &Session) -> Result<(), Failure> {
        let client = &session.client;
        match self {
            Self::List => {
                let receivers = client.send(Method::GET, &["kiln", "v1", "webhooks"], &[], None).await?;
                session.show_list(&RECEIVERS, receivers.into_items())
            }
            Self::Deliveries(wanted) => session.show_list(&DELIVERIES, wanted.list(session).await?),
            Self::Retry(Retry { number }) => {
                let number = number.to_string();
                let path = ["kiln", "v1", "webhooks", "deliveries", &number, "retry"];
                client.send(Method::POST, &path, &[], None).await?;
                session.printer.result(format_args!("delivery {number} is tried again"));
                Ok(())
            }
            Self::Test(Test { receiver }) => test(session, &receiver).await,
        }
    }
}

impl Deliveries {
    async fn list(&self, session: &Session) -> Result<Vec<Data>, Failure> {
        let limit = self.limit.map(|limit| limit.to_string());
        let query: Vec<_> = [("receiver", &self.receiver), ("state", &self.state), ("limit", &limit)]
            .into_iter()
            .filter_map(|(key, value)| Some((key, value.as_deref()?)))
            .collect();
        let path = ["kiln", "v1", "webhooks", "deliveries"];
        let listed = session.client.send(Method::GET, &path, &query, None).await?;
        Ok(listed.into_items())
    }
}

/// Sends a test, and waits for its first try.
async fn test(session: &Session, receiver: &str) -> Result<(), Failure> {
    let path = ["kiln", "v1", "webhooks", receiver, "test"];
    let made = session.client.send(Method::POST, &path, &[], None).await?;
    let number = made.number("number");
    let begun = Instant::now();
    let recent = Deliveries {
        receiver: Some(receiver.to_owned()),
        state: None,
        limit: None,
    };
    while begun.elapsed() < PATIENCE {
        let listed = recent.list(session).await?;
        let delivery = listed.into_iter().find(|one| one.number("number") == number);
        let Some(delivery) = delivery else { break };
        if delivery.text("state") == Some(DeliveryState::Delivered.name()) {
            let status = delivery.number("status").unwrap_or_default();
            let text = format!("{receiver} took it, and answered {status}");
            session.printer.result(text);
            return Ok(());
        }
        if let Some(why) = delivery.text("error") {
            let cause = format!("{receiver} did not take it: {why}");
            return Err(Failure::new(Code::WebhookUndelivered, cause)
                .hint("`kiln webhooks deliveries` shows what becomes of it; it is tried again for a day"));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let cause = format!(
        "the delivery to {receiver} was not tried within {} s",
        PATIENCE.as_secs()
    );
    Err(Failure::new(Code::WebhookUndelivered, cause).hint("the server's log says why nothing is sent"))
}
