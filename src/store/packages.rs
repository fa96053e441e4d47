//! What a store does with the packages of images: an index, which can be made again from the images' own documents.

use async_trait::async_trait;
use kiln_records::{
    ImageId, Moment,
    arch::Arch,
    sbom::{Listed, PackageFormat},
};

use super::{After, Result};

/// The packages of images, by name.
#[async_trait]
pub trait PackageIndex: Send + Sync {
    /// Notes the packages of an image in place of earlier ones, all of them or none. Does nothing if the image is gone.
    async fn put_packages(&self, image: ImageId, listed: &Listed, now: Moment) -> Result<()>;

    /// Notes why the packages of an image are not known, unless they are. Does nothing if the image is gone.
    async fn put_package_fault(&self, image: ImageId, fault: &str, now: Moment) -> Result<()>;

    /// The live images after a place in their list, at most `limit`, in order: each with its packages of this name.
    async fn images_with(&self, package: &str, after: Option<&After>, limit: u32) -> Result<Vec<IndexedImage>>;
}

/// A live image, and what the index knows of its packages of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexedImage {
    /// Its id.
    pub id: ImageId,
    /// Its name.
    pub name: String,
    /// Its architecture.
    pub arch: Arch,
    /// Its place in the list; see [`Stored::position`](super::Stored::position).
    pub position: i64,
    /// Whether it has artifacts.
    pub has_link: bool,
    /// What is known of its packages.
    pub known: Known,
}

/// What the index knows of the packages of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// Nobody has looked yet.
    Unseen,
    /// Somebody looked, and could not tell which packages it has.
    Fault {
        /// Why not.
        why: String,
        /// When that was.
        looked: Moment,
    },
    /// All of its packages are known.
    Packages {
        /// Their format; `None` if the image has no database of packages.
        format: Option<PackageFormat>,
        /// Those of the name that was asked for, sorted as texts.
        found: Vec<IndexedPackage>,
    },
}

/// A package of an image, whose name was asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct IndexedPackage {
    /// Its whole version.
    pub version: String,
    /// Its architecture, by the distribution's name for it.
    pub arch: String,
}
