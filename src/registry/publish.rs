//! Publishes images of several architectures under one tag. Reads their artifacts, writes a copy of each root below a
//! scratch directory for as long as it is needed, and talks to the registry.
//!
//! ```text
//!  tag ─▶ index ─▶ image (linux/amd64) ─▶ config, layer           what containers are made of
//!            │        ▲ subject
//!            │        ├─ boot artifact ─▶ kernel, initrd, parameters, squashfs
//!            │        └─ a document each ─▶ lists of packages, provenance
//!            └───▶ image (linux/arm64) …
//! ```
//!
//! The index comes last and alone has the tag: until then nothing can be seen, and a failure leaves the tag as it was.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt, future};
use kiln_records::{Code, Failure, arch::Arch};
use serde::Serialize;
use tokio::{io::AsyncWriteExt, sync::Semaphore};

use crate::{
    Notes,
    digest::{Digest, Hasher},
    layer::Layer,
    mirror::mirror,
    model::{Annotations, Config, Descriptor, Document, Index, Layers, Manifest, Platform, Run, media, to_json},
    place::Place,
    reference::Which,
    remote::Found,
    source::{FileSource, Source},
};

/// The kind of the artifact with an image's boot files.
pub const BOOT: &str = "application/vnd.kiln.boot.v1";

/// The digest of the manifest that Kiln keeps of an image: it stands for all of the image's content.
pub const MANIFEST: &str = "vnd.kiln.image.manifest";

/// The digest of the boot artifact of an entry.
const BOOT_DIGEST: &str = "vnd.kiln.image.boot";

/// The digests of the documents about the image of an entry, with spaces between them.
const DOCUMENT_DIGESTS: &str = "vnd.kiln.image.documents";

/// The version of what this module makes of an image. Another one is published anew.
const FORMAT: &str = "vnd.kiln.publish.format";
const FORMAT_NOW: &str = "2";

const TITLE: &str = "org.opencontainers.image.title";
const CREATED: &str = "org.opencontainers.image.created";

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How many blobs are sent at the same time.
const PARALLEL: usize = 4;

/// A file of an image.
#[derive(Debug, Clone)]
pub struct Artifact {
    /// Its name, such as `kernel`.
    pub name: String,
    /// Its media type.
    pub media_type: String,
    /// Its digest, if it is known.
    pub digest: Option<Digest>,
    /// Its size in bytes, if it is known.
    pub size: Option<u64>,
    /// Its content.
    pub source: Arc<dyn Source>,
}

/// An image to publish.
#[derive(Debug, Clone)]
pub struct Image {
    /// Its name.
    pub name: String,
    /// Its architecture.
    pub arch: Arch,
    /// When it was made, as RFC 3339 writes it.
    pub created: String,
    /// The digest of Kiln's manifest of it.
    pub manifest: Digest,
    /// Its root file system: a squashfs.
    pub rootfs: Artifact,
    /// The container image that it was built as, if it was: a tar archive of an OCI image layout. It is published as it is, and otherwise
    /// one is made of the root.
    pub container: Option<Artifact>,
    /// Kernel, initrd, boot parameters.
    pub boot: Vec<Artifact>,
    /// What is said about it: lists of its packages, its provenance. Each becomes a referrer of its own.
    pub documents: Vec<Artifact>,
}

/// A published image.
#[derive(Debug, Clone, Serialize)]
pub struct Entry {
    /// Its architecture.
    pub arch: Arch,
    /// Its platform in the index.
    pub platform: String,
    /// The digest of its manifest.
    pub digest: Digest,
    /// The digest of its boot artifact.
    pub boot: Digest,
    /// The digests of the documents about it.
    pub documents: Vec<Digest>,
    /// It was there already.
    pub reused: bool,
}

/// What was published.
#[derive(Debug, Clone, Serialize)]
pub struct Published {
    /// The name.
    pub reference: String,
    /// The digest of the index.
    pub digest: Digest,
    /// The tag stood for exactly this already.
    pub unchanged: bool,
    /// The images.
    pub images: Vec<Entry>,
}

/// The platform of an architecture. Images of arm64 are all of variant 8, and say so as other builders do.
pub fn platform(arch: Arch) -> Platform {
    Platform {
        architecture: arch.oci().to_owned(),
        os: "linux".to_owned(),
        variant: (arch == Arch::Aarch64).then(|| "v8".to_owned()),
    }
}

