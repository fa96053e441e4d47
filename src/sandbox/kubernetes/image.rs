//! Makes the image of sandboxes in a cluster: a toolbox and the programs that start it. Reads both, runs the host's tar in a
//! namespace sandbox, and writes one file or one directory.
//!
//! ```text
//! /tree             the toolbox, whose files belong to the sandbox's ids
//! /kiln/programs    the entrance, the agent and its companions
//! /kiln/volume /kiln/order /tmp    empty, for mounts
//! ```
//!
//! The tag follows from the content, in [`Image::of`] and nowhere else: a server and the image of another version never
//! meet.

use std::{
    fs::File,
    io::{BufReader, Read, Seek, SeekFrom, Write},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use flate2::{Compression, write::GzEncoder};
use kiln_inside::room::{
    Beyond, IdMap,
    mounts::companions,
    order::{AGENT, ENTRANCE, ORDER_DIR, PROGRAMS_OF_IMAGE, VOLUME},
};
use kiln_records::{Failure, protocol::ToolboxName};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType};

use super::resources::TOOLBOX_ROOM;
use crate::sandbox::{
    Kernel,
    namespace::NamespaceDriver,
    packed::{self, header, unpackable},
    toolbox::Toolbox,
};

/// The ids of sandboxes within those of a pod, which has 65536 of its own, or more: all but root's.
pub(super) const IDS: IdMap = IdMap {
    uid_base: 1,
    gid_base: 1,
    rootless: false,
    beyond: Beyond::Rest,
};

/// Changes with the form of the image.
const FORM: &str = "kiln-image-2";

/// The blocks of a tar archive.
const BLOCK: usize = 512;

/// The image of a toolbox for one kind of kernel.
#[derive(Debug)]
pub struct Image<'a> {
    toolbox: &'a Toolbox,
    ids: Option<IdMap>,
    /// Name, content and mode of each program.
    programs: Vec<(String, Vec<u8>, u32)>,
}

impl<'a> Image<'a> {
    /// The image with these programs, for pods with this kind of kernel.
    ///
    /// # Errors
    ///
    /// One of the programs cannot be read.
    pub fn of(toolbox: &'a Toolbox, entrance: &Path, agent: &Path, kernel: Kernel) -> Result<Self, Failure> {
        let read = |name: &str, path: &Path, mode| -> Result<_, Failure> {
            let bytes = fs_err::read(path).map_err(|error| Failure::io("cannot pack the agent", &error))?;
            Ok((name.to_owned(), bytes, mode))
        };
        // Readable by its owner only, whose id does not exist inside: the kernel then protects the processes that run it.
        let mut programs = vec![read(ENTRANCE, entrance, 0o711)?, read(AGENT, agent, 0o711)?];
        for (name, path) in companions(agent) {
            programs.push(read(name, &path, 0o755)?);
        }
        Ok(Self {
            toolbox,
            ids: ids(kernel),
            programs,
        })
    }

    /// Its tag: a digest of the toolbox's description and the programs, and the first id of the toolbox's files. A server
    /// needs no toolbox to know it.
    pub fn tag(&self) -> String {
        let programs = self.programs.iter();
        let programs = programs.map(|(name, bytes, _)| (name.as_str(), hex::encode(Sha256::digest(bytes))));
        tag(self.toolbox, programs, self.ids)
    }

    /// Its name where pods fetch the toolbox.
    pub fn toolbox_name(&self) -> ToolboxName {
        ToolboxName {
            toolbox: self.toolbox.name.clone(),
            tag: self.tag(),
        }
    }

    /// Its name in this repository.
    pub fn name(&self, repository: &str) -> String {
        format!("{repository}:{}", self.tag())
    }

    /// Writes it as an archive that `ctr images import`, `docker load` and `skopeo copy docker-archive:` take.
    ///
    /// # Errors
    ///
    /// `toolbox_image` when the toolbox cannot be packed, or the file cannot be written.
    pub async fn write(&self, packer: &NamespaceDriver, repository: &str, out: &Path) -> Result<(), Failure> {
        let (name, arch) = (self.name(repository), self.toolbox.facts.arch.oci());
        let programs = self.programs_layer().map_err(unpackable)?;
        let dir = out.parent().filter(|dir| !dir.as_os_str().is_empty());
        // It appears when it is complete.
        let file = tempfile::Builder::new()
            .permissions(PermissionsExt::from_mode(0o666))
            .tempfile_in(dir.unwrap_or(Path::new(".")))
            .map_err(unpackable)?;
        let path = file.path().to_owned();
        self.pack(packer, move |tree: &mut File| {
            write_archive(&path, tree, &programs, &name, arch)
        })
        .await?;
        file.persist(out).map_err(|error| unpackable(error.error))?;
        Ok(())
    }

