//! Webhooks: tells the site's other services when jobs end and image sets become complete.
//!
//! An event becomes a row for each receiver before what it is about counts as over, so a server that dies loses none
//! and none is told twice under different ids. Any server sends what is due. Reads and writes rows of the store, reads the
//! secrets, and talks to receivers.

mod body;
mod guard;
mod send;
mod signature;

use futures::future::join_all;
use kiln_records::{
    ImageSet, Moment,
    set::{Told, state::SetState},
    webhook::{Delivery, Event},
};
use uuid::Uuid;

use crate::{
    config::{Receiver, WebhookSettings},
    store::{Maker, SharedStore, StoreError, StoredRun},
};

/// The receivers, and where what they are told is kept.
#[derive(Debug)]
pub struct Webhooks {
    store: SharedStore,
    receivers: Vec<Receiver>,
    /// Where people find this site's pages.
    public_url: Option<String>,
}

impl Webhooks {
    /// Sends what is due, now and from now on. Never ends.
    pub async fn run(&self) {
        join_all(
            self.receivers
                .iter()
                .map(|receiver| send::follow(&self.store, receiver)),
        )
        .await;
        std::future::pending::<()>().await;
    }

    /// The receivers of the settings.
    pub fn new(settings: &WebhookSettings, public_url: Option<&str>, store: SharedStore) -> Self {
        Self {
            store,
            receivers: settings.receivers.clone(),
            public_url: public_url.map(|url| url.trim_end_matches('/').to_owned()),
        }
    }

    /// The receivers.
    pub fn receivers(&self) -> &[Receiver] {
        &self.receivers
    }

    /// Tells of a job that has ended. To be called before nothing is left to do about it, as often as necessary.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn job_ended(&self, stored: &StoredRun) -> Result<(), StoreError> {
        let (event, data) = body::of_job(&stored.job, &stored.run, self.public_url.as_deref());
        self.tell(
            event,
            &format!("job {}", stored.job.id),
            &data,
            Maker::Job(stored.job.id),
        )
        .await
    }

    /// Tells what has become of a set, if that is news. `was_complete` says what the last look found.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn set_is(&self, set: &mut ImageSet, state: SetState, was_complete: bool) -> Result<(), StoreError> {
        let event = match state {
            SetState::Complete => Event::SetComplete,
            SetState::Incomplete => Event::SetIncomplete,
            SetState::Building | SetState::Unverified => return Ok(()),
        };
        let fact = body::fact_of_set(set, event);
        let number = match &set.told {
            Some(told) if told.fact == fact => return Ok(()),
            Some(told) => told.number.saturating_add(1),
            None => 1,
        };
        // A set that was complete before there was anything to note is no news.
        if set.told.is_some() || !was_complete {
            let data = body::of_set(set, state, self.public_url.as_deref());
            self.tell(event, &format!("set {} {number}", set.id), &data, Maker::Set(set.id))
                .await?;
        }
        set.told = Some(Told { number, fact });
        Ok(())
    }

    /// Sends a receiver something to try it out. Returns the number of the delivery, or nothing if there is no such receiver.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn try_out(&self, receiver: &str) -> Result<Option<i64>, StoreError> {
        let Some(receiver) = self.receivers.iter().find(|one| one.name == receiver) else {
            return Ok(None);
        };
        let now = Moment::now();
        let body = body::written(Event::Test, now, &serde_json::json!({}));
        let about = format!("test {}", Uuid::new_v4());
        let delivery = Delivery::new(receiver.name.clone(), Event::Test, about, body, now);
        self.store.add_delivery(&delivery, None).await
    }

    async fn tell(&self, event: Event, about: &str, data: &serde_json::Value, maker: Maker) -> Result<(), StoreError> {
        let now = Moment::now();
        for receiver in self.receivers.iter().filter(|one| one.events.contains(&event)) {
            let body = body::written(event, now, data);
            let delivery = Delivery::new(receiver.name.clone(), event, about.to_owned(), body, now);
            self.store.add_delivery(&delivery, Some(maker)).await?;
        }
        Ok(())
    }
}
