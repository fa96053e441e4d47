//! Checks that an index has a working image for each of some architectures. Reads a place, all layers included.

use std::io::{self, Read};

use futures::StreamExt;
use kiln_records::{Failure, arch::Arch, names::shown};
use serde::Serialize;

use crate::{
    digest::{Digest, Hasher},
    inspect,
    model::{Config, Descriptor, Document, Manifest},
    pipe,
    place::Place,
    reference::Which,
    root::Root,
};

/// The most bytes of a layer before compression.
const MAX_LAYER: u64 = 256 << 30;

/// Directories that a container's command is searched in if the image names none.
const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Aspect {
    /// The name stands for an index.
    Index,
    /// It has an entry for the architecture.
    Entry,
    /// All that the entry consists of can be pulled, and is what its digests say.
    Pull,
    /// The configuration names the platform of the entry.
    Config,
    /// The programs are of the architecture.
    Programs,
    /// The command of a container can be started.
    Command,
}

impl Aspect {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Entry => "entry",
            Self::Pull => "pull",
            Self::Config => "config",
            Self::Programs => "programs",
            Self::Command => "command",
        }
    }
}

/// One finding.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// The name of the image.
    pub reference: String,
    /// The architecture, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arch: Option<Arch>,
    /// What was checked.
    pub check: Aspect,
    /// Whether it is as it should be.
    pub ok: bool,
    /// What was found.
    pub detail: String,
}

/// The findings about one image.
struct Findings {
    reference: String,
    all: Vec<Finding>,
}

impl Findings {
    /// Notes a finding. Returns what was found, if it is as it should be.
    fn note<T>(&mut self, arch: Option<Arch>, check: Aspect, found: Result<(String, T), String>) -> Option<T> {
        let (detail, ok, value) = match found {
            Ok((detail, value)) => (detail, true, Some(value)),
            Err(why) => (why, false, None),
        };
        self.all.push(Finding {
            reference: self.reference.clone(),
            arch,
            check,
            ok,
            detail: shown(&detail).into_owned(),
        });
        value
    }
}

/// Checks an image for these architectures.
///
/// # Errors
///
/// There is no such image, or it cannot be looked at. Faults of the image are findings.
pub async fn check(place: &Place, which: Option<&Which>, archs: &[Arch]) -> Result<Vec<Finding>, Failure> {
    let only = place.only()?;
    let which = which.or(only.as_ref()).ok_or_else(inspect::no_tag)?;
    let found = place.must_have(which).await?;
    let mut findings = Findings {
        reference: place.name(which),
        all: Vec::new(),
    };
    let document = inspect::parse(&findings.reference, &found.descriptor.media_type, &found.bytes)?;
    let index = match document {
        Document::Index(index) => Ok((format!("{} entries", index.manifests.len()), index)),
        Document::Manifest(_) => Err("one image, for whatever platform it is".to_owned()),
        Document::Other => Err(format!("a {}", found.descriptor.media_type)),
    };
    let Some(index) = findings.note(None, Aspect::Index, index) else {
        return Ok(findings.all);
    };
    for arch in archs {
        check_arch(place, &index.manifests, *arch, &mut findings).await;
    }
    Ok(findings.all)
}

async fn check_arch(place: &Place, entries: &[Descriptor], arch: Arch, findings: &mut Findings) {
    let about = Some(arch);
    let is_for = |entry: &&Descriptor| {
        let platform = entry.platform.as_ref();
        platform.is_some_and(|platform| platform.os == "linux" && platform.architecture == arch.oci())
    };
    let entry = entries.iter().find(is_for).ok_or_else(|| {
        let there = entries.iter().filter_map(|entry| entry.platform.as_ref());
        let there: Vec<_> = there.map(ToString::to_string).collect();
        format!("none for linux/{}; there are: {}", arch.oci(), there.join(", "))
    });
    let entry = entry.map(|entry| (entry.digest.to_string(), entry));
    let Some(entry) = findings.note(about, Aspect::Entry, entry) else {
        return;
    };
    let pulled = pull(place, entry).await.map_err(|failure| failure.detail);
    let pulled = pulled.map(|pulled| (format!("{} layers, {} bytes", pulled.layers, pulled.bytes), pulled));
    let Some(pulled) = findings.note(about, Aspect::Pull, pulled) else {
        return;
    };

    let platform = &pulled.config.platform;
    let config = if platform.os == "linux" && platform.architecture == arch.oci() {
        Ok((platform.to_string(), ()))
    } else {
        Err(format!("it says {platform}, and the index linux/{}", arch.oci()))
    };
    findings.note(about, Aspect::Config, config);
    let machines = pulled.root.machines();
    let listed = machines.iter().map(|(_, name, count)| format!("{name} {count}"));
    let listed = listed.collect::<Vec<_>>().join(", ");
    let programs = match machines.first() {
        Some((Some(found), ..)) if *found == arch => Ok((listed, ())),
        Some(_) => Err(format!("most are of another machine: {listed}")),
        None => Err("there is none that shows a machine".to_owned()),
    };
    findings.note(about, Aspect::Programs, programs);
    findings.note(about, Aspect::Command, command(&pulled, arch));
}

