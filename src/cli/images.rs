//! `kiln images`: the commands for images on a server.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use kiln_records::{Code, Failure, arch::Arch};
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    image_files::{self, ImageFiles},
    import_image::ImportImage,
    packages::{Difference, FindPackage, ImagePackages},
    records::{ArchList, Common, Plain, Which, create, request},
    root_files::RootFiles,
    session::Session,
    upload::{Objects, create_filled, upload},
    values::{Body, LinkOptions, arch},
    why::Why,
};
use crate::{
    artifacts::manifest::{self, Manifest},
    client::{Data, Upload, collection::IMAGES},
};

#[derive(Debug, Subcommand)]
pub(super) enum ImagesCommand {
    #[command(flatten)]
    Common(Common<ArchList, Plain>),
    /// Create a record.
    #[command(display_order = 3)]
    Create(Box<CreateImage>),
    /// Make an image of a container image.
    #[command(display_order = 3)]
    Import(ImportImage),
    /// Change a record.
    #[command(display_order = 4)]
    Update(UpdateImage),
    /// List the packages of an image.
    #[command(display_order = 7)]
    Packages(ImagePackages),
    /// Compare the packages of two images.
    #[command(display_order = 8)]
    Diff(Difference),
    /// Say which inputs of two images differ, the one that explains most first.
    #[command(display_order = 9)]
    Why(Why),
    /// Find the images that have a package.
    #[command(display_order = 10)]
    FindPackage(FindPackage),
    /// List the files of an image's root, or read one, without downloading the root.
    #[command(display_order = 11)]
    Files(RootFiles),
}

#[derive(Debug, Args)]
pub(super) struct CreateImage {
    /// What to call it [default with --from DIR: as the directory is called].
    #[arg(long, required_unless_present = "from")]
    name: Option<String>,

    /// Its architecture [default: the one that what is uploaded names, else x86_64].
    #[arg(long, value_parser = arch())]
    arch: Option<Arch>,

    /// Upload the root file system, kernel, initrd and boot parameters in this directory, or the manifest of artifacts
    /// that are in S3 already.
    #[arg(long, value_name = "DIR|MANIFEST", conflicts_with_all = ["link_path", "link_etag", "link_type"])]
    from: Option<PathBuf>,

    #[command(flatten)]
    link: LinkOptions,

    /// The name of a tag.
    #[arg(long, value_name = "KEY")]
    metadata_key: Option<String>,

    /// The tag's value.
    #[arg(long, value_name = "VALUE", requires = "metadata_key", allow_hyphen_values = true)]
    metadata_value: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct UpdateImage {
    #[command(flatten)]
    which: Which,

    /// What to call it from now on. IMS cannot rename images; Kiln can.
    #[arg(long)]
    name: Option<String>,

    /// Its architecture.
    #[arg(long, value_parser = arch())]
    arch: Option<Arch>,

    #[command(flatten)]
    link: LinkOptions,

    /// What to do with the tag.
    #[arg(long, value_enum, requires = "metadata_key")]
    metadata_operation: Option<MetadataOperation>,

    /// The name of the tag.
    #[arg(long, value_name = "KEY", requires = "metadata_operation")]
    metadata_key: Option<String>,

    /// The tag's value, to set it.
    #[arg(long, value_name = "VALUE", requires = "metadata_key", allow_hyphen_values = true)]
    metadata_value: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum MetadataOperation {
    Set,
    Remove,
}

impl ImagesCommand {
    /// Whether the command begins jobs.
    pub(super) fn begins_jobs(&self) -> bool {
        matches!(self, Self::Import(_))
    }

    pub(super) async fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            ImagesCommand::Common(command) => command.run(&IMAGES, session).await,
            ImagesCommand::Create(image) => match image.from.clone() {
                Some(path) if path.is_dir() => image.create_from_dir(&path, session).await,
                Some(path) => image.create_from_manifest(&path, session).await,
                None => create(session, &IMAGES, &image.body()).await,
            },
            ImagesCommand::Import(import) => import.run(session).await,
            ImagesCommand::Packages(packages) => packages.run(session).await,
            ImagesCommand::Diff(difference) => difference.run(session).await,
            ImagesCommand::Why(why) => why.run(session).await,
            ImagesCommand::FindPackage(package) => package.run(session).await,
            ImagesCommand::Files(files) => files.run(session).await,
            ImagesCommand::Update(change) => {
                let body = change.body()?;
                let found = session.client.find(&IMAGES, &change.which.id).await?;
                session.show(&request(session, Method::PATCH, &IMAGES, &found, Some(&body)).await?)
            }
        }
    }
}

