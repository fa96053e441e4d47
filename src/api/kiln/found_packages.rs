//! `/kiln/v1/packages`: the images that have a package, by the index of the records. Reads the database, and S3 for
//! images that are not in the index yet.

use std::{cmp::Ordering, time::Duration};

use axum::{
    Json,
    extract::{RawQuery, State},
};
use futures::{StreamExt, stream};
use kiln_records::{Image, ImageId, Moment, arch::Arch};
use serde::Serialize;
use tokio::{sync::Mutex, time::Instant};
use utoipa::ToSchema;
use uuid::Uuid;

use super::package_versions::{compare, is_version};
use crate::{
    api::{
        Api, lists,
        problem::{Problem, Result},
    },
    orchestrate::package_index,
    store::{After, Collection, IndexedImage, Known, Side},
};

/// The most images in one answer.
const MOST: u32 = 500;

/// The most images that one request enters into the index.
const MOST_ENTERED: usize = 64;

/// How long one request may enter images: less than the usual limit of a request.
const LONGEST: Duration = Duration::from_secs(15);

/// The images that are read at the same time.
const PARALLEL: usize = 4;

/// The time after which an image whose packages could not be told is looked at again.
const AGAIN: Duration = Duration::from_mins(10);

/// Held by the request that enters images: others wait, and find them entered.
static ENTERING: Mutex<()> = Mutex::const_new(());

/// The images that have a package.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FoundPackages {
    /// The packages with this name, in the order of the list of images.
    images: Vec<FoundPackage>,
    /// The images whose packages are not known: each may have the package, or not.
    not_looked_at: Vec<NotLookedAt>,
    /// The cursor of the next images; absent in the last answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next: Option<String>,
}

/// A package in an image.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
struct FoundPackage {
    /// The image.
    id: Uuid,
    /// Its name.
    name: String,
    /// Its architecture.
    #[schema(value_type = String)]
    arch: Arch,
    /// The package's name.
    package: String,
    /// Its whole version.
    version: String,
    /// Its architecture, by the distribution's name for it.
    package_arch: String,
}

/// An image whose packages are not known.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
struct NotLookedAt {
    /// The image.
    id: Uuid,
    /// Its name.
    name: String,
    /// Its architecture.
    #[schema(value_type = String)]
    arch: Arch,
    /// Why they are not known.
    why: String,
    /// Whether the same request may know them the next time: one request looks at some images only.
    is_pending: bool,
}

/// The parameters of a request.
#[derive(Debug, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "documentation; Wanted reads it")]
pub(super) struct FindParameters {
    /// The name of the package.
    #[param(pattern = r"^[^\u0000]+$")]
    name: String,
    /// Only lower versions than this, by the rules of the packages' format.
    #[param(nullable = false)]
    below: Option<String>,
    /// The maximum number of images that are looked through; `next` leads to the next ones. The default is 500.
    #[param(nullable = false, minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// The position to continue at: `next` of the answer before.
    #[param(nullable = false, pattern = r"^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// A request for packages.
#[derive(Debug)]
struct Wanted {
    name: String,
    below: Option<String>,
    limit: u32,
    after: Option<After>,
}

/// Find the images that have a package. Deleted images are not looked through. Images whose packages are not in the
/// index yet are read by the request itself, up to 64 of them.
#[utoipa::path(get, path = "/packages", tag = "images", params(FindParameters),
    responses((status = 200, body = FoundPackages), (status = 400, body = Problem)))]
pub(super) async fn find(State(api): State<Api>, RawQuery(query): RawQuery) -> Result<Json<FoundPackages>> {
    let wanted = Wanted::parse(&lists::pairs(query.as_deref())?)?;
    let mut images = wanted.images(&api).await?;
    if to_enter(&images, Moment::now()).next().is_some() {
        enter_some(&api, &wanted).await?;
        images = wanted.images(&api).await?;
    }
    Ok(Json(wanted.answer(images)))
}

