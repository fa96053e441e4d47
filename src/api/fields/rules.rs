//! The rules for reading values, each with its description. Pure: no I/O.

use std::marker::PhantomData;

use kiln_records::{
    ImageId,
    containerfile::{LONGEST_PATH, LONGEST_WORD, check_containerfile, check_word},
    names::{MAX_FILE_NAME, MAX_NAME, check_file_name, check_host_name, check_name, check_public_key},
};
use serde_json::{Map, Value, json};
use utoipa::{
    ToSchema,
    openapi::{
        ArrayBuilder, ObjectBuilder, Ref, RefOr, Schema,
        schema::{AnyOfBuilder, KnownFormat, SchemaFormat, SchemaType, Type},
    },
};
use uuid::Uuid;

use super::{Components, Field, Parsed, error};

/// Any text but the null character.
pub(super) const TEXT: &str = r"^[^\u0000]*$";

/// A name, see [`check_name`].
const NAME: &str = r"^[^\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]+$";

/// Any character of a name except the separator of directories.
const IN_FILE: &str = r"[^\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069/]";

/// The same, and neither a dot nor a hyphen.
const FIRST_IN_FILE: &str = r"[^\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069/.-]";

/// One line of `authorized_keys`, not blank.
const KEY: &str = r"^[^\u0000-\u0008\u000a-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]*[^\s\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069][^\u0000-\u0008\u000a-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]*(\r?\n)?$";

/// The largest accepted size in GiB: 1 PiB.
pub(super) const MAX_SIZE: u32 = 1 << 20;

/// The texts that IMS reads as true.
const TRUE: [&str; 14] = [
    "1", "t", "T", "true", "True", "TRUE", "on", "On", "ON", "y", "Y", "yes", "Yes", "YES",
];

/// The texts that IMS reads as false.
const FALSE: [&str; 14] = [
    "0", "f", "F", "false", "False", "FALSE", "off", "Off", "OFF", "n", "N", "no", "No", "NO",
];

/// Declares rules for texts: the check, and the description.
macro_rules! texts {
    ($($(#[doc = $about:literal])* $visibility:vis $name:ident = $read:expr, $schema:expr;)*) => {$(
        $(#[doc = $about])*
        #[derive(Debug)]
        $visibility enum $name {}

        impl $crate::api::fields::Field for $name {
            type Read = String;

            fn read(value: &serde_json::Value) -> $crate::api::fields::Parsed<String> {
                $read(value)
            }

            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                $schema.into()
            }
        }
    )*};
}

/// Reads enumerations by the names of their variants, listed in `ALL`.
macro_rules! enumerations {
    ($($type:ty),* $(,)?) => {$(
        impl $crate::api::fields::Field for $type {
            type Read = Self;

            fn read(value: &serde_json::Value) -> $crate::api::fields::Parsed<Self> {
                let text = $crate::api::fields::text(value)?;
                let found = Self::ALL.into_iter().find(|item| item.name() == text);
                found.ok_or_else(|| {
                    let names = Self::ALL.map(Self::name).join(", ");
                    $crate::api::fields::error(format!("Must be one of: {names}."))
                })
            }

            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                $crate::api::fields::reference::<Self>()
            }

            fn components(components: &mut $crate::api::fields::Components) {
                $crate::api::fields::collect::<Self>(components);
            }
        }
    )*};
}

pub(in crate::api) use {enumerations, texts};

texts! {
    /// Any text.
    pub(in crate::api) Text = text, string().pattern(Some(TEXT));
    /// The name of a record.
    pub(in crate::api) Name = |value| checked(value, check_name),
        string().min_length(Some(1)).max_length(Some(MAX_NAME)).pattern(Some(NAME));
    /// The name of a file in a directory that Kiln chooses.
    pub(in crate::api) FileName = |value| checked(value, check_file_name),
        string().min_length(Some(1)).max_length(Some(MAX_FILE_NAME)).pattern(Some(file_name()));
    /// The path of a Containerfile in its context.
    pub(in crate::api) ContextPath = |value| checked(value, check_containerfile),
        string().min_length(Some(1)).max_length(Some(LONGEST_PATH)).pattern(Some(format!("^{FIRST_IN_FILE}{IN_FILE}*(/{FIRST_IN_FILE}{IN_FILE}*){{0,9}}$")));
    /// The name of a stage or a secret.
    pub(in crate::api) Word = |value| checked(value, check_word),
        string().min_length(Some(1)).max_length(Some(LONGEST_WORD)).pattern(Some("^[A-Za-z0-9_.][A-Za-z0-9_.-]*$"));
    /// The name of a host.
    pub(in crate::api) HostName = |value| checked(value, check_host_name),
        string().min_length(Some(1)).max_length(Some(253)).pattern(Some("^[A-Za-z0-9][A-Za-z0-9._-]*$"));
    /// One line of `authorized_keys`.
    pub(in crate::api) PublicKeyText = |value| checked(value, check_public_key),
        string().min_length(Some(1)).max_length(Some(16_384)).pattern(Some(KEY));
}

/// Reads any text.
pub(in crate::api) fn text(value: &Value) -> Parsed<String> {
    let text = value.as_str().ok_or_else(|| error("Not a valid string."))?;
    // PostgreSQL cannot store it, and its readers would not expect it.
    if text.contains('\0') {
        return Err(error("Contains a null character."));
    }
    Ok(text.to_owned())
}

