//! The macros that declare bodies. Pure: no I/O.

/// Declares the body of a request, or an object in one, so that the reader and the documentation agree.
///
/// `struct` makes a type; `impl` describes a type of the records, whose fields then have the types of the members' values.
/// `at least 1 member` is for a body that may not be empty although each member may be absent.
macro_rules! body {
    (
        $(#[doc = $about:literal])*
        $visibility:vis struct $name:ident $(with at least $least:literal member)? {
            $($(#[doc = $doc:literal])* $field:ident: $member:ty,)*
        }
    ) => {
        $crate::api::fields::members! {
            $(#[doc = $about])*
            $visibility struct $name { $($(#[doc = $doc])* $field: $member,)* }
        }
        $crate::api::fields::body! { @schema $name, $name [$($about)*] $($least)? }
    };
    (
        $(#[doc = $about:literal])*
        impl $name:ident { $($(#[doc = $doc:literal])* $field:ident $(as $called:literal)?: $member:ty,)* }
    ) => {
        $crate::api::fields::members! { impl $name { $($(#[doc = $doc])* $field $(as $called)?: $member,)* } }
        const _: () = {
            /// Has the schema, since the type is another crate's.
            struct Described;
            $crate::api::fields::body! { @schema $name, Described [$($about)*] }
        };
    };
    (@schema $name:ident, $described:ident [$($about:literal)*] $($least:literal)?) => {
        impl $crate::api::fields::Field for $name {
            type Read = Self;

            fn read(value: &serde_json::Value) -> $crate::api::fields::Parsed<Self> {
                $crate::api::fields::object(value)
            }

            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                $crate::api::fields::reference::<$described>()
            }

            fn components(components: &mut $crate::api::fields::Components) {
                $crate::api::fields::collect::<$described>(components);
            }
        }

        impl utoipa::PartialSchema for $described {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                let least: &[usize] = &[$($least)?];
                let object = utoipa::openapi::ObjectBuilder::new()
                    .description(Some($crate::api::fields::words(&[$($about),*])))
                    .additional_properties(Some(utoipa::openapi::schema::AdditionalProperties::FreeForm(false)))
                    .min_properties(least.first().copied());
                <$name as $crate::api::fields::Members>::describe(object).into()
            }
        }

        impl utoipa::ToSchema for $described {
            fn name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn schemas(schemas: &mut $crate::api::fields::Components) {
                <$name as $crate::api::fields::Members>::components(schemas);
            }
        }
    };
}

/// Declares members common to several bodies, for [`Flatten`](super::Flatten). The syntax is that of [`body!`].
macro_rules! members {
    (
        $(#[doc = $about:literal])*
        $visibility:vis struct $name:ident { $($(#[doc = $doc:literal])* $field:ident: $member:ty,)* }
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone)]
        $visibility struct $name {
            $($(#[doc = $doc])* pub(in crate::api) $field: <$member as $crate::api::fields::Member>::Read,)*
        }

        $crate::api::fields::members! { impl $name { $($(#[doc = $doc])* $field: $member,)* } }
    };
    (impl $name:ident { $($(#[doc = $doc:literal])* $field:ident $(as $called:literal)?: $member:ty,)* }) => {
        impl $crate::api::fields::Members for $name {
            fn take(
                fields: &mut $crate::api::fields::Fields,
            ) -> std::result::Result<Self, $crate::api::fields::Invalid> {
                // All members are read, so that every error is found.
                $(let $field = <$member as $crate::api::fields::Member>::take(
                    fields,
                    $crate::api::fields::members!(@name $field $($called)?),
                );)*
                Ok(Self { $($field: $field?,)* })
            }

            fn describe(object: utoipa::openapi::ObjectBuilder) -> utoipa::openapi::ObjectBuilder {
                $(let object = <$member as $crate::api::fields::Member>::describe(
                    object,
                    $crate::api::fields::members!(@name $field $($called)?),
                    &$crate::api::fields::words(&[$($doc),*]),
                );)*
                object
            }

            fn components(components: &mut $crate::api::fields::Components) {
                $(<$member as $crate::api::fields::Member>::components(components);)*
            }
        }
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $called:literal) => { $called };
}

pub(in crate::api) use {body, members};
