//! The records of recipes. Pure: no I/O.

use serde::{Deserialize, Serialize};

use super::{Link, Moment, RecipeId, TwinLevel};
use crate::arch::Arch;

/// A recipe: what to build, and for which architecture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Recipe {
    /// Its identity.
    #[schema(value_type = uuid::Uuid)]
    pub id: RecipeId,
    /// When it was made.
    #[schema(value_type = String)]
    pub created: Moment,
    /// The recipe's archive; none until it was uploaded.
    pub link: Option<Link>,
    /// The tool that builds it.
    pub recipe_type: RecipeType,
    /// The distribution that comes out.
    pub linux_distribution: LinuxDistribution,
    /// What people call it. Need not be unique.
    pub name: String,
    /// The architecture of what comes out. Jobs and images made from the recipe inherit it.
    pub arch: Arch,
    /// Whether the build loads kernel modules, and so needs a kernel of its own.
    pub require_dkms: bool,
    /// Values for the recipe's templates, in the order given. Null where a client said null.
    pub template_dictionary: Option<Vec<TemplateValue>>,
    /// Which tools may run as native twins in its emulated builds. Kiln's own word: absent unless somebody said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub twins: Option<TwinLevel>,
    /// When it was deleted; only in the collection of deleted recipes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub deleted: Option<Moment>,
}

/// The tool that builds a recipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RecipeType {
    /// kiwi-ng.
    KiwiNg,
    /// Packer. IMS accepts such recipes but cannot build them; neither can Kiln.
    Packer,
}

impl RecipeType {
    /// Every type, in the order in which lists show them.
    pub const ALL: [RecipeType; 2] = [RecipeType::KiwiNg, RecipeType::Packer];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            RecipeType::KiwiNg => "kiwi-ng",
            RecipeType::Packer => "packer",
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

/// One value for a recipe's templates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TemplateValue {
    /// The variable.
    pub key: String,
    /// Its value.
    pub value: String,
}