    /// Writes it as an OCI image layout with this tag into an empty directory.
    ///
    /// # Errors
    ///
    /// `toolbox_image` when the toolbox cannot be packed, or the directory cannot be written to.
    pub async fn write_layout(&self, packer: &NamespaceDriver, dir: &Path) -> Result<(), Failure> {
        let (tag, arch, dir) = (self.tag(), self.toolbox.facts.arch.oci(), dir.to_owned());
        let programs = self.programs_layer().map_err(unpackable)?;
        self.pack(packer, move |tree: &mut File| {
            write_layout(&dir, tree, &programs, &tag, arch)
        })
        .await
    }

    /// Writes its layers, compressed, into a directory. Returns the files in order.
    ///
    /// # Errors
    ///
    /// `toolbox_image` when the toolbox cannot be packed, is too large for pods that fetch it, or the directory cannot be
    /// written to.
    pub async fn write_layers(&self, packer: &NamespaceDriver, dir: &Path) -> Result<Vec<PathBuf>, Failure> {
        let programs = self.programs_layer().map_err(unpackable)?;
        let dir = dir.to_owned();
        let layers = self
            .pack(packer, move |tree: &mut File| {
                Ok([write_layer(&dir, tree)?, write_layer(&dir, &mut programs.as_slice())?])
            })
            .await?;
        // Files take whole blocks: some room is left for that.
        let most = TOOLBOX_ROOM / 10 * 8;
        let size: u64 = layers.iter().map(|layer| layer.size + layer.unpacked).sum();
        if size > most {
            return Err(unpackable(format!(
                "it has {size} bytes, and pods have room for {most}"
            )));
        }
        Ok(layers.map(|layer| layer.file).to_vec())
    }

    /// Has the host's tar pack the tree, and gives it to `write`.
    async fn pack<Write, Written>(&self, packer: &NamespaceDriver, write: Write) -> Result<Written, Failure>
    where
        Write: FnOnce(&mut File) -> std::io::Result<Written> + Send + 'static,
        Written: Send + 'static,
    {
        let (mut tar, reader) = packed::tree(packer, self.toolbox, self.ids).await?;
        let mut reader = File::from(reader.into_blocking_fd().map_err(unpackable)?);
        let written = tokio::task::spawn_blocking(move || write(&mut reader));
        let written = written.await.map_err(unpackable)?;
        let report = tar.wait().await?;
        if let Some(failure) = report.failure {
            return Err(failure);
        }
        if report.exit_code != 0 {
            return Err(unpackable(format!("tar failed with code {}", report.exit_code)));
        }
        written.map_err(unpackable)
    }

    fn programs_layer(&self) -> std::io::Result<Vec<u8>> {
        let mut tar = Builder::new(Vec::new());
        for (dir, mode) in [
            ("/kiln", 0o755),
            (PROGRAMS_OF_IMAGE, 0o755),
            (VOLUME, 0o755),
            (ORDER_DIR, 0o755),
            ("/tmp", 0o1777),
        ] {
            let mut header = header(EntryType::Directory, 0, mode);
            tar.append_data(&mut header, format!("{}/", &dir[1..]), std::io::empty())?;
        }
        for (name, bytes, mode) in &self.programs {
            let mut header = header(EntryType::Regular, bytes.len() as u64, *mode);
            let path = format!("{}/{name}", &PROGRAMS_OF_IMAGE[1..]);
            tar.append_data(&mut header, path, bytes.as_slice())?;
        }
        tar.into_inner()
    }
}

/// The tags of images whose programs have not changed since: their digests cost some 50 ms.
#[derive(Debug, Default)]
pub(super) struct Tags(Mutex<Vec<(Key, String)>>);

/// The toolbox, the kind of kernel, and each program with its inode, size, and time of its last change.
type Key = (String, Kernel, Vec<(PathBuf, [u64; 3], i64)>);

