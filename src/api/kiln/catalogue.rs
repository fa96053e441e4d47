//! `/catalogue`: complete sets by name and version or channel, and their files at addresses that stay the same. Reads the
//! database, and S3 for the text of an iPXE script.

use std::{str::FromStr, time::Duration};

use axum::{
    Extension, Json,
    extract::{RawQuery, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use kiln_records::{
    ImageId, ImageSet, Moment, SetId,
    arch::Arch,
    budget::{LISTED_OPENLY, LOOKED_THROUGH},
    set::{
        ImageFile, Proof, SetImage,
        ipxe::{Boot, LONGEST_PARAMETERS, script},
        name::{Which, check_channel, check_name, check_version},
        state::{ArchState, SetState},
    },
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    api::{
        Api,
        address::Path,
        auth::Principal,
        lists::{self, ListParameters, ListQuery, Listed},
        problem::{Problem, Result},
    },
    artifacts::{MANIFEST, ReadError},
    orchestrate::sets::{CatalogueRefusal, Looked},
    store::{After, PageText, Query, Sort, Stored},
};

/// The file of an image that is written for each request.
const IPXE: &str = "boot.ipxe";

/// How long the address of an object may be used. A download may take longer once it has begun.
const VALID: Duration = Duration::from_mins(15);

/// The number of sets read at once in search of complete ones.
const PAGE: u32 = 200;

/// A complete set in the catalogue.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct CatalogueEntry {
    /// The set.
    #[schema(value_type = uuid::Uuid)]
    set_id: SetId,
    /// Its name.
    name: String,
    /// Its version.
    version: String,
    /// The time of its creation.
    #[schema(value_type = String)]
    created: Moment,
    /// The architectures of its images.
    cpu_architectures: Vec<Arch>,
    /// The channels that lead to it, besides `latest`.
    channels: Vec<String>,
}

/// An image of the catalogue.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct CatalogueImage {
    /// The name of its set.
    name: String,
    /// The version of its set.
    version: String,
    /// Its architecture.
    cpu_architecture: Arch,
    /// Its set.
    #[schema(value_type = uuid::Uuid)]
    set_id: SetId,
    /// The image.
    #[schema(value_type = uuid::Uuid)]
    image_id: ImageId,
    /// SHA-256 of its manifest.
    manifest_sha256: String,
    /// The path of its manifest in S3.
    manifest: String,
    /// Its files.
    files: Vec<CatalogueFile>,
}

/// A file of an image.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct CatalogueFile {
    #[serde(flatten)]
    file: ImageFile,
    /// Its address on this server, which leads to the object.
    url: String,
}

/// The parameter for callers that name no architecture in the address.
#[derive(Debug, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "documentation; architecture() reads it")]
pub(super) struct ArchitectureParameter {
    /// The architecture, by any of its names; the default is `x86_64`.
    #[param(nullable = false, pattern = "^[A-Za-z0-9_-]+$")]
    cpu_architecture: Option<String>,
}

impl Listed for CatalogueEntry {
    const FILTERS: &'static [&'static str] = &["arch"];

    fn id(&self) -> String {
        self.set_id.to_string()
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// List the complete sets, by the last look into S3 and the records now.
#[utoipa::path(get, path = "/catalogue", tag = "catalogue", params(ListParameters, crate::api::lists::ArchParameter),
    responses((status = 200, body = Vec<CatalogueEntry>), (status = 400, body = Problem)))]
pub(super) async fn list(
    State(api): State<Api>,
    principal: Option<Extension<Principal>>,
    list: ListQuery<CatalogueEntry>,
) -> Result<Response> {
    let list = match principal {
        Some(_) => list,
        None => list.at_most(LISTED_OPENLY),
    };
    list.answer(move |query| {
        let api = api.clone();
        async move { page(&api, query).await }
    })
    .await
}

