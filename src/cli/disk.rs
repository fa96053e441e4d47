//! `kiln export disk`: writes a disk image that boots an image. Reads the image's files and writes one file.

use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use kiln_records::{Code, Failure, arch::Arch};

use super::{
    image_source::ImageSource,
    printer::Printer,
    session::{ReadConfig, ServerOptions},
    values::arch,
};
use crate::{
    boot::parameters,
    disk::{self, Form, Parts, Written},
};

#[derive(Debug, Args)]
pub(super) struct DiskArguments {
    /// The image: its id or name, or a directory with its files, such as `kiln build --output` makes.
    image: String,

    /// The file for the disk image, which must not exist yet.
    file: PathBuf,

    /// The form of the disk image [default: qcow2 or iso if the file is called so, else raw].
    #[arg(long = "type", value_name = "FORM")]
    form: Option<FormName>,

    /// The image's architecture [default: as its record or directory says].
    #[arg(long, value_name = "ARCH", value_parser = arch())]
    arch: Option<Arch>,

    /// More kernel parameters.
    #[arg(
        long,
        value_name = "PARAMETERS",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    append: String,

    #[command(flatten)]
    options: ServerOptions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum FormName {
    Qcow2,
    Raw,
    Iso,
}

impl From<FormName> for Form {
    fn from(name: FormName) -> Self {
        match name {
            FormName::Qcow2 => Form::Qcow2,
            FormName::Raw => Form::Raw,
            FormName::Iso => Form::Iso,
        }
    }
}

impl DiskArguments {
    pub(super) async fn run(self, config: ReadConfig<'_>, printer: &Printer) -> Result<(), Failure> {
        disk::must_be_new(&self.file)?;
        let by_name = || match self.file.extension() {
            Some(extension) if extension == "qcow2" => FormName::Qcow2,
            Some(extension) if extension == "iso" => FormName::Iso,
            _ => FormName::Raw,
        };
        let form = Form::from(self.form.unwrap_or_else(by_name));
        let image = Box::pin(ImageSource::open(
            &self.image,
            self.arch,
            &self.options,
            config,
            printer,
        ))
        .await?;
        let written = write(&image, &self.append, form, &self.file, printer).await?;
        let (disk, file) = (ByteSize(written.disk), ByteSize(written.file));
        printer.result(format_args!("image      {} ({})", image.name, image.arch));
        printer.result(format_args!(
            "disk       {} ({}, {disk})",
            self.file.display(),
            form.name()
        ));
        printer.result(format_args!("size       {file}"));
        Ok(())
    }
}

/// Writes the disk image of an image.
pub(super) async fn write(
    image: &ImageSource,
    append: &str,
    form: Form,
    to: &Path,
    printer: &Printer,
) -> Result<Written, Failure> {
    let own = parameters::own(&image.parameters);
    let parts = Parts {
        arch: image.arch,
        title: image.name.clone(),
        kernel: image.kernel.clone(),
        initrd: image.initrd.clone(),
        root: image.rootfs.clone(),
        parameters: format!("{own} {append}").trim().to_owned(),
    };
    let to = to.to_owned();
    let written = tokio::task::spawn_blocking(move || disk::write(&parts, form, &to)).await;
    let written = written.map_err(|error| Failure::new(Code::Io, error))??;
    if written.boots.is_none() {
        printer.warning(
            "the initrd is packed in a way that Kiln cannot read; the disk boots only if dracut's `dmsquash-live` is in it",
            None,
        );
    }
    Ok(written)
}
