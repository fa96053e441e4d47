//! Builds each kind of record from the members that IMS stored. Pure: no I/O.

use std::collections::BTreeMap;

use kiln_records::{
    Image, Job, JobType, Link, Moment, PublicKey, Recipe, RemoteBuildNode, TemplateValue,
    arch::Arch,
    job::{Connection, SshContainer},
    names,
};
use serde_json::Value;

use super::fields::{Fields, Taken, kind};

/// A kind of record in a file of its own.
pub(super) trait Stored: Sized {
    /// Builds the record from its members.
    fn take(members: &mut Fields) -> Taken<Self>;
}

/// A record that was deleted.
pub(super) struct Deleted<R>(pub(super) R);

macro_rules! deleted {
    ($($record:ty),+) => {
        $(impl Stored for Deleted<$record> {
            fn take(members: &mut Fields) -> Taken<Self> {
                let mut record = <$record>::take(members)?;
                record.deleted = Some(when_deleted(members, record.created)?);
                Ok(Self(record))
            }
        })+
    };
}

deleted!(PublicKey, Recipe, Image);

fn when_deleted(members: &mut Fields, created: Moment) -> Taken<Moment> {
    Ok(members.maybe_parsed("deleted")?.unwrap_or_else(|| {
        members.changed("deleted: missing, replaced by the time of creation");
        created
    }))
}

impl Stored for PublicKey {
    fn take(members: &mut Fields) -> Taken<Self> {
        let key = Self {
            id: members.parsed("id")?,
            created: members.moment("created")?,
            name: name(members, "name")?,
            public_key: members.text("public_key")?,
            deleted: None,
        };
        match names::check_public_key(&key.public_key) {
            Ok(()) => Ok(key),
            Err(wrong) => Err(format!("public_key: {wrong}")),
        }
    }
}

impl Stored for Recipe {
    fn take(members: &mut Fields) -> Taken<Self> {
        Ok(Self {
            id: members.parsed("id")?,
            created: members.moment("created")?,
            link: link(members)?,
            recipe_type: members.word("recipe_type")?,
            linux_distribution: members.word("linux_distribution")?,
            name: name(members, "name")?,
            arch: arch(members)?,
            require_dkms: members.flag_or("require_dkms", true)?,
            template_dictionary: template_dictionary(members)?,
            twins: None,
            cache: None,
            reproducible: None,
            source_date_epoch: None,
            locked: None,
            profiles: None,
            deleted: None,
        })
    }
}

impl Stored for Image {
    fn take(members: &mut Fields) -> Taken<Self> {
        Ok(Self {
            id: members.parsed("id")?,
            created: members.moment("created")?,
            link: link(members)?,
            name: name(members, "name")?,
            arch: arch(members)?,
            metadata: metadata(members)?,
            deleted: None,
        })
    }
}

impl Stored for Job {
    fn take(members: &mut Fields) -> Taken<Self> {
        let id = members.parsed("id")?;
        let job_type: JobType = members.word("job_type")?;
        let arch = arch(members)?;
        Ok(Self {
            id,
            created: members.moment("created")?,
            job_type,
            artifact_id: members.parsed("artifact_id")?,
            public_key_id: members.parsed("public_key_id")?,
            image_root_archive_name: name(members, "image_root_archive_name")?,
            enable_debug: members.flag_or("enable_debug", false)?,
            build_env_size: members.number_or("build_env_size", 60)?,
            job_mem_size: members.number_or("job_mem_size", 8)?,
            kernel_file_name: members.text_or("kernel_file_name", || arch.kernel_file_name().to_owned())?,
            initrd_file_name: members.text_or("initrd_file_name", || "initrd".to_owned())?,
            kernel_parameters_file_name: members
                .text_or("kernel_parameters_file_name", || "kernel-parameters".to_owned())?,
            ssh_containers: ssh_containers(members)?,
            require_dkms: members.flag_or("require_dkms", arch == Arch::Aarch64)?,
            status: members.word("status")?,
            arch,
            resultant_image_id: members.maybe_parsed("resultant_image_id")?,
            kubernetes_job: members.text_or("kubernetes_job", || format!("cray-ims-{id}-{}", job_type.name()))?,
            kubernetes_service: members.text_or("kubernetes_service", || format!("cray-ims-{id}-service"))?,
            kubernetes_configmap: members.text_or("kubernetes_configmap", || format!("cray-ims-{id}-configmap"))?,
            kubernetes_pvc: members.text_or("kubernetes_pvc", || format!("cray-ims-{id}-job-claim"))?,
            kubernetes_secret: members.maybe_text("kubernetes_secret")?,
            kubernetes_namespace: members.text_or("kubernetes_namespace", || "ims".to_owned())?,
            remote_build_node: members.text_or("remote_build_node", String::new)?,
        })
    }
}

