//! Implements [`Servers`]: the processes that share the records. Touches the store's database only.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::stream::BoxStream;
use kiln_records::{Moment, ServerId};
use sqlx::Row as _;

use super::{
    super::{CLOCK, IS_SHARED},
    Statement, ThisStore,
    runs::parsed,
};
use crate::store::{News, PlaceLock, Result, ServerRow, Servers};

/// How long the row of a server that shows no life is kept, in microseconds: a day.
const KEPT: i64 = 24 * 60 * 60 * 1_000_000;

impl ThisStore {
    /// Sets the site's clock by the database's.
    pub(in crate::store) async fn follow_clock(&self) -> Result<()> {
        let asked = Instant::now();
        let mut statement = Statement::new(format!("SELECT {CLOCK}"));
        let row = self.readers().fetch_one(statement.build()).await?;
        let theirs = Moment::from_micros(row.try_get(0)?);
        if let Some(ahead) = Moment::follow(theirs, asked.elapsed()) {
            let seconds = ahead / 1_000_000;
            tracing::info!(seconds, "the database's clock counts, and is ahead of this host's");
        }
        Ok(())
    }
}

#[async_trait]
impl Servers for ThisStore {
    fn is_shared(&self) -> bool {
        IS_SHARED
    }

    async fn site_id(&self) -> Result<ServerId> {
        // The first server gives the site its id; all that come at the same moment read the same one.
        let mut insert = Statement::new("INSERT INTO site (one, id) VALUES (1, ");
        insert.push_bind(ServerId::new().to_string());
        insert.push(") ON CONFLICT (one) DO NOTHING");
        self.write_one(insert).await?;
        let row = self
            .readers()
            .fetch_one(Statement::new("SELECT id FROM site").build())
            .await?;
        parsed(row.try_get(0)?)
    }

    async fn show_life(&self, id: ServerId, offers: Option<&str>) -> Result<()> {
        let mut statement = Statement::new("INSERT INTO servers (id, seen, offers) VALUES (");
        statement.push_bind(id.to_string()).push(", ").push(CLOCK).push(", ");
        statement.push_bind(offers.map(str::to_owned));
        statement.push(") ON CONFLICT (id) DO UPDATE SET seen = excluded.seen, offers = excluded.offers");
        // A server whose disk is full lives all the same.
        self.write_one_from_reserve(statement).await?;
        if IS_SHARED {
            self.follow_clock().await?;
        }
        Ok(())
    }

    async fn servers(&self) -> Result<Vec<ServerRow>> {
        let mut statement = Statement::new("SELECT id, seen, offers FROM servers ORDER BY id");
        let rows = self.readers().fetch_all(statement.build()).await?;
        let read = |row: &super::Row| {
            Ok(ServerRow {
                id: parsed(row.try_get(0)?)?,
                mark: row.try_get(1)?,
                offers: row.try_get(2)?,
            })
        };
        rows.iter().map(read).collect()
    }

    async fn lock_place(&self, place: &str, longest: Duration) -> Result<Option<PlaceLock>> {
        self.place_lock(place, longest).await
    }

    async fn news(&self) -> Result<BoxStream<'static, Result<News>>> {
        self.listen().await
    }

    async fn forget_server(&self, id: ServerId) -> Result<()> {
        let mut statement = Statement::new("DELETE FROM servers WHERE id = ");
        statement.push_bind(id.to_string());
        self.write_one_from_reserve(statement).await.map(|_| ())
    }

    async fn forget_old_servers(&self) -> Result<()> {
        let mut statement = Statement::new("DELETE FROM servers WHERE seen < ");
        statement.push(CLOCK).push(format_args!(" - {KEPT}"));
        self.write_one_from_reserve(statement).await.map(|_| ())
    }
}