/// One page of complete sets. Sets that are not complete are passed over; a page is empty at the end, and where very many were.
async fn page(api: &Api, query: Query) -> crate::store::Result<PageText<CatalogueEntry>> {
    let sets = api.sets();
    let (mut page, mut seen) = (PageText::default(), 0);
    let mut rest = Query {
        arch: None,
        limit: PAGE,
        ..query.clone()
    };
    loop {
        let read = api.store.page_sets(&rest).await?;
        let is_last = read.len() < PAGE as usize;
        for stored in read {
            if page.count == query.limit as usize || seen == LOOKED_THROUGH {
                page.more = true;
                return Ok(page);
            }
            seen += 1;
            let position = stored.position;
            rest.after = Some(After {
                key: match query.sort {
                    Sort::Position => position.to_string(),
                    Sort::Name => stored.record.name.clone(),
                },
                id: stored.record.id.to_string(),
            });
            let judged = if stored.record.was_complete {
                sets.look.judge(&stored.record).await?
            } else {
                Vec::new()
            };
            let looked = Looked { stored, judged };
            let entry = entry(&looked);
            page.last = Some((entry.clone(), position));
            let fits = query.arch.is_none_or(|arch| entry.cpu_architectures.contains(&arch));
            if looked.judged.is_empty() || looked.state() != SetState::Complete || !fits {
                continue;
            }
            let channels = api.store.channels_of(entry.set_id).await?;
            let entry = CatalogueEntry { channels, ..entry };
            let text = lists::write(
                vec![Stored {
                    record: entry,
                    revision: 1,
                    position,
                }],
                1,
            );
            if page.count > 0 {
                page.text.push(',');
            }
            page.text.push_str(&text.text);
            page.count += 1;
        }
        if is_last {
            return Ok(page);
        }
    }
}

fn entry(looked: &Looked) -> CatalogueEntry {
    let set = &looked.stored.record;
    let pairs = set.members.iter().zip(&looked.judged);
    let complete = pairs.filter(|(_, judged)| judged.state == ArchState::Complete);
    CatalogueEntry {
        set_id: set.id,
        name: set.name.clone(),
        version: set.version.clone(),
        created: set.created,
        cpu_architectures: complete.map(|(member, _)| member.arch).collect(),
        channels: Vec::new(),
    }
}

/// Find the image of a version, or of the set that a channel leads to, for the architecture in the query. `kind` is
/// `versions` or `channels`.
#[utoipa::path(get, path = "/catalogue/{name}/{kind}/{which}", tag = "catalogue",
    params(("name" = String, Path, description = "The name of the sets"), ("kind" = String, Path, description = "`versions` or `channels`"),
        ("which" = String, Path, description = "The version or channel"), ArchitectureParameter),
    responses((status = 200, body = CatalogueImage), (status = 400, body = Problem), (status = 404, body = Problem),
        (status = 409, body = Problem)))]
pub(super) async fn resolve(
    State(api): State<Api>,
    Path((name, kind, which)): Path<(String, String, String)>,
    RawQuery(query): RawQuery,
) -> Result<Json<CatalogueImage>> {
    let arch = architecture(query.as_deref())?;
    found(&api, &name, &kind, &which, arch)
        .await
        .map(|found| Json(found.shown()))
}

/// Find the image of a version, or of the set that a channel leads to, for an architecture.
#[utoipa::path(get, path = "/catalogue/{name}/{kind}/{which}/{arch}", tag = "catalogue",
    params(("name" = String, Path, description = "The name of the sets"), ("kind" = String, Path, description = "`versions` or `channels`"),
        ("which" = String, Path, description = "The version or channel"), ("arch" = String, Path, description = "The architecture, by any of its names")),
    responses((status = 200, body = CatalogueImage), (status = 400, body = Problem), (status = 404, body = Problem),
        (status = 409, body = Problem)))]
pub(super) async fn resolve_arch(
    State(api): State<Api>,
    Path((name, kind, which, arch)): Path<(String, String, String, String)>,
) -> Result<Json<CatalogueImage>> {
    let arch = known_arch(&arch)?;
    found(&api, &name, &kind, &which, arch)
        .await
        .map(|found| Json(found.shown()))
}

