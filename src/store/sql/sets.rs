//! Implements [`Sets`] and [`Channels`]. Touches the store's database only.

use async_trait::async_trait;
use kiln_records::{
    ImageSet, Moment, SetId,
    budget::PROMOTIONS,
    set::promotion::{Promotion, PromotionKind, SetChange},
};
use sqlx::{Executor, Row as _};

use super::{
    Connection, Row, Statement, ThisStore,
    budget::{Budget, CHANGES},
    page::{fitting, page},
    rows::{push, read_stored},
    statements::{select_stored, update},
};
use crate::store::{Channels, Lock, Query, Result, SetDeleted, Sets, StoreError, Stored};

#[async_trait]
impl Sets for ThisStore {
    async fn insert_set(&self, set: &ImageSet) -> Result<()> {
        self.add(set, Vec::new()).await
    }

    async fn get_set(&self, id: SetId) -> Result<Option<Stored<ImageSet>>> {
        let mut statement = select_stored::<ImageSet>();
        statement.push(" WHERE id = ").push_bind(id.to_string());
        self.one_set(statement).await
    }

    async fn set_of_version(&self, name: &str, version: &str) -> Result<Option<Stored<ImageSet>>> {
        self.one_set(of_version(name, version)).await
    }

    async fn page_sets(&self, query: &Query) -> Result<Vec<Stored<ImageSet>>> {
        page(self.readers(), None, query).await
    }

    async fn fitting_sets(&self, query: &Query) -> Result<u32> {
        fitting::<ImageSet>(self.readers(), None, query).await
    }

    async fn complete_sets(&self, name: &str, before: Option<i64>, limit: u32) -> Result<Vec<Stored<ImageSet>>> {
        self.several_sets(newest_complete(name, before, limit)).await
    }

    async fn sets_to_look_at(&self, now: Moment, limit: u32) -> Result<Vec<Stored<ImageSet>>> {
        let rows = self.readers().fetch_all(to_look_at(now, limit).build()).await?;
        // A set that a server of a later version has written is that server's to look at, and keeps no other waiting.
        let read = rows
            .iter()
            .map(read_stored)
            .filter(|read| !matches!(read, Err(StoreError::Damaged(_))));
        read.collect()
    }

    async fn replace_set(&self, set: &ImageSet, revision: i64, change: Option<SetChange>) -> Result<()> {
        let mut replace = update(set, Vec::new(), revision);
        let mut channels = leading_to(set.id);
        let budget = Budget::of(CHANGES);
        // Exclusive, so that no channel comes to lead to the set meanwhile.
        let lock = if change.is_some() { Lock::Alone } else { Lock::Shared };
        self.write(lock, move |db| {
            Box::pin(async move {
                if db.execute(replace.build()).await?.rows_affected() == 0 {
                    return Err(StoreError::Stale);
                }
                let Some(change) = change else { return Ok(()) };
                for row in db.fetch_all(channels.build()).await? {
                    let next = read_promotion(&row)?.of_set(&change);
                    add_promotion(db, &next, &budget).await?;
                }
                Ok(())
            })
        })
        .await
    }

    async fn delete_set(&self, id: SetId) -> Result<SetDeleted> {
        let mut channel = leading_to(id);
        let mut delete = Statement::new("DELETE FROM sets WHERE id = ");
        delete.push_bind(id.to_string());
        // Exclusive, so that no channel comes to lead to the set meanwhile.
        self.write_from_reserve(Lock::Alone, move |db| {
            Box::pin(async move {
                if let Some(row) = db.fetch_optional(channel.build()).await? {
                    return Ok(SetDeleted::InChannel(row.try_get(0)?));
                }
                Ok(match db.execute(delete.build()).await?.rows_affected() {
                    0 => SetDeleted::Unknown,
                    _ => SetDeleted::Done,
                })
            })
        })
        .await
    }
}

#[async_trait]
impl Channels for ThisStore {
    async fn promote(&self, promotion: &Promotion) -> Result<()> {
        let promotion = promotion.clone();
        let budget = Budget::of(CHANGES);
        let set = promotion.set_id.map(|id| {
            let mut set = Statement::new("SELECT id FROM sets WHERE id = ");
            set.push_bind(id.to_string());
            set
        });
        // Exclusive, so that the set is not deleted meanwhile.
        let done = self.write(Lock::Alone, move |db| {
            Box::pin(async move {
                if let Some(mut set) = set
                    && db.fetch_optional(set.build()).await?.is_none()
                {
                    return Err(StoreError::Stale);
                }
                // The others go back only, and no further than to what was promoted.
                if promotion.kind == PromotionKind::Promote {
                    budget.check(db).await?;
                }
                add_promotion(db, &promotion, &budget).await
            })
        });
        match done.await {
            // Another change has this number.
            Err(StoreError::Exists) => Err(StoreError::Stale),
            done => done,
        }
    }

    async fn channel(&self, name: &str, channel: &str) -> Result<Option<Promotion>> {
        Ok(self.promotions(name, channel, 1).await?.pop())
    }

    async fn promotion(&self, name: &str, channel: &str, number: u32) -> Result<Option<Promotion>> {
        let mut statement = of_channel(name, channel);
        statement.push(" AND number = ").push_bind(i64::from(number));
        let row = self.readers().fetch_optional(statement.build()).await?;
        row.as_ref().map(read_promotion).transpose()
    }

