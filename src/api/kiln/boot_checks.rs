//! `/kiln/v1/images/{id}/boot-check`: the result of booting an image. Touches the database and S3.

use axum::{Extension, Json, extract::State, http::StatusCode};
use kiln_records::{
    Image, ImageId, Moment,
    set::check::{BootCheck, LONGEST_TEXT, MOST_CONSOLE},
};
use sha2::{Digest, Sha256};

use crate::{
    api::{
        Api,
        address::Path,
        auth::Principal,
        body::{Answer, RawBody},
        fields::{body, checked, string, texts},
        problem::{Problem, Result},
        v3::find,
    },
    orchestrate::sets::NotKept,
    store::Side,
};

body! {
    /// The result of a boot check.
    pub(super) struct BootCheckGiven {
        /// SHA-256 of the manifest of the image that was booted, lower-case hexadecimal.
        manifest_sha256: Sha256Text,
        /// Whether it came up.
        up: bool,
        /// The sign by which it was up, or why it was not.
        detail: Detail,
        /// The time that it took, in seconds.
        seconds: u32,
        /// The machine.
        machine: Detail,
        /// The end of what its console said.
        console: Option<Console>,
    }
}

texts! {
    /// A SHA-256, lower-case hexadecimal.
    pub(super) Sha256Text = |value| checked(value, |text| {
            let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            (text.len() == 64 && text.bytes().all(is_hex)).then_some(()).ok_or("Must be 64 lower-case hexadecimal digits.")
        }),
        string().min_length(Some(64)).max_length(Some(64)).pattern(Some("^[0-9a-f]{64}$"));
    /// A sentence.
    pub(super) Detail = |value| checked(value, |text| {
            (text.len() <= LONGEST_TEXT).then_some(()).ok_or("Longer than 1024 bytes.")
        }),
        string().min_length(Some(1)).max_length(Some(256));
    /// What a console said.
    pub(super) Console = |value| checked(value, |text| {
            (text.len() <= MOST_CONSOLE).then_some(()).ok_or("Longer than 512 KiB.")
        }),
        string().min_length(Some(1)).max_length(Some(65536));
}

/// Show the result of the last boot check of an image's present content.
#[utoipa::path(get, path = "/images/{id}/boot-check", tag = "images", params(("id" = String, Path, description = "The image's id")),
    responses((status = 200, body = BootCheck), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 422, body = Problem), (status = 502, body = Problem)))]
pub(super) async fn get(State(api): State<Api>, Path(text): Path<String>) -> Result<Json<BootCheck>> {
    let image = find::<Image>(&*api.store, Side::Live, &text).await?.record;
    let link = image
        .link
        .ok_or_else(|| Problem::conflict("The image has no artifacts yet."))?;
    let manifest = hex::encode(Sha256::digest(api.artifacts.manifest_text(&link).await?));
    let check = api.sets().checks.boot_check(image.id, &manifest).await?;
    let none = || {
        Problem::new(
            StatusCode::NOT_FOUND,
            "The image was not booted yet, or has other content since.",
        )
    };
    Ok(Json(check.ok_or_else(none)?))
}

/// Keep the result of a boot check. It counts for the manifest that was booted, and for no other.
#[utoipa::path(put, path = "/images/{id}/boot-check", tag = "images", request_body = BootCheckGiven,
    params(("id" = String, Path, description = "The image's id")),
    responses((status = 200, body = BootCheck), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 422, body = Problem), (status = 502, body = Problem)))]
pub(super) async fn put(
    State(api): State<Api>,
    principal: Option<Extension<Principal>>,
    Path(text): Path<String>,
    body: RawBody,
) -> Answer<Json<BootCheck>> {
    let id: ImageId = find::<Image>(&*api.store, Side::Live, &text).await?.record.id;
    let given: BootCheckGiven = body.read()?;
    let check = BootCheck {
        manifest_sha256: given.manifest_sha256,
        up: given.up,
        detail: given.detail,
        seconds: given.seconds,
        machine: given.machine,
        checked: Moment::now(),
        by: Principal::name_of(principal),
    };
    api.sets().checks.keep_check(id, &check, given.console).await?;
    Ok(Json(check))
}

impl From<NotKept> for Problem {
    fn from(refusal: NotKept) -> Self {
        match refusal {
            NotKept::Unknown => Self::not_found(),
            NotKept::OtherContent(_) => Self::conflict(refusal),
            NotKept::Unusable(error) => error.into(),
            NotKept::Store(error) => error.into(),
        }
    }
}
