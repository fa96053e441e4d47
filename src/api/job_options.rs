//! Declares the options of jobs in request bodies. Pure: no I/O.

use super::fields::{
    AddedRepo, ContextPath, FileName, Gib, List, Name, Nullable, OrEmpty, Package, SetRepo, Word, members,
};
use kiln_records::{CacheDepth, ImageId, TwinLevel, job::JobOptions};

/// Declares the options twice. In a new job they are read as its options. In a schedule an absent option stays
/// unchanged, and null resets it to the default.
macro_rules! job_options {
    ($($(#[doc = $doc:literal])* $field:ident: $new:ty, scheduled $scheduled:ty;)*) => {
        members! {
            impl JobOptions { $($(#[doc = $doc])* $field: $new,)* }
        }

        members! {
            /// Changes to the options of a schedule's jobs.
            pub(super) struct ScheduledJobOptions { $($(#[doc = $doc])* $field: $scheduled,)* }
        }

        impl ScheduledJobOptions {
            /// Applies the options that the request sets.
            pub(super) fn apply(&self, options: &mut JobOptions) {
                $(if let Some(given) = &self.$field {
                    options.$field.clone_from(given);
                })*
            }
        }
    };
}

job_options! {
    /// The disk limit of the job, in GiB.
    build_env_size: Option<Gib>, scheduled Nullable<Gib>;
    /// The memory limit of the job, in GiB.
    job_mem_size: Option<Gib>, scheduled Nullable<Gib>;
    /// The kernel's file name in `/boot`.
    // IMS takes the empty text for "as usual" here, and only here.
    kernel_file_name: OrEmpty<FileName>, scheduled Nullable<FileName>;
    /// The initial RAM disk's file name in `/boot`.
    initrd_file_name: Option<FileName>, scheduled Nullable<FileName>;
    /// The name of the kernel parameters file in `/boot`; the file is optional.
    kernel_parameters_file_name: Option<FileName>, scheduled Nullable<FileName>;
    /// Whether the job needs its own kernel, and so a virtual machine.
    require_dkms: Option<bool>, scheduled Nullable<bool>;
    /// The tools that may run as native twins in an emulated job. Default: the recipe's level, else the server's.
    twins: Option<TwinLevel>, scheduled Nullable<TwinLevel>;
    /// Whether an emulated create job also makes its root without native twins, and compares.
    verify_twins: Option<bool>, scheduled Nullable<bool>;
    /// Whether a create job gives the same image, to the last byte, from the same inputs. Default: as the recipe says.
    reproducible: Option<bool>, scheduled Nullable<bool>;
    /// The date in a reproducible image, in seconds since 1970; asks for one. Default: the recipe's, else that of its
    /// newest file.
    source_date_epoch: Option<u32>, scheduled Nullable<u32>;
    /// How much of earlier jobs a create job may reuse. Default: the server's depth.
    cache: Option<CacheDepth>, scheduled Nullable<CacheDepth>;
    /// The image whose packages a create job starts from, whatever the repositories have by now, if all else is the same.
    cache_from: Option<ImageId>, scheduled Nullable<ImageId>;
    /// Whether a create job may have the packages of its recipe's `kiln.lock` only; it fails with any other. Default: false.
    locked: Option<bool>, scheduled Nullable<bool>;
    /// The profiles of its recipe that a create job builds. Default: the recipe's, else those that its
    /// description has in force by itself.
    profiles: Option<List<Name>>, scheduled Nullable<List<Name>>;
    /// The Containerfile's path in its context, for recipes of that type. Default: `Containerfile`, else `Dockerfile`.
    containerfile: Option<ContextPath>, scheduled Nullable<ContextPath>;
    /// The stage of the Containerfile to build. Default: the last.
    target: Option<Word>, scheduled Nullable<Word>;
    /// The site's secrets that commands of the Containerfile may have (`RUN --mount=type=secret`), by name.
    secrets: Option<List<Word>>, scheduled Nullable<List<Word>>;
    /// Whether a create job leaves the repositories of its recipe out. Default: false.
    ignore_repos: Option<bool>, scheduled Nullable<bool>;
    /// What replaces the first repository of the recipe that is in force, as kiwi's `--set-repo`; what is empty stays.
    set_repo: Option<SetRepo>, scheduled Nullable<SetRepo>;
    /// Repositories after those of the recipe, each as kiwi's `--add-repo`.
    add_repos: Option<List<AddedRepo>>, scheduled Nullable<List<AddedRepo>>;
    /// Packages beside those of the recipe.
    add_packages: Option<List<Package>>, scheduled Nullable<List<Package>>;
    /// The same for those that the root begins with.
    add_bootstrap_packages: Option<List<Package>>, scheduled Nullable<List<Package>>;
    /// Packages that are uninstalled at the end.
    delete_packages: Option<List<Package>>, scheduled Nullable<List<Package>>;
}
