//! Finds the record that a user names by id, by the beginning of an id, or by name. Talks to the server.

use std::fmt::Write;

use kiln_records::{Code, Failure, near};
use uuid::Uuid;

use super::{Client, Collection, Data, Filter, refusal::printable, server};

/// The shortest beginning of an id that is accepted, as in git. Shorter ones are mistakes more often than ids.
const SHORTEST_PREFIX: usize = 4;

/// The most candidates that an error lists.
const MOST_CANDIDATES: usize = 10;

/// The record that a user named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its id.
    pub id: String,
    /// Its name, when it was looked up.
    pub name: Option<String>,
}

impl Client {
    /// The record that `given` names. A whole id is not looked up. A name takes precedence over the beginning of an
    /// id.
    ///
    /// # Errors
    ///
    /// `record_unknown` with similar names, `record_ambiguous` with the candidates.
    pub async fn find(&self, collection: &Collection, given: &str) -> Result<Found, Failure> {
        server::check_segment(given)?;
        if !collection.has_uuids() {
            return Ok(Found {
                id: given.to_owned(),
                name: None,
            });
        }
        if let Ok(id) = Uuid::try_parse(given) {
            return Ok(Found {
                id: id.hyphenated().to_string(),
                name: None,
            });
        }
        let by_name = Filter {
            name: Some(given.to_owned()),
            ..Filter::default()
        };
        let mut records = self.list(collection, &by_name).await?;
        let prefix = given.to_ascii_lowercase();
        if records.is_empty() && is_prefix(&prefix) {
            let by_prefix = Filter {
                id_prefix: Some(prefix),
                ..Filter::default()
            };
            records = self.list(collection, &by_prefix).await?;
        }
        match &records[..] {
            [one] => found(collection, one),
            [] => Err(self.unknown(collection, given).await),
            several => Err(ambiguous(collection, given, several)),
        }
    }

    async fn unknown(&self, collection: &Collection, given: &str) -> Failure {
        let failure = Failure::new(
            Code::RecordUnknown,
            format!("there is no {} with the name or id `{given}`", collection.described()),
        );
        if let Some(bin) = collection.bin {
            let by_name = Filter {
                name: Some(given.to_owned()),
                ..Filter::default()
            };
            if !self.list(bin, &by_name).await.unwrap_or_default().is_empty() {
                return failure.hint(format!("it was deleted: `kiln {} undelete` restores it", bin.command));
            }
        }
        let all = self.list(collection, &Filter::default()).await.unwrap_or_default();
        let names = all.iter().filter_map(|record| record.text(collection.name));
        let near: Vec<_> = near::nearest(given, names)
            .into_iter()
            .map(|name| format!("`{}`", printable(name)))
            .collect();
        if near.is_empty() && given.len() < SHORTEST_PREFIX && given.chars().all(|c| c.is_ascii_hexdigit()) {
            failure.hint(format!("of an id at least {SHORTEST_PREFIX} characters are needed"))
        } else if near.is_empty() {
            failure.hint(format!("`kiln {} list` shows what there is", collection.command))
        } else {
            failure.hint(format!("did you mean {}?", near.join(" or ")))
        }
    }
}

fn found(collection: &Collection, record: &Data) -> Result<Found, Failure> {
    let id = record.text(collection.id).unwrap_or_default();
    server::check_segment(id)?;
    Ok(Found {
        id: id.to_owned(),
        name: record.text(collection.name).map(printable),
    })
}

fn ambiguous(collection: &Collection, given: &str, records: &[Data]) -> Failure {
    let mut detail = format!("`{given}` is more than one {}:", collection.described());
    let text = |record: &Data, member| printable(record.text(member).unwrap_or("-"));
    for record in records.iter().take(MOST_CANDIDATES) {
        let (id, name) = (text(record, collection.id), text(record, collection.name));
        let _ = write!(detail, "\n  {id}  {}  {name}", text(record, "created"));
    }
    if records.len() > MOST_CANDIDATES {
        let _ = write!(detail, "\n  and {} more", records.len() - MOST_CANDIDATES);
    }
    Failure::new(Code::RecordAmbiguous, detail).hint("give the id, or so much of it that only one begins so")
}

fn is_prefix(text: &str) -> bool {
    (SHORTEST_PREFIX..36).contains(&text.len()) && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
}
