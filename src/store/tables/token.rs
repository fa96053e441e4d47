//! API tokens in their table. The column `sha256` is the store's own.

use crate::{
    records::{Moment, Role, Token},
    store::{
        Result,
        table::{Columns, Table, Value},
    },
};

impl Table for Token {
    const NAME: &'static str = "tokens";
    const COLUMNS: &'static [&'static str] = &["id", "created", "name", "role", "expires"];

    fn values(&self) -> Vec<Value> {
        vec![
            Value::id(self.id),
            Value::moment(self.created),
            Value::text(&self.name),
            Value::text(self.role.name()),
            Value::Number(self.expires.map(Moment::micros)),
        ]
    }

    fn read<'r>(row: &mut impl Columns<'r>) -> Result<Self> {
        Ok(Self {
            id: row.parsed()?,
            created: row.moment()?,
            name: row.string()?,
            role: row.named(&Role::ALL, Role::name)?,
            expires: row.maybe_number()?.map(Moment::from_micros),
        })
    }
}
