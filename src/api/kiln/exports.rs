//! `/exports`: the catalogue in the forms of other services. Reads the database.

use std::collections::BTreeMap;

use axum::{
    Json,
    extract::{RawQuery, State},
    http::HeaderMap,
};
use kiln_records::{
    Image, LinuxDistribution, Recipe,
    arch::Arch,
    set::{
        name::{Which, check_name, parse},
        openstack,
        state::SetState,
    },
};
use serde::Serialize;
use utoipa::ToSchema;

use super::catalogue::{Found, architecture, base, found};
use crate::{
    api::{
        Api, lists,
        problem::{Problem, Result},
    },
    orchestrate::sets::{Looked, image_of},
    store::{Collection, Query, Side, Sort},
};

/// The most sets in an export.
const MOST: u32 = 500;

/// The tag of an image that names the OpenShift version that it is for; the default is the beginning of the set's version.
const VERSION_TAG: &str = "openshift_version";

/// The tag of an image that names the release image that it belongs to.
const RELEASE_TAG: &str = "release_image";

/// An entry of Assisted Installer's `OS_IMAGES`.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct OsImage {
    /// The OpenShift version.
    openshift_version: String,
    /// The architecture, in its words: `x86_64`, `arm64`, …
    cpu_architecture: String,
    /// The address of the bootable ISO image.
    url: String,
    /// The address of the root file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    rootfs_url: Option<String>,
    /// The version of the set.
    version: String,
}

/// An entry of Assisted Installer's `RELEASE_IMAGES`.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReleaseImage {
    /// The OpenShift version.
    openshift_version: String,
    /// The architecture, or `multi`.
    cpu_architecture: String,
    /// All architectures; absent in the old form.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    cpu_architectures: Option<Vec<String>>,
    /// The release image.
    url: String,
    /// The version of the set.
    version: String,
}

/// The parameters of an export, for the documentation.
#[derive(Debug, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "documentation; named() reads them")]
pub(super) struct ExportParameters {
    /// The name of the sets.
    #[param(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9][A-Za-z0-9._~-]*$")]
    name: String,
    /// `single` for one entry for each architecture, as before several could share one.
    #[param(nullable = false, pattern = "^(single|multi)$")]
    form: Option<String>,
}

/// Assisted Installer's `OS_IMAGES`: the images of all complete sets of a name that have an ISO image.
#[utoipa::path(get, path = "/exports/assisted-installer/os-images", tag = "catalogue", params(ExportParameters),
    responses((status = 200, body = Vec<OsImage>), (status = 400, body = Problem)))]
pub(super) async fn os_images(
    State(api): State<Api>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Json<Vec<OsImage>>> {
    let (name, _) = named(query.as_deref())?;
    let base = base(&api, &headers)?;
    let mut images = Vec::new();
    for (looked, arch) in complete(&api, &name).await? {
        let set = &looked.stored.record;
        let image = image_of(&looked, arch)?;
        let files = image.proof.iter().flat_map(|proof| &proof.files);
        let mut names = files.map(|file| file.name.as_str());
        let Some(iso) = names.clone().find(|file| file.ends_with("iso")) else {
            continue;
        };
        let at = |file: &str| {
            format!(
                "{base}/kiln/v1/catalogue/{}/versions/{}/{arch}/{file}",
                set.name, set.version
            )
        };
        let tags = tags(&api, &looked, arch).await?;
        images.push(OsImage {
            openshift_version: openshift_version(&tags, &set.version),
            cpu_architecture: their_name(arch).to_owned(),
            url: at(iso),
            rootfs_url: names.any(|file| file == "rootfs").then(|| at("rootfs")),
            version: set.version.clone(),
        });
    }
    Ok(Json(images))
}

/// Assisted Installer's `RELEASE_IMAGES`: the release images that the tag `release_image` of images names.
#[utoipa::path(get, path = "/exports/assisted-installer/release-images", tag = "catalogue", params(ExportParameters),
    responses((status = 200, body = Vec<ReleaseImage>), (status = 400, body = Problem)))]
