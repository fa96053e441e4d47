//! The server's side of layers: the key of a job's layer, the search for it, and what is kept. Reads recipes from S3,
//! writes the job's row and entries of layers.
//!
//! A layer is the root of a recipe after its packages and before anything of the recipe's own that is not part of the
//! key. The key has two halves. The server takes its half from what it knows itself: the recipe's archive, less its
//! late files ([`LATE`]), the values of its templates, and how the job runs. The agent adds what it found: the state of the
//! repositories and its own tools. An agent settles what is kept before any late file is used, and nothing is kept
//! after that. So, whatever a recipe does with its sandbox, it has no say in the layers of other recipes: what could
//! have one is in the key.

use std::{
    collections::BTreeMap,
    fmt,
    io::{Cursor, Read},
    path::PathBuf,
    sync::Arc,
};

use bytes::Bytes;
use kiln_records::{
    CacheDepth, Code, Failure, LayerOutcome, TwinLevel,
    archive::{self, Kind, Limits},
    description::{self, Missing},
    link::bucket_and_key,
    protocol::{
        Answer, FoundLayer, LONGEST_FAILED_SCRIPT, LayerInputs, LayerUrl, MOST_FAILED_SCRIPTS, PROTOCOL, SettledLayer,
    },
    recipe::LATE,
    similar,
};
use sha2::{Digest, Sha256};

use super::{agents::Refusal, allowance, row::Jobs};
use crate::{
    artifacts::{ArtifactStore, LONG_URL_VALID, LayerEntry, LayerOfImage, ReadError},
    host,
    store::StoredRun,
};

/// The largest archive of a recipe that is looked into, packed and unpacked, in bytes.
const LARGEST: (usize, u64) = (64 << 20, 512 << 20);

/// The largest description that is looked into for similar ones, in bytes.
const LARGEST_DESCRIPTION: u64 = 4 << 20;

/// The most entries of an archive.
const MOST_ENTRIES: u64 = 100_000;

/// The most files that may be descriptions and are compared with similar ones.
const MOST_DESCRIPTIONS: usize = 16;

/// The most files that a layer leaves out, and the longest of their paths.
const MOST_ANEW: (usize, usize) = (16, 256);

/// The script of a recipe that kiwi runs before the image's packages are installed.
const SCRIPT: &str = "post_bootstrap.sh";

/// The largest such script, in bytes: all of it is searched for names.
const LARGEST_SCRIPT: u64 = 1 << 20;

/// The late files that kiwi has put into the root by then. The agent hides them from the script.
const LATE_SCRIPTS: [&str; 2] = ["config.sh", "images.sh"];

/// Why there can be no layer for a recipe.
#[derive(Debug, thiserror::Error)]
enum Never {
    #[error("the recipe's archive is too large to be looked into")]
    TooLarge,
    #[error("the recipe's archive cannot be read: {0}")]
    Unreadable(String),
    #[error("the recipe's archive was replaced meanwhile")]
    Replaced,
    #[error("{0}")]
    Description(Missing),
    #[error("{} is a link, or of another special kind", .0.display())]
    Special(PathBuf),
    #[error("{} is there twice", .0.display())]
    Twice(PathBuf),
    #[error(
        "{SCRIPT} may fetch something or take the time, and a layer would keep that: it is kept where the request or the recipe \
         asks to reuse packages"
    )]
    Unasked,
    #[error("{SCRIPT} names {0}, which can change without another layer")]
    Names(&'static str),
}

/// Finds and keeps the layers of jobs.
#[derive(Debug)]
pub struct Layers {
    pub(super) jobs: Arc<Jobs>,
    pub(super) artifacts: ArtifactStore,
}

