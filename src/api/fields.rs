//! Reads the members of a JSON object by IMS's rules for booleans and numbers. All errors are reported at once, each
//! under the name of its field, and an unknown field is an error. Pure: no I/O.
//!
//! A body is declared once, by [`body!`]. The type of a member has both the rule for reading it and the schema that
//! describes it, so that the two cannot contradict each other:
//!
//! ```text
//! body!  struct JobCreate { enable_debug: OrDefault<bool>, … }     members, with their documentation
//!                                         │         └─ Field       how a value is read     (rules.rs)
//!                                         └─ Member                absent, null, required  (members.rs)
//! ```

use serde_json::{Map, Value, json};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema};

use super::problem::{Problem, Result};

mod additions;
mod declare;
mod members;
mod records;
mod rules;

pub(super) use additions::{AddedRepo, Package, SetRepo};
pub(super) use declare::{body, members};
pub(super) use members::{Flatten, Nullable, OrDefault, OrEmpty};
pub(super) use rules::{
    ContextPath, FileName, Gib, HostName, List, Name, PublicKeyText, Text, Word, checked, collect, enumerations,
    reference, string, text, texts, whole_number,
};

/// The errors of a field: a list of texts, or an object of such lists.
pub(super) type FieldError = Value;

/// The result of reading a field.
pub(super) type Parsed<T> = std::result::Result<T, FieldError>;

/// Stands for a value that could not be read; [`Fields::finish`] has reported the reason.
#[derive(Debug, Clone, Copy)]
pub(super) struct Invalid;

impl From<Invalid> for Problem {
    fn from(_: Invalid) -> Self {
        Problem::unprocessable("Input data was understood, but failed validation.")
    }
}

/// Named schemas of a description.
pub(super) type Components = Vec<(String, RefOr<Schema>)>;

/// A rule for reading a value, with its description.
pub(super) trait Field {
    /// The type of the value.
    type Read;

    /// Reads a value that is not null.
    ///
    /// # Errors
    ///
    /// The mistake in the value.
    fn read(value: &Value) -> Parsed<Self::Read>;

    /// The description, or a reference to it.
    fn schema() -> RefOr<Schema>;

    /// Adds the schemas that the description refers to.
    fn components(_: &mut Components) {}
}

/// A field of a body with its presence, or a group of fields.
pub(super) trait Member {
    /// The type of the value.
    type Read;

    /// Reads the member.
    ///
    /// # Errors
    ///
    /// The reasons are kept in `fields`.
    fn take(fields: &mut Fields, name: &str) -> std::result::Result<Self::Read, Invalid>;

    /// Adds the member to the description of its body.
    fn describe(object: ObjectBuilder, name: &str, about: &str) -> ObjectBuilder;

    /// Adds the schemas that the description refers to.
    fn components(components: &mut Components);
}

/// A body or a group of members, as [`body!`] and [`members!`] declare them.
pub(super) trait Members: Sized {
    /// Reads the members.
    ///
    /// # Errors
    ///
    /// The reasons are kept in `fields`.
    fn take(fields: &mut Fields) -> std::result::Result<Self, Invalid>;

    /// Adds the members to the description of a body.
    fn describe(object: ObjectBuilder) -> ObjectBuilder;

    /// Adds the schemas that the description refers to.
    fn components(components: &mut Components);
}

/// Reads a body.
///
/// # Errors
///
/// 422 with all mistakes in the body.
pub(super) fn read<B: Members>(value: Value) -> Result<B> {
    let mut fields = Fields::of(value)?;
    let body = B::take(&mut fields);
    fields.finish()?;
    Ok(body?)
}

/// The members that are still unread, and the errors so far.
#[derive(Debug)]
pub(super) struct Fields {
    members: Map<String, Value>,
    errors: Map<String, Value>,
}

impl Fields {
    /// The members of an object.
    ///
    /// # Errors
    ///
    /// 422 if the value is not an object.
    fn of(value: Value) -> Result<Self> {
        match value {
            Value::Object(members) => Ok(Self::new(members)),
            _ => Err(Problem::invalid(
                [("_schema".to_owned(), json!(["Invalid input type."]))]
                    .into_iter()
                    .collect(),
            )),
        }
    }

    fn new(members: Map<String, Value>) -> Self {
        Self {
            members,
            errors: Map::new(),
        }
    }

    /// A required member.
    fn required<T>(&mut self, name: &str, parse: impl FnOnce(&Value) -> Parsed<T>) -> std::result::Result<T, Invalid> {
        match self.optional(name, parse)? {
            Some(value) => Ok(value),
            None => self.error(name, error("Missing data for required field.")),
        }
    }

    /// A member that may be absent, but not null.
    fn optional<T>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&Value) -> Parsed<T>,
    ) -> std::result::Result<Option<T>, Invalid> {
        match self.members.remove(name) {
            None => Ok(None),
            Some(Value::Null) => self.error(name, error("Field may not be null.")),
            Some(value) => match parse(&value) {
                Ok(value) => Ok(Some(value)),
                Err(errors) => self.error(name, errors),
            },
        }
    }

    /// A member that may be absent (`None`), null (`Some(None)`) or a value.
    #[expect(clippy::option_option, reason = "absent and null are different things here")]
    fn nullable<T>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&Value) -> Parsed<T>,
    ) -> std::result::Result<Option<Option<T>>, Invalid> {
        if self.members.get(name) == Some(&Value::Null) {
            self.members.remove(name);
            return Ok(Some(None));
        }
        Ok(self.optional(name, parse)?.map(Some))
    }

    fn error<T>(&mut self, name: &str, errors: FieldError) -> std::result::Result<T, Invalid> {
        self.errors.insert(name.to_owned(), errors);
        Err(Invalid)
    }

    /// Ends the reading, after every known member has been read.
    ///
    /// # Errors
    ///
    /// 422 with all errors.
    fn finish(self) -> Result<()> {
        self.into_errors().map_err(Problem::invalid)
    }

    fn into_errors(mut self) -> std::result::Result<(), Map<String, Value>> {
        for (name, _) in std::mem::take(&mut self.members) {
            self.errors.insert(name, error("Unknown field."));
        }
        if self.errors.is_empty() {
            Ok(())
        } else {
            Err(self.errors)
        }
    }
}

/// A nested object.
pub(super) fn object<B: Members>(value: &Value) -> Parsed<B> {
    let Value::Object(members) = value else {
        return Err(json!({ "_schema": ["Invalid input type."] }));
    };
    let mut fields = Fields::new(members.clone());
    let read = B::take(&mut fields);
    fields.into_errors().map_err(Value::Object)?;
    read.map_err(|Invalid| error("Not valid."))
}

/// One error of a field.
pub(super) fn error(text: impl Into<String>) -> FieldError {
    json!([text.into()])
}

/// The text of a documentation comment, from its lines.
pub(super) fn words(lines: &[&str]) -> String {
    let lines: Vec<_> = lines
        .iter()
        .map(|line| line.strip_prefix(' ').unwrap_or(line))
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests;
