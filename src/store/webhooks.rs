//! What a store does with the deliveries of webhooks.

use async_trait::async_trait;
use kiln_records::{
    Moment,
    webhook::{Delivery, DeliveryState},
};

use super::{Maker, Result};

/// Deliveries to search for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeliveryQuery {
    /// Only those to this receiver.
    pub receiver: Option<String>,
    /// Only those in this state.
    pub state: Option<DeliveryState>,
    /// The most deliveries.
    pub limit: u32,
}

/// The deliveries of webhooks.
#[async_trait]
pub trait Deliveries: Send + Sync {
    /// Adds a delivery about this, unless its receiver was told the same before; the store chooses its number. It counts for
    /// whoever has made what it is about, or else for whoever asks. Deliveries beyond their
    /// [budgets](kiln_records::budget) go. Returns the number, if it was added.
    async fn add_delivery(&self, delivery: &Delivery, about: Option<Maker>) -> Result<Option<i64>>;

    /// Takes deliveries to a receiver that are due, soonest first, for a try that ends before `until`: no other server tries
    /// them until then. Each has one more attempt.
    async fn take_deliveries(&self, receiver: &str, now: Moment, until: Moment, limit: u32) -> Result<Vec<Delivery>>;

    /// Notes how a try ended, unless another one has begun since.
    async fn end_delivery(&self, delivery: &Delivery) -> Result<()>;

    /// Deliveries, latest first.
    async fn deliveries(&self, query: &DeliveryQuery) -> Result<Vec<Delivery>>;

    /// Has a delivery that is not waiting tried again from this moment on, as a new one. Returns whether it is there.
    async fn retry_delivery(&self, number: i64, now: Moment) -> Result<bool>;

    /// The number of deliveries in each state, by receiver.
    async fn count_deliveries(&self) -> Result<Vec<(String, DeliveryState, u64)>>;
}
