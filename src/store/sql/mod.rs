//! The statements of a store, written once and compiled for each database. The parent module names the database, opens
//! its connections and runs its transactions; these modules touch nothing else. Both databases understand the same
//! text except for the few words that the parent defines.

mod audit;
mod budget;
mod collection;
mod conditions;
mod deliveries;
mod failed_twins;
mod jobs;
mod logs;
mod nodes;
mod objects;
mod overview;
mod packages;
mod page;
#[cfg(test)]
pub(super) mod plans;
mod rows;
mod runs;
mod schedules;
mod servers;
mod sets;
mod statements;
mod tokens;
mod usage;

use async_trait::async_trait;

use super::{Db, Readers, ThisStore};
use crate::store::{Doomed, Moment, Result, Store};

type Statement = sqlx::QueryBuilder<Db>;
type Row = <Db as sqlx::Database>::Row;
type Connection = <Db as sqlx::Database>::Connection;

#[async_trait]
impl Store for ThisStore {
    async fn ping(&self) -> Result<()> {
        objects::doomed(self.readers(), 1).await.map(|_| ())
    }

    async fn doomed(&self, limit: u32) -> Result<Vec<Doomed>> {
        objects::doomed(self.readers(), limit).await
    }

    async fn forget_doomed(&self, paths: &[String]) -> Result<()> {
        objects::forget_doomed(self, paths).await
    }

    async fn close(&self) {
        self.finish().await;
    }
}

/// The current time, in microseconds since 1970.
fn now() -> i64 {
    Moment::now().micros()
}
