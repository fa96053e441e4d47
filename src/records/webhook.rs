//! Deliveries of webhooks: notices to the site's other services. Types, and when a delivery is tried again. Pure: no I/O.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Moment;

/// The pauses after tries that failed: the last try is more than a day after the first.
const PAUSES: [Duration; 9] = [
    Duration::from_secs(10),
    Duration::from_mins(1),
    Duration::from_mins(5),
    Duration::from_mins(15),
    Duration::from_hours(1),
    Duration::from_hours(2),
    Duration::from_hours(4),
    Duration::from_hours(6),
    Duration::from_hours(11),
];

/// What a receiver is told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
pub enum Event {
    /// A job has made its image.
    #[serde(rename = "job.succeeded")]
    JobSucceeded,
    /// A job has ended without an image.
    #[serde(rename = "job.failed")]
    JobFailed,
    /// A user has ended a job.
    #[serde(rename = "job.cancelled")]
    JobCancelled,
    /// An image set has become complete.
    #[serde(rename = "set.complete")]
    SetComplete,
    /// Nothing is under way any more for an image set, and it is not complete.
    #[serde(rename = "set.incomplete")]
    SetIncomplete,
    /// A user tries a receiver out.
    #[serde(rename = "test")]
    Test,
}

impl Event {
    /// Each that receivers can choose.
    pub const ALL: [Self; 5] = [
        Self::JobSucceeded,
        Self::JobFailed,
        Self::JobCancelled,
        Self::SetComplete,
        Self::SetIncomplete,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::JobSucceeded => "job.succeeded",
            Self::JobFailed => "job.failed",
            Self::JobCancelled => "job.cancelled",
            Self::SetComplete => "set.complete",
            Self::SetIncomplete => "set.incomplete",
            Self::Test => "test",
        }
    }

    /// The one with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .chain([Self::Test])
            .find(|event| event.name() == name)
    }
}

/// How far a delivery is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryState {
    /// It will be tried, again perhaps.
    Waiting,
    /// The receiver has taken it.
    Delivered,
    /// It was given up: a dead letter.
    Dead,
}

impl DeliveryState {
    /// Each of them.
    pub const ALL: [Self; 3] = [Self::Waiting, Self::Delivered, Self::Dead];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
        }
    }

    /// The one with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// A notice on its way to one receiver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Delivery {
    /// Its number. Later ones have higher numbers.
    pub number: i64,
    /// Its id, the same in every try: the receiver's means against taking it twice.
    pub id: Uuid,
    /// The name of the receiver.
    pub receiver: String,
    /// What it is about.
    pub event: Event,
    /// The very fact: a receiver is told once.
    #[serde(skip)]
    #[schema(ignore)]
    pub about: String,
    /// The text that is sent: JSON.
    #[serde(skip)]
    #[schema(ignore)]
    pub body: String,
    /// When it was made.
    #[schema(value_type = String)]
    pub created: Moment,
    /// How far it is.
    pub state: DeliveryState,
    /// The number of tries so far.
    pub attempts: u32,
    /// When it is tried next; null if it is not.
    #[schema(value_type = Option<String>)]
    pub next_try: Option<Moment>,
    /// The status of the receiver's last answer; null without one.
    pub status: Option<u16>,
    /// Why the last try failed; null if none did.
    pub error: Option<String>,
}

impl Delivery {
    /// A new one, to be tried at once.
    pub fn new(receiver: String, event: Event, about: String, body: String, now: Moment) -> Self {
        Self {
            number: 0,
            id: Uuid::now_v7(),
            receiver,
            event,
            about,
            body,
            created: now,
            state: DeliveryState::Waiting,
            attempts: 0,
            next_try: Some(now),
            status: None,
            error: None,
        }
    }

    /// Notes that a try succeeded.
    pub fn succeed(&mut self, status: u16) {
        self.state = DeliveryState::Delivered;
        self.status = Some(status);
        (self.next_try, self.error) = (None, None);
    }

    /// Notes that a try failed: another one follows, or the delivery is given up. Receivers say 410 when they want nothing
    /// more of it.
    pub fn fail(&mut self, status: Option<u16>, error: String, now: Moment) {
        let tries = usize::try_from(self.attempts).unwrap_or(usize::MAX);
        let pause = PAUSES.get(tries.saturating_sub(1)).filter(|_| status != Some(410));
        self.next_try = pause.map(|pause| now.plus(*pause));
        if self.next_try.is_none() {
            self.state = DeliveryState::Dead;
        }
        (self.status, self.error) = (status, Some(error));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_is_tried_for_a_day_and_then_given_up() {
        let now = Moment::from_micros(0);
        let mut delivery = Delivery::new("chat".into(), Event::JobFailed, "a".into(), "{}".into(), now);
        let (mut at, mut tries) = (now, 0);
        while let Some(next) = delivery.next_try {
            at = next;
            delivery.attempts += 1;
            tries += 1;
            delivery.fail(Some(503), "busy".into(), at);
        }
        assert_eq!((tries, delivery.state), (10, DeliveryState::Dead));
        let hours = at.micros() / 3_600_000_000;
        assert!((24..=26).contains(&hours), "{hours}");

        let mut unwanted = Delivery::new("chat".into(), Event::JobFailed, "a".into(), "{}".into(), now);
        unwanted.attempts = 1;
        unwanted.fail(Some(410), "gone".into(), now);
        assert_eq!(unwanted.state, DeliveryState::Dead);
    }

    #[test]
    fn names_are_those_of_the_records() {
        for event in Event::ALL {
            assert_eq!(serde_json::to_value(event).unwrap(), event.name());
            assert_eq!(Event::named(event.name()), Some(event));
        }
        for state in DeliveryState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.name());
            assert_eq!(DeliveryState::named(state.name()), Some(state));
        }
    }
}