pub(super) async fn release_images(
    State(api): State<Api>,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<ReleaseImage>>> {
    let (name, is_single) = named(query.as_deref())?;
    // Those of one version and release image share an entry.
    let mut entries: Vec<(ReleaseImage, Vec<Arch>)> = Vec::new();
    for (looked, arch) in complete(&api, &name).await? {
        let tags = tags(&api, &looked, arch).await?;
        let Some(url) = tags.get(RELEASE_TAG) else { continue };
        let version = &looked.stored.record.version;
        let same = |(entry, _): &&mut (ReleaseImage, Vec<Arch>)| entry.url == *url && entry.version == *version;
        match entries.iter_mut().find(same).filter(|_| !is_single) {
            Some((_, archs)) => archs.push(arch),
            None => entries.push((
                ReleaseImage {
                    openshift_version: openshift_version(&tags, version),
                    cpu_architecture: their_name(arch).to_owned(),
                    cpu_architectures: None,
                    url: url.clone(),
                    version: version.clone(),
                },
                vec![arch],
            )),
        }
    }
    let finish = |(mut entry, archs): (ReleaseImage, Vec<Arch>)| {
        if !is_single {
            if archs.len() > 1 {
                "multi".clone_into(&mut entry.cpu_architecture);
            }
            entry.cpu_architectures = Some(archs.into_iter().map(|arch| their_name(arch).to_owned()).collect());
        }
        entry
    };
    Ok(Json(entries.into_iter().map(finish).collect()))
}

/// The properties that OpenStack needs to know of an image of the catalogue.
#[utoipa::path(get, path = "/exports/openstack", tag = "catalogue",
    params(("set" = String, Query, description = "`NAME@VERSION`, `NAME:CHANNEL` or `NAME`"), super::catalogue::ArchitectureParameter),
    responses((status = 200, body = BTreeMap<String, String>), (status = 400, body = Problem), (status = 404, body = Problem),
        (status = 409, body = Problem)))]
pub(super) async fn openstack(
    State(api): State<Api>,
    RawQuery(query): RawQuery,
) -> Result<Json<BTreeMap<&'static str, &'static str>>> {
    let arch = architecture(query.as_deref())?;
    let pairs = lists::pairs(query.as_deref())?;
    let set = pairs.iter().find(|(key, _)| key == "set");
    let (_, set) =
        set.ok_or_else(|| Problem::bad_request("`set` has to be given: NAME@VERSION, NAME:CHANNEL or NAME."))?;
    let (name, which) = parse(set).map_err(Problem::bad_request)?;
    let (kind, which) = match which {
        Which::Version(version) => ("versions", version),
        Which::Channel(channel) => ("channels", channel),
    };
    let found = found(&api, &name, kind, &which, arch).await?;
    let distribution = distribution(&api, &found).await?;
    Ok(Json(openstack::properties(arch, distribution)))
}

/// The distribution of the recipe, if the set was built from one that is still there.
async fn distribution(api: &Api, found: &Found) -> Result<Option<LinuxDistribution>> {
    let mut members = found.set.members.iter();
    let recipe = members
        .find(|member| member.arch == found.arch)
        .and_then(|member| member.recipe_id);
    let Some(recipe) = recipe else { return Ok(None) };
    for side in [Side::Live, Side::Deleted] {
        if let Some(stored) = Collection::<Recipe>::get(&*api.store, side, recipe).await? {
            return Ok(Some(stored.record.linux_distribution));
        }
    }
    Ok(None)
}

/// The name in a query, and whether the old form is asked for.
fn named(query: Option<&str>) -> Result<(String, bool)> {
    let pairs = lists::pairs(query)?;
    let value = |name: &str| {
        pairs
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    };
    let name = value("name").ok_or_else(|| Problem::bad_request("`name` has to be given: the name of the sets."))?;
    check_name(name).map_err(|why| Problem::bad_request(format_args!("`name`: {why}")))?;
    match value("form") {
        None | Some("multi") => Ok((name.to_owned(), false)),
        Some("single") => Ok((name.to_owned(), true)),
        Some(_) => Err(Problem::bad_request("`form` has to be: single or multi.")),
    }
}

/// Every complete image of the complete sets of a name, oldest set first.
async fn complete(api: &Api, name: &str) -> Result<Vec<(Looked, Arch)>> {
    let query = Query {
        name: Some(name.to_owned()),
        limit: MOST,
        sort: Sort::Position,
        ..Query::default()
    };
    let mut found = Vec::new();
    for stored in api.store.page_sets(&query).await? {
        let judged = api.sets().look.judge(&stored.record).await?;
        let looked = Looked { stored, judged };
        if looked.state() != SetState::Complete {
            continue;
        }
        let archs: Vec<Arch> = looked.stored.record.members.iter().map(|member| member.arch).collect();
        let complete = archs.into_iter().filter(|arch| image_of(&looked, *arch).is_ok());
        found.extend(complete.map(|arch| (looked.clone(), arch)));
    }
    Ok(found)
}

/// The tags of an image.
async fn tags(api: &Api, looked: &Looked, arch: Arch) -> Result<BTreeMap<String, String>> {
    let id = image_of(looked, arch)?.id;
    let image = Collection::<Image>::get(&*api.store, Side::Live, id).await?;
    Ok(image.map(|image| image.record.metadata).unwrap_or_default())
}

fn openshift_version(tags: &BTreeMap<String, String>, version: &str) -> String {
    let beginning = || version.splitn(3, '.').take(2).collect::<Vec<_>>().join(".");
    tags.get(VERSION_TAG).cloned().unwrap_or_else(beginning)
}

/// Assisted Installer's name of an architecture.
const fn their_name(arch: Arch) -> &'static str {
    match arch {
        Arch::Aarch64 => "arm64",
        other => other.name(),
    }
}
