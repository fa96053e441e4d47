//! `/images`: the records of images. Touches the database and S3.

use std::collections::BTreeMap;

use axum::{Json, extract::State, http::StatusCode, response::Response};
use kiln_records::{Image, ImageId, Link, Moment, arch::Arch};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::{
    ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema},
};

use super::{Change, find, id, must_have_no_link};
use crate::{
    api::{
        Api,
        address::Path,
        body::{Answer, RawBody},
        fields::{Field, Name, Nullable, OrDefault, Parsed, Text, body, enumerations, error, text},
        lists::{ArchParameter, ListParameters, ListQuery},
        problem::{Problem, Result},
    },
    store::{Collection, Side},
};

body! {
    /// A new image.
    pub(in crate::api) struct ImageCreate {
        /// Its name.
        name: Name,
        /// The image's manifest, if it already exists in S3.
        link: Nullable<Link>,
        /// Its architecture; the default is `x86_64`.
        arch: Option<Arch>,
        /// Tags. An object with the member `key` is a single tag: `{"key": …, "value": …}`.
        metadata: OrDefault<Tags>,
    }
}

body! {
    /// Changes to an image.
    pub(in crate::api) struct ImageUpdate with at least 1 member {
        /// Its name.
        name: Option<Name>,
        /// The image's manifest, unless it already has one.
        link: Option<Link>,
        /// Its architecture.
        arch: Option<Arch>,
        /// A change to the tags.
        metadata: Option<MetadataUpdate>,
    }
}

body! {
    /// A change to the tags of an image.
    pub(in crate::api) struct MetadataUpdate {
        /// The operation.
        operation: MetadataOperation,
        /// The tag.
        key: Text,
        /// The value to set; empty by default.
        value: OrDefault<Text>,
    }
}

/// The operation on a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::api) enum MetadataOperation {
    /// Add it, or replace its value.
    Set,
    /// Take it away, if it is there.
    Remove,
}

impl MetadataOperation {
    const ALL: [Self; 2] = [Self::Set, Self::Remove];

    const fn name(self) -> &'static str {
        match self {
            MetadataOperation::Set => "set",
            MetadataOperation::Remove => "remove",
        }
    }
}

enumerations!(MetadataOperation);

/// Tags, in either of the two forms that IMS takes.
#[derive(Debug)]
pub(in crate::api) enum Tags {}

impl Field for Tags {
    type Read = BTreeMap<String, String>;

    fn read(value: &Value) -> Parsed<Self::Read> {
        let Value::Object(members) = value else {
            return Err(error("Not a valid mapping type."));
        };
        let (mut tags, mut errors) = (BTreeMap::new(), Map::new());
        let mut take = |key: String, name: &str, value: &Value| match text(value) {
            Ok(text) => {
                tags.insert(key, text);
            }
            // As IMS nests them: a mapping has keys and values.
            Err(error) => {
                errors.insert(name.to_owned(), json!({ "value": error }));
            }
        };
        match members.get("key") {
            Some(key) => {
                let empty = Value::String(String::new());
                let key = text(key).map_err(|error| json!({ "key": { "value": error } }))?;
                take(key, "value", members.get("value").unwrap_or(&empty));
            }
            None => {
                for (key, value) in members {
                    text(&Value::String(key.clone())).map_err(|error| json!({ key.as_str(): { "key": error } }))?;
                    take(key.clone(), key, value);
                }
            }
        }
        if errors.is_empty() {
            Ok(tags)
        } else {
            Err(Value::Object(errors))
        }
    }

    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .property_names(Some(Text::schema()))
            .additional_properties(Some(Text::schema()))
            .into()
    }
}

/// List the images.
#[utoipa::path(get, path = "/images", tag = "images", params(ListParameters, ArchParameter),
    responses((status = 200, body = Vec<Image>), (status = 400, body = Problem)))]
pub(in crate::api) async fn list(State(api): State<Api>, list: ListQuery<Image>) -> Result<Response> {
    list.answer(move |query| {
        let api = api.clone();
        async move { Collection::<Image>::page_text(&*api.store, &query).await }
    })
    .await
}

/// Create an image.
#[utoipa::path(post, path = "/images", tag = "images", request_body = ImageCreate,
    responses((status = 201, body = Image), (status = 502, body = Problem)))]