/// The tags that are kept.
const TAGS: usize = 16;

impl Tags {
    /// The tag of [`Image::of`].
    ///
    /// # Errors
    ///
    /// One of the programs cannot be read.
    pub(super) fn of(
        &self,
        toolbox: &Toolbox,
        entrance: &Path,
        agent: &Path,
        kernel: Kernel,
    ) -> Result<String, Failure> {
        let failed = |error: std::io::Error| Failure::io("cannot pack the agent", &error);
        let mut programs = vec![(ENTRANCE, entrance.to_owned()), (AGENT, agent.to_owned())];
        programs.extend(companions(agent));
        let known = |(_, path): &(&str, PathBuf)| -> Result<_, Failure> {
            let found = fs_err::metadata(path).map_err(failed)?;
            let nanoseconds = found
                .ctime()
                .wrapping_mul(1_000_000_000)
                .wrapping_add(found.ctime_nsec());
            Ok((path.clone(), [found.dev(), found.ino(), found.size()], nanoseconds))
        };
        let files: Result<Vec<_>, Failure> = programs.iter().map(known).collect();
        let key = (toolbox.name.clone(), kernel, files?);
        if let Some((_, tag)) = self.tags().iter().find(|(known, _)| *known == key) {
            return Ok(tag.clone());
        }
        // Piece by piece: a server keeps the memory that it once had.
        let digests: std::io::Result<Vec<_>> = programs
            .iter()
            .map(|(name, path)| Ok((*name, digest_of(path)?)))
            .collect();
        let tag = tag(toolbox, digests.map_err(failed)?.into_iter(), ids(kernel));
        let mut tags = self.tags();
        tags.truncate(TAGS - 1);
        tags.insert(0, (key, tag.clone()));
        Ok(tag)
    }

    fn tags(&self) -> std::sync::MutexGuard<'_, Vec<(Key, String)>> {
        // Each change leaves a list of true answers.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ids of a sandbox with this kernel: a machine has all of its own.
fn ids(kernel: Kernel) -> Option<IdMap> {
    (kernel == Kernel::Shared).then_some(IDS)
}

/// The digest of a file, in hexadecimal.
fn digest_of(path: &Path) -> std::io::Result<String> {
    let mut file = fs_err::File::open(path)?;
    let (mut digest, mut buffer) = (Sha256::new(), vec![0; 64 << 10]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex::encode(digest.finalize())),
            count => digest.update(&buffer[..count]),
        }
    }
}

/// The tag of an image with these programs, each with its digest.
fn tag<'a>(toolbox: &Toolbox, programs: impl Iterator<Item = (&'a str, String)>, ids: Option<IdMap>) -> String {
    let mut digest = Sha256::new();
    digest.update(format!("{FORM}\n{}\n", toolbox.name));
    for (name, program) in programs {
        digest.update(format!("{name} {program}\n"));
    }
    let owner = ids.map_or(0, |ids| ids.uid_base);
    format!("{}-{owner}", &hex::encode(digest.finalize())[..32])
}

/// Writes `manifest.json`, the configuration and the two layers. The size of the tree is known at its end only: its header
/// is written last.
fn write_archive(out: &Path, tree: &mut impl Read, programs: &[u8], name: &str, arch: &str) -> std::io::Result<()> {
    const TREE: &str = "tree.tar";
    const PROGRAMS: &str = "programs.tar";
    const CONFIG: &str = "config.json";
    let mut file = fs_err::File::create(out)?;
    file.write_all(&[0; BLOCK])?;
    let (mut digest, mut size) = (Sha256::new(), 0_u64);
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = tree.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        digest.update(&buffer[..count]);
        file.write_all(&buffer[..count])?;
        size += count as u64;
    }
    let rest = usize::try_from(size % BLOCK as u64).unwrap_or_default();
    file.write_all(&vec![0; (BLOCK - rest) % BLOCK])?;
    let end = file.stream_position()?;
    let mut head = header(EntryType::Regular, size, 0o644);
    head.set_path(TREE)?;
    head.set_cksum();
    file.seek(SeekFrom::Start(0))?;
    file.write_all(head.as_bytes())?;
    file.seek(SeekFrom::Start(end))?;

    let mut tar = Builder::new(file);
    let mut add = |path: &str, bytes: &[u8]| {
        tar.append_data(&mut header(EntryType::Regular, bytes.len() as u64, 0o644), path, bytes)
    };
    add(PROGRAMS, programs)?;
    let layers = [name_of(digest), name_of(Sha256::new_with_prefix(programs))];
    add(CONFIG, &config(arch, &layers))?;
    let manifest = json!([{"Config": CONFIG, "RepoTags": [name], "Layers": [TREE, PROGRAMS]}]);
    add("manifest.json", manifest.to_string().as_bytes())?;
    tar.into_inner()?.sync_all()
}

