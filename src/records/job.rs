//! Jobs, as IMS's API shows them. Pure: no I/O.
//!
//! ```text
//!  create     creating → fetching_recipe → waiting_for_repos → building_image → [waiting_on_user] → packaging_artifacts → success
//!  customize  creating → fetching_image → waiting_on_user → packaging_artifacts → success
//!  both       any of these → error
//! ```
//!
//! A job may skip a status, never goes back to one, and stays ended once it has ended ([`JobStatus::may_become`]).

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{CacheDepth, Dating, ImageId, JobId, Moment, PublicKeyId, TwinLevel};
use crate::{
    additions::{Additions, PackageName, RepositoryLine},
    arch::Arch,
    containerfile::ContainerfileOptions,
};

/// A create or customize run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Job {
    /// Its id.
    #[schema(value_type = Uuid)]
    pub id: JobId,
    /// The time of the request.
    #[serde(serialize_with = "Moment::as_ims")]
    #[schema(value_type = String)]
    pub created: Moment,
    /// Its type.
    pub job_type: JobType,
    /// The recipe (create) or image (customize) that the job starts from.
    pub artifact_id: Uuid,
    /// The public key that may log in to its shell.
    #[schema(value_type = Uuid)]
    pub public_key_id: PublicKeyId,
    /// The name of the resulting image.
    pub image_root_archive_name: String,
    /// Whether the job opens a shell after its build.
    pub enable_debug: bool,
    /// The disk limit of the job, in GiB.
    pub build_env_size: u32,
    /// The memory limit of the job, in GiB.
    pub job_mem_size: u32,
    /// The kernel's file name in `/boot`.
    pub kernel_file_name: String,
    /// The initial RAM disk's file name in `/boot`.
    pub initrd_file_name: String,
    /// The name of the kernel parameters file in `/boot`; the file is optional.
    pub kernel_parameters_file_name: String,
    /// Its shells; null if it has none.
    pub ssh_containers: Option<Vec<SshContainer>>,
    /// Whether the job needs its own kernel, and so a virtual machine.
    pub require_dkms: bool,
    /// Its status.
    pub status: JobStatus,
    /// The architecture of the resulting image: that of the recipe or image.
    pub arch: Arch,
    /// The resulting image.
    #[schema(value_type = Option<Uuid>)]
    pub resultant_image_id: Option<ImageId>,
    /// Name of the Kubernetes job.
    pub kubernetes_job: String,
    /// Name of the Kubernetes service.
    pub kubernetes_service: String,
    /// Name of the Kubernetes config map.
    pub kubernetes_configmap: String,
    /// Name of the Kubernetes volume claim.
    pub kubernetes_pvc: String,
    /// Name of the Kubernetes secret, if the job has one.
    pub kubernetes_secret: Option<String>,
    /// Kubernetes namespace.
    pub kubernetes_namespace: String,
    /// The remote build node that it runs on; empty if it runs elsewhere.
    pub remote_build_node: String,
}

/// Optional settings of a job; null means the default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct JobOptions {
    /// The disk limit of the job, in GiB.
    pub build_env_size: Option<u32>,
    /// The memory limit of the job, in GiB.
    pub job_mem_size: Option<u32>,
    /// The kernel's file name in `/boot`.
    pub kernel_file_name: Option<String>,
    /// The initial RAM disk's file name in `/boot`.
    pub initrd_file_name: Option<String>,
    /// The name of the kernel parameters file in `/boot`; the file is optional.
    pub kernel_parameters_file_name: Option<String>,
    /// Whether the job needs its own kernel, and so a virtual machine.
    pub require_dkms: Option<bool>,
    /// The tools that may run as native twins in an emulated job.
    pub twins: Option<TwinLevel>,
    /// Whether the image's root is also made without native twins, and compared.
    #[serde(default)]
    pub verify_twins: Option<bool>,
    /// Whether equal inputs are to give an equal image, to the last byte.
    #[serde(default)]
    pub reproducible: Option<bool>,
    /// The date in a reproducible image, in seconds since 1970.
    #[serde(default)]
    pub source_date_epoch: Option<u32>,
    /// How much of earlier jobs a create job may reuse.
    #[serde(default)]
    pub cache: Option<CacheDepth>,
    /// The image whose packages a create job starts from, whatever the repositories have by now.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub cache_from: Option<ImageId>,
    /// Whether a create job may have the packages of its recipe's lock file only.
    #[serde(default)]
    pub locked: Option<bool>,
    /// The profiles of the recipe that a create job builds.
    #[serde(default)]
    pub profiles: Option<Vec<String>>,
    /// The Containerfile's path in its context, for recipes of that type.
    #[serde(default)]
    pub containerfile: Option<String>,
    /// The stage of the Containerfile to build.
    #[serde(default)]
    pub target: Option<String>,
    /// The site's secrets that commands of the Containerfile may have, by name.
    #[serde(default)]
    pub secrets: Option<Vec<String>>,
    /// Whether a create job leaves the repositories of its recipe out.
    #[serde(default)]
    pub ignore_repos: Option<bool>,
    /// What replaces the first repository of the recipe that is in force, in kiwi's form.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub set_repo: Option<RepositoryLine>,
    /// Repositories after those of the recipe, in kiwi's form.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    pub add_repos: Option<Vec<RepositoryLine>>,
    /// Packages beside those of the recipe.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    pub add_packages: Option<Vec<PackageName>>,
    /// The same for those that the root begins with.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    pub add_bootstrap_packages: Option<Vec<PackageName>>,
    /// Packages that are uninstalled at the end.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    pub delete_packages: Option<Vec<PackageName>>,
}

