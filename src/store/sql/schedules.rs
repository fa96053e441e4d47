//! Implements [`Schedules`]: schedules and their ticks. Touches the store's database only.

use async_trait::async_trait;
use kiln_records::{
    Moment, Schedule, ScheduleId,
    schedule::{Outcome, Tick},
};
use sqlx::{Executor, Row as _};

use super::{
    Row, Statement, ThisStore,
    budget::check_size,
    page::page_text,
    rows::read_stored,
    statements::{select_stored, update},
};
use crate::store::{Lock, PageText, Query, Result, Schedules, StoreError, Stored};

/// The settled ticks kept for each schedule, in addition to open ones.
const KEPT_TICKS: u32 = 1_000;

#[async_trait]
impl Schedules for ThisStore {
    async fn insert_schedule(&self, schedule: &Schedule) -> Result<()> {
        check_size(schedule)?;
        self.add(schedule, Vec::new()).await
    }

    async fn get_schedule(&self, id: ScheduleId) -> Result<Option<Stored<Schedule>>> {
        let mut statement = select_stored::<Schedule>();
        statement.push(" WHERE id = ").push_bind(id.to_string());
        let row = self.readers().fetch_optional(statement.build()).await?;
        row.as_ref().map(read_stored).transpose()
    }

    async fn page_text_of_schedules(&self, query: &Query) -> Result<PageText<Schedule>> {
        page_text(self.readers(), None, query).await
    }

    async fn replace_schedule(&self, schedule: &Schedule, revision: i64, ticks: &[Tick]) -> Result<()> {
        check_size(schedule)?;
        let mut replace = update(schedule, Vec::new(), revision);
        let ticks = ticks.iter().map(insert_tick).collect::<Result<Vec<_>>>()?;
        let mut prune = prune(schedule.id);
        self.write(Lock::Shared, move |db| {
            Box::pin(async move {
                if db.execute(replace.build()).await?.rows_affected() == 0 {
                    return Err(StoreError::Stale);
                }
                let has_ticks = !ticks.is_empty();
                for mut tick in ticks {
                    db.execute(tick.build()).await?;
                }
                if has_ticks {
                    db.execute(prune.build()).await?;
                }
                Ok(())
            })
        })
        .await
    }

    async fn delete_schedule(&self, id: ScheduleId) -> Result<bool> {
        let mut schedule = Statement::new("DELETE FROM schedules WHERE id = ");
        schedule.push_bind(id.to_string());
        let mut ticks = Statement::new("DELETE FROM schedule_ticks WHERE schedule = ");
        ticks.push_bind(id.to_string());
        self.write_from_reserve(Lock::Shared, move |db| {
            Box::pin(async move {
                // The schedule first: a transaction that adds ticks to it holds its row, so this one waits.
                let was_there = db.execute(schedule.build()).await?.rows_affected() > 0;
                db.execute(ticks.build()).await?;
                Ok(was_there)
            })
        })
        .await
    }

    async fn schedules_running_after(&self, moment: Moment, limit: u32) -> Result<Vec<Stored<Schedule>>> {
        self.by_next_run(">", moment, limit).await
    }

    async fn due_schedules(&self, now: Moment, limit: u32) -> Result<Vec<Stored<Schedule>>> {
        self.by_next_run("<=", now, limit).await
    }

    async fn ticks(&self, schedule: ScheduleId, limit: u32) -> Result<Vec<Tick>> {
        let mut statement = Statement::new("SELECT record FROM schedule_ticks WHERE schedule = ");
        statement.push_bind(schedule.to_string());
        statement.push(format_args!(" ORDER BY due DESC LIMIT {limit}"));
        let rows = self.readers().fetch_all(statement.build()).await?;
        rows.iter().map(read_tick).collect()
    }

    async fn open_ticks(&self) -> Result<Vec<Tick>> {
        let statement = "SELECT record FROM schedule_ticks WHERE is_open = 1 ORDER BY schedule, due";
        let rows = self.readers().fetch_all(statement).await?;
        rows.iter().map(read_tick).collect()
    }

    async fn settle_tick(&self, tick: &Tick) -> Result<bool> {
        let mut statement = Statement::new("UPDATE schedule_ticks SET outcome = ");
        statement.push_bind(tick.outcome.name());
        statement.push(", is_open = ").push_bind(is_open(tick.outcome));
        statement.push(", record = ").push_bind(document(tick)?);
        statement
            .push(" WHERE schedule = ")
            .push_bind(tick.schedule_id.to_string());
        statement.push(" AND due = ").push_bind(tick.due.micros());
        let mut from = statement.push(" AND outcome IN (").separated(", ");
        for outcome in tick.outcome.comes_from() {
            from.push_bind(outcome.name());
        }
        from.push_unseparated(")");
        Ok(self.write_one(statement).await? > 0)
    }
}

impl ThisStore {
    /// Schedules whose next run compares with a moment as given, soonest first.
    async fn by_next_run(&self, than: &'static str, moment: Moment, limit: u32) -> Result<Vec<Stored<Schedule>>> {
        let mut statement = select_stored::<Schedule>();
        statement.push(format_args!(" WHERE next_run {than} "));
        statement.push_bind(moment.micros());
        statement.push(format_args!(" ORDER BY next_run, id LIMIT {limit}"));
        let rows = self.readers().fetch_all(statement.build()).await?;
        rows.iter().map(read_stored).collect()
    }
}

/// Adds a tick, unless there is one of that time.
fn insert_tick(tick: &Tick) -> Result<Statement> {
    let mut statement = Statement::new("INSERT INTO schedule_ticks (schedule, due, outcome, is_open, record) VALUES (");
    statement.push_bind(tick.schedule_id.to_string()).push(", ");
    statement.push_bind(tick.due.micros()).push(", ");
    statement.push_bind(tick.outcome.name()).push(", ");
    statement.push_bind(is_open(tick.outcome)).push(", ");
    statement
        .push_bind(document(tick)?)
        .push(") ON CONFLICT (schedule, due) DO NOTHING");
    Ok(statement)
}

/// Removes old ticks.
fn prune(schedule: ScheduleId) -> Statement {
    let mut statement = Statement::new("DELETE FROM schedule_ticks WHERE is_open IS NULL AND schedule = ");
    statement.push_bind(schedule.to_string());
    statement.push(" AND due < (SELECT due FROM schedule_ticks WHERE schedule = ");
    statement.push_bind(schedule.to_string());
    statement.push(format_args!(" ORDER BY due DESC LIMIT 1 OFFSET {})", KEPT_TICKS - 1));
    statement
}

fn is_open(outcome: Outcome) -> Option<i64> {
    Outcome::OPEN.contains(&outcome).then_some(1)
}

fn document(tick: &Tick) -> Result<String> {
    serde_json::to_string(tick).map_err(|error| StoreError::Damaged(format!("schedule_ticks: {error}")))
}

fn read_tick(row: &Row) -> Result<Tick> {
    let text: &str = row.try_get(0)?;
    serde_json::from_str(text).map_err(|error| StoreError::Damaged(format!("schedule_ticks: {error}: {text}")))
}
