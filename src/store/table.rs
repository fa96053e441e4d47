//! How a record lies in its table: the names of its columns, and how to write and read them. The same in every database.

use std::{fmt, str::FromStr};

use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

use super::{Record, Result, Side, StoreError};
use crate::records::{Link, Moment, StoreType};

/// A type whose values are rows.
pub(super) trait Table: Sized + Send + Sync + 'static {
    /// The table.
    const NAME: &'static str;

    /// Its columns, `id` the first, as [`Table::values`] gives them and [`Table::read`] takes them. `revision` and
    /// `position` are the store's own and not among them.
    const COLUMNS: &'static [&'static str];

    /// What goes into the columns.
    fn values(&self) -> Vec<Value>;

    /// Puts a row together.
    fn read<'r>(row: &mut impl Columns<'r>) -> Result<Self>;
}

/// A table with a live and a deleted side. Its last column is `deleted`.
pub(super) trait TwoSided: Table + Record {
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
    /// True or false.
    Flag(bool),
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

    /// A list or map.
    pub(super) fn json(value: &impl Serialize) -> Self {
        // What records hold are texts and numbers, which JSON can say.
        Self::Text(serde_json::to_string(value).ok())
    }

    /// A moment.
    pub(super) fn moment(moment: Moment) -> Self {
        Self::Number(Some(moment.micros()))
    }

    /// The two columns of a link.
    pub(super) fn link(link: Option<&Link>) -> [Self; 2] {
        [
            Self::Text(link.map(|link| link.path.clone())),
            Self::Text(link.map(|link| link.etag.clone())),
        ]
    }
}

/// The columns of one row, taken from left to right.
pub(super) trait Columns<'r> {
    /// Text, or null.
    fn maybe_text(&mut self) -> Result<Option<&'r str>>;
    /// A number, or null.
    fn maybe_number(&mut self) -> Result<Option<i64>>;
    /// True or false.
    fn flag(&mut self) -> Result<bool>;
    /// What is wrong with the column that was taken last.
    fn damaged(&self, what: &dyn fmt::Display) -> StoreError;

    /// Text.
    fn text(&mut self) -> Result<&'r str> {
        self.maybe_text()?.ok_or_else(|| self.damaged(&"null"))
    }

    /// Text of its own.
    fn string(&mut self) -> Result<String> {
        self.text().map(str::to_owned)
    }

    /// A number.
    fn number(&mut self) -> Result<i64> {
        self.maybe_number()?.ok_or_else(|| self.damaged(&"null"))
    }

    /// A number that is not negative and not large.
    fn small(&mut self) -> Result<u32> {
        let number = self.number()?;
        u32::try_from(number).map_err(|error| self.damaged(&error))
    }

    /// A moment.
    fn moment(&mut self) -> Result<Moment> {
        self.number().map(Moment::from_micros)
    }

    /// Something that is written as text.
    fn parsed<T: FromStr<Err: fmt::Display>>(&mut self) -> Result<T> {
        let text = self.text()?;
        text.parse().map_err(|error| self.damaged(&error))
    }

    /// One of a few, by its name.
    fn named<T: Copy>(&mut self, all: &[T], name: fn(T) -> &'static str) -> Result<T> {
        let text = self.text()?;
        let found = all.iter().copied().find(|one| name(*one) == text);
        found.ok_or_else(|| self.damaged(&format_args!("unknown word `{text}`")))
    }

    /// A list or map, or null.
    fn maybe_json<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let Some(text) = self.maybe_text()? else {
            return Ok(None);
        };
        serde_json::from_str(text)
            .map(Some)
            .map_err(|error| self.damaged(&error))
    }

    /// A list or map.
    fn json<T: DeserializeOwned>(&mut self) -> Result<T> {
        self.maybe_json()?.ok_or_else(|| self.damaged(&"null"))
    }

    /// A link out of its two columns.
    fn link(&mut self) -> Result<Option<Link>> {
        let (path, etag) = (self.maybe_text()?, self.maybe_text()?);
        Ok(path.map(|path| Link {
            path: path.to_owned(),
            etag: etag.unwrap_or_default().to_owned(),
            store: StoreType::S3,
        }))
    }
}