impl Layers {
    pub(super) async fn find(&self, stored: &StoredRun, inputs: &LayerInputs) -> Result<Answer, Refusal> {
        // Whoever asks after that is not the agent, and each question costs the server a look into the archive.
        if stored.run.layer.is_some() {
            return Err(Refusal::Failed(Failure::new(
                Code::Protocol,
                "the layer of this attempt is settled",
            )));
        }
        let nothing = |never: Option<&dyn fmt::Display>| FoundLayer {
            never: never.map(ToString::to_string),
            ..FoundLayer::default()
        };
        let found = match self.layer_keys(stored, inputs).await? {
            Err(never) => nothing(Some(&never)),
            Ok(keys) => {
                let asked = self.asked_key(stored, &keys).await?;
                if let (None, Some(image)) = (&asked, stored.run.plan.cache_from) {
                    let why = "it has no layer of this recipe, as it is now and runs here";
                    let text = format!("the packages of image {image} are not reused: {why}");
                    self.jobs.say(stored.job.id, text).await;
                }
                let key = asked.unwrap_or(keys.key);
                let mut found = self.artifacts.find_layer(&key, LONG_URL_VALID).await?;
                if let (None, Some(similar), CacheDepth::Similar) = (&found, keys.similar, stored.run.plan.cache) {
                    found = self.artifacts.find_similar_layer(&similar, LONG_URL_VALID).await?;
                }
                found.unwrap_or_else(|| nothing(None))
            }
        };
        Ok(Answer::Layer(Box::new(found)))
    }

    pub(super) async fn settle(&self, stored: &StoredRun, settled: SettledLayer) -> Result<Answer, Refusal> {
        let refused = |why: &str| Refusal::Failed(Failure::new(Code::Protocol, why));
        let used = settled.used;
        let is_within =
            |texts: &[String], (most, longest)| texts.len() <= most && texts.iter().all(|it| it.len() <= longest);
        let scripts = (MOST_FAILED_SCRIPTS, LONGEST_FAILED_SCRIPT);
        if !used.is_sound() || !is_within(&settled.anew, MOST_ANEW) || !is_within(&settled.failed_scripts, scripts) {
            return Err(refused("what is said of the layer is too large"));
        }
        match &stored.run.layer {
            // An agent that lost the answer asks again. Its layer is not put, and a later job makes it.
            Some(before) if *before == used => return Ok(Answer::LayerUrl(LayerUrl { url: None })),
            Some(_) => return Err(refused("the layer of this attempt is settled")),
            None => {}
        }
        let mut url = None;
        if used.outcome == LayerOutcome::Reused
            && let Ok(keys) = self.layer_keys(stored, &settled.inputs).await?
        {
            let key = self.asked_key(stored, &keys).await?;
            self.note_layer(stored, key, keys).await?;
        }
        if used.outcome == LayerOutcome::Kept {
            let (Some(sha256), Some(size)) = (used.sha256.clone(), used.size) else {
                return Err(refused("a layer has a size and a SHA-256"));
            };
            allowance::check_packages(size, stored.run.plan.needs.disk_limit)?;
            let keys = self.layer_keys(stored, &settled.inputs).await?;
            let keys = keys.map_err(|never| refused(&never.to_string()))?;
            let installed = self.artifacts.installed(stored.job.id, stored.run.attempt).await?;
            let entry = LayerEntry {
                sha256,
                size,
                anew: settled.anew,
                failed_scripts: settled.failed_scripts,
                has_installed: installed.is_some(),
            };
            let keep = self
                .artifacts
                .keep_layer(&keys.key, &entry, installed.as_ref(), LONG_URL_VALID);
            url = Some(keep.await?);
            if let Some(similar) = &keys.similar {
                self.artifacts.note_similar_layer(similar, &keys.key).await?;
            }
            self.note_layer(stored, None, keys).await?;
        }
        self.jobs
            .change_for(stored, |run, _| {
                run.layer = Some(used.clone());
                Ok(())
            })
            .await?;
        Ok(Answer::LayerUrl(LayerUrl { url }))
    }

