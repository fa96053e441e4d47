//! `kiln lock`: writes the packages of a recipe's images into `kiln.lock` beside its description. Builds the images, or asks the
//! server and S3 about one that is there, and writes that file only.
//!
//! What the packages are is read from the provenance of an image, whoever built it.

use clap::Args;
use kiln_records::{
    Code, Failure, JobId, RepositoryState,
    arch::Arch,
    installed::{is_sha256, of_purl},
    lock::{FILE, Lock, Locked, differences},
    protocol::RecipeType,
};
use reqwest::Method;
use serde_json::Value;

use super::{
    build::BuildArguments,
    lock_file::{read, replace},
    printer::Printer,
    records::request,
    session::{ReadConfig, ServerOptions, Session},
    why::statement,
};
use crate::{
    client::collection::{IMAGES, JOBS},
    orchestrate::recipe::RecipeArchive,
    origin::REPOSITORY,
};

/// Write the packages of a recipe's images into a lock file beside its description.
///
/// The images are built, or are there already (`--image`). `kiln build --locked` then refuses other packages.
#[derive(Debug, Args)]
pub(super) struct LockArguments {
    /// Show what differs from the file that is there, and replace it.
    #[arg(long)]
    update: bool,

    /// Take the packages of an image that is there, by its id or name, and build none. May be repeated, for further
    /// architectures.
    #[arg(long, value_name = "IMAGE", conflicts_with = "arch")]
    image: Vec<String>,

    #[command(flatten)]
    build: BuildArguments,

    #[command(flatten)]
    server: ServerOptions,
}

impl LockArguments {
    pub(super) async fn run(self, config: ReadConfig<'_>, printer: &Printer) -> Result<(), Failure> {
        let recipe = &self.build.recipe;
        if !recipe.is_dir() {
            let why = format!(
                "{} is no directory: the lock file lies beside the description",
                recipe.display()
            );
            return Err(Failure::new(Code::RecipeMissing, why).hint("name the directory with the recipe's config.xml"));
        }
        let before = read(recipe)?.unwrap_or_default();
        if !self.image.is_empty() {
            let of_images = async |session: &Session| {
                let mut found = Vec::new();
                for image in &self.image {
                    found.push(of_image(session, image).await?);
                }
                self.write(before, found, printer)
            };
            return Box::pin(self.server.with(config, printer, false, of_images)).await;
        }
        // Before the build, which takes its time.
        let archive = RecipeArchive::read(recipe)?;
        if archive.kind == RecipeType::Containerfile {
            let why = "a Containerfile has no lock file: its instructions install packages as they like";
            return Err(Failure::new(Code::LockUnknown, why)
                .hint("name versions in its instructions, or bases by their digests"));
        }
        for arch in self.build.archs(&archive)? {
            self.may_replace(&before, arch)?;
        }
        let of_jobs = async |session: &Session, jobs: &[JobId]| {
            let mut found = Vec::new();
            for job in jobs {
                let job = session.client.find(&JOBS, &job.to_string()).await?;
                let job = request(session, Method::GET, &JOBS, &job, None).await?;
                let image = job.text("resultant_image_id").unwrap_or_default();
                found.push(of_image(session, image).await?);
            }
            self.write(before, found, printer)
        };
        Box::pin(self.build.make(&config()?, printer, false, of_jobs)).await
    }

    fn may_replace(&self, lock: &Lock, arch: Arch) -> Result<(), Failure> {
        if self.update || lock.of(arch).is_none() {
            return Ok(());
        }
        let recipe = self.build.recipe.display();
        let why = format!("{recipe} has a {FILE} with packages for {arch}");
        Err(Failure::new(Code::LockExists, why).hint("`kiln lock --update` shows what differs, and replaces them"))
    }

