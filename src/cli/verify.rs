//! `kiln verify`: whether an image is what its builder made. Reads a directory, or the objects of an image's record: asks
//! the server and S3.

use std::{
    collections::BTreeMap,
    io::Read,
    path::{Path, PathBuf},
};

use clap::Args;
use kiln_records::{Code, Failure, Link, artifact::Digesting, link::bucket_and_key};
use owo_colors::OwoColorize;
use reqwest::Method;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    image_source::with_artifacts,
    printer::Printer,
    records::request,
    session::{ReadConfig, ServerOptions, Session},
};
use crate::{
    artifacts::{ArtifactStore, ReadError, manifest},
    client::collection::IMAGES,
    origin::{self, Envelope, Finding, MANIFEST, PublicKey, Statement},
};

/// Check that an image is what its builder made: every object against the manifest and the provenance, and the
/// provenance's signature against a key.
///
/// Every object is read. Exit code 0 means that each is shown to be right.
#[derive(Debug, Args)]
pub(super) struct VerifyArguments {
    /// The image: its id or name, or a directory with its files, such as `kiln build --output` makes.
    image: String,

    /// The builder's public key (PEM). Without it, nobody is shown to vouch for the image: its objects are only compared with
    /// each other.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,

    /// The recipe that the image must be made from: the SHA-256 of its archive, or the id of its record.
    #[arg(long, value_name = "SHA256|ID")]
    recipe: Option<String>,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    options: ServerOptions,
}

/// The objects of an image, by the last part of their keys.
struct Objects {
    /// Digests of their content; `None` for an object that is not there.
    found: BTreeMap<String, Option<String>>,
    /// Digests that the manifest names.
    named: BTreeMap<String, Option<String>>,
    statement: Option<Vec<u8>>,
    envelope: Option<Vec<u8>>,
}

/// What `kiln verify` found.
#[derive(Debug, Serialize)]
struct Report {
    image: String,
    /// The id of the key that signed the provenance; `None` if no key was named.
    signed_by: Option<String>,
    /// Who made the image, as its provenance says.
    builder: Option<String>,
    objects: Vec<Finding>,
    /// What is wrong with the image as a whole.
    faults: Vec<String>,
}

impl VerifyArguments {
    pub(super) async fn run(self, config: ReadConfig<'_>, printer: &Printer) -> Result<(), Failure> {
        let key = self.key.as_deref().map(PublicKey::read).transpose();
        let key = key.map_err(|error| Failure::new(Code::KeyUnusable, error))?;
        let objects = if Path::new(&self.image).is_dir() {
            in_directory(Path::new(&self.image))?
        } else {
            self.of_record(config, printer).await?
        };
        let report = judge(self.image, &objects, key.as_ref(), self.recipe.as_deref());
        let wrong = report.objects.iter().filter(|object| object.fault.is_some()).count() + report.faults.len();
        if self.json {
            let text = serde_json::to_string_pretty(&report).map_err(|error| Failure::new(Code::Format, error))?;
            printer.result(text);
        } else {
            show(&report, printer);
        }
        match wrong {
            0 => Ok(()),
            1 => Err(Failure::new(
                Code::NotVerified,
                "the image is not as its builder made it: 1 fault",
            )),
            wrong => Err(Failure::new(
                Code::NotVerified,
                format!("the image is not as its builder made it: {wrong} faults"),
            )),
        }
    }

    async fn of_record(&self, config: ReadConfig<'_>, printer: &Printer) -> Result<Objects, Failure> {
        let mut objects = None;
        let work = async |session: &Session| {
            let link = self.manifest(session).await?;
            let read = async |store: &ArtifactStore| in_s3(store, &link, printer).await;
            objects = Some(with_artifacts(session, &config()?, read).await?);
            Ok(())
        };
        Box::pin(self.options.with(config, printer, false, work)).await?;
        objects.ok_or_else(|| Failure::new(Code::RecordUnknown, format!("there is no image `{}`", self.image)))
    }

    /// The link to the image's manifest.
    async fn manifest(&self, session: &Session) -> Result<Link, Failure> {
        let found = session.client.find(&IMAGES, &self.image).await?;
        let record = request(session, Method::GET, &IMAGES, &found, None).await?;
        let link = record.get("link");
        let (bucket, key) = link.text("path").and_then(bucket_and_key).ok_or_else(|| {
            let cause = format!("the image `{}` has no manifest in S3", self.image);
            Failure::new(Code::ManifestInvalid, cause).hint("`kiln images update` gives it a link to one")
        })?;
        Ok(Link::s3(bucket, key, link.text("etag").unwrap_or_default()))
    }
}

