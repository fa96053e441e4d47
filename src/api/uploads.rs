//! `/kiln/v1`: uploads. IMS leaves them to its clients, which need S3 keys for that; here they go through the API.
//! Writes to S3 and the database.

use axum::{
    Json,
    body::Body,
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, header},
};
use kiln_records::{ArtifactKind, Code, Failure, Image, Link, Recipe};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Api,
    address::Path,
    body::{Answer, RawBody},
    problem::{Problem, Result},
    v3::{Change, change, find, must_have_no_link},
};
use crate::{
    artifacts::{Expected, Received, manifest::ManifestArtifact},
    store::Side,
};

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

/// Records an object before its upload, so that it is removed with its image in any case.
struct Announce(String);

impl Change<Image> for Announce {
    async fn apply(&self, _: &Api, image: &mut Image) -> Result<Vec<String>> {
        must_have_no_link(image.link.as_ref())?;
        Ok(vec![self.0.clone()])
    }
}

async fn receive(
    api: &Api,
    place: (&str, &str),
    content_type: &str,
    headers: &HeaderMap,
    body: Body,
    still_wanted: impl Future<Output = Result<()>> + Send,
) -> Result<Received> {
    let size = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|size| size.to_str().ok()?.parse().ok());
    let expected = Expected {
        size,
        limit: api.upload_bytes,
    };
    if size.is_some_and(|size| size > expected.limit) {
        return Err(too_large(expected.limit));
    }
    let mut refusal = None;
    let still_wanted = async { still_wanted.await.map_err(|problem| refusal = Some(problem)).is_ok() };
    let received = api
        .artifacts
        .receive(place, content_type, expected, body.into_data_stream(), still_wanted)
        .await;
    received.map_err(|failure: Failure| match failure.code {
        Code::UploadUnwanted => refusal.unwrap_or_else(|| failure.into()),
        Code::UploadTooLarge => too_large(expected.limit),
        _ => failure.into(),
    })
}

fn too_large(limit: u64) -> Problem {
    let detail =
        format_args!("The object is larger than {limit} bytes, which is what this server takes (limits.upload_bytes).");
    Failure::new(Code::UploadTooLarge, detail).into()
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
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Recipe>> {
    let current = find::<Recipe>(&*api.store, Side::Live, &text).await?;
    must_have_no_link(current.record.link.as_ref())?;
    let key = format!("recipes/{}/recipe.tar.gz", current.record.id);
    let place = (api.artifacts.recipes_bucket(), key.as_str());
    let still_unlinked = async {
        let now = find::<Recipe>(&*api.store, Side::Live, &text).await?;
        must_have_no_link(now.record.link.as_ref())
    };
    let kind = "application/x-compressed-tar";
    let received = receive(&api, place, kind, &headers, body, still_unlinked).await?;
    let objects = vec![received.link.path.clone()];
    Ok(Json(
        change(&api, &*api.store, current, &SetLink(received.link, objects)).await?,
    ))
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
    headers: HeaderMap,
    body: Body,
) -> Result<Json<UploadedObject>> {
    let kind: UploadKind = serde_json::from_value(kind.into()).map_err(|_| Problem::not_found())?;
    let kind = ArtifactKind::from(kind);
    let current = find::<Image>(&*api.store, Side::Live, &text).await?;
    let key = format!("{}/{}", current.record.id, kind.key_name());
    let bucket = api.artifacts.images_bucket();
    let path = Link::s3(bucket, &key, "").path;
    change(&api, &*api.store, current, &Announce(path)).await?;
    let still_unlinked = async {
        let now = find::<Image>(&*api.store, Side::Live, &text).await?;
        must_have_no_link(now.record.link.as_ref())
    };
    let place = (bucket, key.as_str());
    let received = receive(&api, place, kind.media_type(), &headers, body, still_unlinked).await?;
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
        .routes(routes!(put_archive))
        .routes(routes!(put_artifact))
        .layer(DefaultBodyLimit::disable());
    OpenApiRouter::new().routes(routes!(put_manifest)).merge(whole_objects)
}
