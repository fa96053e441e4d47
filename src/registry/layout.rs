//! Images in a directory: the OCI image layout. Reads and writes files below the directory that users name.
//!
//! `index.json` names images by tags, and everything that refers to another manifest without a tag. It is replaced in
//! one step, after all that it names is there.

use std::{
    io::Write,
    os::{fd::AsFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use futures::StreamExt;
use kiln_records::{Code, Failure};
use rustix::fs::{FlockOperation, flock};

use crate::{
    digest::Digest,
    model::{Descriptor, Document, Index, MAX_MANIFEST, media, to_json},
    reference::Which,
    remote::Found,
    source::{self, Pieces},
};

/// The annotation that names an entry of `index.json`.
const NAME: &str = "org.opencontainers.image.ref.name";

const MARK: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;

/// The largest `index.json`.
const MAX_INDEX: u64 = 64 << 20;

/// A directory with images.
#[derive(Debug, Clone)]
pub struct Layout {
    dir: PathBuf,
}

impl Layout {
    /// The layout in a directory, which is made if it does not exist and is to be written to.
    pub fn open(dir: &Path, to_write: bool) -> Result<Self, Failure> {
        let layout = Self { dir: dir.to_owned() };
        let mark = dir.join("oci-layout");
        if fs_err::metadata(&mark).is_ok_and(|metadata| metadata.is_file()) {
            return Ok(layout);
        }
        if !to_write {
            return Err(layout.unusable("it has no file `oci-layout`"));
        }
        let is_free = match fs_err::read_dir(dir) {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        };
        if !is_free {
            return Err(layout.unusable("it has files, and is no layout"));
        }
        let make = || {
            fs_err::create_dir_all(dir.join("blobs/sha256"))?;
            fs_err::write(&mark, MARK)
        };
        make().map_err(|error| layout.failed(&error))?;
        Ok(layout)
    }

    fn unusable(&self, why: impl std::fmt::Display) -> Failure {
        Failure::new(
            Code::LayoutUnusable,
            format!("{} cannot be used as an OCI layout: {why}", self.dir.display()),
        )
        .hint("name a directory that `kiln mirror` or another tool made, or an empty one")
    }

    fn failed(&self, error: &std::io::Error) -> Failure {
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                Failure::new(Code::DiskFull, format!("{} is full: {error}", self.dir.display()))
                    .hint("free some space there: what is there already is not copied again")
            }
            _ => self.unusable(error),
        }
    }

    /// The name of an image in it.
    pub fn name(&self, which: &Which) -> String {
        let sign = if which.tag().is_some() { ':' } else { '@' };
        format!("oci:{}{sign}{which}", self.dir.display())
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.dir.join(blob_path(digest))
    }

    fn index(&self) -> Result<Index, Failure> {
        let Some(text) = self.read(Path::new("index.json"), MAX_INDEX)? else {
            return Ok(Index::new(Vec::new()));
        };
        serde_json::from_slice(&text).map_err(|error| self.unusable(format_args!("its index.json: {error}")))
    }

    /// The content of a file in it; none if it is not there.
    fn read(&self, file: &Path, most: u64) -> Result<Option<Vec<u8>>, Failure> {
        match kiln_files::read_beneath(&self.dir, file, most) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// The tags in it.
    pub fn tags(&self) -> Result<Vec<String>, Failure> {
        let index = self.index()?;
        let names = index.manifests.iter().filter_map(|entry| entry.annotation(NAME));
        Ok(names.map(str::to_owned).collect())
    }

    /// Reads a manifest or index; none if there is none.
    pub fn manifest(&self, which: &Which, media_type: Option<&str>) -> Result<Option<Found>, Failure> {
        let index = self.index()?;
        let entry = match which {
            Which::Tag(tag) => index.manifests.iter().find(|entry| entry.annotation(NAME) == Some(tag)),
            Which::Digest(digest) => index.manifests.iter().find(|entry| entry.digest == *digest),
        };
        let digest = match (which, entry) {
            (Which::Digest(digest), _) => digest,
            (Which::Tag(_), Some(entry)) => &entry.digest,
            (Which::Tag(_), None) => return Ok(None),
        };
        let Some(bytes) = self.small(digest)? else {
            return Ok(None);
        };
        // A file does not say what it is: what names it does, or it does itself.
        let media_type = media_type.or(entry.map(|entry| entry.media_type.as_str()));
        let media_type = media_type.map_or_else(|| own_type(&bytes), str::to_owned);
        Ok(Some(Found {
            descriptor: Descriptor::new(&media_type, digest.clone(), bytes.len() as u64),
            bytes,
        }))
    }

    fn small(&self, digest: &Digest) -> Result<Option<Bytes>, Failure> {
        let Some(bytes) = self.read(&blob_path(digest), MAX_MANIFEST as u64)? else {
            return Ok(None);
        };
        if !digest.is_of(&bytes) {
            return Err(self.damaged(digest));
        }
        Ok(Some(bytes.into()))
    }

    fn damaged(&self, digest: &Digest) -> Failure {
        Failure::new(
            Code::RegistryDigest,
            format!("the content of {} is not {digest}", self.path(digest).display()),
        )
        .hint("remove the file, and mirror the image again")
    }

    /// Writes a manifest or index. With a tag, or something that it refers to, it is also named in `index.json`.
    pub fn put(&self, which: &Which, media_type: &str, bytes: &Bytes) -> Result<(), Failure> {
        let document = Document::parse(media_type, bytes).unwrap_or(Document::Other);
        let mut entry = Descriptor::of(media_type, bytes);
        if let Which::Digest(digest) = which {
            entry.digest = digest.clone();
        }
        self.write(&entry.digest, bytes).map_err(|error| self.failed(&error))?;
        if let Document::Manifest(manifest) = &document {
            entry.artifact_type = manifest.artifact_kind().map(str::to_owned);
        }
        let name = which.tag();
        if name.is_none() && document.subject().is_none() {
            return Ok(());
        }
        let mark = kiln_files::open_beneath(&self.dir, Path::new("oci-layout")).map_err(|error| self.failed(&error))?;
        // Another command may write to the same layout.
        flock(mark.file().as_fd(), FlockOperation::LockExclusive).map_err(|error| self.failed(&error.into()))?;
        let mut index = self.index()?;
        if let Some(name) = name {
            index.manifests.retain(|other| other.annotation(NAME) != Some(name));
            entry = entry.annotated(NAME, name);
        }
        if !index.manifests.contains(&entry) {
            index.manifests.push(entry);
        }
        let text = to_json(&index);
        self.replace(&self.dir.join("index.json"), &text)
            .map_err(|error| self.failed(&error))
    }

    fn write(&self, digest: &Digest, bytes: &[u8]) -> std::io::Result<()> {
        let path = self.path(digest);
        if fs_err::metadata(&path).is_ok_and(|metadata| metadata.len() == bytes.len() as u64) {
            return Ok(());
        }
        self.replace(&path, bytes)
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
        let dir = path.parent().unwrap_or(&self.dir);
        fs_err::create_dir_all(dir)?;
        let mut file = temporary(dir)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path).map(drop).map_err(|error| error.error)
    }

    /// Whether the whole blob is there.
    pub fn has(&self, blob: &Descriptor) -> bool {
        fs_err::metadata(self.path(&blob.digest)).is_ok_and(|metadata| metadata.len() == blob.size)
    }

    /// The bytes of a blob. The last piece comes only when digest and size are right.
    pub fn pieces(&self, blob: &Descriptor) -> Result<Pieces, Failure> {
        let path = self.path(&blob.digest);
        if !self.has(blob) {
            return Err(Failure::new(
                Code::RegistryMissing,
                format!(
                    "{} is not there, or has another size than {} bytes",
                    path.display(),
                    blob.size
                ),
            )
            .hint("mirror the image again"));
        }
        let (damaged, digest, size) = (self.damaged(&blob.digest), blob.digest.clone(), blob.size);
        let file =
            kiln_files::open_beneath(&self.dir, &blob_path(&blob.digest)).map_err(|error| self.failed(&error))?;
        let pieces = source::pieces(file);
        let state = (pieces, Some(digest.hasher()), 0_u64);
        let checked = futures::stream::try_unfold(state, move |(mut pieces, mut hasher, at)| {
            let (damaged, digest) = (damaged.clone(), digest.clone());
            async move {
                let Some(piece) = pieces.next().await.transpose()? else {
                    return Ok(None);
                };
                let at = at + piece.len() as u64;
                if let Some(hasher) = &mut hasher {
                    hasher.update(&piece);
                }
                if at > size || (at == size && hasher.take().is_none_or(|hasher| hasher.finish() != digest)) {
                    return Err(damaged);
                }
                Ok(Some((piece, (pieces, hasher, at))))
            }
        });
        Ok(checked.boxed())
    }

    /// Writes a blob, which is there under its name only when it is whole. `pieces` have been checked.
    pub async fn write_blob(&self, blob: &Descriptor, mut pieces: Pieces) -> Result<(), Failure> {
        let path = self.path(&blob.digest);
        let dir = path.parent().unwrap_or(&self.dir).to_owned();
        let failed = |error: std::io::Error| self.failed(&error);
        fs_err::create_dir_all(&dir).map_err(failed)?;
        let mut file = temporary(&dir).map_err(failed)?;
        let mut size = 0;
        while let Some(piece) = pieces.next().await.transpose()? {
            size += piece.len() as u64;
            // Writing to the page cache is as quick as handing it over.
            file.write_all(&piece).map_err(failed)?;
        }
        if size != blob.size {
            return Err(self.damaged(&blob.digest));
        }
        let done = tokio::task::spawn_blocking(move || {
            file.as_file().sync_all()?;
            file.persist(path).map(drop).map_err(|error| error.error)
        });
        done.await.map_err(|error| self.unusable(error))?.map_err(failed)
    }

    /// All manifests in `index.json` that refer to this one.
    pub fn referrers(&self, subject: &Digest) -> Result<Vec<Descriptor>, Failure> {
        let mut found: Vec<Descriptor> = Vec::new();
        for entry in self.index()?.manifests {
            let is_known = found.iter().any(|other| other.digest == entry.digest);
            if is_known || !media::MANIFESTS.contains(&entry.media_type.as_str()) {
                continue;
            }
            let Some(bytes) = self.small(&entry.digest)? else {
                continue;
            };
            let document = Document::parse(&entry.media_type, &bytes);
            let document = document.map_err(|why| self.unusable(format_args!("{}: {why}", entry.digest)))?;
            if document.subject().is_some_and(|other| other.digest == *subject) {
                found.push(entry);
            }
        }
        Ok(found)
    }
}

/// The path of a blob in a layout.
fn blob_path(digest: &Digest) -> PathBuf {
    let (algorithm, hex) = digest.parts();
    Path::new("blobs").join(algorithm).join(hex)
}

/// The media type that a document itself names.
fn own_type(bytes: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Own {
        media_type: Option<String>,
    }
    let own = serde_json::from_slice::<Own>(bytes).ok().and_then(|own| own.media_type);
    own.unwrap_or_else(|| "application/octet-stream".to_owned())
}

/// A file that others may read as the umask allows, as any file: usual temporary ones are closed to them.
fn temporary(dir: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let mode = std::fs::Permissions::from_mode(0o666);
    tempfile::Builder::new()
        .prefix(".kiln-")
        .permissions(mode)
        .tempfile_in(dir)
}
