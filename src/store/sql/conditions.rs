//! Builds the WHERE clause of a statement. Pure: no I/O.

use std::fmt::Display;

use super::Statement;
use crate::store::JobFilter;

/// A statement and the conditions added to it, joined by AND.
pub(super) struct Conditions<'s> {
    statement: &'s mut Statement,
    any: bool,
}

impl<'s> Conditions<'s> {
    /// Starts with a statement that has no conditions yet.
    pub(super) fn of(statement: &'s mut Statement) -> Self {
        Self { statement, any: false }
    }

    /// Begins another condition. The caller binds its values on the returned statement.
    pub(super) fn and(&mut self, sql: impl Display) -> &mut Statement {
        self.statement.push(if self.any { " AND " } else { " WHERE " });
        self.any = true;
        self.statement.push(sql)
    }

    /// Adds the conditions of a filter of jobs.
    pub(super) fn and_job(&mut self, filter: &JobFilter) {
        if !filter.statuses.is_empty() {
            let mut statuses = self.and("status IN (").separated(", ");
            for status in &filter.statuses {
                statuses.push_bind(status.name());
            }
            statuses.push_unseparated(")");
        }
        if let Some(job_type) = filter.job_type {
            self.and("job_type = ").push_bind(job_type.name());
        }
        if let Some(moment) = filter.created_before {
            self.and("created < ").push_bind(moment.micros());
        }
    }
}