impl Wanted {
    fn parse(pairs: &[(String, String)]) -> Result<Self> {
        let wrong = |key: &str, what: &str| Problem::bad_request(format_args!("`{key}` has to be: {what}."));
        let mut wanted = Self {
            name: String::new(),
            below: None,
            limit: MOST,
            after: None,
        };
        for (key, value) in pairs {
            match key.as_str() {
                "name" => wanted.name.clone_from(value),
                "below" => wanted.below = Some(value.clone()),
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=MOST).contains(limit));
                    wanted.limit = limit.ok_or_else(|| wrong(key, &format!("a number from 1 to {MOST}")))?;
                }
                "cursor" => {
                    let after = lists::decode(value).filter(|after| after.key.parse::<i64>().is_ok());
                    wanted.after = Some(after.ok_or_else(|| wrong(key, "`next` of an answer"))?);
                }
                _ => {}
            }
        }
        if wanted.name.is_empty() || wanted.name.contains('\0') {
            return Err(wrong("name", "the name of a package"));
        }
        if wanted.below.as_deref().is_some_and(|below| !is_version(below)) {
            return Err(wrong("below", "the version of a package"));
        }
        Ok(wanted)
    }

    /// The images of the answer, and one more if the list continues.
    async fn images(&self, api: &Api) -> Result<Vec<IndexedImage>> {
        let after = self.after.as_ref();
        Ok(api.store.images_with(&self.name, after, self.limit + 1).await?)
    }

    fn answer(&self, mut images: Vec<IndexedImage>) -> FoundPackages {
        let limit = self.limit as usize;
        let continues = images.len() > limit;
        images.truncate(limit);
        let last = images.last().filter(|_| continues);
        let next = last.map(|last| {
            lists::encode(&After {
                key: last.position.to_string(),
                id: last.id.to_string(),
            })
        });
        let mut answer = FoundPackages {
            images: Vec::new(),
            not_looked_at: Vec::new(),
            next,
        };
        for image in images {
            match self.found(&image) {
                Ok(found) => answer.images.extend(found),
                Err((why, is_pending)) => answer.not_looked_at.push(NotLookedAt {
                    id: image.id.0,
                    name: image.name,
                    arch: image.arch,
                    why,
                    is_pending,
                }),
            }
        }
        answer
    }

    /// The packages of an image, or why nobody can tell and whether that may pass.
    fn found(&self, image: &IndexedImage) -> std::result::Result<Vec<FoundPackage>, (String, bool)> {
        let (format, packages) = match &image.known {
            _ if !image.has_link => return Err(("it has no artifacts yet".to_owned(), false)),
            Known::Unseen => return Err(("nobody has looked at it yet".to_owned(), true)),
            Known::Fault { why, .. } => return Err((why.clone(), false)),
            Known::Packages { format, found } => (*format, found),
        };
        let mut found = Vec::new();
        for package in packages {
            if let (Some(below), Some(format)) = (&self.below, format) {
                match compare(format, &package.version, below) {
                    Some(Ordering::Less) => {}
                    Some(_) => continue,
                    None => {
                        let versions = format!("`{below}` and `{}` cannot be compared", package.version);
                        return Err((versions, false));
                    }
                }
            }
            found.push(FoundPackage {
                id: image.id.0,
                name: image.name.clone(),
                arch: image.arch,
                package: self.name.clone(),
                version: package.version.clone(),
                package_arch: package.arch.clone(),
            });
        }
        Ok(found)
    }
}

/// Enters some of the images into the index, those that nobody has looked at first. A failure leaves an image as it was.
async fn enter_some(api: &Api, wanted: &Wanted) -> Result<()> {
    let until = Instant::now() + LONGEST;
    let Ok(_alone) = tokio::time::timeout_at(until, ENTERING.lock()).await else {
        return Ok(());
    };
    // Another request may have entered them meanwhile.
    let images = wanted.images(api).await?;
    let ids: Vec<ImageId> = to_enter(&images, Moment::now()).take(MOST_ENTERED).collect();
    let entered = ids.into_iter().map(async |id| {
        if let Err(problem) = enter(api, id).await {
            tracing::warn!(image.id = %id, "its packages are not in the index yet: {problem:?}");
        }
    });
    let entered = stream::iter(entered).buffer_unordered(PARALLEL).collect::<()>();
    // What is being written when the time is over is written wholly or not at all.
    let _ = tokio::time::timeout_at(until, entered).await;
    Ok(())
}

async fn enter(api: &Api, id: ImageId) -> Result<()> {
    let stored = Collection::<Image>::get(&*api.store, Side::Live, id).await?;
    let Some(link) = stored.and_then(|stored| stored.record.link) else {
        return Ok(());
    };
    Ok(package_index::enter(&*api.store, &api.artifacts, id, &link).await?)
}

