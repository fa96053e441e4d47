//! Public keys in their table.

use crate::{
    records::{Link, Moment, PublicKey},
    store::{
        Result,
        table::{Columns, Table, TwoSided, Value},
    },
};

impl Table for PublicKey {
    const NAME: &'static str = "public_keys";
    const COLUMNS: &'static [&'static str] = &["id", "created", "name", "public_key", "deleted"];

    fn values(&self) -> Vec<Value> {
        vec![
            Value::id(self.id),
            Value::moment(self.created),
            Value::text(&self.name),
            Value::text(&self.public_key),
            Value::Number(self.deleted.map(Moment::micros)),
        ]
    }

    fn read<'r>(row: &mut impl Columns<'r>) -> Result<Self> {
        Ok(Self {
            id: row.parsed()?,
            created: row.moment()?,
            name: row.string()?,
            public_key: row.string()?,
            deleted: row.maybe_number()?.map(Moment::from_micros),
        })
    }
}

impl TwoSided for PublicKey {
    fn link(&self) -> Option<&Link> {
        None
    }

    fn deleted(&self) -> Option<Moment> {
        self.deleted
    }
}
