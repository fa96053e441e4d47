//! Images in their table.

use crate::{
    records::{Image, Link, Moment},
    store::{
        Result,
        table::{Columns, Table, TwoSided, Value},
    },
};

impl Table for Image {
    const NAME: &'static str = "images";
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "created",
        "name",
        "arch",
        "link_path",
        "link_etag",
        "metadata",
        "deleted",
    ];

    fn values(&self) -> Vec<Value> {
        let [link_path, link_etag] = Value::link(self.link.as_ref());
        vec![
            Value::id(self.id),
            Value::moment(self.created),
            Value::text(&self.name),
            Value::text(self.arch.name()),
            link_path,
            link_etag,
            Value::json(&self.metadata),
            Value::Number(self.deleted.map(Moment::micros)),
        ]
    }

    fn read<'r>(row: &mut impl Columns<'r>) -> Result<Self> {
        Ok(Self {
            id: row.parsed()?,
            created: row.moment()?,
            name: row.string()?,
            arch: row.parsed()?,
            link: row.link()?,
            metadata: row.json()?,
            deleted: row.maybe_number()?.map(Moment::from_micros),
        })
    }
}

impl TwoSided for Image {
    fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    fn deleted(&self) -> Option<Moment> {
        self.deleted
    }
}
