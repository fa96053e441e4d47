//! Gets the files of an image that a command works on: a directory on this machine, or the objects of an image's record.
//! Talks to the server and S3, and writes to a temporary directory.

use std::path::{Path, PathBuf};

use kiln_records::{ArtifactKind, Code, Digests, Failure, Link, arch::Arch, link::bucket_and_key};
use reqwest::Method;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    image_files::ImageFiles,
    printer::Printer,
    records::request,
    session::{ReadConfig, ServerOptions, Session},
};
use crate::{artifacts::ArtifactStore, client::collection::IMAGES, config::Config, host::OwnDir, site};

/// The most that is read of kernel parameters, in bytes.
const MOST_PARAMETERS: u64 = 64 * 1024;

/// The files of an image, as long as this exists.
#[derive(Debug)]
pub(super) struct ImageSource {
    /// The image's name.
    pub(super) name: String,
    /// The id of its record, if it has one, and the SHA-256 of the manifest by which its files were read.
    pub(super) record: Option<(String, String)>,
    pub(super) arch: Arch,
    pub(super) rootfs: PathBuf,
    pub(super) kernel: PathBuf,
    pub(super) initrd: PathBuf,
    /// The kernel parameters; empty if there are none.
    pub(super) parameters: String,
    /// Where downloaded files are.
    _dir: Option<OwnDir>,
}

/// An image before its files are checked.
struct Found {
    name: String,
    record: Option<(String, String)>,
    arch: Option<Arch>,
    artifacts: Vec<(ArtifactKind, PathBuf)>,
    dir: Option<OwnDir>,
}

impl ImageSource {
    /// The bootable image that `given` names: a directory, the id or beginning of the id of a record, or its name.
    ///
    /// # Errors
    ///
    /// `not_bootable` when it has no kernel or initrd, `arch_unclear`, and what lookups and downloads end with.
    pub(super) async fn open(
        given: &str,
        arch: Option<Arch>,
        options: &ServerOptions,
        config: ReadConfig<'_>,
        printer: &Printer,
    ) -> Result<Self, Failure> {
        let found = if Path::new(given).is_dir() {
            in_directory(Path::new(given))?
        } else {
            let mut found = None;
            let work = async |session: &Session| {
                found = Some(of_record(given, session, &config()?).await?);
                Ok(())
            };
            Box::pin(options.with(config, printer, false, work)).await?;
            found.ok_or_else(|| Failure::new(Code::RecordUnknown, format!("there is no image `{given}`")))?
        };
        found.bootable(arch)
    }
}

fn in_directory(dir: &Path) -> Result<Found, Failure> {
    let files = ImageFiles::find(dir)?;
    let own = || Some(fs_err::canonicalize(dir).ok()?.file_name()?.to_str()?.to_owned());
    Ok(Found {
        name: files.name.or_else(own).unwrap_or_else(|| "image".to_owned()),
        record: None,
        arch: files.arch,
        artifacts: files.artifacts,
        dir: None,
    })
}

async fn of_record(given: &str, session: &Session, config: &Config) -> Result<Found, Failure> {
    let found = session.client.find(&IMAGES, given).await?;
    let record = request(session, Method::GET, &IMAGES, &found, None).await?;
    let name = record.text("name").unwrap_or(given).to_owned();
    let link = record.get("link");
    let path = link.text("path").ok_or_else(|| {
        Failure::new(
            Code::NotBootable,
            format!("the image `{name}` has no manifest, and so no files"),
        )
        .hint("`kiln images update` gives it a link to one")
    })?;
    let (bucket, key) = bucket_and_key(path).ok_or_else(|| {
        Failure::new(
            Code::NotBootable,
            format!("the manifest of `{name}` is not in S3: {path}"),
        )
    })?;
    let link = Link::s3(bucket, key, link.text("etag").unwrap_or_default());
    let arch = record.text("arch").and_then(|arch| arch.parse().ok());
    let dir = OwnDir::for_downloads(&config.data_dir)?;
    let read = async |store: &ArtifactStore| download(store, &link, dir.path(), &session.printer).await;
    let (artifacts, manifest) = with_artifacts(session, config, read).await?;
    Ok(Found {
        name,
        record: Some((found.id, manifest)),
        arch,
        artifacts,
        dir: Some(dir),
    })
}

/// Does `work` with the site's objects: those of a session without a server, or those that the configuration names.
pub(super) async fn with_artifacts<T>(
    session: &Session,
    config: &Config,
    work: impl AsyncFnOnce(&ArtifactStore) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if let Some(local) = session.without_server() {
        return work(local.artifacts()).await;
    }
    let (store, embedded) = site::artifact_store(config).await?;
    let done = work(&store).await;
    if let Some(embedded) = embedded {
        embedded.shutdown().await;
    }
    done
}

