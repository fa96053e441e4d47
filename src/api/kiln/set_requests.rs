//! The bodies of requests about image sets. Pure: no I/O.

use std::collections::BTreeSet;

use kiln_records::{
    ImageId, PublicKeyId, RecipeId,
    arch::Arch,
    job::JobOptions,
    set::{
        LONGEST_LIMIT_S, Requirement,
        name::{MAX_NAME, MAX_VERSION, PATTERN, check_name, check_version},
    },
};
use serde_json::{Map, Value, json};
use utoipa::openapi::{
    ObjectBuilder, RefOr, Schema,
    schema::{KnownFormat, SchemaFormat, Type},
};
use uuid::Uuid;

use crate::{
    api::{
        fields::{Field, Flatten, List, Parsed, body, checked, error, string, texts, whole_number},
        problem::Problem,
    },
    orchestrate::sets::{NewSet, Source, Wanted},
};

body! {
    /// A new set.
    pub(super) struct SetCreate {
        /// Its name.
        name: SetName,
        /// Its version.
        version: SetVersion,
        /// Its architectures, each once.
        arches: List<SetArch>,
        /// What each image needs before it counts as complete; the default is nothing but its own manifest.
        requires: Option<List<Requirement>>,
        /// The public key that may log in to the shells of its jobs.
        public_key_id: Option<Uuid>,
        options: Flatten<JobOptions>,
    }
}

body! {
    /// More architectures for a set.
    pub(super) struct SetGrow {
        /// The architectures, each once.
        arches: List<SetArch>,
    }
}

body! {
    /// An architecture of a set. Its image comes from a recipe or exists already.
    pub(super) struct SetArch {
        /// The architecture.
        arch: Arch,
        /// The recipe to build.
        recipe_id: Option<Uuid>,
        /// The image that exists.
        image_id: Option<Uuid>,
        /// Whether the set is incomplete without it; the default is true.
        required: Option<bool>,
        /// How long an attempt of its job may take from its launch, in seconds; the default is no limit.
        time_limit_s: Option<TimeLimit>,
    }
}

texts! {
    /// The name of a set: letters, digits and `._~-`.
    pub(super) SetName = |value| checked(value, check_name),
        string().min_length(Some(1)).max_length(Some(MAX_NAME)).pattern(Some(PATTERN)).examples(["compute"]);
    /// The version of a set: letters, digits and `._~-`.
    pub(super) SetVersion = |value| checked(value, check_version),
        string().min_length(Some(1)).max_length(Some(MAX_VERSION)).pattern(Some(PATTERN)).examples(["24.11"]);
}

/// A limit of time, in seconds.
#[derive(Debug)]
pub(super) enum TimeLimit {}

impl Field for TimeLimit {
    type Read = u32;

    fn read(value: &Value) -> Parsed<u32> {
        let number = whole_number(value).filter(|number| (1..=LONGEST_LIMIT_S).contains(number));
        number.ok_or_else(|| error(format!("Must be a number from 1 to {LONGEST_LIMIT_S}.")))
    }

    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::Integer)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int32)))
            .minimum(Some(1))
            .maximum(Some(LONGEST_LIMIT_S))
            .into()
    }
}

impl TryFrom<SetCreate> for NewSet {
    type Error = Problem;

    fn try_from(given: SetCreate) -> Result<Self, Problem> {
        Ok(Self {
            name: given.name,
            version: given.version,
            public_key_id: given.public_key_id.map(PublicKeyId),
            options: given.options,
            members: wanted(given.arches)?,
            requires: each_once(given.requires),
        })
    }
}

/// Requirements in their own order, each once.
pub(super) fn each_once(given: Option<Vec<Requirement>>) -> Vec<Requirement> {
    let given: BTreeSet<_> = given.unwrap_or_default().into_iter().collect();
    given.into_iter().collect()
}

/// What a list of architectures asks for.
///
/// # Errors
///
/// 422 unless each architecture has one source and is named once.
pub(super) fn wanted(arches: Vec<SetArch>) -> Result<Vec<Wanted>, Problem> {
    let mut wanted: Vec<Wanted> = Vec::with_capacity(arches.len());
    let mut errors = Map::new();
    if arches.is_empty() {
        return Err(wrong(error("A set has at least one architecture.")));
    }
    for (number, one) in arches.into_iter().enumerate() {
        let from = match (one.recipe_id, one.image_id) {
            (Some(recipe), None) => Source::Recipe(RecipeId(recipe)),
            (None, Some(image)) => Source::Image(ImageId(image)),
            _ => {
                let why = error("Either `recipe_id` or `image_id` has to be given.");
                errors.insert(number.to_string(), json!({ "recipe_id": why }));
                continue;
            }
        };
        if wanted.iter().any(|known| known.arch == one.arch) {
            let why = error(format!("{} is named twice.", one.arch));
            errors.insert(number.to_string(), json!({ "arch": why }));
            continue;
        }
        wanted.push(Wanted {
            arch: one.arch,
            required: one.required.unwrap_or(true),
            from,
            time_limit_s: one.time_limit_s,
        });
    }
    if errors.is_empty() {
        Ok(wanted)
    } else {
        Err(wrong(Value::Object(errors)))
    }
}

fn wrong(errors: Value) -> Problem {
    Problem::invalid(Map::from_iter([("arches".to_owned(), errors)]))
}