/// Reads a text that is not empty and that `check` accepts.
pub(in crate::api) fn checked(value: &Value, check: impl Fn(&str) -> Result<(), &'static str>) -> Parsed<String> {
    let text = text(value)?;
    if text.is_empty() {
        return Err(error("Shorter than minimum length 1."));
    }
    check(&text).map_err(error)?;
    Ok(text)
}

/// The description of a text.
pub(in crate::api) fn string() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

/// As a group, so that it can be made optional.
fn file_name() -> String {
    format!("^({FIRST_IN_FILE}{IN_FILE}*|\\.{FIRST_IN_FILE}{IN_FILE}*|\\.-{IN_FILE}*|\\.\\.{IN_FILE}+)$")
}

/// A boolean, or one of the texts and numbers that IMS reads as one.
impl Field for bool {
    type Read = Self;

    fn read(value: &Value) -> Parsed<Self> {
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

    fn schema() -> RefOr<Schema> {
        Ref::from_schema_name("Boolean").into()
    }

    fn components(components: &mut Components) {
        let words = TRUE.into_iter().chain(FALSE).map(Value::from);
        let taken = [json!(0), json!(1)].into_iter().chain(words);
        let taken = ObjectBuilder::new()
            .schema_type(SchemaType::AnyValue)
            .enum_values(Some(taken));
        let boolean = AnyOfBuilder::new()
            .description(Some("A boolean, or a text or number that IMS accepts as one."))
            .item(ObjectBuilder::new().schema_type(Type::Boolean))
            .item(taken);
        components.push(("Boolean".to_owned(), boolean.into()));
    }
}

/// A whole number of 32 bits. For JSON Schema `7.0` is one, too.
pub(in crate::api) fn whole_number(value: &Value) -> Option<u32> {
    let of_float = || {
        let number = value.as_f64()?;
        let fits = number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it was looked at just now"
        )]
        fits.then_some(number as u32)
    };
    value
        .as_u64()
        .map_or_else(of_float, |number| u32::try_from(number).ok())
}

/// A whole number.
impl Field for u32 {
    type Read = Self;

    fn read(value: &Value) -> Parsed<Self> {
        whole_number(value).ok_or_else(|| error("Must be a number from 0 to 4294967295."))
    }

    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::Integer)
            .minimum(Some(0))
            .maximum(Some(u32::MAX))
            .into()
    }
}

/// A size of 1 GiB or more. Fractions are cut off, and decimal texts are accepted.
#[derive(Debug)]
pub(in crate::api) enum Gib {}

impl Field for Gib {
    type Read = u32;

    fn read(value: &Value) -> Parsed<u32> {
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

    fn schema() -> RefOr<Schema> {
        Ref::from_schema_name("Size").into()
    }

    fn components(components: &mut Components) {
        let number = ObjectBuilder::new()
            .schema_type(Type::Number)
            .minimum(Some(1))
            .exclusive_maximum(Some(MAX_SIZE + 1));
        let size = AnyOfBuilder::new()
            .description(Some(
                "A size in GiB. Fractions are cut off, and decimal texts are accepted.",
            ))
            .item(number)
            .item(string().pattern(Some(r"^\s*\+?0{0,9}[1-9][0-9]{0,5}\s*$")));
        components.push(("Size".to_owned(), size.into()));
    }
}

/// A UUID in any of IMS's forms: with or without hyphens, braces, `urn:uuid:`, any case.
impl Field for Uuid {
    type Read = Self;

    fn read(value: &Value) -> Parsed<Self> {
        let plain = value.as_str().map(|text| {
            let text = text.replace("urn:", "").replace("uuid:", "");
            text.trim_matches(['{', '}']).replace('-', "")
        });
        plain
            .filter(|text| text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .and_then(|text| Uuid::try_parse(&text).ok())
            .ok_or_else(|| error("Not a valid UUID."))
    }

    fn schema() -> RefOr<Schema> {
        string()
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Uuid)))
            .into()
    }
}

/// The id of an image.
impl Field for ImageId {
    type Read = Self;

    fn read(value: &Value) -> Parsed<Self> {
        Uuid::read(value).map(Self)
    }

    fn schema() -> RefOr<Schema> {
        Uuid::schema()
    }
}

/// A list. Its errors are listed by the numbers of the items.
#[derive(Debug)]
pub(in crate::api) struct List<F>(PhantomData<F>);

impl<F: Field> Field for List<F> {
    type Read = Vec<F::Read>;

    fn read(value: &Value) -> Parsed<Vec<F::Read>> {
        let Value::Array(items) = value else {
            return Err(error("Not a valid list."));
        };
        let (mut parsed, mut errors) = (Vec::with_capacity(items.len()), Map::new());
        for (number, item) in items.iter().enumerate() {
            match F::read(item) {
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

    fn schema() -> RefOr<Schema> {
        ArrayBuilder::new().items(F::schema()).into()
    }

    fn components(components: &mut Components) {
        F::components(components);
    }
}

/// The reference to a named schema.
pub(in crate::api) fn reference<T: ToSchema>() -> RefOr<Schema> {
    Ref::from_schema_name(T::name()).into()
}

/// Adds a named schema, and those that it refers to.
pub(in crate::api) fn collect<T: ToSchema>(components: &mut Components) {
    components.push((T::name().into_owned(), T::schema()));
    T::schemas(components);
}