/// Downloads the files that a boot needs, and compares them with the manifest. Returns them, and the manifest's SHA-256.
async fn download(
    store: &ArtifactStore,
    manifest: &Link,
    dir: &Path,
    printer: &Printer,
) -> Result<(Vec<(ArtifactKind, PathBuf)>, String), Failure> {
    let (text, entries) = store.manifest_with_entries(manifest).await?;
    let mut artifacts = Vec::new();
    for (path, entry) in entries {
        let media_type = entry.get("type").and_then(Value::as_str).unwrap_or_default();
        let wanted = [
            ArtifactKind::Rootfs,
            ArtifactKind::Kernel,
            ArtifactKind::Initrd,
            ArtifactKind::BootParameters,
        ];
        let kind = wanted
            .into_iter()
            .find(|kind| media_type.starts_with(kind.media_type()));
        let (Some(kind), Some((bucket, key))) = (kind, bucket_and_key(&path)) else {
            continue;
        };
        if artifacts.iter().any(|(known, _)| *known == kind) {
            let detail = format!("{} names more than one {}", manifest.path, kind.key_name());
            return Err(Failure::new(Code::ManifestInvalid, detail));
        }
        printer.note(format_args!("reading {path}"));
        let to = dir.join(kind.key_name());
        let digests = store.download(bucket, key, &to, None).await?;
        verify(&path, &digests, &entry)?;
        artifacts.push((kind, to));
    }
    Ok((artifacts, hex::encode(Sha256::digest(&text))))
}

/// Compares an object with its entry in the manifest, which names none, some or all of these.
fn verify(path: &str, digests: &Digests, entry: &Value) -> Result<(), Failure> {
    let text = |name: &str| entry.get(name).and_then(Value::as_str);
    let wrong = [("sha256", &digests.sha256), ("md5", &digests.md5)]
        .into_iter()
        .find(|(name, is)| text(name).is_some_and(|expected| !expected.eq_ignore_ascii_case(is)));
    let size = entry.get("size").and_then(Value::as_u64);
    let cause = match (wrong, size) {
        (Some((name, is)), _) => format!("the {name} of {path} is {is}, but its manifest has another"),
        (None, Some(size)) if size != digests.size => {
            format!("{path} has {} bytes, but {size} in its manifest", digests.size)
        }
        _ => return Ok(()),
    };
    Err(Failure::new(Code::ArtifactMismatch, cause))
}

impl Found {
    fn bootable(self, arch: Option<Arch>) -> Result<ImageSource, Failure> {
        let arch = arch.or(self.arch).ok_or_else(|| {
            let detail = format!("nothing says for which architecture `{}` is", self.name);
            Failure::new(Code::ArchUnclear, detail).hint("name it with `--arch`")
        })?;
        let of = |kind| {
            let mut files = self.artifacts.iter();
            files.find(|(known, _)| *known == kind).map(|(_, path)| path.clone())
        };
        let needed = |kind: ArtifactKind| {
            of(kind).ok_or_else(|| {
                let detail = format!("the image `{}` cannot boot: it has no {}", self.name, kind.key_name());
                Failure::new(Code::NotBootable, detail)
                    .hint("its recipe needs a kernel package and an initrd in /boot; recipes/debian-compute has both")
            })
        };
        let parameters = match of(ArtifactKind::BootParameters) {
            Some(path) => read_parameters(&path)?,
            None => String::new(),
        };
        Ok(ImageSource {
            rootfs: needed(ArtifactKind::Rootfs)?,
            kernel: needed(ArtifactKind::Kernel)?,
            initrd: needed(ArtifactKind::Initrd)?,
            parameters,
            arch,
            name: self.name,
            record: self.record,
            _dir: self.dir,
        })
    }
}

fn read_parameters(path: &Path) -> Result<String, Failure> {
    let text = kiln_files::read(path, MOST_PARAMETERS)
        .map_err(|error| Failure::io("cannot read the kernel parameters", &error))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(names: &[&str]) -> (tempfile::TempDir, Result<ImageSource, Failure>) {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            fs_err::write(dir.path().join(name), *name).unwrap();
        }
        let found = in_directory(dir.path()).unwrap();
        (dir, found.bootable(Some(Arch::S390x)))
    }

    #[test]
    fn an_image_without_kernel_or_initrd_cannot_boot() {
        for (names, lacking) in [(&["rootfs"][..], "kernel"), (&["rootfs", "vmlinuz"], "initrd")] {
            let failure = found(names).1.unwrap_err();
            assert_eq!(failure.code, Code::NotBootable);
            assert!(failure.detail.ends_with(lacking), "{}", failure.detail);
        }
        let (_dir, image) = found(&["rootfs", "vmlinuz", "initrd", "boot_parameters"]);
        let image = image.unwrap();
        assert_eq!(
            (image.parameters.as_str(), image.arch),
            ("boot_parameters", Arch::S390x)
        );
    }

    #[test]
    fn objects_are_those_of_the_manifest() {
        let digests = Digests {
            size: 3,
            md5: "a".to_owned(),
            sha256: "b".to_owned(),
        };
        for right in [
            json!({}),
            json!({"md5": "A"}),
            json!({"size": 3, "sha256": "b", "md5": "a"}),
        ] {
            verify("x", &digests, &right).unwrap();
        }
        for wrong in [
            json!({"md5": "c"}),
            json!({"sha256": "a"}),
            json!({"size": 4, "md5": "a"}),
        ] {
            let failure = verify("x", &digests, &wrong).unwrap_err();
            assert_eq!(failure.code, Code::ArtifactMismatch);
        }
    }
}
