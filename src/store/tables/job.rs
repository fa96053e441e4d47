//! Jobs in their table.

use uuid::Uuid;

use crate::{
    records::{ImageId, Job, JobStatus, JobType},
    store::{
        Result,
        table::{Columns, Table, Value},
    },
};

impl Table for Job {
    const NAME: &'static str = "jobs";
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "created",
        "name",
        "arch",
        "status",
        "job_type",
        "artifact_id",
        "public_key_id",
        "enable_debug",
        "build_env_size",
        "job_mem_size",
        "kernel_file_name",
        "initrd_file_name",
        "kernel_parameters_file_name",
        "ssh_containers",
        "require_dkms",
        "resultant_image_id",
        "kubernetes_job",
        "kubernetes_service",
        "kubernetes_configmap",
        "kubernetes_pvc",
        "kubernetes_secret",
        "kubernetes_namespace",
        "remote_build_node",
    ];

    fn values(&self) -> Vec<Value> {
        vec![
            Value::id(self.id),
            Value::moment(self.created),
            Value::text(&self.image_root_archive_name),
            Value::text(self.arch.name()),
            Value::text(self.status.name()),
            Value::text(self.job_type.name()),
            Value::id(self.artifact_id),
            Value::id(self.public_key_id),
            Value::Flag(self.enable_debug),
            Value::Number(Some(self.build_env_size.into())),
            Value::Number(Some(self.job_mem_size.into())),
            Value::text(&self.kernel_file_name),
            Value::text(&self.initrd_file_name),
            Value::text(&self.kernel_parameters_file_name),
            self.ssh_containers.as_ref().map_or(Value::Text(None), Value::json),
            Value::Flag(self.require_dkms),
            self.resultant_image_id.map_or(Value::Text(None), Value::id),
            Value::text(&self.kubernetes_job),
            Value::text(&self.kubernetes_service),
            Value::text(&self.kubernetes_configmap),
            Value::text(&self.kubernetes_pvc),
            Value::Text(self.kubernetes_secret.clone()),
            Value::text(&self.kubernetes_namespace),
            Value::text(&self.remote_build_node),
        ]
    }

    fn read<'r>(row: &mut impl Columns<'r>) -> Result<Self> {
        Ok(Self {
            id: row.parsed()?,
            created: row.moment()?,
            image_root_archive_name: row.string()?,
            arch: row.parsed()?,
            status: row.named(&JobStatus::ALL, JobStatus::name)?,
            job_type: row.named(&JobType::ALL, JobType::name)?,
            artifact_id: row.parsed()?,
            public_key_id: row.parsed()?,
            enable_debug: row.flag()?,
            build_env_size: row.small()?,
            job_mem_size: row.small()?,
            kernel_file_name: row.string()?,
            initrd_file_name: row.string()?,
            kernel_parameters_file_name: row.string()?,
            ssh_containers: row.maybe_json()?,
            require_dkms: row.flag()?,
            resultant_image_id: resultant_image(row)?,
            kubernetes_job: row.string()?,
            kubernetes_service: row.string()?,
            kubernetes_configmap: row.string()?,
            kubernetes_pvc: row.string()?,
            kubernetes_secret: row.maybe_text()?.map(str::to_owned),
            kubernetes_namespace: row.string()?,
            remote_build_node: row.string()?,
        })
    }
}

fn resultant_image<'r>(row: &mut impl Columns<'r>) -> Result<Option<ImageId>> {
    let Some(text) = row.maybe_text()? else {
        return Ok(None);
    };
    let id: Uuid = text.parse().map_err(|error| row.damaged(&error))?;
    Ok(Some(ImageId(id)))
}
