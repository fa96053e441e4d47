//! What an agent understands of a recipe without building it. Pure: no I/O.

use serde::{Deserialize, Serialize};

use crate::{CheckLevel, Code, Failure, Warning, arch::Arch};

/// What is understood of a recipe. As far as a recipe is refused, what comes after that is absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// The architecture that it is read for.
    pub arch: Arch,
    /// The path of the description in the recipe.
    pub description: Option<String>,
    /// The name of its image.
    pub name: Option<String>,
    /// The version of its schema.
    pub schema: Option<SchemaRead>,
    /// The files that the description includes.
    pub included: Vec<String>,
    /// The architectures that it names, in its order.
    pub archs: Vec<String>,
    /// Its profiles.
    pub profiles: Vec<ProfileRead>,
    /// Its image types.
    pub types: Vec<TypeRead>,
    /// Its package manager.
    pub package_manager: Option<ManagerRead>,
    /// Its packages.
    pub packages: Option<PackagesRead>,
    /// Its repositories.
    pub repositories: Vec<RepositoryRead>,
    /// Its scripts.
    pub scripts: Vec<ScriptRead>,
    /// The values that its templates ask for.
    pub values: Vec<ValueRead>,
    /// Why its packages are not kept as a layer, if there is a reason.
    pub no_layer: Option<String>,
    /// The checks of the finished root.
    pub checks: Vec<CheckRead>,
    /// What cannot be kept, and what else the user may want to put right.
    pub warnings: Vec<Warning>,
    /// How many more warnings there were.
    pub more_warnings: u64,
    /// Why it is refused, if it is.
    pub failure: Option<Failure>,
}

impl Reading {
    /// Nothing is understood yet.
    pub const fn nothing(arch: Arch) -> Self {
        Self {
            arch,
            description: None,
            name: None,
            schema: None,
            included: Vec::new(),
            archs: Vec::new(),
            profiles: Vec::new(),
            types: Vec::new(),
            package_manager: None,
            packages: None,
            repositories: Vec::new(),
            scripts: Vec::new(),
            values: Vec::new(),
            no_layer: None,
            checks: Vec::new(),
            warnings: Vec::new(),
            more_warnings: 0,
            failure: None,
        }
    }
}

/// The version of a description's schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchemaRead {
    /// As it is written.
    pub version: String,
    /// The version that kiwi reads, which the description is converted to.
    pub read_as: String,
}

/// A profile of a recipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileRead {
    /// Its name.
    pub name: String,
    /// Whether it is in force where no profile is asked for.
    pub by_itself: bool,
    /// The architectures that it is for; all, if there are none.
    pub archs: Vec<String>,
    /// The profiles that it brings along.
    pub requires: Vec<String>,
    /// Whether it is in force here.
    pub in_force: bool,
}

/// An image type of a recipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeRead {
    /// The type, such as `tbz`.
    pub image: String,
    /// The profiles that it belongs to; all, if there are none.
    pub profiles: Vec<String>,
    /// The architectures that it is for; all, if there are none.
    pub archs: Vec<String>,
    /// Whether it is in force here.
    pub in_force: bool,
}

/// The package manager of a recipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerRead {
    /// As it is written, if it is.
    pub written: Option<String>,
    /// The one that installs.
    pub read_as: String,
}

/// The numbers of what a recipe has installed, by kiwi's own count of what is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackagesRead {
    /// Packages for the beginning of the root.
    pub bootstrap: u64,
    /// All other packages.
    pub image: u64,
    /// Patterns, groups and products.
    pub collections: u64,
}

/// A repository of a recipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepositoryRead {
    /// Its address without secrets.
    pub url: String,
    /// Its kind, such as `rpm-md`.
    pub kind: Option<String>,
    /// The profiles that it belongs to; all, if there are none.
    pub profiles: Vec<String>,
    /// The architectures that it is for; all, if there are none.
    pub archs: Vec<String>,
    /// Whether it can be reached.
    pub state: RepositoryReach,
    /// Why it is not ready, or was not looked at.
    pub why: Option<String>,
    /// The architectures of its packages, as its index says; of rpms those that were seen before the one that was looked for.
    pub has: Vec<String>,
    /// Whether it has packages for the architecture; absent where that is not known.
    pub has_arch: Option<bool>,
    /// Whether its index is signed; absent where that is not known.
    pub signed: Option<bool>,
    /// The keys that signed it: fingerprints, or where the signature has none, ids.
    pub signed_by: Vec<String>,
    /// The keys that the recipe names for it.
    pub keys: Vec<String>,
}

/// Whether a repository can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepositoryReach {
    /// It answers with its index.
    Ready,
    /// It does not.
    Unreachable,
    /// It was not asked.
    Unknown,
    /// The build does not use it.
    Unused,
}

/// A script of a recipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptRead {
    /// Its file.
    pub name: String,
    /// Its first line, if that names an interpreter.
    pub first_line: Option<String>,
    /// Whether it is executable.
    pub executable: bool,
    /// What runs it in the new root; absent if nothing does.
    pub run_by: Option<String>,
    /// The functions of kiwi in it that do nothing any more.
    pub obsolete: Vec<String>,
}

/// A value that a recipe's templates ask for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueRead {
    /// Its name.
    pub name: String,
    /// Whether it was given, or Kiln knows it.
    pub given: bool,
}

/// A check of the finished root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckRead {
    /// The code of its findings.
    pub code: Code,
    /// What a finding means.
    pub level: CheckLevel,
    /// Whether the recipe chose that.
    pub by_recipe: bool,
}
