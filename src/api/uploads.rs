//! `/kiln/v1`: uploads. IMS leaves them to its clients, which need S3 keys for that; here they go through the API.
//! Writes to S3 and the database.

use std::{str::FromStr, time::Duration};

use axum::{
    Extension, Json,
    body::Body,
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, StatusCode, header},
};
use kiln_records::{ArtifactKind, Code, Failure, Image, Link, Recipe};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};
use uuid::Uuid;

use super::{
    Api,
    address::Path,
    body::{Answer, RawBody},
    limits::{Memory, no_memory},
    problem::{Problem, Result},
    v3::{Change, change, find, must_have_no_link},
};
use crate::{
    artifacts::{Expected, Received, manifest::ManifestArtifact},
    store::{Collection, Record, Side, Store},
};

/// How long the address of a recipe's archive is valid.
const READABLE: Duration = Duration::from_mins(15);

/// An uploaded object, as in a manifest.
#[derive(Debug, Serialize, ToSchema)]
struct UploadedObject {
    /// Its media type.
    #[serde(rename = "type")]
    media_type: String,
    /// MD5, lower-case hexadecimal.
    md5: String,
    /// SHA-256, lower-case hexadecimal.
    sha256: String,
    /// Bytes.
    size: u64,
    /// Its status.
    link: Link,
}

/// The kinds of artifacts that can be uploaded.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum UploadKind {
    Rootfs,
    Kernel,
    Initrd,
    BootParameters,
}

impl From<UploadKind> for ArtifactKind {
    fn from(kind: UploadKind) -> Self {
        match kind {
            UploadKind::Rootfs => ArtifactKind::Rootfs,
            UploadKind::Kernel => ArtifactKind::Kernel,
            UploadKind::Initrd => ArtifactKind::Initrd,
            UploadKind::BootParameters => ArtifactKind::BootParameters,
        }
    }
}

/// The artifacts of an image. A whole manifest is accepted; its other members are replaced.
#[derive(Debug, Deserialize, ToSchema)]
struct ManifestCreate {
    #[schema(min_items = 1)]
    artifacts: Vec<ManifestArtifact>,
}

struct SetLink(Link, Vec<String>);

impl Change<Recipe> for SetLink {
    async fn apply(&self, _: &Api, recipe: &mut Recipe) -> Result<Vec<String>> {
        must_have_no_link(recipe.link.as_ref())?;
        recipe.link = Some(self.0.clone());
        Ok(self.1.clone())
    }
}

impl Change<Image> for SetLink {
    async fn apply(&self, _: &Api, image: &mut Image) -> Result<Vec<String>> {
        must_have_no_link(image.link.as_ref())?;
        image.link = Some(self.0.clone());
        Ok(self.1.clone())
    }
}

/// Records an object before it exists, so that it is removed with its record in any case.
struct Announce(String);

impl Change<Recipe> for Announce {
    async fn apply(&self, _: &Api, recipe: &mut Recipe) -> Result<Vec<String>> {
        must_have_no_link(recipe.link.as_ref())?;
        Ok(vec![self.0.clone()])
    }
}

impl Change<Image> for Announce {
    async fn apply(&self, _: &Api, image: &mut Image) -> Result<Vec<String>> {
        must_have_no_link(image.link.as_ref())?;
        Ok(vec![self.0.clone()])
    }
}

/// What an upload brings.
struct Upload {
    content_type: &'static str,
    headers: HeaderMap,
    memory: Memory,
    body: Body,
}

