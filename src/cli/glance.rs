//! `kiln publish IMAGE glance:NAME`: uploads an image to OpenStack as a disk image. Reads the image's files and the OS_
//! variables, writes a temporary file, and talks to OpenStack.

use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser},
};
use kiln_records::{Code, Failure, arch::Arch, names};
use serde_json::{Map, Value};

use super::{
    disk::{self, FormName},
    distribution,
    image_source::ImageSource,
    printer::Printer,
    session::{ReadConfig, ServerOptions},
    signals::cancel_on_signal,
    values::arch,
};
use crate::{
    disk::Form,
    glance::{Disk, Glance, Login},
    host::OwnDir,
};

/// What destinations in Glance begin with.
const SCHEME: &str = "glance:";

fn form() -> impl TypedValueParser<Value = FormName> {
    PossibleValuesParser::new(["qcow2", "raw"]).map(|name| match name.as_str() {
        "raw" => FormName::Raw,
        _ => FormName::Qcow2,
    })
}

/// How an image becomes one of OpenStack.
#[derive(Debug, Args)]
#[command(next_help_heading = "For OpenStack (glance:NAME)")]
pub(super) struct GlanceOptions {
    /// The form of the disk image [default: qcow2].
    #[arg(long = "type", value_name = "FORM", value_parser = form())]
    form: Option<FormName>,

    /// The image's architecture [default: as its record or directory says].
    #[arg(long, value_name = "ARCH", value_parser = arch())]
    arch: Option<Arch>,

    /// More kernel parameters.
    #[arg(long, value_name = "PARAMETERS", allow_hyphen_values = true)]
    append: Option<String>,

    /// A property of the image in OpenStack, such as os_distro=debian or os_version=12.
    #[arg(long = "property", value_name = "KEY=VALUE", value_parser = property)]
    properties: Vec<(String, String)>,
}

/// Whether a destination is in OpenStack.
pub(super) fn is_destination(text: &str) -> bool {
    text.starts_with(SCHEME)
}

/// The properties that Glance or Kiln sets.
const OWN: [&str; 10] = [
    "id",
    "name",
    "status",
    "owner",
    "size",
    "checksum",
    "file",
    "disk_format",
    "container_format",
    "kiln_disk",
];

/// Parses a property. Those of Glance itself are no properties.
fn property(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("it must have the form KEY=VALUE")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
    if key.is_empty() || key.len() > 255 || value.len() > 255 || !key.chars().all(plain) {
        return Err("names are of letters, digits and `_-.:`, and neither part is longer than 255 bytes".to_owned());
    }
    if OWN.contains(&key) || key.starts_with("os_hash") {
        return Err(format!("`{key}` is set by Glance or Kiln"));
    }
    Ok((key.to_owned(), value.to_owned()))
}

impl GlanceOptions {
    /// Whether any of these is given: they mean nothing for a registry.
    pub(super) fn are_given(&self) -> bool {
        self.form.is_some() || self.arch.is_some() || self.append.is_some() || !self.properties.is_empty()
    }

    /// Uploads an image, an id, a name or a directory, to a destination such as `glance:NAME`.
    pub(super) async fn publish(
        &self,
        image: &str,
        destination: &str,
        options: &ServerOptions,
        config: ReadConfig<'_>,
        printer: &Printer,
    ) -> Result<(), Failure> {
        let name = destination.strip_prefix(SCHEME).filter(|name| !name.is_empty());
        let name = name
            .filter(|name| name.len() <= 255 && names::check_name(name).is_ok())
            .ok_or_else(|| {
                Failure::new(Code::Usage, format!("`{destination}` is no destination"))
                    .hint("`glance:NAME`, with a name of at most 255 bytes")
            })?;
        let interrupted = cancel_on_signal()?;
        // Before the work: a login that is not complete, or that is refused.
        let glance = Box::pin(Glance::open(Login::from_environment()?)).await?;
        let image = Box::pin(ImageSource::open(image, self.arch, options, config, printer)).await?;
        let dir = OwnDir::for_downloads(&config()?.data_dir)?;
        let (form, file) = (
            Form::from(self.form.unwrap_or(FormName::Qcow2)),
            dir.path().join("disk"),
        );
        let append = self.append.as_deref().unwrap_or_default();
        printer.note(format_args!("making the disk image ({})", form.name()));
        let written = disk::write(&image, append, form, &file, printer).await?;
        printer.note("uploading it");
        let disk = Disk {
            name,
            file: &file,
            format: form.name(),
            properties: self.properties(&image, written.disk),
        };
        let published = Box::pin(glance.publish(&disk, interrupted.cancelled())).await?;
        if published.removed > 0 {
            printer.note(format_args!(
                "removed {} unfinished images of earlier attempts",
                published.removed
            ));
        }
        let note = if published.was_there { " (was there)" } else { "" };
        printer.result(format_args!("image      {} ({})", image.name, image.arch));
        printer.result(format_args!("glance     {} {name}{note}", published.id));
        Ok(())
    }

    /// What OpenStack needs to know to start a machine with the disk.
    fn properties(&self, image: &ImageSource, disk: u64) -> Map<String, Value> {
        let machine = match image.arch {
            Arch::X86_64 => "q35",
            _ => "virt",
        };
        let own = [
            ("architecture", image.arch.name()),
            ("hw_firmware_type", "uefi"),
            ("hw_machine_type", machine),
            ("os_type", "linux"),
        ];
        let mut properties: Map<_, _> = own
            .map(|(key, value)| (key.to_owned(), value.into()))
            .into_iter()
            .collect();
        properties.insert("min_disk".to_owned(), disk.div_ceil(1 << 30).into());
        let (id, version) = distribution::of(&image.rootfs);
        let said = [("os_distro", id), ("os_version", version)];
        properties.extend(
            said.into_iter()
                .filter_map(|(key, value)| Some((key.to_owned(), value?.into()))),
        );
        if let Some((id, _)) = &image.record {
            properties.insert("kiln_image".to_owned(), id.as_str().into());
        }
        let given = self
            .properties
            .iter()
            .map(|(key, value)| (key.clone(), value.as_str().into()));
        properties.extend(given);
        properties
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_have_names_and_are_not_glances_own() {
        assert_eq!(
            property("os_distro=a=b").unwrap(),
            ("os_distro".to_owned(), "a=b".to_owned())
        );
        for wrong in ["a", "=b", "a b=c", "checksum=1", "os_hash_value=1", "name=x"] {
            assert!(property(wrong).is_err(), "{wrong}");
        }
    }
}