/// Publishes images, in their order, as the index with this tag.
///
/// # Errors
///
/// An image cannot be read or sent, two of them have one architecture, or another client moved the tag meanwhile. The
/// tag stands for what it stood for before.
pub async fn publish(
    place: &Place,
    tag: &Which,
    images: &[Image],
    scratch: &Path,
    notes: &Notes,
) -> Result<Published, Failure> {
    if tag.tag().is_none() {
        return Err(Failure::new(
            Code::RegistryReference,
            format!("{} is a digest, which nothing can be published as", place.name(tag)),
        )
        .hint("name a tag: REGISTRY/NAME:TAG, or oci:DIR:TAG"));
    }
    let mut archs = BTreeSet::new();
    if let Some(twice) = images.iter().find(|image| !archs.insert(image.arch.name())) {
        return Err(Failure::new(
            Code::Usage,
            format!("more than one of the images is for {}", twice.arch),
        )
        .hint("name one image for each architecture"));
    }
    let before = place.manifest(tag, None).await?;
    let known = before.as_ref().map(entries).unwrap_or_default();
    let work = Work {
        place,
        scratch,
        notes,
        sending: Semaphore::new(PARALLEL),
    };
    let made = images.iter().map(|image| work.entry(image, &known));
    let made: Vec<(Descriptor, bool)> = future::try_join_all(made).await?;
    let entries = images.iter().zip(&made).map(|(image, (entry, reused))| Entry {
        arch: image.arch,
        platform: platform(image.arch).to_string(),
        digest: entry.digest.clone(),
        boot: boot_of(entry).unwrap_or_else(|| entry.digest.clone()),
        documents: documents_of(entry),
        reused: *reused,
    });
    let entries = entries.collect();
    let index = index(images, made.into_iter().map(|(entry, _)| entry).collect());
    let bytes = Bytes::from(to_json(&index));
    let found = Found {
        descriptor: Descriptor::of(media::INDEX, &bytes),
        bytes,
    };
    let before = before.map(|before| before.descriptor.digest);
    let unchanged = before.as_ref() == Some(&found.descriptor.digest);
    if !unchanged {
        work.place.put_last(tag, &found, before.as_ref()).await?;
    }
    Ok(Published {
        reference: place.name(tag),
        digest: found.descriptor.digest,
        unchanged,
        images: entries,
    })
}

fn index(images: &[Image], entries: Vec<Descriptor>) -> Index {
    let mut index = Index::new(entries);
    let mut annotations = Annotations::new();
    if let Some(last) = images.iter().map(|image| &image.created).max() {
        annotations.insert(CREATED.to_owned(), last.clone());
    }
    let mut names = images.iter().map(|image| &image.name);
    if let Some(name) = names.next().filter(|name| names.all(|other| other == *name)) {
        annotations.insert(TITLE.to_owned(), name.clone());
    }
    index.annotations = Some(annotations);
    index
}

/// The entries of what has the tag now.
fn entries(found: &Found) -> Vec<Descriptor> {
    match Document::parse(&found.descriptor.media_type, &found.bytes) {
        Ok(Document::Index(index)) => index.manifests,
        // It is replaced, whatever it is.
        _ => Vec::new(),
    }
}

fn boot_of(entry: &Descriptor) -> Option<Digest> {
    entry.annotation(BOOT_DIGEST)?.parse().ok()
}

fn documents_of(entry: &Descriptor) -> Vec<Digest> {
    let digests = entry.annotation(DOCUMENT_DIGESTS).unwrap_or_default();
    digests
        .split_whitespace()
        .filter_map(|digest| digest.parse().ok())
        .collect()
}

/// The work on one index.
struct Work<'a> {
    place: &'a Place,
    scratch: &'a Path,
    notes: &'a Notes,
    sending: Semaphore,
}