    /// The key of the layer that the job is asked to start from: that of an image whose build had all the same but the
    /// repositories.
    async fn asked_key(&self, stored: &StoredRun, keys: &Keys) -> Result<Option<String>, Refusal> {
        let Some(image) = stored.run.plan.cache_from else {
            return Ok(None);
        };
        let layer = self.artifacts.layer_of_image(image).await?;
        let same = layer.filter(|layer| layer.without_repositories == keys.without_repositories);
        Ok(same.map(|layer| layer.key))
    }

    /// Leads the job's image to its layer.
    async fn note_layer(&self, stored: &StoredRun, asked: Option<String>, keys: Keys) -> Result<(), Failure> {
        let layer = LayerOfImage {
            without_repositories: keys.without_repositories,
            key: asked.unwrap_or(keys.key),
        };
        self.artifacts.note_layer_of_image(stored.run.image, &layer).await
    }

    /// The keys of a job's layer, or why there can be none.
    async fn layer_keys(&self, stored: &StoredRun, inputs: &LayerInputs) -> Result<Result<Keys, Never>, Refusal> {
        let plan = &stored.run.plan;
        let is_digest = [&inputs.found, &inputs.here]
            .into_iter()
            .chain(&inputs.similar)
            .all(|text| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let may = plan.cache != CacheDepth::None && plan.image.is_none() && plan.epoch.is_none() && !plan.verify_twins;
        if !is_digest || !may {
            return Err(Refusal::Failed(Failure::new(Code::Protocol, "the job has no layer")));
        }
        let (bucket, path) = bucket_and_key(&plan.recipe)
            .ok_or_else(|| Failure::new(Code::RecipeMissing, format!("{} is no object in S3", plan.recipe)))?;
        let archive = match self.artifacts.read_small(bucket, path, LARGEST.0).await {
            Ok(Some(archive)) => archive,
            Ok(None) => return Err(Failure::new(Code::RecipeMissing, "the recipe's archive is gone").into()),
            Err(ReadError::TooLarge(_)) => return Ok(Err(Never::TooLarge)),
            Err(ReadError::S3(failure)) => return Err(failure.into()),
        };
        // The agent has what the job was asked to build; an object of S3 can be replaced.
        if stored.run.recipe_sha256 != Some(hex::encode(Sha256::digest(&archive))) {
            return Ok(Err(Never::Replaced));
        }
        let asked = plan.cache_asked;
        let early = tokio::task::spawn_blocking(move || early_files(&archive, asked)).await;
        let early = match early.map_err(|error| Failure::new(Code::Protocol, error))? {
            Ok(early) => early,
            Err(never) => return Ok(Err(never)),
        };
        let key = |what: &str, files: [u8; 32], found: &str| {
            let mut hash = Fields::of_run(what, stored, stored.run.twins_of_packages());
            hash.add(files);
            hash.add(found);
            hash.hex()
        };
        let similar = early.without_packages.zip(inputs.similar.as_deref());
        Ok(Ok(Keys {
            key: key("layer 2", early.all, &inputs.found),
            without_repositories: key("layer 2 without repositories", early.all, &inputs.here),
            similar: similar.map(|(files, found)| key("layer 2 without packages", files, found)),
        }))
    }
}

/// The keys of a layer, each of 64 hexadecimal digits.
struct Keys {
    /// That of everything that it depends on.
    key: String,
    /// The same without the repositories.
    without_repositories: String,
    /// The same without the repositories and the packages that the description names, where that can be told.
    similar: Option<String>,
}

/// Digests of the files of a recipe's archive but the late ones.
struct Early {
    /// Of all.
    all: [u8; 32],
    /// Of all, without the packages that the description names.
    without_packages: Option<[u8; 32]>,
}

/// A digest of texts, of which none runs into the next.
pub(super) struct Fields(Sha256);

impl Fields {
    /// What every key has: what is kept, the values of the recipe's templates, its profiles, what is added to its description, and how
    /// the job is carried out, with these native twins.
    pub(super) fn of_run(what: &str, stored: &StoredRun, twins: TwinLevel) -> Self {
        let (job, plan) = (&stored.job, &stored.run.plan);
        let mut hash = Self(Sha256::new());
        hash.add(format!(
            "{what}, kiln {}, protocol {PROTOCOL}",
            env!("CARGO_PKG_VERSION")
        ));
        let mut values = plan.values.clone();
        values.sort();
        hash.add(values.len().to_string());
        for (name, value) in &values {
            hash.add(name);
            hash.add(value);
        }
        hash.add(plan.profiles.len().to_string());
        for profile in &plan.profiles {
            hash.add(profile);
        }
        let additions = plan.additions.parts();
        hash.add(additions.len().to_string());
        for (option, text) in additions {
            hash.add(option);
            hash.add(text);
        }
        hash.add(host::apt_mirror().map_or(String::new(), |mirror| mirror.archive));
        hash.add(host::ca_bundle().unwrap_or_default());
        // What cannot be read fails the job before it looks for a layer.
        hash.add(host::kept_authorities().ok().flatten().unwrap_or_default());
        for key in host::signing_keys().unwrap_or_default() {
            hash.add(key.text);
        }
        hash.add(format!("{:?} {:?}", plan.template_mode, plan.squashfs));
        hash.add(format!(
            "{} {} {} {} {}",
            job.arch,
            plan.how.name(),
            twins,
            plan.driver.name(),
            plan.own_kernel
        ));
        hash
    }