impl JobOptions {
    /// What they add to the recipe's description.
    pub fn additions(&self) -> Additions {
        Additions {
            ignore_repos: self.ignore_repos.unwrap_or_default(),
            set_repo: self.set_repo.clone(),
            add_repos: self.add_repos.clone().unwrap_or_default(),
            add_packages: self.add_packages.clone().unwrap_or_default(),
            add_bootstrap_packages: self.add_bootstrap_packages.clone().unwrap_or_default(),
            delete_packages: self.delete_packages.clone().unwrap_or_default(),
        }
    }

    /// What they choose of a Containerfile.
    pub fn of_containerfile(&self) -> ContainerfileOptions {
        ContainerfileOptions {
            file: self.containerfile.clone(),
            target: self.target.clone(),
            secrets: self.secrets.clone().unwrap_or_default(),
        }
    }

    /// What they say of the image's date.
    pub fn dating(&self) -> Dating {
        Dating {
            reproducible: self.reproducible,
            source_date_epoch: self.source_date_epoch,
        }
    }
}

/// The type of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobType {
    /// Recipe to image.
    Create,
    /// Image to image.
    Customize,
}

impl JobType {
    /// Both types.
    pub const ALL: [JobType; 2] = [JobType::Create, JobType::Customize];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            JobType::Create => "create",
            JobType::Customize => "customize",
        }
    }
}

/// The status of a job, as IMS defines it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    /// Accepted, waiting for its turn.
    Creating,
    /// Getting the image to customize.
    FetchingImage,
    /// Getting the recipe.
    FetchingRecipe,
    /// Waiting for the recipe's package repositories.
    WaitingForRepos,
    /// Building.
    BuildingImage,
    /// A shell is open.
    WaitingOnUser,
    /// Packing and uploading.
    PackagingArtifacts,
    /// Ended without an image.
    Error,
    /// Ended with an image.
    Success,
}

impl JobStatus {
    /// Every status.
    pub const ALL: [JobStatus; 9] = [
        JobStatus::Creating,
        JobStatus::FetchingImage,
        JobStatus::FetchingRecipe,
        JobStatus::WaitingForRepos,
        JobStatus::BuildingImage,
        JobStatus::WaitingOnUser,
        JobStatus::PackagingArtifacts,
        JobStatus::Error,
        JobStatus::Success,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            JobStatus::Creating => "creating",
            JobStatus::FetchingImage => "fetching_image",
            JobStatus::FetchingRecipe => "fetching_recipe",
            JobStatus::WaitingForRepos => "waiting_for_repos",
            JobStatus::BuildingImage => "building_image",
            JobStatus::WaitingOnUser => "waiting_on_user",
            JobStatus::PackagingArtifacts => "packaging_artifacts",
            JobStatus::Error => "error",
            JobStatus::Success => "success",
        }
    }

    /// Whether the job has ended.
    pub const fn is_final(self) -> bool {
        matches!(self, JobStatus::Error | JobStatus::Success)
    }

    /// Whether a job may go from this status to the next: forward, never back, and nowhere from an end.
    pub fn may_become(self, next: JobStatus) -> bool {
        self == next || (!self.is_final() && (next.is_final() || self < next))
    }
}

/// The network of [`SshContainer::connection_info`] that is within the cluster of IMS.
pub const WITHIN_CLUSTER: &str = "cluster.local";

/// A shell of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SshContainer {
    /// Its name, if the client gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub name: Option<String>,
    /// Whether the shell is confined to the image's root.
    #[serde(default)]
    pub jail: bool,
    /// Its status; `pending` until it is open.
    pub status: String,
    /// Its addresses, by network: `customer_access` and `cluster.local`.
    pub connection_info: std::collections::BTreeMap<String, Connection>,
}

/// The address of a shell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Connection {
    /// The host's name.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_job_stays_ended() {
        for end in [JobStatus::Success, JobStatus::Error] {
            for next in JobStatus::ALL {
                assert_eq!(end.may_become(next), end == next, "{end:?} → {next:?}");
            }
        }
    }

    #[test]
    fn both_paths_of_ims_are_legal() {
        use JobStatus::{
            BuildingImage, Creating, FetchingImage, FetchingRecipe, PackagingArtifacts, Success, WaitingForRepos,
            WaitingOnUser,
        };
        let create = [
            Creating,
            FetchingRecipe,
            WaitingForRepos,
            BuildingImage,
            WaitingOnUser,
            PackagingArtifacts,
            Success,
        ];
        let customize = [Creating, FetchingImage, WaitingOnUser, PackagingArtifacts, Success];
        for path in [&create[..], &customize] {
            assert!(
                path.windows(2)
                    .all(|pair| pair[0].may_become(pair[1]) && !pair[1].may_become(pair[0]))
            );
            assert!(
                path[..path.len() - 1]
                    .iter()
                    .all(|status| status.may_become(JobStatus::Error))
            );
        }
    }
}
