//! Defines the body of a request for a job. Pure: no I/O. The request itself is handled in
//! [`ask`](crate::orchestrate::ask).

use kiln_records::{JobType, PublicKeyId, job::JobOptions};
use uuid::Uuid;

use crate::{
    api::fields::{FileName, Flatten, List, Nullable, OrDefault, Text, body},
    orchestrate::ask::{Ask, AskedShell, NewJob},
};

body! {
    /// A new job.
    pub(in crate::api) struct JobCreate {
        /// Its type.
        job_type: JobType,
        /// The recipe (create) or image (customize) that the job starts from.
        artifact_id: Uuid,
        /// The public key that may log in to its shell.
        public_key_id: Uuid,
        /// The name of the resulting image.
        image_root_archive_name: FileName,
        /// Whether the job opens a shell after its build.
        enable_debug: OrDefault<bool>,
        /// The shell of the job: at most one, and only for customize jobs.
        ssh_containers: Nullable<List<SshContainerCreate>>,
        options: Flatten<JobOptions>,
    }
}

body! {
    /// A shell for a job.
    pub(in crate::api) struct SshContainerCreate {
        /// Its name.
        name: Option<Text>,
        /// Whether the shell is confined to the image's root.
        jail: OrDefault<bool>,
    }
}

impl From<JobCreate> for Ask {
    fn from(given: JobCreate) -> Self {
        let shells = given.ssh_containers.flatten().unwrap_or_default();
        let shell = |SshContainerCreate { name, jail }| AskedShell { name, jail };
        Self::New(Box::new(NewJob {
            job_type: given.job_type,
            artifact_id: given.artifact_id,
            public_key_id: Some(PublicKeyId(given.public_key_id)),
            image_root_archive_name: given.image_root_archive_name,
            enable_debug: given.enable_debug,
            shells: shells.into_iter().map(shell).collect(),
            changes: Vec::new(),
            options: given.options,
        }))
    }
}
