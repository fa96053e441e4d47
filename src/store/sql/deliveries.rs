//! Implements [`Deliveries`]: the deliveries of webhooks. Touches the store's database only.

use async_trait::async_trait;
use kiln_records::{
    Moment,
    budget::{DELIVERIES, DELIVERIES_OF_CALLER},
    webhook::{Delivery, DeliveryState, Event},
};
use sqlx::{Executor, Row as _};

use super::{
    Connection, Row, Statement, ThisStore,
    budget::{note_dropped, number, push_caller},
};
use crate::store::{Allowance, Deliveries, DeliveryQuery, DroppedKind, Lock, Maker, Result, StoreError};

/// The columns that [`read`] reads.
const COLUMNS: &str = "number, id, receiver, event, about, body, created, state, attempts, next_try, status, error";

#[async_trait]
impl Deliveries for ThisStore {
    async fn add_delivery(&self, delivery: &Delivery, about: Option<Maker>) -> Result<Option<i64>> {
        let mut add = insert(delivery, about);
        let receiver = delivery.receiver.clone();
        self.write(Lock::Shared, move |db| {
            Box::pin(async move {
                let Some(row) = db.fetch_optional(add.build()).await? else {
                    return Ok(None);
                };
                let (number, caller): (i64, Option<String>) = (row.try_get(0)?, row.try_get(1)?);
                forget(db, &receiver, caller).await?;
                Ok(Some(number))
            })
        })
        .await
    }

    async fn take_deliveries(&self, receiver: &str, now: Moment, until: Moment, limit: u32) -> Result<Vec<Delivery>> {
        let rows = self.readers().fetch_all(due(receiver, now, limit).build()).await?;
        let mut taken = Vec::with_capacity(rows.len());
        for row in &rows {
            let mut delivery = read(row)?;
            let mut take = Statement::new("UPDATE deliveries SET attempts = attempts + 1, next_try = ");
            take.push_bind(until.micros())
                .push(" WHERE number = ")
                .push_bind(delivery.number);
            // Another server has not been faster.
            take.push(" AND attempts = ").push_bind(i64::from(delivery.attempts));
            take.push(" AND next_try <= ").push_bind(now.micros());
            if self.write_one(take).await? > 0 {
                delivery.attempts += 1;
                delivery.next_try = Some(until);
                taken.push(delivery);
            }
        }
        Ok(taken)
    }

    async fn end_delivery(&self, delivery: &Delivery) -> Result<()> {
        let mut end = Statement::new("UPDATE deliveries SET state = ");
        end.push_bind(delivery.state.name()).push(", next_try = ");
        end.push_bind(delivery.next_try.map(Moment::micros)).push(", status = ");
        end.push_bind(delivery.status.map(i64::from)).push(", error = ");
        end.push_bind(delivery.error.clone()).push(" WHERE number = ");
        end.push_bind(delivery.number).push(" AND attempts = ");
        end.push_bind(i64::from(delivery.attempts));
        self.write_one_from_reserve(end).await.map(drop)
    }

    async fn deliveries(&self, query: &DeliveryQuery) -> Result<Vec<Delivery>> {
        let rows = self.readers().fetch_all(listed(query).build()).await?;
        rows.iter().map(read).collect()
    }

    async fn retry_delivery(&self, number: i64, now: Moment) -> Result<bool> {
        let mut retry = Statement::new("UPDATE deliveries SET attempts = 0, state = ");
        retry.push_bind(DeliveryState::Waiting.name()).push(", next_try = ");
        retry.push_bind(now.micros()).push(" WHERE number = ").push_bind(number);
        retry.push(" AND state <> ").push_bind(DeliveryState::Waiting.name());
        if self.write_one(retry).await? > 0 {
            return Ok(true);
        }
        let mut there = Statement::new("SELECT number FROM deliveries WHERE number = ");
        there.push_bind(number);
        Ok(self.readers().fetch_optional(there.build()).await?.is_some())
    }

    async fn count_deliveries(&self) -> Result<Vec<(String, DeliveryState, u64)>> {
        let mut count = Statement::new("SELECT receiver, state, count(*) FROM deliveries GROUP BY receiver, state");
        let rows = self.readers().fetch_all(count.build()).await?;
        let read = |row: &Row| {
            let (state, number): (&str, i64) = (row.try_get(1)?, row.try_get(2)?);
            let state = DeliveryState::named(state).ok_or_else(|| damaged(state))?;
            Ok((row.try_get(0)?, state, number.unsigned_abs()))
        };
        rows.iter().map(read).collect()
    }
}

fn insert(delivery: &Delivery, about: Option<Maker>) -> Statement {
    let delivery = delivery.clone();
    // Not only by the conflict: PostgreSQL would use a number up each time, and the oldest deliveries go by their numbers.
    let mut add = Statement::new(
        "INSERT INTO deliveries (id, receiver, event, about, body, created, state, attempts, next_try, caller) SELECT ",
    );
    let mut values = add.separated(", ");
    values
        .push_bind(delivery.id.to_string())
        .push_bind(delivery.receiver.clone());
    values
        .push_bind(delivery.event.name())
        .push_bind(delivery.about.clone());
    values.push_bind(delivery.body).push_bind(delivery.created.micros());
    values
        .push_bind(delivery.state.name())
        .push_bind(i64::from(delivery.attempts));
    values.push_bind(delivery.next_try.map(Moment::micros));
    add.push(", ");
    if let Some(maker) = about {
        push_caller(&mut add, maker);
    } else {
        let caller = Allowance::current().map(|allowance| allowance.caller);
        add.push("CAST(").push_bind(caller).push(" AS TEXT)");
    }
    add.push(" WHERE NOT EXISTS (SELECT 1 FROM deliveries WHERE receiver = ");
    add.push_bind(delivery.receiver)
        .push(" AND about = ")
        .push_bind(delivery.about);
    add.push(") ON CONFLICT DO NOTHING RETURNING number, caller");
    add
}

