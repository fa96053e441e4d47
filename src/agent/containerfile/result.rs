//! Takes what buildah has made out of its storage: the archive, the root, and what is known of both. Runs buildah, and touches the
//! job's disk space.

use std::{io, path::PathBuf};

use kiln_records::{Code, Failure, Installed, RepositoryState, Warning, protocol::RecipeWork};
use serde::Deserialize;
use tokio::process::Command;

use super::{
    BUILDAH, IMAGE, docker_archive,
    refusal::{self, Beyond},
    secrets, stages,
};
use crate::{
    building::Building,
    inventory,
    outputs::remove,
    pauses,
    process::{self, blocking},
};

/// The container by which the finished image's root is read.
const READ: &str = "kiln-read";

/// Writes the image as an archive, and copies its root to where that of every job is.
pub(super) async fn take_out(building: Building<'_>, work: &RecipeWork) -> Result<(), Failure> {
    let configuration = told_by(&["inspect", "--type", "image", IMAGE]).await?;
    let beyond = beyond_oci(&configuration)?;
    for text in beyond.lost() {
        building
            .events
            .warn(Warning::new(Code::ContainerfileIgnored, text))
            .await;
    }
    let archive = building.outputs.container();
    let name = docker_archive::name_of(&building.job.image_name);
    let to = format!("oci-archive:{}:{name}", archive.display());
    buildah(building, &["push", "--quiet", "--format", "oci", IMAGE, &to]).await?;
    let (whole, tag) = (archive.clone(), name.clone());
    let added =
        move || docker_archive::add(&whole, &tag).map_err(|error| Failure::io("cannot complete the archive", &error));
    blocking(added).await?;
    // Whoever makes a container of an image carries out its ONBUILD, which is for images that are built on it.
    let source = if beyond.has_triggers() { &to } else { IMAGE };
    buildah(
        building,
        &[
            "from",
            "--pull=never",
            "--platform",
            &super::platform(building.job),
            "--name",
            READ,
            source,
        ],
    )
    .await?;
    let mounted = buildah(building, &["mount", READ]).await?;
    let root = building.outputs.root();
    let from = PathBuf::from(mounted.trim());
    let found = from.clone();
    let found = blocking(move || Ok(stages::arch_of(&found))).await?;
    if let Some(other) = found.filter(|arch| *arch != building.job.arch) {
        let detail = format!(
            "the programs of the image are for {other}, and not for {}",
            building.job.arch
        );
        return Err(Failure::new(Code::BaseWithoutArch, detail)
            .hint("its last stage has a base for another architecture: look for `FROM --platform`, and for a base by its digest"));
    }
    // An ordinary directory, which later steps may change, and another attempt can go on with.
    let cleared = root.clone();
    blocking(move || remove(&cleared).map_err(|error| Failure::io("cannot remove the root of an instruction", &error)))
        .await?;
    let mut copy = Command::new("cp");
    copy.args(["--archive", "--one-file-system", "--no-target-directory"])
        .arg(from)
        .arg(&root);
    let copied = process::run(copy, None, building.events, |_| false).await?;
    copied.check_own(|finished| Failure::new(Code::BuildFailed, finished.last_words().unwrap_or("cp failed")))?;
    let secrets = work.secrets.clone();
    blocking(move || secrets::check(&secrets, &root, &configuration)).await?;
    record(building, bases().await?).await?;
    buildah(building, &["rm", "--all"]).await.map(drop)
}

/// What buildah answers, as JSON.
async fn told_by(words: &[&str]) -> Result<Vec<u8>, Failure> {
    let told = Command::new(BUILDAH).args(words).kill_on_drop(true).output().await;
    told.map(|told| told.stdout).map_err(|error| unread(&error))
}

fn unread(error: &io::Error) -> Failure {
    Failure::io("cannot read what is known of the image", error)
}

/// The images that were read for this one, in the order of their names.
async fn bases() -> Result<Vec<RepositoryState>, Failure> {
    #[derive(Deserialize)]
    struct Listed {
        names: Option<Vec<String>>,
        digest: String,
    }
    let listed = told_by(&["images", "--json"]).await?;
    let listed: Option<Vec<Listed>> = serde_json::from_slice(&listed).map_err(|error| unread(&error.into()))?;
    let mut bases: Vec<RepositoryState> = listed
        .unwrap_or_default()
        .into_iter()
        .flat_map(|image| {
            let digest = image.digest.trim_start_matches("sha256:").to_owned();
            let names = image.names.unwrap_or_default().into_iter();
            names.map(move |name| (name, digest.clone()))
        })
        .filter(|(name, digest)| !name.starts_with("localhost/") && !digest.is_empty())
        .map(|(metadata, sha256)| RepositoryState { metadata, sha256 })
        .collect();
    bases.sort_by(|one, other| one.metadata.cmp(&other.metadata));
    Ok(bases)
}

/// Records what the image is made of.
async fn record(building: Building<'_>, bases: Vec<RepositoryState>) -> Result<(), Failure> {
    let (root, aside) = (building.outputs.root(), building.outputs.scratch().to_owned());
    let listed = blocking(move || Ok(inventory::installed(&root, &aside))).await?;
    let why = match listed {
        Ok((installed, _)) => {
            let installed = Installed { bases, ..installed };
            if installed.is_sound() {
                return pauses::record(&installed, building).await;
            }
            "they are too many, or their names too long".to_owned()
        }
        Err(error) => error.to_string(),
    };
    let text = format!("the packages and bases are not recorded: {why}");
    building.events.warn(Warning::new(Code::PackagesUnrecorded, text)).await;
    Ok(())
}

/// What the image's configuration has that its archive will not.
fn beyond_oci(configuration: &[u8]) -> Result<Beyond, Failure> {
    #[derive(Deserialize)]
    struct Inspected {
        #[serde(rename = "Docker")]
        docker: Docker,
    }
    #[derive(Deserialize)]
    struct Docker {
        config: Option<Beyond>,
    }
    let inspected: Inspected = serde_json::from_slice(configuration).map_err(|error| unread(&error.into()))?;
    Ok(inspected.docker.config.unwrap_or_default())
}

/// Runs buildah for something that no program of the image has a part in. Returns what it wrote.
async fn buildah(building: Building<'_>, words: &[&str]) -> Result<String, Failure> {
    let mut command = Command::new(BUILDAH);
    command.args(words);
    let said = std::cell::RefCell::new(String::new());
    let keep = |line: &str| {
        line.clone_into(&mut said.borrow_mut());
        false
    };
    let finished = process::run(command, None, building.events, keep).await?;
    finished.check_own(|finished| refusal::cause(&finished.tail, &finished.last_error, ""))?;
    Ok(said.into_inner())
}