impl UpdateImage {
    fn body(&self) -> Result<Value, Failure> {
        let operation = self.metadata_operation.map(|operation| match operation {
            MetadataOperation::Set => "set",
            MetadataOperation::Remove => "remove",
        });
        let metadata = operation.map(|operation| {
            Body::default()
                .set("operation", Some(operation))
                .text("key", self.metadata_key.clone())
                .text("value", self.metadata_value.clone())
                .into_value()
        });
        Body::default()
            .text("name", self.name.clone())
            .set("link", self.link.link())
            .set("arch", self.arch.map(Arch::name))
            .set("metadata", metadata)
            .into_change()
    }
}

impl CreateImage {
    fn body(&self) -> Value {
        let metadata = self.metadata_key.as_ref().map(|key| {
            let tag = Body::default().set("key", Some(key.clone()));
            tag.text("value", self.metadata_value.clone()).into_value()
        });
        Body::default()
            .text("name", self.name.clone())
            .set("link", self.link.link())
            .set("arch", self.arch.map(Arch::name))
            .set("metadata", metadata)
            .into_value()
    }

    async fn create_from_dir(mut self, dir: &Path, session: &Session) -> Result<(), Failure> {
        let files = ImageFiles::find(dir)?;
        self.arch = self.arch.or(files.arch);
        self.name = self.name.or(files.name);
        if self.name.is_none() {
            return Err(Failure::new(
                Code::Usage,
                format!("{} does not say what to call the image", dir.display()),
            )
            .hint("use --name NAME"));
        }
        create_filled(session, &IMAGES, &self.body(), Objects::Uploaded, async |id| {
            let mut artifacts = Vec::new();
            for (kind, path) in files.artifacts {
                let name = kind.key_name();
                let to = ["kiln", "v1", "images", id, "artifacts", name];
                let artifact = Upload::file(image_files::open(&path)?, "application/octet-stream")?;
                artifacts.push(upload(session, &to, name, artifact).await?);
            }
            put_manifest(session, id, &json!({ "artifacts": artifacts })).await
        })
        .await
    }

    async fn create_from_manifest(mut self, path: &Path, session: &Session) -> Result<(), Failure> {
        let text = kiln_files::read_given(path, manifest::MAX_SIZE as u64).map_err(|error| {
            Failure::new(Code::UploadUnreadable, format!("cannot read the manifest: {error}"))
                .hint("--from takes a directory with an image's files, or a manifest.json")
        })?;
        let manifest = Manifest::from_json(&text)?;
        if let Some(other) = manifest
            .artifacts
            .iter()
            .find(|artifact| artifact.link.bucket_and_key().is_none())
        {
            return Err(Failure::new(
                Code::ManifestInvalid,
                format!("{}: `{}` is not in S3", path.display(), other.link.path),
            )
            .hint("the links of a manifest have the form s3://BUCKET/KEY; --from DIR uploads files"));
        }
        if self.name.is_none() {
            return Err(
                Failure::new(Code::Usage, "a manifest does not say what to call the image").hint("use --name NAME"),
            );
        }
        self.arch = self.arch.or(manifest.arch);
        let document: Value = serde_json::from_slice(&text).unwrap_or_default();
        create_filled(session, &IMAGES, &self.body(), Objects::Theirs, async |id| {
            put_manifest(session, id, &document).await
        })
        .await
    }
}

async fn put_manifest(session: &Session, id: &str, manifest: &Value) -> Result<Data, Failure> {
    let to = ["kiln", "v1", "images", id, "manifest"];
    upload(
        session,
        &to,
        "manifest",
        Upload::bytes(manifest.to_string().into_bytes(), "application/json"),
    )
    .await
}
