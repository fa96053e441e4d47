//! The options of jobs, for the commands that make jobs. Pure: no I/O.
//!
//! There are three groups, since `customize` has only one of them. A command that describes an option differently uses
//! `mut_arg`.

use clap::Args;
use kiln_records::{CacheDepth, Failure, ImageId, TwinLevel};

use super::{
    adding::Adding,
    values::{Body, boolean, cache, seconds, twins},
};

/// The files of an image's `/boot`.
#[expect(clippy::struct_field_names, reason = "they name the options")]
#[derive(Debug, Args)]
pub(super) struct BootFiles {
    /// The kernel's file name in /boot [default: by architecture, vmlinuz or Image].
    #[arg(long, value_name = "NAME")]
    kernel_file_name: Option<String>,

    /// The initrd's file name in /boot [default: initrd].
    #[arg(long, value_name = "NAME")]
    initrd_file_name: Option<String>,

    /// The kernel parameters' file name in /boot [default: kernel-parameters].
    #[arg(long, value_name = "NAME")]
    kernel_parameters_file_name: Option<String>,
}

/// The room that a build has.
#[derive(Debug, Args)]
pub(super) struct BuildSizes {
    /// The disk limit of each job, in GiB [default: the server's].
    #[arg(long, value_name = "GIB")]
    build_env_size: Option<u32>,

    /// The memory limit of each job, in GiB [default: the server's].
    #[arg(long, value_name = "GIB")]
    job_mem_size: Option<u32>,
}

/// How a job is carried out.
#[derive(Debug, Args)]
pub(super) struct Execution {
    /// Whether the job needs its own kernel [default: the recipe's].
    #[arg(long, value_name = "BOOL", value_parser = boolean)]
    require_dkms: Option<bool>,

    /// The tools that may run as native twins in emulated builds [default: the recipe's, else the server's].
    #[arg(long, value_name = "LEVEL", value_parser = twins())]
    twins: Option<TwinLevel>,

    /// How much of earlier jobs it may reuse [default: the server's].
    #[arg(long, value_name = "DEPTH", value_parser = cache())]
    cache: Option<CacheDepth>,

    /// Start from the packages of this image, whatever the repositories have by now, if all else is the same.
    #[arg(long, value_name = "ID")]
    cache_from: Option<ImageId>,
}

/// Whether the packages of an image are decided beforehand.
#[derive(Debug, Args)]
pub(super) struct Locking {
    /// Whether other packages than those in the recipe's kiln.lock are refused [default: false, or as the recipe says].
    #[arg(long, value_name = "BOOL", value_parser = boolean, num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    locked: Option<bool>,
}

impl Locking {
    pub(super) fn add_to(&self, body: Body) -> Body {
        body.set("locked", self.locked)
    }
}

/// What is built of a recipe.
#[derive(Debug, Args)]
pub(super) struct Choosing {
    /// A profile of the recipe to build; may be given several times [default: those that the recipe has in force by itself].
    #[arg(long = "profile", value_name = "NAME")]
    pub(super) profiles: Vec<String>,

    #[command(flatten)]
    pub(super) adding: Adding,
}

impl Choosing {
    /// The profiles, if any are chosen.
    pub(super) fn chosen(&self) -> Option<Vec<String>> {
        (!self.profiles.is_empty()).then(|| self.profiles.clone())
    }

    /// Adds them to a request.
    ///
    /// # Errors
    ///
    /// `usage` for what cannot be added.
    pub(super) fn add_to(&self, body: Body) -> Result<Body, Failure> {
        self.adding.add_to(body.set("profiles", self.chosen()))
    }
}

/// How a job's twins are checked.
#[derive(Debug, Args)]
pub(super) struct Verification {
    /// Whether an emulated root is also made without native twins, and compared [default: false].
    #[arg(long, value_name = "BOOL", value_parser = boolean, num_args = 0..=1, default_missing_value = "true")]
    verify_twins: Option<bool>,
}

/// Whether an image is made reproducibly, and its date.
#[derive(Debug, Args)]
pub(super) struct DatingOptions {
    /// Whether the same inputs give the same image, to the last byte [default: false, or as the recipe says].
    // With a sign of equality, for a recipe may follow.
    #[arg(long, value_name = "BOOL", value_parser = boolean, num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    pub(super) reproducible: Option<bool>,

    /// The date in a reproducible image, in seconds since 1970 [default: that of the recipe's newest file].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(super) source_date_epoch: Option<u32>,
}

impl DatingOptions {
    pub(super) fn add_to(&self, body: Body) -> Body {
        body.set("reproducible", self.reproducible)
            .set("source_date_epoch", self.source_date_epoch)
    }
}

impl Verification {
    pub(super) fn add_to(&self, body: Body) -> Body {
        body.set("verify_twins", self.verify_twins)
    }
}

impl BootFiles {
    /// Replaces absent names by those that `cray` sends.
    pub(super) fn or_usual(self) -> Self {
        let or = |name: Option<String>, usual: &str| name.or_else(|| Some(usual.to_owned()));
        Self {
            initrd_file_name: or(self.initrd_file_name, "initrd"),
            kernel_parameters_file_name: or(self.kernel_parameters_file_name, "kernel-parameters"),
            ..self
        }
    }

    pub(super) fn add_to(self, body: Body) -> Body {
        body.set("kernel_file_name", self.kernel_file_name)
            .set("initrd_file_name", self.initrd_file_name)
            .set("kernel_parameters_file_name", self.kernel_parameters_file_name)
    }
}

impl BuildSizes {
    pub(super) fn add_to(&self, body: Body) -> Body {
        body.set("build_env_size", self.build_env_size)
            .set("job_mem_size", self.job_mem_size)
    }
}

impl Execution {
    pub(super) fn add_to(&self, body: Body) -> Body {
        body.set("require_dkms", self.require_dkms)
            .set("twins", self.twins.map(TwinLevel::name))
            .set("cache", self.cache.map(CacheDepth::name))
            .set("cache_from", self.cache_from.map(|image| image.to_string()))
    }
}
