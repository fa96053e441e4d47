//! Reading the members of a JSON object by IMS's rules: what is taken for a boolean or a number, every error reported at
//! once under the name of its field, and no field that nobody knows.

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::problem::{Problem, Result};
use crate::{
    arch::Arch,
    records::{
        JobStatus, JobType, Link, LinuxDistribution, RecipeType, StoreType, TemplateValue, TwinLevel, names::check_name,
    },
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
    pub(super) fn of(value: Value) -> Result<Self> {
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
    pub(super) fn required<T>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&Value) -> Parsed<T>,
    ) -> std::result::Result<T, Invalid> {
        match self.optional(name, parse)? {
            Some(value) => Ok(value),
            None => self.error(name, error("Missing data for required field.")),
        }
    }

    /// A member that need not be there, but is not null when it is.
    pub(super) fn optional<T>(
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
    pub(super) fn nullable<T>(
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
    pub(super) fn finish(self) -> Result<()> {
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
pub(super) fn object<T>(value: &Value, read: impl FnOnce(&mut Fields) -> std::result::Result<T, Invalid>) -> Parsed<T> {
    let Value::Object(members) = value else {
        return Err(json!({ "_schema": ["Invalid input type."] }));
    };
    let mut fields = Fields::new(members.clone());
    let read = read(&mut fields);
    fields.into_errors().map_err(Value::Object)?;
    read.map_err(|Invalid| error("Not valid."))
}

/// A list, whose errors are under the numbers of its items.
pub(super) fn list<T>(value: &Value, parse: impl Fn(&Value) -> Parsed<T>) -> Parsed<Vec<T>> {
    let Value::Array(items) = value else {
        return Err(error("Not a valid list."));
    };
    let (mut parsed, mut errors) = (Vec::with_capacity(items.len()), Map::new());
    for (number, item) in items.iter().enumerate() {
        match parse(item) {
            Ok(item) => parsed.push(item),
            Err(error) => {
                errors.insert(number.to_string(), error);
            }
        }
    }
    if errors.is_empty() {
        Ok(parsed)
    } else {
        Err(Value::Object(errors))
    }
}

/// One thing that is wrong with a field.
pub(super) fn error(text: impl Into<String>) -> FieldError {
    json!([text.into()])
}

/// Any text.
pub(super) fn text(value: &Value) -> Parsed<String> {
    let text = value.as_str().ok_or_else(|| error("Not a valid string."))?;
    // PostgreSQL cannot keep it, and nothing that reads it would expect it.
    if text.contains('\0') {
        return Err(error("Contains a null character."));
    }
    Ok(text.to_owned())
}

/// A text that is not empty and that `check` has nothing against.
pub(super) fn checked(
    check: impl Fn(&str) -> std::result::Result<(), &'static str>,
) -> impl Fn(&Value) -> Parsed<String> {
    move |value| {
        let text = text(value)?;
        if text.is_empty() {
            return Err(error("Shorter than minimum length 1."));
        }
        check(&text).map_err(error)?;
        Ok(text)
    }
}

/// The name of a record.
pub(super) fn name(value: &Value) -> Parsed<String> {
    checked(check_name)(value)
}

/// A boolean, or one of the texts and numbers that IMS takes for one.
pub(super) fn boolean(value: &Value) -> Parsed<bool> {
    const TRUE: [&str; 14] = [
        "1", "t", "T", "true", "True", "TRUE", "on", "On", "ON", "y", "Y", "yes", "Yes", "YES",
    ];
    const FALSE: [&str; 14] = [
        "0", "f", "F", "false", "False", "FALSE", "off", "Off", "OFF", "n", "N", "no", "No", "NO",
    ];
    let known = match value {
        Value::Bool(value) => Some(*value),
        Value::Number(number) => match number.as_f64() {
            Some(1.0) => Some(true),
            Some(0.0) => Some(false),
            _ => None,
        },
        Value::String(text) if TRUE.contains(&text.as_str()) => Some(true),
        Value::String(text) if FALSE.contains(&text.as_str()) => Some(false),
        _ => None,
    };
    known.ok_or_else(|| error("Not a valid boolean."))
}

/// The largest size in GiB that is taken: 1 PiB.
pub(super) const MAX_SIZE: u32 = 1 << 20;

/// A size of 1 GiB or more. Fractions are cut, decimal texts are read.
pub(super) fn size(value: &Value) -> Parsed<u32> {
    let number = match value {
        Value::Number(number) => number.as_i64().map(i128::from).or_else(|| {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "cutting it is what is wanted; `as` saturates"
            )]
            number.as_f64().map(|number| number as i128)
        }),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    let number = number.ok_or_else(|| error("Not a valid integer."))?;
    if number < 1 {
        return Err(error("Must be greater than or equal to 1."));
    }
    u32::try_from(number)
        .ok()
        .filter(|size| *size <= MAX_SIZE)
        .ok_or_else(|| error(format!("Must be less than or equal to {MAX_SIZE}.")))
}

/// A UUID in any of the forms that IMS takes: hyphens or none, braces, `urn:uuid:`, any case.
pub(super) fn uuid(value: &Value) -> Parsed<Uuid> {
    let plain = value.as_str().map(|text| {
        let text = text.replace("urn:", "").replace("uuid:", "");
        text.trim_matches(['{', '}']).replace('-', "")
    });
    plain
        .filter(|text| text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .and_then(|text| Uuid::try_parse(&text).ok())
        .ok_or_else(|| error("Not a valid UUID."))
}

/// One of the words of an enumeration.
pub(super) fn one_of<T: Copy>(all: &'static [T], name: fn(T) -> &'static str) -> impl Fn(&Value) -> Parsed<T> {
    move |value| {
        let text = text(value)?;
        let found = all.iter().copied().find(|item| name(*item) == text);
        found.ok_or_else(|| {
            let names: Vec<_> = all.iter().map(|item| name(*item)).collect();
            error(format!("Must be one of: {}.", names.join(", ")))
        })
    }
}

/// An architecture, by its own name only: what is stored is what was sent.
pub(super) fn arch(value: &Value) -> Parsed<Arch> {
    one_of(&Arch::ALL, Arch::name)(value)
}

/// A level of twins.
pub(super) fn twins(value: &Value) -> Parsed<TwinLevel> {
    one_of(&TwinLevel::ALL, TwinLevel::name)(value)
}

/// A recipe's type.
pub(super) fn recipe_type(value: &Value) -> Parsed<RecipeType> {
    one_of(&RecipeType::ALL, RecipeType::name)(value)
}

/// A distribution.
pub(super) fn linux_distribution(value: &Value) -> Parsed<LinuxDistribution> {
    one_of(&LinuxDistribution::ALL, LinuxDistribution::name)(value)
}

/// A job's type.
pub(super) fn job_type(value: &Value) -> Parsed<JobType> {
    one_of(&JobType::ALL, JobType::name)(value)
}

/// A job's status.
pub(super) fn job_status(value: &Value) -> Parsed<JobStatus> {
    one_of(&JobStatus::ALL, JobStatus::name)(value)
}

/// A link.
pub(super) fn link(value: &Value) -> Parsed<Link> {
    object(value, |fields| {
        let path = fields.required("path", checked(|_| Ok(())));
        let store = fields.required("type", one_of(&[StoreType::S3], |StoreType::S3| "s3"));
        let etag = fields.optional("etag", text);
        Ok(Link {
            path: path?,
            etag: etag?.unwrap_or_default(),
            store: store?,
        })
    })
}

/// A template dictionary.
pub(super) fn template_dictionary(value: &Value) -> Parsed<Vec<TemplateValue>> {
    list(value, |item| {
        object(item, |fields| {
            let (key, value) = (fields.required("key", text), fields.required("value", text));
            Ok(TemplateValue {
                key: key?,
                value: value?,
            })
        })
    })
}

#[cfg(test)]
mod tests;
