//! Values of options, in the forms that `cray` accepts. Pure: no I/O.

use clap::{
    Args,
    builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser},
};
use kiln_records::{
    CacheDepth, Code, Failure, JobStatus, JobType, LinuxDistribution, RecipeType, Step, TwinLevel,
    arch::Arch,
    schedule::{MissedRuns, Overlap},
};
use serde_json::{Map, Value, json};

/// A boolean, in one of the words that Python's tools accept.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "t" | "1" | "yes" | "y" | "on" => Ok(true),
        "false" | "f" | "0" | "no" | "n" | "off" => Ok(false),
        _ => Err("use true or false".to_owned()),
    }
}

/// A moment in seconds since 1970.
pub(super) fn seconds(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| {
        format!(
            "use seconds since 1970, from 0 to {}, as `date -d 2026-01-31 +%s` prints them",
            u32::MAX
        )
    })
}

/// An architecture, by any of its names.
pub(super) fn arch() -> impl TypedValueParser<Value = Arch> {
    let names = Arch::ALL.map(|arch| PossibleValue::new(arch.name()).aliases(arch.aliases()));
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Arch>())
}

macro_rules! one_of {
    ($(#[$doc:meta])* $function:ident, $type:ty) => {
        $(#[$doc])*
        pub(super) fn $function() -> impl TypedValueParser<Value = $type> {
            let names = <$type>::ALL.map(<$type>::name);
            PossibleValuesParser::new(names).try_map(|name| {
                <$type>::ALL.into_iter().find(|item| item.name() == name).ok_or_else(|| name.clone())
            })
        }
    };
}

one_of!(recipe_type, RecipeType);
one_of!(linux_distribution, LinuxDistribution);
one_of!(job_type, JobType);
one_of!(job_status, JobStatus);
one_of!(step, Step);
one_of!(
    /// The tools that may run as native twins.
    twins,
    TwinLevel
);
one_of!(
    /// How much of earlier jobs a job may reuse.
    cache,
    CacheDepth
);
one_of!(missed_runs, MissedRuns);
one_of!(overlap, Overlap);

/// The tools that may run as native twins, or null for the default.
pub(super) fn twins_or_default() -> impl TypedValueParser<Value = Value> {
    or_default(&TwinLevel::ALL.map(TwinLevel::name))
}

/// How much of earlier jobs a job may reuse, or null for the default.
pub(super) fn cache_or_default() -> impl TypedValueParser<Value = Value> {
    or_default(&CacheDepth::ALL.map(CacheDepth::name))
}

fn or_default(names: &[&'static str]) -> impl TypedValueParser<Value = Value> + use<> {
    let names = names.iter().copied().chain(["default"]);
    PossibleValuesParser::new(names).map(|name| match name.as_str() {
        "default" => Value::Null,
        _ => Value::String(name),
    })
}

/// One item of a comma-separated list.
pub(super) fn item() -> impl TypedValueParser<Value = String> {
    StringValueParser::new().map(|text| text.trim().to_owned())
}

/// The location of an object.
#[expect(clippy::struct_field_names, reason = "they name the options")]
#[derive(Debug, Args)]
pub(super) struct LinkOptions {
    /// The location of the object: s3://BUCKET/KEY.
    #[arg(long, value_name = "PATH")]
    link_path: Option<String>,

    /// The object's entity tag.
    #[arg(long, value_name = "ETAG")]
    link_etag: Option<String>,

    /// The kind of store [default: s3].
    #[arg(long, value_name = "TYPE")]
    link_type: Option<String>,
}

impl LinkOptions {
    /// The link, if any part of it is given. `cray` requires the type although there is only one.
    pub(super) fn link(&self) -> Option<Value> {
        let default_type = self.link_path.as_ref().map(|_| "s3".to_owned());
        let link = Body::default()
            .text("path", self.link_path.clone())
            .text("etag", self.link_etag.clone())
            .text("type", self.link_type.clone().or(default_type));
        (!link.0.is_empty()).then(|| link.into_value())
    }
}

/// Values for a recipe's templates.
#[derive(Debug, Args)]
pub(super) struct TemplateOptions {
    /// The names of values for the recipe's templates, separated by commas.
    #[arg(long, value_name = "KEY,…", value_delimiter = ',', value_parser = item(), requires = "template_dictionary_value")]
    template_dictionary_key: Vec<String>,

    /// The values, in the same order.
    #[arg(long, value_name = "VALUE,…", value_delimiter = ',', value_parser = item(), requires = "template_dictionary_key", allow_hyphen_values = true)]
    template_dictionary_value: Vec<String>,
}

impl TemplateOptions {
    /// The pairs, if there are any.
    pub(super) fn dictionary(&self) -> Result<Option<Value>, Failure> {
        let (keys, values) = (&self.template_dictionary_key, &self.template_dictionary_value);
        same_length(
            "template-dictionary-key",
            keys.len(),
            "template-dictionary-value",
            values.len(),
        )?;
        let pairs: Vec<_> = keys
            .iter()
            .zip(values)
            .map(|(key, value)| json!({ "key": key, "value": value }))
            .collect();
        Ok((!pairs.is_empty()).then_some(Value::Array(pairs)))
    }
}

/// Refuses two parallel lists of different lengths.
pub(super) fn same_length(one: &str, length: usize, other: &str, other_length: usize) -> Result<(), Failure> {
    if length == other_length {
        return Ok(());
    }
    Err(Failure::new(
        Code::Usage,
        format!("--{one} has {length} items, --{other} has {other_length}"),
    )
    .hint("the items belong together in their order; commas separate them"))
}

/// A JSON object of the given values.
#[derive(Debug, Default)]
pub(super) struct Body(Map<String, Value>);

impl Body {
    pub(super) fn set(mut self, member: &str, value: Option<impl Into<Value>>) -> Self {
        if let Some(value) = value {
            self.0.insert(member.to_owned(), value.into());
        }
        self
    }

    pub(super) fn text(self, member: &str, value: Option<String>) -> Self {
        self.set(member, value)
    }

    pub(super) fn into_value(self) -> Value {
        Value::Object(self.0)
    }

    /// The body of a change; an empty change is an error.
    pub(super) fn into_change(self) -> Result<Value, Failure> {
        if self.0.is_empty() {
            return Err(Failure::new(Code::Usage, "nothing is to be changed").hint("`--help` lists what can be"));
        }
        Ok(self.into_value())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_are_those_of_ims() {
        for text in ["True", "true", "1", "yes", "ON", "t"] {
            assert_eq!(boolean(text), Ok(true), "{text}");
        }
        for text in ["False", "false", "0", "No", "off", "f"] {
            assert_eq!(boolean(text), Ok(false), "{text}");
        }
        assert!(boolean("2").is_err() && boolean("").is_err());
    }

    #[test]
    fn a_date_that_is_no_number_is_told_how_to_become_one() {
        assert_eq!(seconds("1700000000"), Ok(1_700_000_000));
        for text in ["2023-11-14", "-1", "4294967296", ""] {
            assert!(seconds(text).unwrap_err().contains("`date -d"), "{text}");
        }
    }
}