    /// 64 hexadecimal digits.
    pub(super) fn hex(self) -> String {
        hex::encode(self.0.finalize())
    }

    pub(super) fn add(&mut self, field: impl AsRef<[u8]>) {
        self.0.update((field.as_ref().len() as u64).to_be_bytes());
        self.0.update(field);
    }
}

/// Why the packages of a recipe are never kept as a layer, if its archive says so and reuse is not asked for.
pub(super) fn never_a_layer(archive: &Bytes) -> Option<String> {
    early_files(archive, false).err().map(|never| never.to_string())
}

/// Digests of all files of a recipe's archive but the late ones. A script that runs before packages are installed is one of
/// them if reuse was `asked` for.
fn early_files(bytes: &Bytes, asked: bool) -> Result<Early, Never> {
    // Where the description is decides which files are late, so these are told apart at the end.
    let mut files: BTreeMap<PathBuf, Option<[u8; 32]>> = BTreeMap::new();
    let (mut named, mut described) = (BTreeMap::new(), BTreeMap::new());
    let mut never = None;
    let limits = Limits {
        bytes: LARGEST.1,
        entries: MOST_ENTRIES,
        ratio: u64::MAX,
        ..Limits::default()
    };
    let contents = archive::read(
        Cursor::new(bytes),
        "the recipe's archive",
        &limits,
        &mut |entry, content| {
            let path = &entry.path;
            let digest = match &entry.kind {
                Kind::Directory => return Ok(()),
                Kind::File => {
                    let mut hash = Sha256::new();
                    hash.update(entry.mode.to_be_bytes());
                    // A fault of the archive is told by its reader.
                    if path.ends_with(SCRIPT) {
                        let mut script = Vec::new();
                        let _ = content.take(LARGEST_SCRIPT).read_to_end(&mut script);
                        if script.len() as u64 == LARGEST_SCRIPT {
                            never.get_or_insert(Never::TooLarge);
                        }
                        hash.update(&script);
                        let is_in_it = |late: &&&str| script.windows(late.len()).any(|part| part == late.as_bytes());
                        named.extend(LATE_SCRIPTS.iter().find(is_in_it).map(|late| (path.clone(), *late)));
                    } else if description::may_be(path) && described.len() < MOST_DESCRIPTIONS {
                        let mut description = Vec::new();
                        let _ = content.take(LARGEST_DESCRIPTION).read_to_end(&mut description);
                        hash.update(&description);
                        // A part of one tells nothing of the rest.
                        let whole = (description.len() as u64) < LARGEST_DESCRIPTION;
                        let text = whole.then(|| String::from_utf8(description).ok()).flatten();
                        described.insert(path.clone(), text.as_deref().and_then(similar::without_packages));
                    }
                    let mut buffer = vec![0; 64 << 10];
                    while let Ok(size @ 1..) = content.read(&mut buffer) {
                        hash.update(&buffer[..size]);
                    }
                    Some(hash.finalize().into())
                }
                Kind::Symlink(_) | Kind::HardLink(_) => None,
            };
            if files.insert(path.clone(), digest).is_some() {
                never.get_or_insert(Never::Twice(path.clone()));
            }
            Ok(())
        },
    );
    let contents = contents.map_err(|failure| match failure.code {
        Code::RecipeBomb => Never::TooLarge,
        _ => Never::Unreadable(failure.detail),
    })?;
    if let Some(never) = never {
        return Err(never);
    }
    let place = contents.description.map_err(Never::Description)?;
    let (description, top) = (place.path(), place.dir);
    let (mut all, mut others) = (Fields(Sha256::new()), Fields(Sha256::new()));
    for (path, digest) in files {
        let below = path.strip_prefix(&top).ok();
        let first = below.and_then(|below| below.components().next());
        if first.is_some_and(|first| LATE.iter().any(|late| first.as_os_str() == *late)) {
            continue;
        }
        if below.is_some_and(|below| below.as_os_str() == SCRIPT) {
            if !asked {
                return Err(Never::Unasked);
            }
            if let Some(late) = named.get(&path) {
                return Err(Never::Names(late));
            }
        }
        let Some(digest) = digest else {
            return Err(Never::Special(path));
        };
        for hash in [Some(&mut all), (path != description).then_some(&mut others)]
            .into_iter()
            .flatten()
        {
            hash.add(path.as_os_str().as_encoded_bytes());
            hash.add(digest);
        }
    }
    let without_packages = described.get(&description).copied().flatten().map(|digest: [u8; 32]| {
        others.add(description.as_os_str().as_encoded_bytes());
        others.add(digest);
        others.0.finalize().into()
    });
    Ok(Early {
        all: all.0.finalize().into(),
        without_packages,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Entry<'a> = (&'a str, tar::EntryType, &'a str);

    const FILE: tar::EntryType = tar::EntryType::Regular;

    fn archive(entries: &[Entry<'_>]) -> Bytes {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, kind, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            if kind.is_file() {
                header.set_size(content.len() as u64);
                builder.append_data(&mut header, path, content.as_bytes()).unwrap();
            } else {
                header.set_size(0);
                builder.append_link(&mut header, path, content).unwrap();
            }
        }
        builder.into_inner().unwrap().into()
    }

    fn of(entries: &[Entry<'_>]) -> Result<String, String> {
        if_asked(false, entries)
    }

    fn if_asked(asked: bool, entries: &[Entry<'_>]) -> Result<String, String> {
        early_files(&archive(entries), asked)
            .map(|early| hex::encode(early.all))
            .map_err(|never| never.to_string())
    }

    #[test]
    fn only_late_files_do_not_count() {
        let base = [("r/config.xml", FILE, "<image/>"), ("r/config.sh", FILE, "one")];
        let same = of(&base).unwrap();
        let with = |entry| of(&[base[0], entry]);
        assert_eq!(with(("r/config.sh", FILE, "two")).unwrap(), same);
        assert_eq!(with(("r/root/etc/motd", FILE, "hello")).unwrap(), same);
        assert_eq!(
            with(("r/root/etc/link", tar::EntryType::Symlink, "motd")).unwrap(),
            same
        );
        assert_eq!(with(("r/kiln.lock", FILE, "version = 1")).unwrap(), same);
        assert_ne!(with(("r/other.sh", FILE, "")).unwrap(), same);
        // Only at the top are they late.
        assert_ne!(with(("r/sub/config.sh", FILE, "")).unwrap(), same);
        assert_ne!(with(("config.sh", FILE, "")).unwrap(), same);
        assert_ne!(of(&[("r/config.xml", FILE, "<image />"), base[1]]).unwrap(), same);
    }

    #[test]
    fn recipes_are_similar_if_they_differ_in_named_packages_only() {
        let of = |entries: &[Entry<'_>]| early_files(&archive(entries), false).map(|early| early.without_packages);
        let with = |text: &str| of(&[("r/config.xml", FILE, text), ("r/other", FILE, "one")]).unwrap();
        let packages = |names: &str| format!("<image><packages type=\"image\">{names}</packages></image>");
        let none = with(&packages(""));
        assert!(none.is_some());
        assert_eq!(with(&packages("<package name=\"a\"/>")), none);
        assert_ne!(with(&packages("<ignore name=\"a\"/>")), none);
        for (path, text) in [
            ("r/config.xml", "two"),
            ("r/appliance.kiwi", "one"),
            ("r/config.xml", ""),
        ] {
            let entries = [(path, FILE, &*packages("")), ("r/other", FILE, text)];
            assert_ne!(of(&entries).unwrap(), none, "{path} {text}");
        }
        // What cannot be looked at is similar to nothing.
        assert_eq!(with(&packages("{% if a %}<package name=\"a\"/>{% endif %}")), None);
        assert_eq!(
            with(&packages(&" ".repeat(LARGEST_DESCRIPTION.try_into().unwrap()))),
            None
        );
        // A file that kiwi does not take is one of the others.
        let more = |text: &str| of(&[("r/config.xml", FILE, "<image/>"), ("r/a.kiwi", FILE, text)]).unwrap();
        assert!(more("one").is_some() && more("one") != more("two"));
    }

    #[test]
    fn an_early_script_is_in_a_layer_that_was_asked_for() {
        let description = ("r/config.xml", FILE, "<image/>");
        let with = |asked, script| if_asked(asked, &[description, ("r/post_bootstrap.sh", FILE, script)]);
        let unasked = with(false, "date > /etc/built").unwrap_err();
        assert_eq!(
            unasked,
            "post_bootstrap.sh may fetch something or take the time, and a layer would keep that: it is kept where the request \
             or the recipe asks to reuse packages"
        );
        let one = with(true, "date > /etc/built").unwrap();
        assert_ne!(with(true, "date >> /etc/built").unwrap(), one);
        assert_ne!(if_asked(true, &[description]).unwrap(), one);
        let names = with(true, "true\n. /image/config.sh").unwrap_err();
        assert_eq!(
            names,
            "post_bootstrap.sh names config.sh, which can change without another layer"
        );
        // Where it cannot be searched to its end, it may name them.
        let long = "#".repeat(1 << 20) + "config.sh";
        assert!(with(true, &long).is_err());
        // Elsewhere it is a file like any other.
        assert!(if_asked(false, &[description, ("r/sub/post_bootstrap.sh", FILE, "config.sh")]).is_ok());
    }

    #[test]
    fn what_could_lead_to_late_files_has_no_layer() {
        let description = ("config.xml", FILE, "<image/>");
        for (entry, why) in [
            (
                ("include.xml", tar::EntryType::Symlink, "root/x"),
                "include.xml is a link, or of another special kind",
            ),
            (
                ("include.xml", tar::EntryType::Link, "config.sh"),
                "include.xml is a link, or of another special kind",
            ),
            (("config.xml", FILE, "<image />"), "config.xml is there twice"),
        ] {
            assert_eq!(of(&[description, entry]).unwrap_err(), why);
        }
        assert!(early_files(&Bytes::from_static(b"no archive"), true).is_err());
        let none = of(&[("a", FILE, "")]).unwrap_err();
        assert_eq!(none, "the recipe has no config.xml and no file *.kiwi");
        assert!(of(&[("a/config.xml", FILE, ""), ("b/config.xml", FILE, "")]).is_err());
    }
}