fn command(pulled: &Pulled, arch: Arch) -> Result<(String, ()), String> {
    let run = pulled.config.config.clone().unwrap_or_default();
    let words = run.entrypoint.iter().flatten().chain(run.cmd.iter().flatten());
    let Some(first) = words.map(String::as_str).next() else {
        return Ok(("none is named".to_owned(), ()));
    };
    let env = run.env.unwrap_or_default();
    let search = env.iter().find_map(|line| line.strip_prefix("PATH=")).unwrap_or(SEARCH);
    let checked = pulled.root.check_command(first, search, arch);
    checked.map(|()| (first.to_owned(), ())).map_err(|why| why.to_string())
}

/// An image that was read as a whole.
struct Pulled {
    config: Config,
    root: Root,
    layers: usize,
    bytes: u64,
}

async fn pull(place: &Place, entry: &Descriptor) -> Result<Pulled, Failure> {
    let which = Which::Digest(entry.digest.clone());
    let name = place.name(&which);
    let senseless = |why: String| crate::refusal::senseless(&name, "cannot be understood", why);
    let found = place.manifest(&which, Some(&entry.media_type)).await?;
    let found =
        found.ok_or_else(|| Failure::new(kiln_records::Code::RegistryMissing, format!("{name} is not there")))?;
    let manifest: Manifest = match inspect::parse(&name, &entry.media_type, &found.bytes)? {
        Document::Manifest(manifest) if manifest.is_image() => manifest,
        _ => return Err(senseless("it is no image".to_owned())),
    };
    let config = inspect::config(place, &manifest).await?;
    let diff_ids = &config.rootfs.diff_ids;
    if diff_ids.len() != manifest.layers.len() {
        return Err(senseless(format!(
            "{} layers, and {} digests of them",
            manifest.layers.len(),
            diff_ids.len()
        )));
    }
    let (mut root, mut bytes) = (Root::default(), 0);
    for (layer, diff_id) in manifest.layers.iter().zip(diff_ids) {
        root = read_layer(place, layer, diff_id, root).await?;
        bytes += layer.size;
    }
    Ok(Pulled {
        layers: manifest.layers.len(),
        config,
        root,
        bytes,
    })
}

/// Reads a layer to its end, and checks both of its digests.
async fn read_layer(place: &Place, layer: &Descriptor, diff_id: &Digest, mut root: Root) -> Result<Root, Failure> {
    let senseless = |why: String| crate::refusal::senseless(layer.digest.as_str(), "cannot be read as a layer", why);
    let how = Compression::of(&layer.media_type).ok_or_else(|| senseless(format!("it is {}", layer.media_type)))?;
    let mut pieces = place.pieces(layer)?;
    let (sender, receiver) = pipe::queue();
    let hasher = diff_id.hasher();
    let reading = tokio::task::spawn_blocking(move || {
        let mut from = pipe::Reader::new(receiver);
        let outcome = how.read(&mut from, hasher, &mut root);
        // What failed first is the cause.
        match from.failure {
            Some(failure) => Err(Ok(failure)),
            None => outcome.map(|digest| (root, digest)).map_err(Err),
        }
    });
    while let Some(piece) = pieces.next().await {
        let failed = piece.is_err();
        if sender.send(piece).await.is_err() || failed {
            break;
        }
    }
    drop(sender);
    match reading.await {
        Ok(Ok((root, digest))) if digest == *diff_id => Ok(root),
        Ok(Ok((_, digest))) => Err(senseless(format!(
            "unpacked it is {digest}, and the configuration says {diff_id}"
        ))),
        Ok(Err(Ok(failure))) => Err(failure),
        Ok(Err(Err(error))) => Err(senseless(error.to_string())),
        Err(error) => Err(senseless(error.to_string())),
    }
}

/// How a layer is compressed.
#[derive(Debug, Clone, Copy)]
enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    fn of(media_type: &str) -> Option<Self> {
        let kind = media_type
            .strip_prefix("application/vnd.oci.image.layer.")
            .or(media_type.strip_prefix("application/vnd.docker.image.rootfs."))?;
        match kind.rsplit(['+', '.']).next()? {
            "tar" => Some(Self::None),
            "gzip" => Some(Self::Gzip),
            "zstd" => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Reads an archive to its end. Returns the digest of what was unpacked.
    fn read(self, from: &mut pipe::Reader, hasher: Hasher, root: &mut Root) -> io::Result<Digest> {
        let digest = {
            let unpacked: Box<dyn Read + '_> = match self {
                Self::None => Box::new(&mut *from),
                Self::Gzip => Box::new(flate2::read::MultiGzDecoder::new(&mut *from)),
                Self::Zstd => Box::new(zstd::stream::read::Decoder::new(&mut *from)?),
            };
            let mut hashing = Hashing {
                from: unpacked,
                hasher,
                left: MAX_LAYER,
            };
            root.add_layer(&mut hashing)?;
            hashing.hasher.finish()
        };
        // Also the last bytes are checked.
        io::copy(from, &mut io::sink())?;
        Ok(digest)
    }
}

struct Hashing<R> {
    from: R,
    hasher: Hasher,
    left: u64,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let size = self.from.read(to)?;
        self.left = self.left.checked_sub(size as u64).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("it unpacks to more than {MAX_LAYER} bytes"),
            )
        })?;
        self.hasher.update(&to[..size]);
        Ok(size)
    }
}
