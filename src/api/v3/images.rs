//! `/images`.

use std::collections::BTreeMap;

use axum::{Json, extract::State, http::StatusCode, response::Response};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{Change, find, id, must_have_no_link};
use crate::{
    api::{
        Api,
        address::Path,
        body::{Answer, RawBody},
        fields::{self, Fields, Parsed, error, object},
        lists::{ArchParameter, ListParameters, ListQuery},
        objects::check_image,
        problem::{Problem, Result},
    },
    arch::Arch,
    records::{Image, ImageId, Link, Moment},
    store::{Collection, Side},
};

/// What makes an image.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "documentation; fields are read by api::fields")]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct ImageCreate {
    /// What people call it.
    #[schema(min_length = 1, max_length = 1024)]
    name: String,
    /// The image's manifest, if it is in S3 already.
    link: Option<Link>,
    /// Its architecture; `x86_64` unless said otherwise.
    #[schema(nullable = false)]
    arch: Option<Arch>,
    /// Tags. An object with the member `key` is one tag: `{"key": …, "value": …}`.
    #[schema(nullable = false)]
    metadata: Option<BTreeMap<String, String>>,
}

/// What can be changed of an image.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "documentation; fields are read by api::fields")]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct ImageUpdate {
    /// What people call it.
    #[schema(nullable = false, min_length = 1, max_length = 1024)]
    name: Option<String>,
    /// The image's manifest, if it has none yet.
    #[schema(nullable = false)]
    link: Option<Link>,
    /// Its architecture.
    #[schema(nullable = false)]
    arch: Option<Arch>,
    /// One change to the tags.
    #[schema(nullable = false)]
    metadata: Option<MetadataUpdate>,
}

/// One change to an image's tags.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "documentation; fields are read by api::fields")]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct MetadataUpdate {
    /// What is done.
    operation: MetadataOperation,
    /// The tag.
    key: String,
    /// What it is set to; the empty text unless said otherwise.
    #[schema(nullable = false)]
    value: Option<String>,
}

/// What is done to a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::api) enum MetadataOperation {
    /// Add it, or replace its value.
    Set,
    /// Take it away, if it is there.
    Remove,
}

impl MetadataOperation {
    const fn name(self) -> &'static str {
        match self {
            MetadataOperation::Set => "set",
            MetadataOperation::Remove => "remove",
        }
    }
}

/// Tags, in either of the two forms that IMS takes.
fn metadata(value: &Value) -> Parsed<BTreeMap<String, String>> {
    let Value::Object(members) = value else {
        return Err(error("Not a valid mapping type."));
    };
    let (mut tags, mut errors) = (BTreeMap::new(), Map::new());
    let mut take = |key: String, name: &str, value: &Value| match fields::text(value) {
        Ok(text) => {
            tags.insert(key, text);
        }
        Err(error) => {
            errors.insert(name.to_owned(), error);
        }
    };
    match members.get("key") {
        Some(key) => {
            let empty = Value::String(String::new());
            let key =
                fields::text(key).map_err(|error| Value::Object([("key".to_owned(), error)].into_iter().collect()))?;
            take(key, "value", members.get("value").unwrap_or(&empty));
        }
        None => {
            for (key, value) in members {
                fields::text(&Value::String(key.clone()))?;
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

fn metadata_update(value: &Value) -> Parsed<(MetadataOperation, String, String)> {
    object(value, |fields| {
        let operations = &[MetadataOperation::Set, MetadataOperation::Remove];
        let operation = fields.required("operation", fields::one_of(operations, MetadataOperation::name));
        let key = fields.required("key", fields::text);
        let value = fields.optional("value", fields::text);
        Ok((operation?, key?, value?.unwrap_or_default()))
    })
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

/// Make an image.
#[utoipa::path(post, path = "/images", tag = "images", request_body = ImageCreate,
    responses((status = 201, body = Image), (status = 502, body = Problem)))]
pub(in crate::api) async fn create(State(api): State<Api>, body: RawBody) -> Answer<(StatusCode, Json<Image>)> {
    let mut fields = Fields::of(body.json()?)?;
    let name = fields.required("name", fields::name);
    let link = fields.nullable("link", fields::link);
    let arch = fields.optional("arch", fields::arch);
    let tags = fields.optional("metadata", metadata);
    fields.finish()?;

    let image = Image {
        id: ImageId::new(),
        created: Moment::now(),
        link: link?.flatten(),
        name: name?,
        arch: arch?.unwrap_or(Arch::X86_64),
        metadata: tags?.unwrap_or_default(),
        deleted: None,
    };
    let objects = match &image.link {
        Some(link) => check_image(&api, link).await?,
        None => Vec::new(),
    };
    Collection::<Image>::insert(&*api.store, &image, &objects).await?;
    Ok((StatusCode::CREATED, Json(image)))
}

/// One image.
#[utoipa::path(get, path = "/images/{id}", tag = "images", params(("id" = String, Path, description = "Its id")),
    responses((status = 200, body = Image), (status = 404, body = Problem)))]
pub(in crate::api) async fn get(State(api): State<Api>, Path(text): Path<String>) -> Result<Json<Image>> {
    Ok(Json(find::<Image>(&*api.store, Side::Live, &text).await?.record))
}

/// Change an image: everything that is asked for, or nothing.
#[utoipa::path(patch, path = "/images/{id}", tag = "images", request_body = ImageUpdate,
    params(("id" = String, Path, description = "Its id")),
    responses((status = 200, body = Image), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 502, body = Problem)))]
pub(in crate::api) async fn update(
    State(api): State<Api>,
    Path(text): Path<String>,
    body: RawBody,
) -> Answer<Json<Image>> {
    let current = find::<Image>(&*api.store, Side::Live, &text).await?;
    let mut fields = Fields::of(body.json()?)?;
    let name = fields.optional("name", fields::name);
    let link = fields.optional("link", fields::link);
    let arch = fields.optional("arch", fields::arch);
    let tag = fields.optional("metadata", metadata_update);
    fields.finish()?;
    let change = Changes {
        name: name?,
        link: link?,
        arch: arch?,
        tag: tag?,
    };
    Ok(Json(super::change(&api, &*api.store, current, &change).await?))
}

struct Changes {
    name: Option<String>,
    link: Option<Link>,
    arch: Option<Arch>,
    tag: Option<(MetadataOperation, String, String)>,
}

impl Change<Image> for Changes {
    async fn apply(&self, api: &Api, image: &mut Image) -> Result<Vec<String>> {
        let mut objects = Vec::new();
        if let Some(link) = self.link.as_ref().filter(|link| image.link.as_ref() != Some(link)) {
            must_have_no_link(image.link.as_ref())?;
            objects = check_image(api, link).await?;
            image.link = Some(link.clone());
        }
        if let Some(name) = &self.name {
            image.name.clone_from(name);
        }
        image.arch = self.arch.unwrap_or(image.arch);
        match &self.tag {
            Some((MetadataOperation::Set, key, value)) => {
                image.metadata.insert(key.clone(), value.clone());
            }
            Some((MetadataOperation::Remove, key, _)) => {
                image.metadata.remove(key);
            }
            None => {}
        }
        Ok(objects)
    }
}

/// Delete an image. It can be restored.
#[utoipa::path(delete, path = "/images/{id}", tag = "images", params(("id" = String, Path, description = "Its id")),
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
        let tags = |value: Value| metadata(&value).map(|tags| tags.into_iter().collect::<Vec<_>>());
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