/// Get a file of an image: a redirection to the object in S3, or an iPXE script for `boot.ipxe`.
#[utoipa::path(get, path = "/catalogue/{name}/{kind}/{which}/{arch}/{file}", tag = "catalogue",
    params(("name" = String, Path, description = "The name of the sets"), ("kind" = String, Path, description = "`versions` or `channels`"),
        ("which" = String, Path, description = "The version or channel"), ("arch" = String, Path, description = "The architecture, by any of its names"),
        ("file" = String, Path, description = "The file: `rootfs`, `kernel`, `initrd`, `boot_parameters`, `manifest.json`, `boot.ipxe`, …")),
    responses((status = 200, description = "an iPXE script", content_type = "text/plain"),
        (status = 307, description = "the object is there"), (status = 400, body = Problem), (status = 404, body = Problem),
        (status = 409, body = Problem), (status = 502, body = Problem)))]
pub(super) async fn file(
    State(api): State<Api>,
    Path((name, kind, which, arch, file)): Path<(String, String, String, String, String)>,
    headers: HeaderMap,
) -> Result<Response> {
    let arch = known_arch(&arch)?;
    let found = found(&api, &name, &kind, &which, arch).await?;
    if file == IPXE {
        return ipxe(&api, &found, &headers).await;
    }
    let path = found.file(&file)?;
    let address = api.artifacts.presign_linked(path, VALID).await?;
    let location = HeaderValue::from_str(&address).map_err(|_| {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "The object has an address that is not ASCII.",
        )
    })?;
    Ok((StatusCode::TEMPORARY_REDIRECT, [NO_STORE, (header::LOCATION, location)]).into_response())
}

/// The address leads elsewhere tomorrow.
const NO_STORE: (HeaderName, HeaderValue) = (header::CACHE_CONTROL, HeaderValue::from_static("no-store"));

async fn ipxe(api: &Api, found: &Found, headers: &HeaderMap) -> Result<Response> {
    found.file("kernel")?;
    let rootfs = format!("{}{}", base(api, headers)?, found.url("rootfs"));
    let parameters = match found.proof.files.iter().find(|file| file.name == "boot_parameters") {
        None => String::new(),
        Some(file) => parameters(api, &file.path).await?,
    };
    let set = &found.set;
    let boot = Boot {
        title: &format!("{} {} {}", set.name, set.version, found.arch),
        rootfs: &rootfs,
        has_initrd: found.proof.files.iter().any(|file| file.name == "initrd"),
        parameters: &parameters,
    };
    let script = script(&boot).map_err(Problem::conflict)?;
    let plain = (
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=us-ascii"),
    );
    Ok(([NO_STORE, plain], script).into_response())
}

/// The boot parameters of an image.
async fn parameters(api: &Api, path: &str) -> Result<String> {
    let unusable = |why: &str| Problem::conflict(format_args!("The image's boot parameters {why}."));
    let text = api.artifacts.read_linked(path, LONGEST_PARAMETERS + 1).await;
    let text = text.map_err(|error| match error {
        ReadError::TooLarge(_) => unusable("are too long for a kernel"),
        ReadError::S3(failure) => failure.into(),
    })?;
    let text = text.ok_or_else(|| unusable("are not there any more"))?;
    String::from_utf8(text.to_vec()).map_err(|_| unusable("are no text"))
}

