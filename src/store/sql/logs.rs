//! Implements [`JobLogs`]: logs of jobs. Touches the store's database only.
//!
//! Every operation that adds to a log or removes from it takes the row of `job_pulses` first, so that they run in
//! turn.

use std::{borrow::Cow, time::Duration};

use async_trait::async_trait;
use bytesize::ByteSize;
use jiff::Timestamp;
use kiln_records::{JobId, LogLine, LogRow, LogStream, Moment, Step, log};
use sqlx::{Executor, Row as _};

use super::{super::CLOCK, Connection, Row, Statement, ThisStore, runs::parsed};
use crate::store::{Appended, JobLogs, Lock, LogRows, Pulse, Result, StoreError};

/// The most lines in one statement: databases take no more than some ten thousand values.
const CHUNK: usize = 1000;

/// A page ends with the line that makes it as large as this, in bytes.
const PAGE_BYTES: usize = 4 << 20;

/// The lines of the first part of a page. The size of these decides how many are read next.
const FIRST_LINES: u32 = 200;

#[async_trait]
impl JobLogs for ThisStore {
    async fn append(
        &self,
        (job, attempt): (JobId, u32),
        first: u64,
        said: &[Option<LogLine>],
        progressed: bool,
        limit: u64,
        now: Moment,
    ) -> Result<Appended> {
        let said = said.to_owned();
        self.write(Lock::Shared, move |db| {
            Box::pin(async move {
                let Some(row) = db.fetch_optional(hear(job, attempt).build()).await? else {
                    return Ok(Appended::OldAttempt);
                };
                let (seq, expected) = (number(&row, 0)?, number(&row, 1)?);
                let Some(kept) = expected.checked_sub(first) else {
                    return Ok(Appended::Hole { expected });
                };
                let kept = usize::try_from(kept).unwrap_or(usize::MAX);
                let fresh = said.get(kept..).unwrap_or_default();
                let mut room = Room {
                    bytes: number(&row, 2)?,
                    end: number(&row, 3)?.saturating_add(log::share(limit, number(&row, 3)?)),
                    refused: number(&row, 4)?,
                };
                let was_full = room.refused > 0;
                let mut lines: Vec<_> = fresh.iter().flatten().filter(|line| room.takes(line)).collect();
                let full = LogLine::of_server(format!(
                    "the log of this try is full: it has {}, and its further lines are not kept; `log_bytes` in \
                     [watch] allows more",
                    ByteSize(log::share(limit, number(&row, 3)?))
                ));
                if room.refused > 0 && !was_full {
                    lines.push(&full);
                }
                add(db, job, seq, &lines, now).await?;
                if !fresh.is_empty() || progressed {
                    db.execute(advance(job, lines.len(), fresh.len(), &room, progressed).build())
                        .await?;
                }
                Ok(Appended::Next(expected + fresh.len() as u64))
            })
        })
        .await
    }

    async fn say(&self, job: JobId, lines: &[LogLine], now: Moment) -> Result<()> {
        let lines = lines.to_owned();
        self.write(Lock::Shared, move |db| {
            Box::pin(async move {
                let row = db.fetch_one(make_room(job, lines.len()).build()).await?;
                let end = number(&row, 0)?;
                let lines: Vec<_> = lines.iter().collect();
                add(db, job, end.saturating_sub(lines.len() as u64), &lines, now).await
            })
        })
        .await
    }

    async fn log_page(&self, job: JobId, after: Option<u64>, limit: u32) -> Result<LogRows> {
        let mut rows: Vec<LogRow> = Vec::new();
        let (mut bytes, mut some) = (0, FIRST_LINES);
        loop {
            let count = u32::try_from(rows.len()).unwrap_or(u32::MAX);
            let wanted = some.min(limit.saturating_sub(count));
            let after = rows.last().map(|row| row.seq).or(after);
            // One line more shows whether there is one.
            let Some(mut statement) = page(job, after, wanted.saturating_add(1)) else {
                return Ok(LogRows { rows, more: false });
            };
            let found = self.readers().fetch_all(statement.build()).await?;
            let all = usize::try_from(wanted).unwrap_or(usize::MAX);
            let more = found.len() > all;
            for row in found.iter().take(all) {
                let row = read(row)?;
                bytes += row.line.text.len();
                rows.push(row);
            }
            if !more || wanted == 0 || bytes >= PAGE_BYTES {
                return Ok(LogRows { rows, more });
            }
            let mean = bytes / rows.len().max(1) + 1;
            some = u32::try_from((PAGE_BYTES - bytes) / mean + 1)
                .unwrap_or(u32::MAX)
                .max(FIRST_LINES);
        }
    }

    async fn log_length(&self, job: JobId) -> Result<u64> {
        let mut statement = Statement::new("SELECT next FROM job_pulses WHERE job = ");
        statement.push_bind(job.to_string());
        let row = self.readers().fetch_optional(statement.build()).await?;
        row.map_or(Ok(0), |row| number(&row, 0))
    }