/// Reads the objects of an image in S3.
async fn in_s3(store: &ArtifactStore, link: &Link, printer: &Printer) -> Result<Objects, Failure> {
    let (text, entries) = store.manifest_with_entries(link).await?;
    let (bucket, key) = link.bucket_and_key().unwrap_or_default();
    let prefix = key.rsplit_once('/').map_or("", |(prefix, _)| prefix);
    let small = async |name: &str, limit| {
        let read = store.read_small(bucket, &format!("{prefix}/{name}"), limit).await;
        read.map_err(|error| match error {
            ReadError::TooLarge(size) => Failure::new(
                Code::NotVerified,
                format!("{name} has {size} bytes, more than any that Kiln writes"),
            ),
            ReadError::S3(failure) => failure,
        })
    };
    let mut objects = Objects {
        found: BTreeMap::from([(MANIFEST.to_owned(), Some(hex::encode(Sha256::digest(&text))))]),
        named: BTreeMap::new(),
        statement: small(origin::STATEMENT, origin::MAX_SIZE).await?.map(Into::into),
        envelope: small(origin::ENVELOPE, origin::MAX_SIZE).await?.map(Into::into),
    };
    for (path, entry) in entries {
        let (bucket, key) = bucket_and_key(&path).ok_or_else(|| {
            Failure::new(
                Code::ManifestInvalid,
                format!("{path} in the manifest is no path in S3"),
            )
        })?;
        let name = key.rsplit('/').next().unwrap_or_default();
        printer.note(format_args!("reading {path}"));
        let digest = match store.digests(bucket, key).await {
            Ok(digests) => Some(digests.sha256),
            Err(failure) if failure.code == Code::S3Missing => None,
            Err(failure) => return Err(failure),
        };
        objects.add(name, digest, &entry)?;
    }
    Ok(objects)
}

/// Reads the files of an image in a directory.
fn in_directory(dir: &Path) -> Result<Objects, Failure> {
    let small = |name: &str, limit: usize| match kiln_files::read_beneath(dir, Path::new(name), limit as u64) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::io("cannot read the image", &error)),
    };
    let text = small(MANIFEST, manifest::MAX_SIZE)?.ok_or_else(|| {
        let cause = format!("{} has no {MANIFEST}", dir.display());
        Failure::new(Code::ImageFiles, cause).hint("`kiln build --output` writes one beside the image's files")
    })?;
    let unusable =
        |error: serde_json::Error| Failure::new(Code::ManifestInvalid, format!("{MANIFEST} cannot be read: {error}"));
    let manifest: Value = serde_json::from_slice(&text).map_err(unusable)?;
    let mut objects = Objects {
        found: BTreeMap::from([(MANIFEST.to_owned(), Some(hex::encode(Sha256::digest(&text))))]),
        named: BTreeMap::new(),
        statement: small(origin::STATEMENT, origin::MAX_SIZE)?,
        envelope: small(origin::ENVELOPE, origin::MAX_SIZE)?,
    };
    for entry in manifest["artifacts"].as_array().into_iter().flatten() {
        let path = entry["link"]["path"].as_str().unwrap_or_default();
        let name = path.rsplit('/').next().filter(|name| !name.is_empty() && *name != "..");
        let name =
            name.ok_or_else(|| Failure::new(Code::ManifestInvalid, "an artifact in the manifest has no path"))?;
        let digest = digest_of(dir, name).map_err(|error| Failure::io("cannot read the image", &error))?;
        objects.add(name, digest, entry)?;
    }
    Ok(objects)
}