/// Removes what is too much for a receiver: of the waiting deliveries of this caller the oldest; then what does not wait;
/// then the oldest of the caller that has the most. Those of other receivers stay.
async fn forget(db: &mut Connection, receiver: &str, caller: Option<String>) -> Result<()> {
    let mut dropped = 0;
    if let Some(caller) = caller {
        let mut count = Statement::new("SELECT count(*)");
        push_waiting(&mut count, receiver, Some(&caller));
        let excess = number(db, &mut count).await? - DELIVERIES_OF_CALLER;
        if excess > 0 {
            let mut remove = oldest_waiting(receiver, Some(&caller), excess);
            dropped += db.execute(remove.build()).await?.rows_affected();
        }
    }
    let mut count = Statement::new("SELECT count(*) FROM deliveries WHERE receiver = ");
    count.push_bind(receiver.to_owned());
    let excess = number(db, &mut count).await? - DELIVERIES;
    if excess > 0 {
        let done = db.execute(oldest_done(receiver, excess).build()).await?.rows_affected();
        let excess = excess - i64::try_from(done).unwrap_or(i64::MAX);
        if excess > 0 {
            let mut most = Statement::new("SELECT caller");
            push_waiting(&mut most, receiver, None);
            most.push(" GROUP BY caller ORDER BY count(*) DESC LIMIT 1");
            let caller: Option<String> = db.fetch_one(most.build()).await?.try_get(0)?;
            let mut remove = oldest_waiting(receiver, caller.as_deref(), excess);
            dropped += db.execute(remove.build()).await?.rows_affected();
        }
    }
    note_dropped(db, DroppedKind::Webhook, dropped).await
}

/// Adds the condition for what waits for a receiver; of one caller, if one is given.
fn push_waiting(statement: &mut Statement, receiver: &str, caller: Option<&str>) {
    statement
        .push(" FROM deliveries WHERE receiver = ")
        .push_bind(receiver.to_owned());
    statement.push(" AND next_try IS NOT NULL");
    if let Some(caller) = caller {
        statement.push(" AND caller = ").push_bind(caller.to_owned());
    }
}

/// Removes the oldest of what waits for a receiver.
pub(super) fn oldest_waiting(receiver: &str, caller: Option<&str>, most: i64) -> Statement {
    let mut remove = Statement::new("DELETE FROM deliveries WHERE number IN (SELECT number");
    push_waiting(&mut remove, receiver, caller);
    remove.push(format_args!(" ORDER BY number LIMIT {most})"));
    remove
}

/// Removes the oldest of what does not wait for a receiver any more.
pub(super) fn oldest_done(receiver: &str, most: i64) -> Statement {
    let mut remove =
        Statement::new("DELETE FROM deliveries WHERE number IN (SELECT number FROM deliveries WHERE receiver = ");
    remove.push_bind(receiver.to_owned());
    remove.push(format_args!(" AND next_try IS NULL ORDER BY number LIMIT {most})"));
    remove
}

pub(super) fn due(receiver: &str, now: Moment, limit: u32) -> Statement {
    let mut due = Statement::new(format!("SELECT {COLUMNS} FROM deliveries WHERE receiver = "));
    due.push_bind(receiver.to_owned())
        .push(" AND next_try <= ")
        .push_bind(now.micros());
    due.push(format_args!(" ORDER BY next_try, number LIMIT {limit}"));
    due
}

pub(super) fn listed(query: &DeliveryQuery) -> Statement {
    let mut statement = Statement::new(format!("SELECT {COLUMNS} FROM deliveries"));
    let mut word = " WHERE ";
    let mut next = || std::mem::replace(&mut word, " AND ");
    if let Some(receiver) = &query.receiver {
        statement.push(next()).push("receiver = ").push_bind(receiver.clone());
    }
    if let Some(state) = query.state {
        statement.push(next()).push("state = ").push_bind(state.name());
    }
    statement.push(format_args!(" ORDER BY number DESC LIMIT {}", query.limit));
    statement
}

fn read(row: &Row) -> Result<Delivery> {
    let (id, event, state): (&str, &str, &str) = (row.try_get(1)?, row.try_get(3)?, row.try_get(7)?);
    let attempts: i64 = row.try_get(8)?;
    let status: Option<i64> = row.try_get(10)?;
    Ok(Delivery {
        number: row.try_get(0)?,
        id: id.parse().map_err(|_| damaged(id))?,
        receiver: row.try_get(2)?,
        event: Event::named(event).ok_or_else(|| damaged(event))?,
        about: row.try_get(4)?,
        body: row.try_get(5)?,
        created: Moment::from_micros(row.try_get(6)?),
        state: DeliveryState::named(state).ok_or_else(|| damaged(state))?,
        attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
        next_try: row.try_get::<Option<i64>, _>(9)?.map(Moment::from_micros),
        status: status.and_then(|status| u16::try_from(status).ok()),
        error: row.try_get(11)?,
    })
}

fn damaged(what: &str) -> StoreError {
    StoreError::Damaged(format!("a delivery of a webhook: {what}"))
}