/// The images to look at, in the order in which that is worth it.
fn to_enter(images: &[IndexedImage], now: Moment) -> impl Iterator<Item = ImageId> {
    let old = now
        .micros()
        .saturating_sub(i64::try_from(AGAIN.as_micros()).unwrap_or(i64::MAX));
    let with_link = || images.iter().filter(|image| image.has_link);
    let unseen = with_link().filter(|image| image.known == Known::Unseen);
    let again =
        with_link().filter(move |image| matches!(&image.known, Known::Fault { looked, .. } if looked.micros() < old));
    unseen.chain(again).map(|image| image.id)
}

#[cfg(test)]
mod tests {
    use kiln_records::sbom::PackageFormat;

    use super::*;
    use crate::store::IndexedPackage;

    fn image(known: Known) -> IndexedImage {
        IndexedImage {
            id: ImageId::new(),
            name: "i".to_owned(),
            arch: Arch::Aarch64,
            position: 7,
            has_link: true,
            known,
        }
    }

    fn with(format: PackageFormat, versions: &[&str]) -> IndexedImage {
        let found = versions.iter().map(|version| IndexedPackage {
            version: (*version).to_owned(),
            arch: "a".to_owned(),
        });
        image(Known::Packages {
            format: Some(format),
            found: found.collect(),
        })
    }

    fn wanted(query: &str) -> Option<Wanted> {
        Wanted::parse(&lists::pairs(Some(query)).ok()?).ok()
    }

    #[test]
    fn versions_are_compared_by_the_rules_of_each_image() {
        let wanted = wanted("name=openssl&below=3.0.15").unwrap();
        let versions = |image: &IndexedImage| {
            let found = wanted.found(image).map_err(|(_, is_pending)| is_pending)?;
            Ok(found.into_iter().map(|found| found.version).collect::<Vec<_>>())
        };
        let deb = with(PackageFormat::Deb, &["3.0.9-1", "3.0.15-1~deb12u1", "1:1"]);
        assert_eq!(versions(&deb), Ok(vec!["3.0.9-1".to_owned()]));
        let rpm = with(PackageFormat::Rpm, &["0:3.0.15-4", "0:3.0.9-4"]);
        assert_eq!(versions(&rpm), Ok(vec!["0:3.0.9-4".to_owned()]));
        assert_eq!(versions(&with(PackageFormat::Deb, &[])), Ok(Vec::new()));
        // What cannot be known is not said to be absent.
        assert_eq!(versions(&with(PackageFormat::Deb, &["3.0.9-1", "a b"])), Err(false));
        assert_eq!(versions(&image(Known::Unseen)), Err(true));
    }

    #[test]
    fn a_page_ends_with_a_cursor_unless_it_is_the_last() {
        let images = vec![image(Known::Unseen), image(Known::Unseen)];
        let answer = wanted("name=n&limit=1").unwrap().answer(images.clone());
        assert_eq!(answer.not_looked_at.len(), 1);
        let next = wanted(&format!("name=n&cursor={}", answer.next.unwrap())).unwrap();
        let after = next.after.unwrap();
        assert_eq!((after.key.as_str(), after.id), ("7", images[0].id.to_string()));
        assert_eq!(wanted("name=n&limit=2").unwrap().answer(images).next, None);
    }

    #[test]
    fn images_that_nobody_has_looked_at_come_first_and_faults_wait() {
        let fault = |micros| {
            image(Known::Fault {
                why: "w".to_owned(),
                looked: Moment::from_micros(micros),
            })
        };
        let now = 3_600_000_000;
        let no_link = IndexedImage {
            has_link: false,
            ..image(Known::Unseen)
        };
        let images = [fault(now - 1), fault(0), no_link, image(Known::Unseen)];
        let ids: Vec<_> = to_enter(&images, Moment::from_micros(now)).collect();
        assert_eq!(ids, [images[3].id, images[1].id]);
    }

    #[test]
    fn wrong_parameters_are_refused() {
        for query in [
            "",
            "name=",
            "name=%00",
            "name=n&limit=0",
            "name=n&limit=501",
            "name=n&cursor=x",
            "name=n&below=",
            "name=n&below=a%20b",
        ] {
            assert!(wanted(query).is_none(), "{query}");
        }
        assert!(wanted("name=n&colour=blue").is_some());
    }
}
