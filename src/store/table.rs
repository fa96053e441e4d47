//! Defines how records lie in tables: each as the JSON that the API answers, beside the columns by which it is
//! searched. The layout is the same in every database. Pure: no I/O.

use kiln_records::{Link, Moment};
use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

use super::{Record, Side};

/// A type whose values are rows.
pub(super) trait Table: Send + Sync + 'static {
    /// The table's name.
    const NAME: &'static str;

    /// Its columns as [`Table::values`] returns them, with `id` first. `revision` and `position` belong to the store
    /// and are not among them.
    const COLUMNS: &'static [&'static str];

    /// The values of the columns.
    fn values(&self) -> Vec<Value>;
}

/// A record that is stored as a whole in the column `record`.
pub(super) trait Document: Table + Clone + Serialize + DeserializeOwned {
    /// Sets the time of deletion, which is a column and not a part of the document, since deleting changes nothing
    /// else.
    fn set_deleted(&mut self, deleted: Option<Moment>);
}

/// A table with a live and a deleted side.
pub(super) trait TwoSided: Document + Record {
    /// The link, which must be unique among the live records.
    fn link(&self) -> Option<&Link>;

    /// The time of deletion.
    fn deleted(&self) -> Option<Moment>;

    /// The side it belongs to.
    fn side(&self) -> Side {
        match self.deleted() {
            None => Side::Live,
            Some(_) => Side::Deleted,
        }
    }
}

/// The value of one column.
#[derive(Debug)]
pub(super) enum Value {
    /// Text, or null.
    Text(Option<String>),
    /// A number, or null.
    Number(Option<i64>),
}

impl Value {
    /// An identifier, as text.
    pub(super) fn id(id: impl Into<Uuid>) -> Self {
        Self::Text(Some(id.into().hyphenated().to_string()))
    }

    /// Text.
    pub(super) fn text(text: &str) -> Self {
        Self::Text(Some(text.to_owned()))
    }

    /// A moment.
    pub(super) fn moment(moment: Moment) -> Self {
        Self::Number(Some(moment.micros()))
    }

    /// A whole record.
    pub(super) fn document(record: &impl Document) -> Self {
        let mut record = record.clone();
        record.set_deleted(None);
        // Records hold only texts and numbers, so this cannot fail.
        Self::Text(serde_json::to_string(&record).ok())
    }
}