/// Receives an object of a record that has no link. It gets a key of its own, `<prefix>/<random>/<name>`: of several
/// uploads at once, none touches the object of another. The record names it from before it exists.
async fn receive<R: Record>(
    api: &Api,
    (bucket, prefix, name): (&str, &str, &str),
    record: &str,
    upload: Upload,
) -> Result<Received>
where
    Announce: Change<R>,
    dyn Store: Collection<R>,
    R::Id: FromStr,
{
    let size = upload.headers.get(header::CONTENT_LENGTH);
    let expected = Expected {
        size: size.and_then(|size| size.to_str().ok()?.parse().ok()),
        limit: api.upload_bytes,
    };
    if expected.size.is_some_and(|size| size > expected.limit) {
        return Err(too_large(expected.limit));
    }
    let key = format!("{prefix}/{}/{name}", Uuid::new_v4());
    let path = Link::s3(bucket, &key, "").path;
    let mut refusal = None;
    let still_wanted = async {
        let announced = async {
            let current = find::<R>(&*api.store, Side::Live, record).await?;
            change(api, &*api.store, current, &Announce(path)).await
        };
        announced.await.map_err(|problem| refusal = Some(problem)).is_ok()
    };
    let mut share = upload.memory.share();
    let body = upload.body.into_data_stream();
    let received = api
        .artifacts
        .receive(
            (bucket, &key),
            upload.content_type,
            expected,
            body,
            &mut share,
            still_wanted,
        )
        .await;
    received.map_err(|failure: Failure| match failure.code {
        Code::UploadUnwanted => refusal.unwrap_or_else(|| failure.into()),
        Code::UploadTooLarge => too_large(expected.limit),
        Code::UploadBroken if share.has_lacked() => no_memory(),
        _ => failure.into(),
    })
}

/// Removes an object that came too late. When that fails it goes with its record, which names it.
async fn discard(api: &Api, received: &Received) {
    if let Some((bucket, key)) = api.artifacts.own_place(&received.link.path)
        && let Err(failure) = api.artifacts.delete(bucket, key).await
    {
        tracing::warn!(code = failure.code.name(), "a refused upload stays for now: {failure}");
    }
}

fn too_large(limit: u64) -> Problem {
    let detail =
        format_args!("The object is larger than {limit} bytes, which is what this server takes (limits.upload_bytes).");
    Failure::new(Code::UploadTooLarge, detail).into()
}

/// Where a recipe's archive can be read.
#[derive(Debug, Serialize, ToSchema)]
struct RecipePlace {
    /// Its location.
    path: String,
    /// Its size in bytes.
    size: u64,
    /// An address that lets anyone read it for a quarter of an hour.
    url: String,
}

/// Say where a recipe's archive can be read, without further rights.
#[utoipa::path(get, path = "/recipes/{id}/archive", tag = "uploads",
    params(("id" = String, Path, description = "The recipe's id")),
    responses((status = 200, body = RecipePlace), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 502, body = Problem)))]
async fn get_archive(State(api): State<Api>, Path(text): Path<String>) -> Result<Json<RecipePlace>> {
    let recipe = find::<Recipe>(&*api.store, Side::Live, &text).await?.record;
    let link = recipe
        .link
        .ok_or_else(|| Problem::conflict("The recipe has no archive yet."))?;
    let gone = || Failure::new(Code::RecipeMissing, format!("{} is no object in S3", link.path));
    let (bucket, key) = link.bucket_and_key().ok_or_else(gone)?;
    let size = api.artifacts.size(bucket, key).await?.ok_or_else(gone)?;
    let url = api.artifacts.presign_get(bucket, key, READABLE).await?;
    Ok(Json(RecipePlace {
        path: link.path.clone(),
        size,
        url,
    }))
}

/// Upload a recipe's archive, and link it.
#[utoipa::path(put, path = "/recipes/{id}/archive", tag = "uploads",
    params(("id" = String, Path, description = "The recipe's id")),
    request_body(content_type = "application/octet-stream", description = "A tar archive, compressed or not"),
    responses((status = 200, body = Recipe), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 502, body = Problem)))]