/// The configuration of an image, whose layers have these digests before they are compressed.
fn config(arch: &str, layers: &[String]) -> Vec<u8> {
    let config = json!({
        "architecture": arch,
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": layers},
    });
    config.to_string().into_bytes()
}

fn name_of(digest: Sha256) -> String {
    format!("sha256:{}", hex::encode(digest.finalize()))
}

/// Writes the files of an OCI image layout. The layers are compressed: they are sent to a registry, and from there to nodes.
fn write_layout(dir: &Path, tree: &mut impl Read, programs: &[u8], tag: &str, arch: &str) -> std::io::Result<()> {
    const TYPE: &str = "application/vnd.oci.image";
    let blobs = dir.join("blobs/sha256");
    fs_err::create_dir_all(&blobs)?;
    let keep = |bytes: &[u8], kind: &str| -> std::io::Result<Value> {
        let digest = hex::encode(Sha256::digest(bytes));
        fs_err::write(blobs.join(&digest), bytes)?;
        Ok(json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": bytes.len()}))
    };
    let mut layers = Vec::new();
    let mut before = Vec::new();
    for layer in [tree as &mut dyn Read, &mut &*programs] {
        let layer = write_layer(&blobs, layer)?;
        before.push(layer.before);
        layers.push(json!({
            "mediaType": format!("{TYPE}.layer.v1.tar+gzip"),
            "digest": format!("sha256:{}", layer.digest),
            "size": layer.size,
        }));
    }
    let config = keep(&config(arch, &before), &format!("{TYPE}.config.v1+json"))?;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": format!("{TYPE}.manifest.v1+json"), "config": config, "layers": layers
    });
    let mut manifest = keep(manifest.to_string().as_bytes(), &format!("{TYPE}.manifest.v1+json"))?;
    manifest["annotations"] = json!({"org.opencontainers.image.ref.name": tag});
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    fs_err::write(dir.join("index.json"), index.to_string())?;
    fs_err::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)
}

/// A compressed layer.
struct Layer {
    /// Named by its digest.
    file: PathBuf,
    /// Its digest, hexadecimal.
    digest: String,
    /// Its bytes, and those of the archive in it.
    size: u64,
    unpacked: u64,
    /// The digest of the archive in it, as images have it.
    before: String,
}

/// Compresses an archive into a directory.
fn write_layer(dir: &Path, archive: &mut dyn Read) -> std::io::Result<Layer> {
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    let mut packer = GzEncoder::new(Digesting::new(file.as_file_mut()), Compression::fast());
    let mut plain = Digesting::new(&mut packer);
    std::io::copy(&mut BufReader::with_capacity(1 << 20, archive), &mut plain)?;
    let (before, unpacked) = (name_of(plain.digest), plain.size);
    let written = packer.finish()?;
    let (digest, size) = (hex::encode(written.digest.finalize()), written.size);
    let path = dir.join(&digest);
    file.persist(&path).map_err(|error| error.error)?;
    Ok(Layer {
        file: path,
        digest,
        size,
        unpacked,
        before,
    })
}

/// Passes bytes on, and knows their digest and number.
struct Digesting<W> {
    to: W,
    digest: Sha256,
    size: u64,
}

impl<W: Write> Digesting<W> {
    fn new(to: W) -> Self {
        let digest = Sha256::new();
        Self { to, digest, size: 0 }
    }
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = self.to.write(bytes)?;
        self.digest.update(&bytes[..count]);
        self.size += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kiln_records::arch::Arch;

    use super::*;
    use crate::sandbox::toolbox;

