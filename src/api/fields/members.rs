//! The presence of members: the meaning of an absent or null one. Pure: no I/O.

use std::marker::PhantomData;

use serde_json::Value;
use utoipa::openapi::{ObjectBuilder, OneOfBuilder, RefOr, Schema, schema::SchemaType, schema::Type};

use super::{Components, Field, Fields, Invalid, Member, Members};

/// A member that is absent, null or a value.
#[derive(Debug)]
pub(in crate::api) struct Nullable<F>(PhantomData<F>);

/// A member that takes its type's default when absent.
#[derive(Debug)]
pub(in crate::api) struct OrDefault<F>(PhantomData<F>);

/// A text whose empty value means the same as its absence.
#[derive(Debug)]
pub(in crate::api) struct OrEmpty<F>(PhantomData<F>);

/// The members of a group, in the same object as the body's own.
#[derive(Debug)]
pub(in crate::api) struct Flatten<G>(PhantomData<G>);

/// A required member.
impl<F: Field> Member for F {
    type Read = F::Read;

    fn take(fields: &mut Fields, name: &str) -> Result<F::Read, Invalid> {
        fields.required(name, F::read)
    }

    fn describe(object: ObjectBuilder, name: &str, about: &str) -> ObjectBuilder {
        object.property(name, described(F::schema(), about)).required(name)
    }

    fn components(components: &mut Components) {
        F::components(components);
    }
}

/// An optional member.
impl<F: Field> Member for Option<F> {
    type Read = Option<F::Read>;

    fn take(fields: &mut Fields, name: &str) -> Result<Self::Read, Invalid> {
        fields.optional(name, F::read)
    }

    fn describe(object: ObjectBuilder, name: &str, about: &str) -> ObjectBuilder {
        object.property(name, described(F::schema(), about))
    }

    fn components(components: &mut Components) {
        F::components(components);
    }
}

impl<F: Field> Member for OrDefault<F>
where
    F::Read: Default,
{
    type Read = F::Read;

    fn take(fields: &mut Fields, name: &str) -> Result<F::Read, Invalid> {
        Ok(fields.optional(name, F::read)?.unwrap_or_default())
    }

    fn describe(object: ObjectBuilder, name: &str, about: &str) -> ObjectBuilder {
        Option::<F>::describe(object, name, about)
    }

    fn components(components: &mut Components) {
        F::components(components);
    }
}

impl<F: Field> Member for Nullable<F> {
    type Read = Option<Option<F::Read>>;

    fn take(fields: &mut Fields, name: &str) -> Result<Self::Read, Invalid> {
        fields.nullable(name, F::read)
    }

    fn describe(object: ObjectBuilder, name: &str, about: &str) -> ObjectBuilder {
        object.property(name, or_null(described(F::schema(), about)))
    }

    fn components(components: &mut Components) {
        F::components(components);
    }
}

impl<F: Field> Member for OrEmpty<F> {
    type Read = Option<F::Read>;

    fn take(fields: &mut Fields, name: &str) -> Result<Self::Read, Invalid> {
        let read = |value: &Value| match value.as_str() {
            Some("") => Ok(None),
            _ => F::read(value).map(Some),
        };
        Ok(fields.optional(name, read)?.flatten())
    }

    fn describe(object: ObjectBuilder, name: &str, about: &str) -> ObjectBuilder {
        object.property(name, or_empty(described(F::schema(), about)))
    }

    fn components(components: &mut Components) {
        F::components(components);
    }
}

impl<G: Members> Member for Flatten<G> {
    type Read = G;

    fn take(fields: &mut Fields, _: &str) -> Result<G, Invalid> {
        G::take(fields)
    }

    fn describe(object: ObjectBuilder, _: &str, _: &str) -> ObjectBuilder {
        G::describe(object)
    }

    fn components(components: &mut Components) {
        G::components(components);
    }
}

/// A schema, with the documentation of its member.
fn described(mut schema: RefOr<Schema>, about: &str) -> RefOr<Schema> {
    match &mut schema {
        _ if about.is_empty() => {}
        RefOr::Ref(reference) => about.clone_into(&mut reference.description),
        RefOr::T(Schema::Object(object)) => object.description = Some(about.to_owned()),
        RefOr::T(Schema::Array(array)) => array.description = Some(about.to_owned()),
        RefOr::T(_) => {}
    }
    schema
}

fn or_null(mut schema: RefOr<Schema>) -> RefOr<Schema> {
    let kind = match &mut schema {
        RefOr::T(Schema::Object(object)) => &mut object.schema_type,
        RefOr::T(Schema::Array(array)) => &mut array.schema_type,
        _ => {
            let null = ObjectBuilder::new().schema_type(Type::Null);
            return OneOfBuilder::new().item(schema).item(null).into();
        }
    };
    if let SchemaType::Type(value) = kind {
        *kind = SchemaType::from_iter([value.clone(), Type::Null]);
    }
    schema
}

fn or_empty(mut schema: RefOr<Schema>) -> RefOr<Schema> {
    if let RefOr::T(Schema::Object(text)) = &mut schema {
        text.min_length = None;
        text.pattern = text.pattern.take().map(|pattern| match pattern.strip_suffix('$') {
            Some(pattern) => format!("{pattern}?$"),
            None => pattern,
        });
    }
    schema
}
