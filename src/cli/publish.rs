//! `kiln publish`: images of several architectures under one tag of a registry. Talks to the server, S3 and the registry.

use std::{path::PathBuf, sync::Arc as Shared};

use clap::Args;
use kiln_records::{ArtifactKind, Code, Failure, arch::Arch};
use kiln_registry::{
    Location, Reference, Which,
    digest::Digest,
    object::Object,
    open,
    publish::{self, Artifact, Image, Published},
};

use super::{
    glance::{self, GlanceOptions},
    printer::Printer,
    registry::RegistryOptions,
    session::{ReadConfig, ServerOptions, Session},
    sets,
};
use crate::client::{Data, collection::IMAGES};

/// Publish images as one image of a registry, for every architecture that they have; or one image to OpenStack.
#[derive(Debug, Args)]
pub(super) struct PublishArguments {
    /// The images, one for each architecture: ids, beginnings of ids, or names; or a complete set as NAME@VERSION, which
    /// stands for all of its images. Then the destination: `REGISTRY/NAME:TAG`, `oci:DIR`, or for one image `glance:NAME`.
    #[arg(required = true, num_args = 2.., value_names = ["IMAGE", "DESTINATION"])]
    names: Vec<String>,

    #[command(flatten)]
    glance: GlanceOptions,

    #[command(flatten)]
    registry: RegistryOptions,

    #[command(flatten)]
    options: ServerOptions,
}

impl PublishArguments {
    pub(super) async fn run(self, config: ReadConfig<'_>, printer: &Printer) -> Result<(), Failure> {
        let Some((to, images)) = self.names.split_last() else {
            return Err(Failure::new(Code::Usage, "nothing is to be published"));
        };
        if glance::is_destination(to) {
            let [image] = images else {
                return Err(Failure::new(Code::Usage, "OpenStack has one image for each name")
                    .hint("publish the images one by one, each under a name of its own"));
            };
            return self.glance.publish(image, to, &self.options, config, printer).await;
        }
        if self.glance.are_given() {
            return Err(Failure::new(
                Code::Usage,
                "--type, --arch, --append and --property are for OpenStack only",
            )
            .hint("leave them out, or publish to glance:NAME"));
        }
        // Before anything else: a mistake in it is the most likely one.
        let place: Location = to.parse()?;
        let which = which(&place, to)?;
        let interrupted = super::signals::cancel_on_signal()?;
        let work = async |session: &Session| {
            let publishing = publish(session, images, (&place, &which), &self.registry);
            let published = tokio::select! {
                published = publishing => published?,
                () = interrupted.cancelled() => {
                    return Err(Failure::new(Code::Interrupted, "publishing was interrupted; no tag was set"));
                }
            };
            if published.unchanged {
                session
                    .printer
                    .note(format_args!("{} is exactly this already", published.reference));
            }
            session.show(&data(&published)?)
        };
        self.options.with(config, printer, false, work).await
    }
}

/// The tag under which images are published at a place, which is written `to`.
///
/// # Errors
///
/// `registry_reference` for a registry without a tag.
pub(super) fn which(place: &Location, to: &str) -> Result<Which, Failure> {
    Ok(match (place, place.which()) {
        (_, Some(which)) => which.clone(),
        (Location::Layout { .. }, None) => Which::Tag("latest".to_owned()),
        (Location::Registry { .. }, None) => to.parse::<Reference>()?.which,
    })
}

/// Publishes images, each by its id or name.
pub(super) async fn publish(
    session: &Session,
    names: &[String],
    (to, which): (&Location, &Which),
    options: &RegistryOptions,
) -> Result<Published, Failure> {
    let mut images = Vec::new();
    for name in names {
        for id in images_of(session, name).await? {
            images.push(image(session, &id).await?);
        }
    }
    let place = open(to, &options.access(), true).await?;
    let scratch = std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty());
    // Large files belong there rather than in /tmp, which may be memory.
    let scratch = scratch.map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    publish::publish(&place, which, &images, &scratch, &options.notes(&session.printer)).await
}

/// The ids of the images that a name stands for: those of a set, or the one image.
async fn images_of(session: &Session, name: &str) -> Result<Vec<String>, Failure> {
    if name.contains('@') {
        return sets::images_of(session, name).await;
    }
    Ok(vec![session.client.find(&IMAGES, name).await?.id])
}

/// An image, as the server describes it.
async fn image(session: &Session, id: &str) -> Result<Image, Failure> {
    let answer = session.client.get(&["kiln", "v1", "images", id, "artifacts"]).await?;
    let unknown = || {
        Failure::new(
            Code::ServerUnknown,
            format!("the server does not say where the artifacts of {id} are"),
        )
    };
    let text = |data: &Data, name: &str| data.text(name).map(str::to_owned).ok_or_else(unknown);
    let digest = |hex: &str| format!("sha256:{hex}").parse::<Digest>().ok();
    let items = |name: &str| answer.get(name).clone().into_items();
    let (mut artifacts, mut documents, mut container) = (Vec::new(), Vec::new(), None);
    for artifact in items("artifacts").iter().chain(&items("provenance")) {
        let media_type = text(artifact, "type")?;
        let (size, path) = (artifact.number("size").ok_or_else(unknown)?, text(artifact, "path")?);
        let object = session.client.object(&text(artifact, "url")?).await?;
        // What no node needs to boot says something about the image.
        let list = if kind_of(&media_type).is_some() {
            &mut artifacts
        } else {
            &mut documents
        };
        let artifact = Artifact {
            name: file_name(&media_type, &path).to_owned(),
            digest: artifact.text("sha256").and_then(digest),
            size: Some(size),
            source: Shared::new(Object {
                name: path,
                url: object.url,
                size,
                http: object.http,
            }),
            media_type,
        };
        if artifact.media_type == ArtifactKind::Container.media_type() {
            container = Some(artifact);
        } else {
            list.push(artifact);
        }
    }
    let is_root = |artifact: &Artifact| artifact.media_type.starts_with(ArtifactKind::Rootfs.media_type());
    let at = artifacts.iter().position(is_root).ok_or_else(unknown)?;
    let rootfs = artifacts.remove(at);
    Ok(Image {
        name: text(&answer, "name")?,
        arch: text(&answer, "arch")?.parse::<Arch>().map_err(|_| unknown())?,
        // Always in this form, since it is part of what the image's digest is made of.
        created: format!("{}Z", text(&answer, "created")?.trim_end_matches("+00:00")),
        manifest: answer.text("manifest_sha256").and_then(digest).ok_or_else(unknown)?,
        rootfs,
        container,
        boot: artifacts,
        documents,
    })
}

/// The kind of an artifact that a node needs to boot.
fn kind_of(media_type: &str) -> Option<ArtifactKind> {
    let kinds = [
        ArtifactKind::Rootfs,
        ArtifactKind::Kernel,
        ArtifactKind::Initrd,
        ArtifactKind::BootParameters,
    ];
    kinds.into_iter().find(|kind| media_type.starts_with(kind.media_type()))
}

/// The name of an artifact's file: its kind's, or the one that it has in S3.
fn file_name<'a>(media_type: &str, path: &'a str) -> &'a str {
    match kind_of(media_type) {
        Some(kind) => kind.key_name(),
        None => path.rsplit('/').next().unwrap_or(path),
    }
}

/// A result, as answers of servers are.
fn data(published: &Published) -> Result<Data, Failure> {
    let text = serde_json::to_vec(published).map_err(|error| Failure::new(Code::Format, error))?;
    serde_json::from_slice(&text).map_err(|error| Failure::new(Code::Format, error))
}