    #[test]
    fn the_tag_follows_from_the_content_and_the_kind_of_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["one", "two"] {
            fs_err::write(path(name), name).unwrap();
        }
        let mut toolbox = toolbox::tests::toolbox(Arch::X86_64);
        let tag = |toolbox: &Toolbox, agent: &str, kernel| {
            Image::of(toolbox, &path("one"), &path(agent), kernel).unwrap().tag()
        };
        let first = tag(&toolbox, "one", Kernel::Shared);
        assert_eq!(first, tag(&toolbox, "one", Kernel::Shared));
        assert!(first.ends_with("-1") && first.len() == 34, "{first}");
        assert_eq!(tag(&toolbox, "one", Kernel::Own), format!("{}-0", &first[..32]));
        assert_ne!(first, tag(&toolbox, "two", Kernel::Shared));
        "1".clone_into(&mut toolbox.name);
        assert_ne!(first, tag(&toolbox, "one", Kernel::Shared));
    }

    #[test]
    fn a_changed_program_has_another_tag() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("agent");
        fs_err::write(&program, "one").unwrap();
        let (toolbox, tags) = (toolbox::tests::toolbox(Arch::X86_64), Tags::default());
        let tag = || tags.of(&toolbox, &program, &program, Kernel::Own).unwrap();
        let image = || Image::of(&toolbox, &program, &program, Kernel::Own).unwrap().tag();
        assert_eq!((tag(), tag()), (image(), image()));
        fs_err::write(dir.path().join("new"), "two").unwrap();
        fs_err::rename(dir.path().join("new"), &program).unwrap();
        assert_eq!(tag(), image());
        assert_eq!(tags.tags().len(), 2);
        for number in 0..2 * TAGS {
            fs_err::write(&program, format!("{number:4}")).unwrap();
            tags.tags()[0].0.0 = format!("{number}");
            tag();
        }
        assert_eq!(tags.tags().len(), TAGS);
    }

    #[test]
    fn an_archive_has_both_layers_and_says_their_digests() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("image.tar");
        let tree = vec![7; 1000];
        write_archive(&out, &mut tree.as_slice(), b"programs", "r/kiln:1", "arm64").unwrap();
        let mut archive = tar::Archive::new(fs_err::File::open(&out).unwrap());
        let mut files = BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            files.insert(name, bytes);
        }
        let json = |name: &str| serde_json::from_slice::<serde_json::Value>(&files[name]).unwrap();
        let manifest = json("manifest.json");
        assert_eq!(manifest[0]["RepoTags"][0], "r/kiln:1");
        assert_eq!(files[manifest[0]["Layers"][0].as_str().unwrap()], tree);
        let config = json(manifest[0]["Config"].as_str().unwrap());
        assert_eq!(config["architecture"], "arm64");
        let digest = |bytes: &[u8]| format!("sha256:{}", hex::encode(Sha256::digest(bytes)));
        assert_eq!(config["rootfs"]["diff_ids"][0], digest(&tree));
        assert_eq!(config["rootfs"]["diff_ids"][1], digest(b"programs"));
    }

    #[test]
    fn a_layout_says_the_digests_of_what_it_has() {
        let dir = tempfile::tempdir().unwrap();
        let tree = vec![7; 3 << 20];
        write_layout(dir.path(), &mut tree.as_slice(), b"programs", "1", "arm64").unwrap();
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
            let bytes = fs_err::read(dir.path().join("blobs/sha256").join(digest)).unwrap();
            assert_eq!(hex::encode(Sha256::digest(&bytes)), digest);
            assert_eq!(descriptor["size"], bytes.len());
            bytes
        };
        let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
        let index = json(&fs_err::read(dir.path().join("index.json")).unwrap());
        let manifest = json(&blob(&index["manifests"][0]));
        let config = json(&blob(&manifest["config"]));
        assert_eq!(config["architecture"], "arm64");
        for (number, expected) in [&tree[..], b"programs"].into_iter().enumerate() {
            let mut bytes = Vec::new();
            let packed = blob(&manifest["layers"][number]);
            flate2::read::GzDecoder::new(&*packed).read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, expected);
            let digest = format!("sha256:{}", hex::encode(Sha256::digest(expected)));
            assert_eq!(config["rootfs"]["diff_ids"][number], digest);
        }
        // Nothing else is left there.
        assert_eq!(fs_err::read_dir(dir.path().join("blobs/sha256")).unwrap().count(), 4);
    }
}
