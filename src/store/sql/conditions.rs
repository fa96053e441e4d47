//! Conditions of a statement, joined by AND.

use std::fmt::Display;

use super::Statement;
use crate::store::JobFilter;

/// A statement that gets conditions.
pub(super) struct Conditions<'s> {
    statement: &'s mut Statement,
    any: bool,
}

impl<'s> Conditions<'s> {
    /// For a statement that has none yet.
    pub(super) fn of(statement: &'s mut Statement) -> Self {
        Self { statement, any: false }
    }

    /// Begins another condition. What is bound to it is pushed to the statement that comes back.
    pub(super) fn and(&mut self, sql: impl Display) -> &mut Statement {
        self.statement.push(if self.any { " AND " } else { " WHERE " });
        self.any = true;
        self.statement.push(sql)
    }

    /// Takes only jobs that the filter takes.
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