    async fn pulse(&self, job: JobId) -> Result<Option<Pulse>> {
        let mut statement = Statement::new(format!(
            "SELECT attempt, {CLOCK} - heard, {CLOCK} - progressed, bytes, bytes_before FROM job_pulses WHERE job = "
        ));
        statement.push_bind(job.to_string()).push(" AND attempt >= 0");
        let row = self.readers().fetch_optional(statement.build()).await?;
        let read = |row: Row| {
            Ok(Pulse {
                attempt: u32::try_from(number(&row, 0)?).map_err(|_| damaged("attempt"))?,
                unheard: ago(row.try_get(1)?),
                silent: ago(row.try_get(2)?),
                log_bytes: number(&row, 3)?,
                log_bytes_before: number(&row, 4)?,
            })
        };
        row.map(read).transpose()
    }

    async fn drop_log(&self, job: JobId, limit: u32) -> Result<bool> {
        self.write_from_reserve(Lock::Shared, move |db| {
            Box::pin(async move {
                db.execute(make_room(job, 0).build()).await?;
                if db.execute(remove(job, limit).build()).await?.rows_affected() >= u64::from(limit)
                    && let Some(mut rest) = page(job, None, 1)
                    && db.fetch_optional(rest.build()).await?.is_some()
                {
                    return Ok(true);
                }
                let mut statement = Statement::new("DELETE FROM job_pulses WHERE job = ");
                statement.push_bind(job.to_string());
                db.execute(statement.build()).await?;
                Ok(false)
            })
        })
        .await
    }

    async fn logs_left_behind(&self, limit: u32) -> Result<Vec<JobId>> {
        let mut statement = Statement::new(format!(
            "SELECT job FROM job_pulses WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = job_pulses.job) LIMIT {limit}"
        ));
        let rows = self.readers().fetch_all(statement.build()).await?;
        rows.iter().map(|row| parsed(row.try_get(0)?)).collect()
    }
}

/// How much of an attempt's log there is, and may be.
pub(super) struct Room {
    /// The size of the job's log, in bytes.
    pub(super) bytes: u64,
    /// The size that it may have.
    pub(super) end: u64,
    /// The number of lines that were too many.
    pub(super) refused: u64,
}

impl Room {
    /// Whether there is room for a line. After the first one without, there is none for any: a log with holes would
    /// mislead.
    fn takes(&mut self, line: &LogLine) -> bool {
        let bytes = self.bytes.saturating_add(log::size_of(&line.text));
        if self.refused > 0 || bytes > self.end {
            self.refused += 1;
            return false;
        }
        self.bytes = bytes;
        true
    }
}

/// Records that an agent was heard. Returns the numbers of the log's next line and of the agent's next event, the size
/// of the log and of earlier attempts' part of it, and the number of lines that were refused. No row means that a later
/// attempt was heard.
pub(super) fn hear(job: JobId, attempt: u32) -> Statement {
    let mut statement =
        Statement::new("INSERT INTO job_pulses (job, next, attempt, agent_next, heard, progressed) VALUES (");
    let mut values = statement.separated(", ");
    values
        .push_bind(job.to_string())
        .push("0")
        .push_bind(i64::from(attempt));
    values.push("0").push(CLOCK).push(CLOCK);
    statement.push(
        ") ON CONFLICT (job) DO UPDATE SET attempt = excluded.attempt, heard = excluded.heard, \
         agent_next = CASE WHEN job_pulses.attempt < excluded.attempt THEN 0 ELSE job_pulses.agent_next END, \
         progressed = CASE WHEN job_pulses.attempt < excluded.attempt THEN excluded.progressed \
         ELSE job_pulses.progressed END, \
         bytes_before = CASE WHEN job_pulses.attempt < excluded.attempt THEN job_pulses.bytes \
         ELSE job_pulses.bytes_before END, \
         refused = CASE WHEN job_pulses.attempt < excluded.attempt THEN 0 ELSE job_pulses.refused END \
         WHERE job_pulses.attempt <= excluded.attempt RETURNING next, agent_next, bytes, bytes_before, refused",
    );
    statement
}

/// Counts lines and an agent's events, and records the size of the log and progress of the job.
pub(super) fn advance(job: JobId, lines: usize, events: usize, room: &Room, progressed: bool) -> Statement {
    let mut statement = Statement::new(format!(
        "UPDATE job_pulses SET next = next + {lines}, agent_next = agent_next + {events}"
    ));
    statement
        .push(", bytes = ")
        .push_bind(i64::try_from(room.bytes).unwrap_or(i64::MAX));
    statement
        .push(", refused = ")
        .push_bind(i64::try_from(room.refused).unwrap_or(i64::MAX));
    if progressed {
        statement.push(", progressed = ").push(CLOCK);
    }
    statement.push(" WHERE job = ").push_bind(job.to_string());
    statement
}

