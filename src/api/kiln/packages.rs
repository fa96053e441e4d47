//! `/kiln/v1/images/{id}/packages`: the packages of an image, by its own SPDX document. Reads the database and S3.

use std::cmp::Ordering;

use axum::{
    Json,
    extract::{RawQuery, State},
};
use kiln_records::{
    Image,
    arch::Arch,
    sbom::{Listed, ListedPackage, PackageFormat},
};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::package_versions::compare;
use crate::{
    api::{
        Api,
        address::Path,
        lists,
        problem::{Problem, Result},
        v3::find,
    },
    store::Side,
};

/// The packages of an image.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ImagePackages {
    /// The image.
    id: Uuid,
    /// Its name.
    name: String,
    /// Its architecture.
    #[schema(value_type = String)]
    arch: Arch,
    /// The format of its packages; null if it has no database of packages.
    format: Option<PackageFormat>,
    /// Its packages, sorted by name; null if there is no list of them, so that nobody knows.
    packages: Option<Vec<ListedPackage>>,
}

/// The parameters of a request.
#[derive(Debug, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "documentation")]
pub(super) struct PackageParameters {
    /// Only packages of this name.
    #[param(nullable = false)]
    name: Option<String>,
    /// Only packages with a lower version than this, by the rules of their format.
    #[param(nullable = false)]
    below: Option<String>,
}

/// List the packages of an image. The list is the image's own SPDX document, and is checked against the digest in the
/// manifest.
#[utoipa::path(get, path = "/images/{id}/packages", tag = "images",
    params(("id" = String, Path, description = "The image's id"), PackageParameters),
    responses((status = 200, body = ImagePackages), (status = 400, body = Problem), (status = 404, body = Problem),
        (status = 409, body = Problem), (status = 422, body = Problem), (status = 502, body = Problem)))]
pub(super) async fn list(
    State(api): State<Api>,
    Path(text): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<ImagePackages>> {
    let query = lists::pairs(query.as_deref())?;
    let value = |wanted: &str| {
        query
            .iter()
            .find(|(name, _)| name == wanted)
            .map(|(_, value)| value.as_str())
    };
    let (name, below) = (value("name"), value("below"));
    let image = find::<Image>(&*api.store, Side::Live, &text).await?.record;
    let listed = read(&api, &image).await?;
    let format = listed.as_ref().and_then(|listed| listed.format);
    let packages = listed.map(|listed| narrowed(listed, name, below)).transpose()?;
    Ok(Json(ImagePackages {
        id: image.id.0,
        name: image.name,
        arch: image.arch,
        format,
        packages,
    }))
}

/// The packages of this name, with lower versions than this.
fn narrowed(listed: Listed, name: Option<&str>, below: Option<&str>) -> Result<Vec<ListedPackage>> {
    let Listed { format, packages } = listed;
    let mut kept = Vec::new();
    for package in packages {
        if name.is_some_and(|name| name != package.name) {
            continue;
        }
        if let (Some(below), Some(format)) = (below, format) {
            match compare(format, &package.version, below) {
                Some(Ordering::Less) => {}
                Some(_) => continue,
                None => {
                    let what = format!("`{below}` or `{}` cannot be a version of a package.", package.version);
                    return Err(Problem::bad_request(what));
                }
            }
        }
        kept.push(package);
    }
    Ok(kept)
}

/// The packages in an image's document, whose digest is that in the manifest; none if it has no document.
pub(crate) async fn read(api: &Api, image: &Image) -> Result<Option<Listed>> {
    let link = image.link.as_ref();
    let link = link.ok_or_else(|| Problem::conflict("The image has no artifacts yet."))?;
    Ok(api.artifacts.packages_of(link).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_chosen_by_name_and_version() {
        let package = |name: &str, version: &str| ListedPackage {
            name: name.to_owned(),
            version: version.to_owned(),
            arch: "arm64".to_owned(),
            licences: None,
        };
        let listed = Listed {
            format: Some(PackageFormat::Deb),
            packages: vec![package("a", "1:2-1"), package("b", "3.0.9-1"), package("b", "3.0.15-1")],
        };
        let names = |name, below| {
            let kept = narrowed(listed.clone(), name, below).ok()?;
            Some(kept.into_iter().map(|package| package.version).collect::<Vec<_>>())
        };
        let some = |versions: &[&str]| Some(versions.iter().map(|version| (*version).to_owned()).collect());
        assert_eq!(names(None, None), some(&["1:2-1", "3.0.9-1", "3.0.15-1"]));
        assert_eq!(names(Some("b"), None), some(&["3.0.9-1", "3.0.15-1"]));
        assert_eq!(names(Some("b"), Some("3.0.15")), some(&["3.0.9-1"]));
        assert_eq!(names(Some("c"), None), some(&[]));
        assert_eq!(names(Some("b"), Some("not one")), None);
    }
}