pub(in crate::api) async fn create(State(api): State<Api>, body: RawBody) -> Answer<(StatusCode, Json<Image>)> {
    let given: ImageCreate = body.read()?;
    let image = Image {
        id: ImageId::new(),
        created: Moment::now(),
        link: given.link.flatten(),
        name: given.name,
        arch: given.arch.unwrap_or(Arch::X86_64),
        metadata: given.metadata,
        deleted: None,
    };
    let objects = match &image.link {
        Some(link) => api.artifacts.check_image(link).await?,
        None => Vec::new(),
    };
    Collection::<Image>::insert(&*api.store, &image, &objects).await?;
    Ok((StatusCode::CREATED, Json(image)))
}

/// Show an image.
#[utoipa::path(get, path = "/images/{id}", tag = "images", params(("id" = String, Path, description = "The id of the record")),
    responses((status = 200, body = Image), (status = 404, body = Problem)))]
pub(in crate::api) async fn get(State(api): State<Api>, Path(text): Path<String>) -> Result<Json<Image>> {
    Ok(Json(find::<Image>(&*api.store, Side::Live, &text).await?.record))
}

/// Change an image. Either all requested changes are made, or none.
#[utoipa::path(patch, path = "/images/{id}", tag = "images", request_body = ImageUpdate,
    params(("id" = String, Path, description = "The id of the record")),
    responses((status = 200, body = Image), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 502, body = Problem)))]
pub(in crate::api) async fn update(
    State(api): State<Api>,
    Path(text): Path<String>,
    body: RawBody,
) -> Answer<Json<Image>> {
    let current = find::<Image>(&*api.store, Side::Live, &text).await?;
    let change: ImageUpdate = body.read()?;
    Ok(Json(super::change(&api, &*api.store, current, &change).await?))
}

impl Change<Image> for ImageUpdate {
    async fn apply(&self, api: &Api, image: &mut Image) -> Result<Vec<String>> {
        let mut objects = Vec::new();
        if let Some(link) = self.link.as_ref().filter(|link| image.link.as_ref() != Some(link)) {
            must_have_no_link(image.link.as_ref())?;
            objects = api.artifacts.check_image(link).await?;
            image.link = Some(link.clone());
        }
        if let Some(name) = &self.name {
            image.name.clone_from(name);
        }
        image.arch = self.arch.unwrap_or(image.arch);
        if let Some(MetadataUpdate { operation, key, value }) = &self.metadata {
            match operation {
                MetadataOperation::Set => image.metadata.insert(key.clone(), value.clone()),
                MetadataOperation::Remove => image.metadata.remove(key),
            };
        }
        Ok(objects)
    }
}

/// Delete an image. It can be restored.
#[utoipa::path(delete, path = "/images/{id}", tag = "images", params(("id" = String, Path, description = "The id of the record")),
    responses((status = 204), (status = 404, body = Problem)))]
pub(in crate::api) async fn delete(State(api): State<Api>, Path(text): Path<String>) -> Result<StatusCode> {
    match Collection::<Image>::delete(&*api.store, Some(id(&text)?), Moment::now()).await? {
        0 => Err(Problem::not_found()),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}

/// Delete every image. They can be restored.
#[utoipa::path(delete, path = "/images", tag = "images", responses((status = 204)))]
pub(in crate::api) async fn delete_all(State(api): State<Api>) -> Result<StatusCode> {
    Collection::<Image>::delete(&*api.store, None, Moment::now()).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tags_have_two_spellings() {
        let tags = |value: Value| Tags::read(&value).map(|tags| tags.into_iter().collect::<Vec<_>>());
        let pair = |key: &str, value: &str| Ok(vec![(key.to_owned(), value.to_owned())]);
        assert_eq!(tags(json!({"key": "k", "value": "v", "other": 1})), pair("k", "v"));
        assert_eq!(tags(json!({"key": "k"})), pair("k", ""));
        assert_eq!(tags(json!({"foo": "bar"})), pair("foo", "bar"));
        assert_eq!(tags(json!({})), Ok(vec![]));
        assert!(tags(json!({"foo": 1})).is_err());
        assert!(tags(json!({"key": 1})).is_err());
        assert!(tags(json!(["foo"])).is_err());
    }
}