/// The beginning of addresses of this server, as its client knows it.
pub(super) fn base(api: &Api, headers: &HeaderMap) -> Result<String> {
    if let Some(url) = &api.public_url {
        return Ok(url.trim_end_matches('/').to_owned());
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    match host.filter(|host| !host.is_empty() && host.bytes().all(plain)) {
        Some(host) => Ok(format!("http://{host}")),
        None => Err(Problem::bad_request(
            "The script needs this server's address: send `Host`, or set `public_url` in [server].",
        )),
    }
}

/// An image that was found, with its place in the catalogue.
pub(super) struct Found {
    pub(super) set: ImageSet,
    pub(super) arch: Arch,
    image: SetImage,
    pub(super) proof: Proof,
    /// `versions/24.11` or `channels/stable`.
    place: String,
}

impl Found {
    fn url(&self, file: &str) -> String {
        format!(
            "/kiln/v1/catalogue/{}/{}/{}/{file}",
            self.set.name, self.place, self.arch
        )
    }

    /// The path of a file in S3.
    fn file(&self, name: &str) -> Result<&str> {
        if name == MANIFEST {
            return Ok(&self.proof.path);
        }
        let found = self.proof.files.iter().find(|file| file.name == name);
        let missing = || {
            let known = self.proof.files.iter().map(|file| file.name.clone());
            CatalogueRefusal::NoFile {
                asked: kiln_records::names::shown(name).chars().take(80).collect(),
                there: known.chain([MANIFEST.to_owned(), IPXE.to_owned()]).collect(),
            }
        };
        Ok(&found.ok_or_else(missing)?.path)
    }

    fn shown(self) -> CatalogueImage {
        let files = self.proof.files.iter().map(|file| CatalogueFile {
            url: self.url(&file.name),
            file: file.clone(),
        });
        CatalogueImage {
            files: files.collect(),
            name: self.set.name,
            version: self.set.version,
            cpu_architecture: self.arch,
            set_id: self.set.id,
            image_id: self.image.id,
            manifest_sha256: self.proof.sha256,
            manifest: self.proof.path,
        }
    }
}

/// The image of an address.
///
/// # Errors
///
/// 404 for what cannot be or is not there, 409 for a set that is not complete.
pub(super) async fn found(api: &Api, name: &str, kind: &str, which: &str, arch: Arch) -> Result<Found> {
    let invalid = |why: &str| {
        Problem::new(
            StatusCode::NOT_FOUND,
            format_args!("There is nothing of that name: {why}"),
        )
    };
    check_name(name).map_err(invalid)?;
    let wanted = match kind {
        "versions" => {
            check_version(which).map_err(invalid)?;
            Which::Version(which.to_owned())
        }
        "channels" => {
            check_channel(which).map_err(invalid)?;
            Which::Channel(which.to_owned())
        }
        _ => return Err(Problem::not_found()),
    };
    let (set, image, proof) = api.sets().catalogue.given_out(name, &wanted, arch).await?;
    Ok(Found {
        set,
        arch,
        image,
        proof,
        place: format!("{kind}/{which}"),
    })
}

/// The architecture that a query names.
///
/// # Errors
///
/// 400 for an unknown one.
pub(super) fn architecture(query: Option<&str>) -> Result<Arch> {
    let pairs = lists::pairs(query)?;
    let named = pairs.iter().rev().find(|(key, _)| key == "cpu_architecture");
    named.map_or(Ok(Arch::X86_64), |(_, value)| known_arch(value))
}

/// # Errors
///
/// 400 for an unknown one.
fn known_arch(text: &str) -> Result<Arch> {
    Arch::from_str(text).map_err(|_| {
        let shown: String = kiln_records::names::shown(text).chars().take(80).collect();
        Problem::bad_request(kiln_records::arch::UnknownArch(shown))
    })
}

impl From<CatalogueRefusal> for Problem {
    fn from(refusal: CatalogueRefusal) -> Self {
        match refusal {
            CatalogueRefusal::NoneComplete(_)
            | CatalogueRefusal::NoVersion(..)
            | CatalogueRefusal::NoChannel(..)
            | CatalogueRefusal::NoArch { .. }
            | CatalogueRefusal::NoFile { .. } => Self::new(StatusCode::NOT_FOUND, refusal),
            CatalogueRefusal::Incomplete { .. }
            | CatalogueRefusal::Lacking { .. }
            | CatalogueRefusal::Unread(_)
            | CatalogueRefusal::Raced { .. }
            | CatalogueRefusal::NothingBefore(..)
            | CatalogueRefusal::Automatic => Self::conflict(refusal),
            CatalogueRefusal::Store(error) => error.into(),
        }
    }
}