/// The SHA-256 of a file in a directory; `None` if it is not there.
fn digest_of(dir: &Path, name: &str) -> std::io::Result<Option<String>> {
    let mut file = match kiln_files::open_beneath(dir, Path::new(name)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let (mut reading, mut block) = (Digesting::default(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut block)? {
            0 => return Ok(Some(reading.finish().sha256)),
            length => reading.update(&block[..length]),
        }
    }
}

impl Objects {
    fn add(&mut self, name: &str, digest: Option<String>, entry: &Value) -> Result<(), Failure> {
        let named = entry.get("sha256").and_then(Value::as_str).map(str::to_owned);
        if self.named.insert(name.to_owned(), named).is_some() || self.found.insert(name.to_owned(), digest).is_some() {
            let cause = format!("the manifest names two objects that end in `{name}`");
            return Err(Failure::new(Code::ManifestInvalid, cause));
        }
        Ok(())
    }
}

fn judge(image: String, objects: &Objects, key: Option<&PublicKey>, recipe: Option<&str>) -> Report {
    let mut faults = Vec::new();
    let statement = match key {
        Some(key) => Some(signed(objects, key).unwrap_or_else(|fault| {
            faults.push(fault);
            // Nobody vouches for anything.
            Statement::provenance(Vec::new(), Value::Null)
        })),
        None => objects.statement.as_deref().and_then(|text| {
            let statement = Statement::read(text);
            if statement.is_none() {
                faults.push(format!("{} is no in-toto statement", origin::STATEMENT));
            }
            statement
        }),
    };
    if let Some(recipe) = recipe
        && !statement.as_ref().is_some_and(|statement| is_from(statement, recipe))
    {
        faults.push(format!(
            "the provenance does not say that it was made from recipe {recipe}"
        ));
    }
    let builder = statement.as_ref().and_then(|statement| {
        let builder = &statement.predicate["runDetails"]["builder"]["id"];
        builder.as_str().map(str::to_owned)
    });
    Report {
        image,
        signed_by: key.filter(|_| faults.is_empty()).map(|key| key.id().to_owned()),
        builder,
        objects: origin::check(&objects.found, &objects.named, statement.as_ref()),
        faults,
    }
}

/// The statement that the key has signed.
fn signed(objects: &Objects, key: &PublicKey) -> Result<Statement, String> {
    let envelope = objects.envelope.as_deref();
    let envelope = envelope.ok_or_else(|| format!("it is not signed: there is no {}", origin::ENVELOPE))?;
    let payload = Envelope::read(envelope).and_then(|envelope| envelope.open(origin::STATEMENT_TYPE, key));
    let payload = payload.map_err(|error| format!("{}: {error}", origin::ENVELOPE))?;
    let statement = Statement::read(&payload).ok_or_else(|| "what is signed is no in-toto statement".to_owned())?;
    if objects.statement.as_ref().is_some_and(|unsigned| *unsigned != payload) {
        return Err(format!(
            "{} differs from the statement that is signed",
            origin::STATEMENT
        ));
    }
    Ok(statement)
}

/// Whether provenance says that the image was made from a recipe: by the digest of its archive, or its id.
fn is_from(statement: &Statement, recipe: &str) -> bool {
    let definition = &statement.predicate["buildDefinition"];
    let is_it = |dependency: &Value| dependency["name"] == "recipe" && dependency["digest"]["sha256"] == recipe;
    let mut dependencies = definition["resolvedDependencies"].as_array().into_iter().flatten();
    definition["externalParameters"]["recipe"] == recipe || dependencies.any(is_it)
}

fn show(report: &Report, printer: &Printer) {
    for object in &report.objects {
        match &object.fault {
            None => printer.result(format_args!("{:<20}  {}", object.name, "ok".green())),
            Some(fault) => printer.result(format_args!("{:<20}  {}  {fault}", object.name, "no".red().bold())),
        }
    }
    for fault in &report.faults {
        printer.result(format_args!("{:<20}  {}  {fault}", "provenance", "no".red().bold()));
    }
    if let Some(builder) = &report.builder {
        printer.note(format_args!("built by    {builder}"));
    }
    match &report.signed_by {
        Some(key) => printer.note(format_args!("signed by   {key}")),
        None if report.faults.is_empty() => {
            printer.note("signature   not checked: `--key FILE` names the public key of the builder");
        }
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::origin::{Signer, Subject, new_keys::key_pair};

    /// Objects of an image that is signed by a new key, and the key's public half.
    async fn signed_objects(dir: &Path, algorithm: &[&str]) -> (Objects, PublicKey) {
        let (secret, public) = key_pair(dir, "key", algorithm);
        let subjects = [(MANIFEST, "m"), ("rootfs", "r")].map(|(name, digest)| Subject::new(name, digest));
        let predicate =
            json!({"buildDefinition": {"resolvedDependencies": [{"name": "recipe", "digest": {"sha256": "a"}}]}});
        let text = serde_json::to_vec(&Statement::provenance(subjects.to_vec(), predicate)).unwrap();
        let signer = Signer::with_key(&secret).unwrap();
        let envelope = signer.sign(origin::STATEMENT_TYPE, &text).await.unwrap();
        let digest = |digest: &str| Some(digest.to_owned());
        let objects = Objects {
            found: BTreeMap::from([(MANIFEST.to_owned(), digest("m")), ("rootfs".to_owned(), digest("r"))]),
            named: BTreeMap::from([("rootfs".to_owned(), digest("r"))]),
            statement: Some(text),
            envelope: Some(serde_json::to_vec(&envelope).unwrap()),
        };
        (objects, PublicKey::read(&public).unwrap())
    }

    fn faults(objects: &Objects, key: &PublicKey) -> usize {
        let report = judge(String::new(), objects, Some(key), Some("a"));
        report.faults.len() + report.objects.iter().filter(|object| object.fault.is_some()).count()
    }

    #[tokio::test]
    async fn each_kind_of_key_signs_and_nothing_else_passes() {
        let ec = |curve| vec!["-algorithm", "EC", "-pkeyopt", curve];
        for algorithm in [
            vec!["-algorithm", "ed25519"],
            ec("ec_paramgen_curve:P-256"),
            ec("ec_paramgen_curve:P-384"),
        ] {
            let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let (mut objects, key) = signed_objects(one.path(), &algorithm).await;
            let (_, stranger) = signed_objects(other.path(), &algorithm).await;
            assert_eq!(faults(&objects, &key), 0, "{algorithm:?}");
            // Each with the recipe that nobody vouches for.
            assert!(faults(&objects, &stranger) >= 2);
            let envelope = objects.envelope.take();
            assert!(faults(&objects, &key) >= 2);
            objects.envelope = envelope.clone().map(|mut text| {
                // A character of the payload: the envelope begins with it.
                let place = text.windows(2).position(|pair| pair == b"ey").unwrap() + 8;
                text[place] = if text[place] == b'A' { b'B' } else { b'A' };
                text
            });
            assert!(faults(&objects, &key) >= 2);
            objects.envelope = envelope;
            objects.statement = Some(b"{}".to_vec());
            assert!(faults(&objects, &key) >= 1);
        }
    }
}
