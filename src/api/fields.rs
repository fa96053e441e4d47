//! Reading the members of a JSON object by IMS's rules: what is taken for a boolean or a number, every error reported at
//! once under the name of its field, and no unknown field.
//!
//! A body is declared once, by [`body!`]. The type of a member brings the rule by which it is read and the schema that
//! describes it, so that one cannot contradict the other:
//!
//! ```text
//! body!  struct JobCreate { enable_debug: OrDefault<bool>, … }     members, with their documentation
//!                                         │         └─ Field       how a value is read     (rules.rs)
//!                                         └─ Member                absent, null, required  (members.rs)
//! ```

use serde_json::{Map, Value, json};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema};

use super::problem::{Problem, Result};

mod declare;
mod members;
mod records;
mod rules;

pub(super) use declare::{body, members};
pub(super) use members::{Flatten, Nullable, OrDefault, OrEmpty};
pub(super) use rules::{
    FileName, Gib, HostName, List, Name, PublicKeyText, Text, checked, collect, enumerations, reference, string, text,
    texts,
};

/// What is wrong with a field: a list of texts, or an object of such lists.
pub(super) type FieldError = Value;

/// A field as it was read.
pub(super) type Parsed<T> = std::result::Result<T, FieldError>;

/// Stands for a value that was not read; [`Fields::finish`] has said why.
#[derive(Debug, Clone, Copy)]
pub(super) struct Invalid;

impl From<Invalid> for Problem {
    fn from(_: Invalid) -> Self {
        Problem::unprocessable("Input data was understood, but failed validation.")
    }
}

/// Named schemas of a description.
pub(super) type Components = Vec<(String, RefOr<Schema>)>;

/// How a value is read, and how that is described.
pub(super) trait Field {
    /// The value as it was read.
    type Read;

    /// Reads a value that is not null.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    fn read(value: &Value) -> Parsed<Self::Read>;

    /// The description, or a reference to it.
    fn schema() -> RefOr<Schema>;

    /// Adds the schemas that the description refers to.
    fn components(_: &mut Components) {}
}

/// A field of a body with its presence, or a group of fields.
pub(super) trait Member {
    /// The value as it was read.
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
/// 422 with everything that is wrong with it.
pub(super) fn read<B: Members>(value: Value) -> Result<B> {
    let mut fields = Fields::of(value)?;
    let body = B::take(&mut fields);
    fields.finish()?;
    Ok(body?)
}

/// The members that have not been read yet, and what was wrong with those that have.
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
    /// 422 when it is none.
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

    /// A member that has to be there.
    fn required<T>(&mut self, name: &str, parse: impl FnOnce(&Value) -> Parsed<T>) -> std::result::Result<T, Invalid> {
        match self.optional(name, parse)? {
            Some(value) => Ok(value),
            None => self.error(name, error("Missing data for required field.")),
        }
    }

    /// A member that need not be there, but is not null when it is.
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

    /// A member that may be absent (none), null (some none) or a value.
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

    /// To be called when every known member has been read.
    ///
    /// # Errors
    ///
    /// 422 with everything that was wrong.
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

/// One thing that is wrong with a field.
pub(super) fn error(text: impl Into<String>) -> FieldError {
    json!([text.into()])
}

/// The words of a documentation comment, from its lines.
pub(super) fn words(lines: &[&str]) -> String {
    let lines: Vec<_> = lines
        .iter()
        .map(|line| line.strip_prefix(' ').unwrap_or(line))
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests;