impl Stored for RemoteBuildNode {
    fn take(members: &mut Fields) -> Taken<Self> {
        let xname = members.text("xname")?;
        match names::check_host_name(&xname) {
            Ok(()) => Ok(Self { xname }),
            Err(wrong) => Err(format!("xname: {wrong}")),
        }
    }
}

fn name(members: &mut Fields, member: &str) -> Taken<String> {
    let name = members.text(member)?;
    match names::check_name(&name) {
        Ok(()) => Ok(name),
        Err(wrong) => Err(format!("{member}: {wrong}")),
    }
}

/// The architecture. Records of old releases lack it, when there was only one.
fn arch(members: &mut Fields) -> Taken<Arch> {
    Ok(members.maybe_parsed("arch")?.unwrap_or(Arch::X86_64))
}

/// The link. A failed copy leaves IMS with an empty one that then keeps it from starting; such a record becomes one
/// without a link.
fn link(members: &mut Fields) -> Taken<Option<Link>> {
    let value = match members.any("link") {
        None | Some(Value::Null) => return Ok(None),
        Some(value) => value,
    };
    let mut inner = Fields::of(value).map_err(|wrong| format!("link: {wrong}"))?;
    let path = inner.maybe_text("path").map_err(|wrong| format!("link: {wrong}"))?;
    let etag = inner
        .text_or("etag", String::new)
        .map_err(|wrong| format!("link: {wrong}"))?;
    let store = inner
        .text_or("type", || "s3".to_owned())
        .map_err(|wrong| format!("link: {wrong}"))?;
    for change in inner.finish(" of link") {
        members.changed(change);
    }
    let path = path.unwrap_or_default();
    match path.strip_prefix("s3://").and_then(|rest| rest.split_once('/')) {
        Some((bucket, key)) if store == "s3" && !bucket.is_empty() && !key.is_empty() && key.len() <= 1024 => {
            Ok(Some(Link::s3(bucket, key, &etag)))
        }
        _ => {
            members.changed(format!(
                "link to `{path}` ({store}) dropped: not of the form s3://bucket/key"
            ));
            Ok(None)
        }
    }
}

fn template_dictionary(members: &mut Fields) -> Taken<Option<Vec<TemplateValue>>> {
    let values = match members.any("template_dictionary") {
        None => return Ok(Some(Vec::new())),
        Some(Value::Null) => return Ok(None),
        Some(Value::Array(values)) => values,
        Some(other) => return Err(format!("template_dictionary: not a list but {}", kind(&other))),
    };
    let values = values.into_iter().map(|value| {
        let mut inner = Fields::of(value)?;
        let value = TemplateValue {
            key: inner.text("key")?,
            value: inner.text("value")?,
        };
        for change in inner.finish(" of template_dictionary") {
            members.changed(change);
        }
        Ok(value)
    });
    let values: Taken<_> = values.collect();
    values
        .map(Some)
        .map_err(|wrong| format!("template_dictionary: {wrong}"))
}

fn metadata(members: &mut Fields) -> Taken<BTreeMap<String, String>> {
    let tags = match members.any("metadata") {
        None | Some(Value::Null) => return Ok(BTreeMap::new()),
        Some(Value::Object(tags)) => tags,
        Some(other) => return Err(format!("metadata: not an object but {}", kind(&other))),
    };
    let tags = tags.into_iter().map(|(key, value)| match value {
        Value::String(value) => Ok((key, value)),
        other => Err(format!("metadata: {key}: not text but {}", kind(&other))),
    });
    tags.collect()
}

fn ssh_containers(members: &mut Fields) -> Taken<Option<Vec<SshContainer>>> {
    let containers = match members.any("ssh_containers") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(containers)) => containers,
        Some(other) => return Err(format!("ssh_containers: not a list but {}", kind(&other))),
    };
    let containers: Taken<_> = containers
        .into_iter()
        .map(|value| ssh_container(value, members))
        .collect();
    containers.map(Some).map_err(|wrong| format!("ssh_containers: {wrong}"))
}

fn ssh_container(value: Value, members: &mut Fields) -> Taken<SshContainer> {
    let mut inner = Fields::of(value)?;
    let mut connection_info = match inner.any("connection_info") {
        None | Some(Value::Null) => BTreeMap::new(),
        Some(value) => serde_json::from_value(value).map_err(|error| format!("connection_info: {error}"))?,
    };
    // Old releases had one network only, and stored its address here.
    let host = inner.maybe_text("host")?;
    let port = inner.number_or("port", 22)?;
    if let (Some(host), true) = (host, connection_info.is_empty()) {
        let port = u16::try_from(port).map_err(|error| format!("port: {error}"))?;
        connection_info.insert("customer_access".to_owned(), Connection { host, port });
    }
    let container = SshContainer {
        name: inner.maybe_text("name")?,
        jail: inner.flag_or("jail", false)?,
        status: inner.text_or("status", || "pending".to_owned())?,
        connection_info,
    };
    for change in inner.finish(" of ssh_containers") {
        members.changed(change);
    }
    Ok(container)
}