/// Reserves the numbers of `lines` lines, and locks the log until the end of the transaction. Returns the number after
/// them.
pub(super) fn make_room(job: JobId, lines: usize) -> Statement {
    let mut statement = Statement::new("INSERT INTO job_pulses (job, next, attempt, agent_next) VALUES (");
    statement.push_bind(job.to_string());
    statement.push(format_args!(
        ", {lines}, -1, 0) ON CONFLICT (job) DO UPDATE SET next = job_pulses.next + {lines} RETURNING next"
    ));
    statement
}

/// Adds lines, numbered from `seq`.
async fn add(db: &mut Connection, job: JobId, seq: u64, lines: &[&LogLine], now: Moment) -> Result<()> {
    let job = job.to_string();
    let mut seq = i64::try_from(seq).map_err(|_| damaged("next"))?;
    for lines in lines.chunks(CHUNK) {
        let mut statement = Statement::new("INSERT INTO job_log (job, seq, time, agent_time, step, stream, text) ");
        statement.push_values(lines, |mut row, line| {
            row.push_bind(job.clone()).push_bind(seq).push_bind(now.micros());
            row.push_bind(line.time.as_microsecond());
            row.push_bind(line.step.map(Step::name)).push_bind(line.stream.name());
            row.push_bind(storable(&line.text).into_owned());
            seq += 1;
        });
        // The text differs with the number of lines, so a prepared statement would not be used again.
        db.execute(statement.build().persistent(false)).await?;
    }
    Ok(())
}

/// Lines of a log; `None` if the numbers asked for cannot exist.
pub(super) fn page(job: JobId, after: Option<u64>, limit: u32) -> Option<Statement> {
    let mut statement = Statement::new("SELECT seq, time, agent_time, step, stream, text FROM job_log WHERE job = ");
    statement.push_bind(job.to_string());
    if let Some(after) = after {
        statement.push(" AND seq > ").push_bind(i64::try_from(after).ok()?);
    }
    // Not bound: SQLite plans a statement again whenever a value is bound to its LIMIT.
    statement.push(format_args!(" ORDER BY seq LIMIT {limit}"));
    Some(statement)
}

/// Removes up to `limit` lines from the beginning of a log.
pub(super) fn remove(job: JobId, limit: u32) -> Statement {
    let mut statement = Statement::new("DELETE FROM job_log WHERE job = ");
    statement.push_bind(job.to_string());
    statement.push(" AND seq < (SELECT min(seq) FROM job_log WHERE job = ");
    statement.push_bind(job.to_string());
    statement.push(format_args!(") + {limit}"));
    statement
}

fn read(row: &Row) -> Result<LogRow> {
    let step: Option<&str> = row.try_get(3)?;
    let stream: &str = row.try_get(4)?;
    let step = step.map(|step| named(&Step::ALL, Step::name, step).ok_or_else(|| damaged(step)));
    let stream = named(&LogStream::ALL, LogStream::name, stream).ok_or_else(|| damaged(stream))?;
    Ok(LogRow {
        seq: number(row, 0)?,
        kept: Moment::from_micros(row.try_get(1)?),
        line: LogLine {
            time: moment(row.try_get(2)?)?,
            step: step.transpose()?,
            stream,
            text: row.try_get(5)?,
        },
    })
}

/// Not `Timestamp::from_microsecond`: it rejects values of the last second that `as_microsecond` can return.
fn moment(micros: i64) -> Result<Timestamp> {
    let nanos = i32::try_from(micros.rem_euclid(1_000_000) * 1000).map_err(|_| damaged("agent_time"))?;
    Timestamp::new(micros.div_euclid(1_000_000), nanos).map_err(|_| damaged("agent_time"))
}

/// A time that has passed; none when the clock was set back meanwhile.
fn ago(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}

fn named<T: Copy>(all: &[T], name: fn(T) -> &'static str, wanted: &str) -> Option<T> {
    all.iter().copied().find(|item| name(*item) == wanted)
}

fn number(row: &Row, column: usize) -> Result<u64> {
    let number: i64 = row.try_get(column)?;
    u64::try_from(number).map_err(|_| damaged("a number below zero"))
}

fn damaged(what: &str) -> StoreError {
    StoreError::Damaged(format!("log of a job: {what}"))
}

/// A line in the form in which it is stored: see [`JobLogs`].
fn storable(text: &str) -> Cow<'_, str> {
    let picture = |c: char| match c {
        '\0' => '␀',
        '\n' => '␊',
        '\r' => '␍',
        other => other,
    };
    if text.contains(['\0', '\n', '\r']) {
        Cow::Owned(text.chars().map(picture).collect())
    } else {
        Cow::Borrowed(text)
    }
}
