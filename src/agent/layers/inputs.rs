//! Finds what a layer depends on besides the recipe's archive: the state of its repositories, and the sandbox's own tools.
//! Reads files of the recipe and of the sandbox, and talks HTTP to the repositories.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::StreamExt;
use kiln_records::{LayerUse, RepositoryState, protocol::LayerInputs, recipe::LATE};
use reqwest::{Client, Url};
use sha2::{Digest, Sha256};

use crate::{
    digest as digests,
    kiwi_config::{self, Choice, Metadata},
};

/// The list of the toolbox's own packages, with their versions.
const TOOLS: &str = "/var/lib/dpkg/status";

/// How long a repository's metadata may take.
const ANSWER: Duration = Duration::from_mins(1);

/// The most bytes of the metadata that is looked at: that file only lists others.
const LARGEST: usize = 64 << 20;

/// The inputs of a layer.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) inputs: LayerInputs,
    pub(super) repositories: Vec<RepositoryState>,
    metadata: Vec<Metadata>,
}

/// Finds the inputs of the layer of a recipe, or the reason why it can have none.
pub(super) async fn find(recipe: &Path, choice: Choice<'_>, web: &Client) -> Result<Found, String> {
    let metadata = kiwi_config::metadata(recipe, choice).map_err(|failure| failure.detail)??;
    if metadata.len() > LayerUse::MOST_REPOSITORIES {
        return Err("the recipe has too many repositories".to_owned());
    }
    let repositories = look(&metadata, web).await?;
    let tools = fs_err::read(TOOLS).map_err(|error| error.to_string())?;
    let mut hash = Sha256::new();
    hash.update(Sha256::digest(tools));
    let description = kiwi_config::without_packages(recipe, choice).map_err(|failure| failure.detail)?;
    let name = description.as_ref().map(|(name, _)| name.as_path());
    let [all, others] = early_files(recipe, name).map_err(|error| error.to_string())?;
    let similar = description.map(|(_, rest)| {
        let mut hash = hash.clone();
        hash.update(rest);
        hash.update(others);
        hex::encode(hash.finalize())
    });
    hash.update(all);
    let here = hex::encode(hash.clone().finalize());
    for (repository, found) in metadata.iter().zip(&repositories) {
        for text in [repository.shown.as_str(), &found.metadata, &found.sha256] {
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text);
        }
    }
    let found = hex::encode(hash.finalize());
    Ok(Found {
        inputs: LayerInputs { found, here, similar },
        repositories,
        metadata,
    })
}

/// Digests of a recipe's early files as its templates were rendered: of all, and of all but `one`. The server knows these files as
/// they are in the archive, and a template may include a late one.
fn early_files(recipe: &Path, one: Option<&Path>) -> io::Result<[[u8; 32]; 2]> {
    let (mut all, mut others) = (Sha256::new(), Sha256::new());
    let mut pending = vec![PathBuf::new()];
    while let Some(dir) = pending.pop() {
        let mut names: Vec<_> = fs_err::read_dir(recipe.join(&dir))?.collect::<Result<_, _>>()?;
        names.sort_by_key(fs_err::DirEntry::file_name);
        for entry in names {
            let path = dir.join(entry.file_name());
            if LATE.iter().any(|late| path == Path::new(late)) {
                continue;
            }
            let kind = entry.file_type()?;
            if kind.is_dir() {
                pending.push(path);
            } else if kind.is_file() {
                let (_, sha256) = digests::sha256_of(&entry.path())?;
                let is_one = one == Some(&path);
                for hash in [Some(&mut all), (!is_one).then_some(&mut others)].into_iter().flatten() {
                    hash.update((path.as_os_str().len() as u64).to_be_bytes());
                    hash.update(path.as_os_str().as_encoded_bytes());
                    hash.update(&sha256);
                }
            }
            // With others there is no layer.
        }
    }
    Ok([all.finalize().into(), others.finalize().into()])
}

impl Found {
    /// Whether the repositories are still as they were found. What cannot be looked at counts as changed.
    pub(super) async fn is_unchanged(&self, web: &Client) -> bool {
        look(&self.metadata, web)
            .await
            .is_ok_and(|now| now == self.repositories)
    }
}

/// The state of those repositories of a recipe that can be looked at. It only tells where packages came from, so one that cannot
/// be read is left out.
pub(crate) async fn repositories(recipe: &Path, choice: Choice<'_>, web: &Client) -> Vec<RepositoryState> {
    let metadata = kiwi_config::repositories(recipe, choice).unwrap_or_default();
    let mut states = Vec::new();
    for repository in metadata.iter().take(LayerUse::MOST_REPOSITORIES) {
        states.extend(state(repository, web).await);
    }
    states.retain(RepositoryState::is_sound);
    states
}

async fn look(metadata: &[Metadata], web: &Client) -> Result<Vec<RepositoryState>, String> {
    let mut states = Vec::with_capacity(metadata.len());
    for repository in metadata {
        let state = state(repository, web).await;
        states.push(state.ok_or_else(|| format!("the metadata of {} cannot be read", repository.shown))?);
    }
    Ok(states)
}

async fn state(repository: &Metadata, web: &Client) -> Option<RepositoryState> {
    for url in &repository.urls {
        if let Some(sha256) = digest(repository, url, web).await {
            let metadata = kiwi_config::redact(url.as_str());
            return Some(RepositoryState { metadata, sha256 });
        }
    }
    None
}

async fn digest(repository: &Metadata, url: &Url, web: &Client) -> Option<String> {
    let mut request = web.get(url.clone()).timeout(ANSWER);
    if let Some((user, password)) = &repository.login {
        request = request.basic_auth(user, Some(password));
    }
    let response = request.send().await.ok()?.error_for_status().ok()?;
    let (mut hash, mut size, mut body) = (Sha256::new(), 0, response.bytes_stream());
    while let Some(bytes) = body.next().await {
        let bytes = bytes.ok()?;
        size += bytes.len();
        if size > LARGEST {
            return None;
        }
        hash.update(bytes);
    }
    Some(hex::encode(hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_template_includes_counts() {
        let recipe = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = recipe.path().join(path);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, text).unwrap();
        };
        let now = || early_files(recipe.path(), None).unwrap();
        write("config.xml", "<image/>");
        let before = now();
        for late in ["config.sh", "images.sh", "root/etc/motd", "kiln.lock"] {
            write(late, "late");
        }
        assert_eq!(now(), before);
        // As rendered with `{% include "config.sh" %}`.
        write("config.xml", "<image>late</image>");
        let rendered = now();
        assert_ne!(rendered, before);
        let others = || early_files(recipe.path(), Some(Path::new("config.xml"))).unwrap()[1];
        let without = others();
        assert_ne!(without, rendered[1]);
        write("config.xml", "<image>other</image>");
        assert_eq!(others(), without);
        write("config.xml", "<image>late</image>");
        assert_eq!(now(), rendered);
        write("more/config.sh", "late at the top only");
        assert_ne!(now(), rendered);
    }
}