impl Work<'_> {
    /// The entry of an image, and whether it was there already.
    async fn entry(&self, image: &Image, known: &[Descriptor]) -> Result<(Descriptor, bool), Failure> {
        let is_same = |entry: &&Descriptor| {
            entry.annotation(MANIFEST) == Some(image.manifest.as_str())
                && entry.annotation(FORMAT) == Some(FORMAT_NOW)
                && entry.platform.as_ref() == Some(&platform(image.arch))
        };
        if let Some(entry) = known.iter().find(is_same)
            && self.is_whole(entry, image).await?
        {
            return Ok((entry.clone(), true));
        }
        let published = self.publish(image).await.map_err(|failure| {
            // Of several images, which one?
            if failure.code == Code::LayerUnmade {
                let detail = format!("{} ({}): {}", image.name, image.arch, failure.detail);
                return Failure { detail, ..failure };
            }
            failure
        });
        published.map(|entry| (entry, false))
    }

    /// Whether all that was made of an image is still there. Documents have no digests here: an image that was signed
    /// since has one more.
    async fn is_whole(&self, entry: &Descriptor, image: &Image) -> Result<bool, Failure> {
        let documents = documents_of(entry);
        let Some(boot) = boot_of(entry).filter(|_| documents.len() == image.documents.len()) else {
            return Ok(false);
        };
        for digest in documents.into_iter().chain([boot, entry.digest.clone()]) {
            if self.place.head(&Which::Digest(digest)).await?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn publish(&self, image: &Image) -> Result<Descriptor, Failure> {
        let dir = tempfile::Builder::new()
            .prefix("kiln-publish-")
            .tempdir_in(self.scratch)
            .map_err(|error| scratch_failed(self.scratch, &error))?;
        let file = dir.path().join("rootfs");
        // A squashfs is read here and there, not from its beginning to its end.
        let rootfs = self.fetch(image, &image.rootfs, &file).await?;
        let own = Annotations::from([
            (TITLE.to_owned(), image.name.clone()),
            (CREATED.to_owned(), image.created.clone()),
            (MANIFEST.to_owned(), image.manifest.to_string()),
        ]);
        let made = async {
            match &image.container {
                Some(container) => self.put_container(image, container, dir.path()).await,
                None => self.make_container(image, &file, &own).await,
            }
        };
        let root = async {
            self.send(
                image,
                &image.rootfs.name,
                Some(rootfs.clone()),
                &FileSource(file.clone()),
            )
            .await
        };
        let boot = image.boot.iter().map(|artifact| self.send_artifact(image, artifact));
        let documents = image
            .documents
            .iter()
            .map(|artifact| self.send_artifact(image, artifact));
        let (entry, root, mut boot, documents) =
            future::try_join4(made, root, future::try_join_all(boot), future::try_join_all(documents)).await?;
        boot.push(root.annotated(TITLE, &image.rootfs.name));
        let empty = self
            .send_document(image, "config", media::EMPTY, &serde_json::json!({}))
            .await?;
        let referrer = |kind: &str, layers: Vec<Descriptor>| Manifest {
            schema_version: 2,
            media_type: Some(media::MANIFEST.to_owned()),
            artifact_type: Some(kind.to_owned()),
            config: empty.clone(),
            layers,
            subject: Some(entry.clone()),
            annotations: Some(own.clone()),
        };
        let artifact = self.put(&referrer(BOOT, boot)).await?;
        let mut digests = Vec::with_capacity(documents.len());
        // One after the other: where a registry has no list of referrers, all of them change the same one.
        for document in documents {
            let kind = document.media_type.clone();
            digests.push(self.put(&referrer(&kind, vec![document])).await?.digest.to_string());
        }
        let mut entry = entry
            .clone()
            .annotated(MANIFEST, image.manifest.as_str())
            .annotated(BOOT_DIGEST, artifact.digest.as_str())
            .annotated(DOCUMENT_DIGESTS, digests.join(" "))
            .annotated(FORMAT, FORMAT_NOW);
        entry.platform = Some(platform(image.arch));
        Ok(entry)
    }

    /// Makes a container image with the root as its one layer.
    async fn make_container(&self, image: &Image, root: &Path, own: &Annotations) -> Result<Descriptor, Failure> {
        let source = Layer::new(root.to_owned(), image.arch);
        let mut layer = self.send(image, "layer", None, &source).await?;
        let made = source
            .made()
            .ok_or_else(|| Failure::new(Code::LayerUnmade, "the layer was not made to its end"))?;
        let config = Config {
            created: Some(image.created.clone()),
            platform: platform(image.arch),
            config: Some(Run {
                env: Some(vec![PATH.to_owned()]),
                cmd: made.command.map(|command| vec![command.to_owned()]),
                ..Run::default()
            }),
            rootfs: Layers {
                kind: "layers".to_owned(),
                diff_ids: vec![made.diff_id],
            },
        };
        let config = self.send_document(image, "config", media::CONFIG, &config).await?;
        media::LAYER_ZSTD.clone_into(&mut layer.media_type);
        let manifest = Manifest {
            schema_version: 2,
            media_type: Some(media::MANIFEST.to_owned()),
            artifact_type: None,
            config,
            layers: vec![layer],
            subject: None,
            annotations: Some(own.clone()),
        };
        self.put(&manifest).await
    }

    /// Sends the container image that was built.
    async fn put_container(&self, image: &Image, container: &Artifact, scratch: &Path) -> Result<Descriptor, Failure> {
        let (archive, dir) = (scratch.join("container.tar"), scratch.join("container"));
        self.fetch(image, container, &archive).await?;
        let failed = |error: std::io::Error| scratch_failed(scratch, &error);
        let into = dir.clone();
        let unpacked = tokio::task::spawn_blocking(move || {
            let file = kiln_files::open(&archive)?;
            fs_err::create_dir(&into)?;
            tar::Archive::new(file).unpack(&into)?;
            fs_err::remove_file(&archive)
        });
        unpacked.await.map_err(|error| failed(error.into()))?.map_err(failed)?;
        let layout = Place::layout(&dir)?;
        let named = layout.only()?.ok_or_else(|| {
            let text = format!(
                "the container image of {} ({}) has not exactly one name",
                image.name, image.arch
            );
            Failure::new(Code::LayerUnmade, text).hint("build the image again")
        })?;
        // By its digest: the tag of the archive is not one of the registry.
        let which = Which::Digest(layout.must_have(&named).await?.descriptor.digest);
        mirror(&layout, Some(&named), self.place, Some(&which), self.notes).await?;
        let found = self.place.must_have(&which).await?;
        Ok(found.descriptor)
    }

    /// Writes an artifact to a file.
    async fn fetch(&self, image: &Image, artifact: &Artifact, file: &Path) -> Result<Descriptor, Failure> {
        let failed = |error: std::io::Error| scratch_failed(file, &error);
        let mut pieces = artifact.source.open().await?;
        let mut file = fs_err::tokio::File::create(file).await.map_err(failed)?;
        let (mut hasher, mut size) = (artifact.digest.as_ref().map_or_else(Hasher::default, Digest::hasher), 0);
        while let Some(piece) = pieces.next().await.transpose()? {
            size += piece.len() as u64;
            hasher.update(&piece);
            file.write_all(&piece).await.map_err(failed)?;
        }
        file.flush().await.map_err(failed)?;
        let digest = hasher.finish();
        if artifact.digest.as_ref().is_some_and(|expected| *expected != digest) {
            return Err(Failure::new(
                Code::RegistryDigest,
                format!(
                    "{} of {} ({}) is not what its manifest says",
                    artifact.name, image.name, image.arch
                ),
            )
            .hint("the image's objects were changed or are damaged: build it again"));
        }
        Ok(Descriptor::new(&artifact.media_type, digest, size))
    }

    /// Sends a file of an image.
    async fn send_artifact(&self, image: &Image, artifact: &Artifact) -> Result<Descriptor, Failure> {
        let known = artifact.digest.as_ref().zip(artifact.size);
        let known = known.map(|(digest, size)| Descriptor::new(&artifact.media_type, digest.clone(), size));
        let mut sent = self.send(image, &artifact.name, known, &*artifact.source).await?;
        sent.media_type.clone_from(&artifact.media_type);
        Ok(sent.annotated(TITLE, &artifact.name))
    }

    /// Sends a blob that is not there yet.
    async fn send(
        &self,
        image: &Image,
        name: &str,
        known: Option<Descriptor>,
        source: &dyn Source,
    ) -> Result<Descriptor, Failure> {
        let arch = image.arch;
        if let Some(blob) = &known
            && self.place.has(blob).await?
        {
            (self.notes)(&format!("{arch}: {name} is there already"));
            return Ok(blob.clone());
        }
        let permit = self.sending.acquire().await;
        let sent = self.place.send(known.as_ref(), source).await?;
        drop(permit);
        (self.notes)(&format!("{arch}: {name} sent ({} bytes)", sent.size));
        Ok(known.unwrap_or_else(|| Descriptor::new("application/octet-stream", sent.digest, sent.size)))
    }

    async fn send_document(
        &self,
        image: &Image,
        name: &str,
        media_type: &str,
        document: &impl Serialize,
    ) -> Result<Descriptor, Failure> {
        let bytes = Bytes::from(to_json(document));
        let known = Descriptor::of(media_type, &bytes);
        self.send(image, name, Some(known), &bytes).await
    }

    async fn put(&self, manifest: &Manifest) -> Result<Descriptor, Failure> {
        let bytes = Bytes::from(to_json(manifest));
        let found = Found {
            descriptor: Descriptor::of(media::MANIFEST, &bytes),
            bytes,
        };
        self.place
            .put(&Which::Digest(found.descriptor.digest.clone()), &found)
            .await?;
        Ok(found.descriptor)
    }
}

fn scratch_failed(path: &Path, error: &std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Failure::new(
            Code::DiskFull,
            format!("no room for a copy of the root in {}: {error}", path.display()),
        )
        .hint("set TMPDIR to a directory with more room: each image needs that of its squashfs"),
        _ => Failure::io("cannot keep a copy of the root", error),
    }
}
