//! Lists the columns of each kind of record. Pure: no I/O.

use super::table::{Document, Table, TwoSided, Value};
use kiln_records::{Image, ImageSet, Job, Link, Moment, PublicKey, Recipe, Schedule, Token};

macro_rules! two_sided {
    ($record:ty, $table:literal, $link:expr) => {
        impl Table for $record {
            const NAME: &'static str = $table;
            const COLUMNS: &'static [&'static str] = &["id", "name", "arch", "link_path", "deleted", "record"];

            fn values(&self) -> Vec<Value> {
                vec![
                    Value::id(self.id),
                    Value::text(&self.name),
                    Value::text(self.arch.name()),
                    Value::Text(self.link.as_ref().map(|link| link.path.clone())),
                    Value::Number(self.deleted.map(Moment::micros)),
                    Value::document(self),
                ]
            }
        }

        two_sided!($record, $link);
    };
    ($record:ty, $link:expr) => {
        impl Document for $record {
            fn set_deleted(&mut self, deleted: Option<Moment>) {
                self.deleted = deleted;
            }
        }

        impl TwoSided for $record {
            fn link(&self) -> Option<&Link> {
                let link: fn(&Self) -> Option<&Link> = $link;
                link(self)
            }

            fn deleted(&self) -> Option<Moment> {
                self.deleted
            }
        }
    };
}

two_sided!(Recipe, "recipes", |recipe| recipe.link.as_ref());
two_sided!(Image, "images", |image| image.link.as_ref());
two_sided!(PublicKey, |_| None);

impl Table for PublicKey {
    const NAME: &'static str = "public_keys";
    const COLUMNS: &'static [&'static str] = &["id", "name", "deleted", "record"];

    fn values(&self) -> Vec<Value> {
        vec![
            Value::id(self.id),
            Value::text(&self.name),
            Value::Number(self.deleted.map(Moment::micros)),
            Value::document(self),
        ]
    }
}

impl Table for Job {
    const NAME: &'static str = "jobs";
    const COLUMNS: &'static [&'static str] = &["id", "created", "name", "arch", "status", "job_type", "record"];

    fn values(&self) -> Vec<Value> {
        vec![
            Value::id(self.id),
            Value::moment(self.created),
            Value::text(&self.image_root_archive_name),
            Value::text(self.arch.name()),
            Value::text(self.status.name()),
            Value::text(self.job_type.name()),
            Value::document(self),
        ]
    }
}

impl Document for Job {
    fn set_deleted(&mut self, _: Option<Moment>) {}
}

impl Table for Schedule {
    const NAME: &'static str = "schedules";
    const COLUMNS: &'static [&'static str] = &["id", "name", "next_run", "record"];

    fn values(&self) -> Vec<Value> {
        vec![
            Value::id(self.id),
            Value::text(&self.name),
            Value::Number(self.next_run.map(Moment::micros)),
            Value::document(self),
        ]
    }
}

impl Document for Schedule {
    fn set_deleted(&mut self, _: Option<Moment>) {}
}

impl Table for ImageSet {
    const NAME: &'static str = "sets";
    const COLUMNS: &'static [&'static str] = &["id", "name", "version", "is_complete", "next_look", "record"];

    fn values(&self) -> Vec<Value> {
        vec![
            Value::id(self.id),
            Value::text(&self.name),
            Value::text(&self.version),
            Value::Number(self.was_complete.then_some(1)),
            Value::moment(self.next_look),
            Value::document(self),
        ]
    }
}

impl Document for ImageSet {
    fn set_deleted(&mut self, _: Option<Moment>) {}
}

/// The column `sha256` belongs to the store and is not listed here.
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
}
