//! `kiln artifacts`: lists and fetches the results of builds in S3, and serves the embedded S3 to other clients.

use std::path::PathBuf;

use bytesize::ByteSize;
use clap::Subcommand;
use kiln_records::{Code, Failure, Image, ImageId};

use super::printer::Printer;
use crate::{
    config::Config,
    site,
    store::{Collection, Side},
};

#[derive(Debug, Subcommand)]
pub(super) enum ArtifactsCommand {
    /// List the objects of every image, or of one.
    List {
        /// The image's id.
        image: Option<ImageId>,
    },
    /// Download the objects of an image.
    Get {
        /// The image's id.
        image: ImageId,
        /// The target directory.
        #[arg(long, default_value = ".", value_name = "DIR")]
        output: PathBuf,
    },
    /// Delete an image for good: its record, and its objects, the manifest first.
    Delete {
        /// The image's id.
        image: ImageId,
    },
    /// Run the embedded S3 service, so that any S3 client can read the images, until Ctrl-C.
    Serve {
        /// The loopback port; 0 means any free port.
        #[arg(long, default_value_t = 9001)]
        port: u16,
    },
}

impl ArtifactsCommand {
    pub(super) async fn run(self, config: &Config, printer: &Printer) -> Result<(), Failure> {
        match self {
            ArtifactsCommand::List { image } => list(config, printer, image).await,
            ArtifactsCommand::Get { image, output } => get(config, printer, image, output).await,
            ArtifactsCommand::Delete { image } => delete(config, image).await,
            ArtifactsCommand::Serve { port } => serve(config, printer, port).await,
        }
    }
}

/// Deletes an image for good: its record, wherever it is, then its objects.
async fn delete(config: &Config, image: ImageId) -> Result<(), Failure> {
    let records = site::open_store(config).await?;
    for side in [Side::Live, Side::Deleted] {
        Collection::<Image>::purge(&*records, side, Some(image), true).await?;
    }
    records.close().await;
    let (store, _embedded) = site::artifact_store(config).await?;
    store.discard_image(image).await
}

async fn list(config: &Config, printer: &Printer, image: Option<ImageId>) -> Result<(), Failure> {
    let (store, _embedded) = site::artifact_store(config).await?;
    let prefix = image.map(|image| format!("{image}/")).unwrap_or_default();
    let bucket = store.images_bucket();
    let objects = store.list(bucket, &prefix).await?;
    if let Some(image) = image.filter(|_| objects.is_empty()) {
        return Err(no_image(image));
    }
    for object in objects {
        let size = ByteSize(object.size).to_string();
        printer.result(format_args!(
            "{:.0}  {size:>10}  s3://{bucket}/{}",
            object.modified, object.key
        ));
    }
    Ok(())
}

async fn get(config: &Config, printer: &Printer, image: ImageId, output: PathBuf) -> Result<(), Failure> {
    let (store, _embedded) = site::artifact_store(config).await?;
    let objects = store.list(store.images_bucket(), &format!("{image}/")).await?;
    if objects.is_empty() {
        return Err(no_image(image));
    }
    fs_err::create_dir_all(&output).map_err(|error| Failure::io("cannot make the output directory", &error))?;
    for object in objects {
        let Some(name) = object.key.rsplit('/').next().filter(|name| !name.is_empty()) else {
            continue;
        };
        let to = output.join(name);
        store.download(store.images_bucket(), &object.key, &to, None).await?;
        printer.result(to.display());
    }
    Ok(())
}

async fn serve(config: &Config, printer: &Printer, port: u16) -> Result<(), Failure> {
    if config.s3.is_some() {
        return Err(Failure::new(
            Code::S3Configured,
            "the configuration names an S3 service, so there is no embedded one to run",
        )
        .hint("point your client at that service"));
    }
    let ended = super::signals::cancel_on_signal()?;
    let service = site::embedded_s3(config, port).await?;
    printer.result(format_args!("export AWS_ENDPOINT_URL={}", service.endpoint()));
    printer.result("export AWS_DEFAULT_REGION=us-east-1");
    let file = config.data_dir.join("s3/credentials.json");
    printer.note(format_args!(
        "The keys are in {} (readable by you only). Ctrl-C ends the service.",
        file.display()
    ));
    ended.cancelled().await;
    service.shutdown().await;
    Ok(())
}

fn no_image(image: ImageId) -> Failure {
    Failure::new(Code::NoImage, format!("there is no image {image}")).hint("`kiln artifacts list` shows all images")
}
