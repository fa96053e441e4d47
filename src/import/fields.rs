//! Reads the members of one stored record, one by one. Pure: no I/O.
//!
//! IMS checks a request but stores it as it was sent, so a boolean may be stored as text.

use kiln_records::Moment;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// A value, or why it is invalid.
pub(super) type Taken<T> = Result<T, String>;

/// Texts that IMS reads as true; [`FALSE`] has the others.
const TRUE: [&str; 6] = ["1", "t", "true", "on", "y", "yes"];
const FALSE: [&str; 6] = ["0", "f", "false", "off", "n", "no"];

/// The members that have not been read yet.
pub(super) struct Fields {
    members: Map<String, Value>,
    /// The changes made while reading.
    pub(super) changes: Vec<String>,
}

impl Fields {
    /// The members of an object.
    pub(super) fn of(record: Value) -> Taken<Self> {
        match record {
            Value::Object(members) => Ok(Self {
                members,
                changes: Vec::new(),
            }),
            other => Err(format!("not an object but {}", kind(&other))),
        }
    }

    /// A member as it is; `None` when it is absent.
    pub(super) fn any(&mut self, name: &str) -> Option<Value> {
        self.members.remove(name)
    }

    /// A member that is neither absent nor null.
    fn given(&mut self, name: &str) -> Option<Value> {
        self.any(name).filter(|value| !value.is_null())
    }

    /// Text.
    pub(super) fn text(&mut self, name: &str) -> Taken<String> {
        self.maybe_text(name)?.ok_or_else(|| missing(name))
    }

    /// Text; `None` when it is absent.
    pub(super) fn maybe_text(&mut self, name: &str) -> Taken<Option<String>> {
        match self.given(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(format!("{name}: not text but {}", kind(&other))),
        }
    }

    /// Text, or a default when it is absent or empty.
    pub(super) fn text_or(&mut self, name: &str, default: impl FnOnce() -> String) -> Taken<String> {
        let text = self.maybe_text(name)?.filter(|text| !text.is_empty());
        Ok(text.unwrap_or_else(default))
    }

    /// True or false, or a default when it is absent.
    pub(super) fn flag_or(&mut self, name: &str, default: bool) -> Taken<bool> {
        let Some(value) = self.given(name) else {
            return Ok(default);
        };
        let word = match &value {
            Value::Bool(flag) => return Ok(*flag),
            Value::String(text) => text.to_ascii_lowercase(),
            other => other.to_string(),
        };
        match (TRUE.contains(&word.as_str()), FALSE.contains(&word.as_str())) {
            (true, _) => Ok(true),
            (_, true) => Ok(false),
            _ => Err(format!("{name}: neither true nor false: {value}")),
        }
    }

    /// A number, or a default when it is absent.
    pub(super) fn number_or(&mut self, name: &str, default: u32) -> Taken<u32> {
        let Some(value) = self.given(name) else {
            return Ok(default);
        };
        let number = match &value {
            Value::String(text) => text.trim().parse().ok(),
            other => other.as_u64().and_then(|number| number.try_into().ok()),
        };
        number.ok_or_else(|| format!("{name}: not a usable number: {value}"))
    }

    /// A value that is written as text: an identity, a moment, an architecture.
    pub(super) fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(&mut self, name: &str) -> Taken<T> {
        self.maybe_parsed(name)?.ok_or_else(|| missing(name))
    }

    /// The same; `None` when it is absent.
    pub(super) fn maybe_parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
        &mut self,
        name: &str,
    ) -> Taken<Option<T>> {
        let Some(text) = self.maybe_text(name)? else {
            return Ok(None);
        };
        text.parse().map(Some).map_err(|error| format!("{name}: {error}"))
    }

    /// One of a few words.
    pub(super) fn word<T: DeserializeOwned>(&mut self, name: &str) -> Taken<T> {
        let text = self.text(name)?;
        serde_json::from_value(Value::String(text)).map_err(|error| format!("{name}: {error}"))
    }

    /// The time at which a record was made.
    pub(super) fn moment(&mut self, name: &str) -> Taken<Moment> {
        self.parsed(name)
    }

    /// Records a change.
    pub(super) fn changed(&mut self, what: impl Into<String>) {
        self.changes.push(what.into());
    }

    /// Drops the members that were not read, and returns all changes.
    pub(super) fn finish(mut self, of: &str) -> Vec<String> {
        if !self.members.is_empty() {
            let names: Vec<&str> = self.members.keys().map(String::as_str).collect();
            self.changes
                .push(format!("unknown members{of} dropped: {}", names.join(", ")));
        }
        self.changes
    }
}

fn missing(name: &str) -> String {
    format!("{name}: missing")
}

/// The type of a JSON value, in words.
pub(super) const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
