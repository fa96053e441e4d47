//! `/kiln/v1/images/{id}/artifacts`: where the artifacts of an image can be read. Reads the database and S3.

use axum::{Json, extract::State};
use kiln_records::{Image, arch::Arch};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    api::{
        Api,
        address::Path,
        problem::{Problem, Result},
        v3::find,
    },
    artifacts::Download,
    origin,
    store::Side,
};

/// The artifacts of an image, with addresses for reading them.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ImageArtifacts {
    /// The image.
    id: Uuid,
    /// Its name.
    name: String,
    /// Its architecture.
    #[schema(value_type = String)]
    arch: Arch,
    /// When its record was made.
    created: String,
    /// The SHA-256 of its manifest, lower-case hexadecimal: two images with the same one have the same content.
    manifest_sha256: String,
    /// Its artifacts, in the order of the manifest.
    artifacts: Vec<ReadableArtifact>,
    /// Where it comes from: the statement beside its manifest and, if the site signs, the signed one. Empty for an image
    /// that Kiln did not make.
    provenance: Vec<ReadableArtifact>,
}

/// The objects with an image's provenance, and their media types.
const PROVENANCE: [(&str, &str); 2] = [
    (origin::STATEMENT, origin::STATEMENT_TYPE),
    (origin::ENVELOPE, origin::ENVELOPE_TYPE),
];

/// An artifact that can be read.
#[derive(Debug, Serialize, ToSchema)]
struct ReadableArtifact {
    /// Its media type.
    #[serde(rename = "type")]
    media_type: String,
    /// Its size in bytes.
    size: u64,
    /// Its SHA-256, lower-case hexadecimal, if the manifest has it.
    sha256: Option<String>,
    /// Its location.
    path: String,
    /// An address that lets anyone read it for six hours.
    url: String,
}

impl From<Download> for ReadableArtifact {
    fn from(download: Download) -> Self {
        let Download {
            media_type,
            path,
            sha256,
            size,
            url,
        } = download;
        Self {
            media_type,
            size,
            sha256,
            path,
            url,
        }
    }
}

/// List the artifacts of an image, with addresses at which they can be read without further rights.
#[utoipa::path(get, path = "/images/{id}/artifacts", tag = "uploads", params(("id" = String, Path, description = "The image's id")),
    responses((status = 200, body = ImageArtifacts), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 422, body = Problem), (status = 502, body = Problem)))]
pub(super) async fn list(State(api): State<Api>, Path(text): Path<String>) -> Result<Json<ImageArtifacts>> {
    let image = find::<Image>(&*api.store, Side::Live, &text).await?.record;
    let link = image
        .link
        .ok_or_else(|| Problem::conflict("The image has no artifacts yet."))?;
    let downloads = api.artifacts.downloads(&link).await?;
    let provenance = api.artifacts.downloads_beside(image.id, &PROVENANCE).await?;
    Ok(Json(ImageArtifacts {
        id: image.id.0,
        name: image.name,
        arch: image.arch,
        created: image.created.to_string(),
        manifest_sha256: downloads.manifest_sha256,
        artifacts: downloads.objects.into_iter().map(Into::into).collect(),
        provenance: provenance.into_iter().map(Into::into).collect(),
    }))
}
