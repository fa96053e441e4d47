//! The records of recipes. Pure: no I/O.

use serde::{Deserialize, Serialize};

use super::{CacheDepth, Dating, Link, Moment, RecipeId, TwinLevel, lock, protocol};
use crate::arch::Arch;

/// The files and the directory at the top of a recipe that do not decide its packages: kiwi uses them only after all packages are
/// installed. The lock file it does not use at all; a locked job compares the packages with it, those of a layer, too.
pub const LATE: [&str; 4] = ["config.sh", "images.sh", "root", lock::FILE];

/// A recipe: the description of an image, and its architecture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Recipe {
    /// Its id.
    #[schema(value_type = uuid::Uuid)]
    pub id: RecipeId,
    /// The time of its creation.
    #[serde(serialize_with = "Moment::as_ims")]
    #[schema(value_type = String)]
    pub created: Moment,
    /// The recipe's archive; null until it is uploaded.
    pub link: Option<Link>,
    /// The tool that builds it.
    pub recipe_type: RecipeType,
    /// The distribution of the resulting image.
    pub linux_distribution: LinuxDistribution,
    /// Its name, which need not be unique.
    pub name: String,
    /// The architecture of the resulting image. Jobs and images made from the recipe inherit it.
    pub arch: Arch,
    /// Whether the build loads kernel modules, and so needs its own kernel.
    pub require_dkms: bool,
    /// Values for the recipe's templates, in the given order. Null if the client sent null.
    pub template_dictionary: Option<Vec<TemplateValue>>,
    /// The tools that may run as native twins in emulated builds. Kiln's own member, absent unless it was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub twins: Option<TwinLevel>,
    /// How much of earlier jobs its jobs may reuse. Kiln's own member, absent unless it was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub cache: Option<CacheDepth>,
    /// Whether equal inputs are to give equal images. Kiln's own member, absent unless it was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reproducible: Option<bool>,
    /// The date in its reproducible images, in seconds since 1970. Kiln's own member, absent unless it was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub source_date_epoch: Option<u32>,
    /// Whether its jobs may have the packages of its lock file only. Kiln's own member, absent unless it was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub locked: Option<bool>,
    /// The profiles that its jobs build, unless they name others. Kiln's own member, absent unless it was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub profiles: Option<Vec<String>>,
    /// The time of its deletion; only in the collection of deleted recipes.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "Moment::as_ims_if_any"
    )]
    #[schema(value_type = Option<String>, nullable = false)]
    pub deleted: Option<Moment>,
}

impl Recipe {
    /// What it says of its images' date.
    pub fn dating(&self) -> Dating {
        Dating {
            reproducible: self.reproducible,
            source_date_epoch: self.source_date_epoch,
        }
    }
}

/// The tool that builds a recipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RecipeType {
    /// kiwi-ng.
    KiwiNg,
    /// A Containerfile. Kiln's own.
    Containerfile,
    /// Packer. IMS accepts such recipes but cannot build them; neither can Kiln.
    Packer,
}

impl RecipeType {
    /// Every type, in the order in which lists show them.
    pub const ALL: [RecipeType; 3] = [RecipeType::KiwiNg, RecipeType::Containerfile, RecipeType::Packer];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            RecipeType::KiwiNg => "kiwi-ng",
            RecipeType::Containerfile => "containerfile",
            RecipeType::Packer => "packer",
        }
    }

    /// The format that agents build; IMS's clients may make records of others.
    pub const fn built(self) -> Option<protocol::RecipeType> {
        match self {
            RecipeType::KiwiNg => Some(protocol::RecipeType::KiwiNg),
            RecipeType::Containerfile => Some(protocol::RecipeType::Containerfile),
            RecipeType::Packer => None,
        }
    }
}

impl From<protocol::RecipeType> for RecipeType {
    fn from(built: protocol::RecipeType) -> Self {
        match built {
            protocol::RecipeType::KiwiNg => Self::KiwiNg,
            protocol::RecipeType::Containerfile => Self::Containerfile,
        }
    }
}

/// The distribution of a recipe. A label: nothing in Kiln depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LinuxDistribution {
    /// SUSE Linux Enterprise 12.
    Sles12,
    /// SUSE Linux Enterprise 15.
    Sles15,
    /// CentOS 7.
    Centos7,
    /// Debian. Kiln's own word, as all that follow; IMS knows the three above.
    Debian,
    /// openSUSE.
    Opensuse,
    /// Red Hat Enterprise Linux.
    Rhel,
    /// Rocky Linux.
    Rocky,
    /// Ubuntu.
    Ubuntu,
}

impl LinuxDistribution {
    /// Every distribution, in the order in which lists show them.
    pub const ALL: [LinuxDistribution; 8] = [
        LinuxDistribution::Sles12,
        LinuxDistribution::Sles15,
        LinuxDistribution::Centos7,
        LinuxDistribution::Debian,
        LinuxDistribution::Opensuse,
        LinuxDistribution::Rhel,
        LinuxDistribution::Rocky,
        LinuxDistribution::Ubuntu,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            LinuxDistribution::Sles12 => "sles12",
            LinuxDistribution::Sles15 => "sles15",
            LinuxDistribution::Centos7 => "centos7",
            LinuxDistribution::Debian => "debian",
            LinuxDistribution::Opensuse => "opensuse",
            LinuxDistribution::Rhel => "rhel",
            LinuxDistribution::Rocky => "rocky",
            LinuxDistribution::Ubuntu => "ubuntu",
        }
    }
}

/// A value for a recipe's templates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TemplateValue {
    /// The variable.
    pub key: String,
    /// Its value.
    pub value: String,
}
