//! How records lie in tables: each as the JSON that the API answers, beside the columns that it is looked for by. The same
//! in every database.

use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

use super::{Record, Side};
use crate::records::{Link, Moment};

/// A type whose values are rows.
pub(super) trait Table: Send + Sync + 'static {
    /// The table.
    const NAME: &'static str;

    /// Its columns, `id` the first, as [`Table::values`] gives them. `revision` and `position` are the store's own and
    /// not among them.
    const COLUMNS: &'static [&'static str];

    /// What goes into the columns.
    fn values(&self) -> Vec<Value>;
}

/// A record that lies in its row as a whole, in the column `record`.
pub(super) trait Document: Table + Clone + Serialize + DeserializeOwned {
    /// Says when the record was deleted: that is a column, not a part of the document, since deleting changes nothing
    /// else.
    fn set_deleted(&mut self, deleted: Option<Moment>);
}

/// A table with a live and a deleted side.
pub(super) trait TwoSided: Document + Record {
    /// The link, of which there may be only one among the live records.
    fn link(&self) -> Option<&Link>;

    /// When it was deleted.
    fn deleted(&self) -> Option<Moment>;

    /// Which side it belongs on.
    fn side(&self) -> Side {
        match self.deleted() {
            None => Side::Live,
            Some(_) => Side::Deleted,
        }
    }
}

/// What goes into one column.
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
        // What records hold are texts and numbers, which JSON can say.
        Self::Text(serde_json::to_string(&record).ok())
    }
}