async fn put_archive(
    State(api): State<Api>,
    Path(text): Path<String>,
    Extension(memory): Extension<Memory>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Recipe>> {
    let current = find::<Recipe>(&*api.store, Side::Live, &text).await?;
    must_have_no_link(current.record.link.as_ref())?;
    let prefix = format!("recipes/{}", current.record.id);
    let place = (api.artifacts.recipes_bucket(), prefix.as_str(), "recipe.tar.gz");
    let upload = Upload {
        content_type: "application/x-compressed-tar",
        headers,
        memory,
        body,
    };
    let received = receive::<Recipe>(&api, place, &text, upload).await?;
    let linked = async {
        let current = find::<Recipe>(&*api.store, Side::Live, &text).await?;
        let objects = vec![received.link.path.clone()];
        change(&api, &*api.store, current, &SetLink(received.link.clone(), objects)).await
    };
    match linked.await {
        Ok(recipe) => Ok(Json(recipe)),
        Err(problem) => {
            let named = match find::<Recipe>(&*api.store, Side::Live, &text).await {
                Ok(now) => now.record.link.is_some_and(|link| link.path == received.link.path),
                Err(problem) => problem.status != StatusCode::NOT_FOUND,
            };
            if !named {
                discard(&api, &received).await;
            }
            Err(problem)
        }
    }
}

/// Upload one artifact of an image.
#[utoipa::path(put, path = "/images/{id}/artifacts/{kind}", tag = "uploads",
    params(("id" = String, Path, description = "The image's id"), ("kind" = UploadKind, Path, description = "The kind of the artifact")),
    request_body(content_type = "application/octet-stream"),
    responses((status = 200, body = UploadedObject), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 502, body = Problem)))]
async fn put_artifact(
    State(api): State<Api>,
    Path((text, kind)): Path<(String, String)>,
    Extension(memory): Extension<Memory>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<UploadedObject>> {
    let kind: UploadKind = serde_json::from_value(kind.into()).map_err(|_| Problem::not_found())?;
    let kind = ArtifactKind::from(kind);
    let current = find::<Image>(&*api.store, Side::Live, &text).await?;
    must_have_no_link(current.record.link.as_ref())?;
    let prefix = current.record.id.to_string();
    let place = (api.artifacts.images_bucket(), prefix.as_str(), kind.key_name());
    let upload = Upload {
        content_type: kind.media_type(),
        headers,
        memory,
        body,
    };
    let received = receive::<Image>(&api, place, &text, upload).await?;
    // The image may have gone while S3 made the object, and its objects before this one.
    if let Err(problem) = find::<Image>(&*api.store, Side::Live, &text).await {
        if problem.status == StatusCode::NOT_FOUND {
            discard(&api, &received).await;
        }
        return Err(problem);
    }
    Ok(Json(UploadedObject {
        media_type: kind.media_type().to_owned(),
        md5: received.digests.md5,
        sha256: received.digests.sha256,
        size: received.digests.size,
        link: received.link,
    }))
}

/// Write an image's manifest from its uploaded artifacts, and link it.
#[utoipa::path(put, path = "/images/{id}/manifest", tag = "uploads", request_body = ManifestCreate,
    params(("id" = String, Path, description = "The image's id")),
    responses((status = 200, body = Image), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 502, body = Problem)))]
async fn put_manifest(State(api): State<Api>, Path(text): Path<String>, body: RawBody) -> Answer<Json<Image>> {
    let current = find::<Image>(&*api.store, Side::Live, &text).await?;
    must_have_no_link(current.record.link.as_ref())?;
    let manifest: ManifestCreate = serde_json::from_value(body.json()?).map_err(Problem::unprocessable)?;
    let image = &current.record;
    let link = api
        .artifacts
        .put_manifest(image.id, image.arch, manifest.artifacts)
        .await?;
    let objects = api.artifacts.check_image(&link).await?;
    Ok(Json(change(&api, &*api.store, current, &SetLink(link, objects)).await?))
}

pub(super) fn router() -> OpenApiRouter<Api> {
    let whole_objects = OpenApiRouter::new()
        .routes(routes!(put_archive, get_archive))
        .routes(routes!(put_artifact))
        .layer(DefaultBodyLimit::disable());
    OpenApiRouter::new().routes(routes!(put_manifest)).merge(whole_objects)
}