    async fn promotions(&self, name: &str, channel: &str, limit: u32) -> Result<Vec<Promotion>> {
        let rows = self
            .readers()
            .fetch_all(latest_promotions(name, channel, limit).build())
            .await?;
        rows.iter().map(read_promotion).collect()
    }

    async fn channels_of(&self, set: SetId) -> Result<Vec<String>> {
        let rows = self.readers().fetch_all(leading_to(set).build()).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    async fn channels(&self, name: Option<&str>, limit: u32) -> Result<Vec<Promotion>> {
        let mut statement = Statement::new(
            "SELECT record FROM promotions AS latest WHERE number = (SELECT max(number) FROM promotions AS all_of_it \
             WHERE all_of_it.name = latest.name AND all_of_it.channel = latest.channel)",
        );
        if let Some(name) = name {
            statement.push(" AND name = ").push_bind(name.to_owned());
        }
        statement.push(format_args!(" ORDER BY name, channel LIMIT {limit}"));
        let rows = self.readers().fetch_all(statement.build()).await?;
        rows.iter().map(read_promotion).collect()
    }
}

impl ThisStore {
    async fn one_set(&self, mut statement: Statement) -> Result<Option<Stored<ImageSet>>> {
        let row = self.readers().fetch_optional(statement.build()).await?;
        row.as_ref().map(read_stored).transpose()
    }

    async fn several_sets(&self, mut statement: Statement) -> Result<Vec<Stored<ImageSet>>> {
        let rows = self.readers().fetch_all(statement.build()).await?;
        rows.iter().map(read_stored).collect()
    }
}

pub(super) fn of_version(name: &str, version: &str) -> Statement {
    let mut statement = select_stored::<ImageSet>();
    statement.push(" WHERE name = ").push_bind(name.to_owned());
    statement.push(" AND version = ").push_bind(version.to_owned());
    statement
}

pub(super) fn newest_complete(name: &str, before: Option<i64>, limit: u32) -> Statement {
    let mut statement = select_stored::<ImageSet>();
    statement
        .push(" WHERE is_complete = 1 AND name = ")
        .push_bind(name.to_owned());
    if let Some(before) = before {
        statement.push(" AND position < ").push_bind(before);
    }
    statement.push(format_args!(" ORDER BY position DESC LIMIT {limit}"));
    statement
}

pub(super) fn to_look_at(now: Moment, limit: u32) -> Statement {
    let mut statement = select_stored::<ImageSet>();
    statement.push(" WHERE next_look <= ").push_bind(now.micros());
    statement.push(format_args!(" ORDER BY next_look, id LIMIT {limit}"));
    statement
}

pub(super) fn latest_promotions(name: &str, channel: &str, limit: u32) -> Statement {
    let mut statement = of_channel(name, channel);
    statement.push(format_args!(" ORDER BY number DESC LIMIT {limit}"));
    statement
}

/// A channel that leads to a set now.
pub(super) fn leading_to(id: SetId) -> Statement {
    let mut statement = Statement::new("SELECT channel, record FROM promotions AS latest WHERE set_id = ");
    statement.push_bind(id.to_string());
    statement.push(
        " AND number = (SELECT max(number) FROM promotions AS all_of_it WHERE all_of_it.name = latest.name AND \
         all_of_it.channel = latest.channel) ORDER BY channel",
    );
    statement
}

fn of_channel(name: &str, channel: &str) -> Statement {
    let mut statement = Statement::new("SELECT record FROM promotions WHERE name = ");
    statement.push_bind(name.to_owned());
    statement.push(" AND channel = ").push_bind(channel.to_owned());
    statement
}

/// Adds a change to the history of a channel, of which only the latest changes are kept.
async fn add_promotion(db: &mut Connection, promotion: &Promotion, budget: &Budget) -> Result<()> {
    let (column, caller) = budget.column();
    let mut add = Statement::new(format!(
        "INSERT INTO {CHANGES} (name, channel, number, set_id, {column}, record) VALUES ("
    ));
    add.push_bind(promotion.name.clone()).push(", ");
    add.push_bind(promotion.channel.clone()).push(", ");
    add.push_bind(i64::from(promotion.number)).push(", ");
    add.push_bind(promotion.set_id.map(|id| id.to_string())).push(", ");
    push(&mut add, caller);
    add.push(", ");
    add.push_bind(document(promotion)?).push(")");
    db.execute(add.build()).await?;
    let mut forget = Statement::new("DELETE FROM promotions WHERE name = ");
    forget.push_bind(promotion.name.clone()).push(" AND channel = ");
    forget.push_bind(promotion.channel.clone()).push(" AND number <= ");
    forget.push_bind(i64::from(promotion.number.saturating_sub(PROMOTIONS)));
    db.execute(forget.build()).await?;
    Ok(())
}

fn document(promotion: &Promotion) -> Result<String> {
    serde_json::to_string(promotion).map_err(|error| StoreError::Damaged(format!("promotions: {error}")))
}

fn read_promotion(row: &Row) -> Result<Promotion> {
    let text: &str = row.try_get("record")?;
    serde_json::from_str(text).map_err(|error| StoreError::Damaged(format!("promotions: {error}: {text}")))
}