    /// Says what is new, and writes the file.
    fn write(&self, mut lock: Lock, found: Vec<(Arch, Locked)>, printer: &Printer) -> Result<(), Failure> {
        for (arch, locked) in found {
            self.may_replace(&lock, arch)?;
            if let Some(before) = lock.of(arch) {
                let differ = differences(&before.packages, &locked.packages);
                for difference in &differ {
                    printer.result(difference);
                }
                if differ.is_empty() {
                    printer.result(format_args!("the packages for {arch} are the locked ones"));
                }
            }
            let (count, without) = (
                locked.packages.len(),
                locked
                    .packages
                    .iter()
                    .filter(|package| package.sha256.is_none())
                    .count(),
            );
            let note = match without {
                0 => String::new(),
                _ => format!(", {without} of them without a known digest"),
            };
            printer.result(format_args!("locked     {arch}: {count} packages{note}"));
            lock.set(arch, locked);
        }
        let text = lock.to_text().map_err(|error| Failure::new(Code::Format, error))?;
        replace(&self.build.recipe, &text).map_err(|error| Failure::io("cannot write the lock file", &error))
    }
}

/// The architecture of an image, and its packages.
async fn of_image(session: &Session, given: &str) -> Result<(Arch, Locked), Failure> {
    let found = session.client.find(&IMAGES, given).await?;
    let record = request(session, Method::GET, &IMAGES, &found, None).await?;
    let arch = record.text("arch").unwrap_or_default().parse();
    let arch = arch.map_err(|error| Failure::new(Code::UnknownArch, error))?;
    let statement = statement(session, given, &found.id).await?;
    let why = format!("the provenance of `{given}` does not say which packages were installed");
    let unknown = || {
        Failure::new(Code::LockUnknown, why)
            .hint("images from recipes say it, if their packages are debs or rpms; an old or changed image does not")
    };
    Ok((arch, of_statement(&statement).ok_or_else(unknown)?))
}

/// The packages in a statement, if it has any.
fn of_statement(predicate: &Value) -> Option<Locked> {
    let mut locked = Locked::default();
    for source in predicate.pointer("/buildDefinition/resolvedDependencies")?.as_array()? {
        let uri = source["uri"].as_str().unwrap_or_default();
        let sha256 = source["digest"]["sha256"].as_str().filter(|digest| is_sha256(digest));
        // A package may have any name.
        if let Some(mut package) = of_purl(uri) {
            package.sha256 = sha256.map(str::to_owned);
            locked.packages.push(package);
        } else if source["name"] == REPOSITORY {
            locked.repositories.extend(sha256.map(|sha256| RepositoryState {
                metadata: uri.to_owned(),
                sha256: sha256.to_owned(),
            }));
        }
    }
    locked.packages.sort();
    (!locked.packages.is_empty()).then_some(locked)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_packages_of_a_statement_are_locked() {
        let (a, b) = ("a".repeat(64), "b".repeat(64));
        let predicate = json!({ "buildDefinition": { "resolvedDependencies": [
            { "name": "recipe", "uri": "s3://r/1", "digest": { "sha256": a } },
            { "name": "repository", "uri": "http://h/Release", "digest": { "sha256": b } },
            { "name": "zlib", "uri": "pkg:rpm/zlib@1.2-1?arch=x86_64&epoch=1" },
            { "name": "repository", "uri": "pkg:rpm/sles/bash@5.2-1?arch=x86_64", "digest": { "sha256": a } },
        ] } });
        let locked = of_statement(&predicate).unwrap();
        let packages: Vec<_> = locked
            .packages
            .iter()
            .map(|one| (&*one.name, &*one.version, &*one.arch, one.sha256.as_deref()))
            .collect();
        assert_eq!(
            packages,
            [
                ("bash", "5.2-1", "x86_64", Some(&*a)),
                ("zlib", "1:1.2-1", "x86_64", None)
            ]
        );
        assert_eq!(locked.repositories.len(), 1);
        assert_eq!(of_statement(&json!({})), None);
        assert_eq!(
            of_statement(&json!({ "buildDefinition": { "resolvedDependencies": [] } })),
            None
        );
    }
}
