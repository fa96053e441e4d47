//! Finds what a layer depends on besides the recipe's archive: the state of its repositories, and the sandbox's own tools.
//! Reads files of the recipe and of the sandbox, and talks HTTP to the repositories.

use std::{path::Path, time::Duration};

use futures::StreamExt;
use kiln_records::{LayerUse, RepositoryState, arch::Arch, protocol::LayerInputs};
use reqwest::{Client, Url};
use sha2::{Digest, Sha256};

use crate::kiwi_config::{self, Metadata};

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
pub(super) async fn find(recipe: &Path, arch: Arch, web: &Client) -> Result<Found, String> {
    let metadata = kiwi_config::metadata(recipe, arch).map_err(|failure| failure.detail)??;
    if metadata.len() > LayerUse::MOST_REPOSITORIES {
        return Err("the recipe has too many repositories".to_owned());
    }
    let repositories = look(&metadata, web).await?;
    let tools = fs_err::read(TOOLS).map_err(|error| error.to_string())?;
    let mut hash = Sha256::new();
    hash.update(Sha256::digest(tools));
    for (repository, found) in metadata.iter().zip(&repositories) {
        for text in [repository.shown.as_str(), &found.metadata, &found.sha256] {
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text);
        }
    }
    let found = hex::encode(hash.finalize());
    Ok(Found {
        inputs: LayerInputs { found },
        repositories,
        metadata,
    })
}

impl Found {
    /// Whether the repositories are still as they were found. What cannot be looked at counts as changed.
    pub(super) async fn is_unchanged(&self, web: &Client) -> bool {
        look(&self.metadata, web)
            .await
            .is_ok_and(|now| now == self.repositories)
    }
}

async fn look(metadata: &[Metadata], web: &Client) -> Result<Vec<RepositoryState>, String> {
    let mut states = Vec::with_capacity(metadata.len());
    for repository in metadata {
        let mut state = None;
        for url in &repository.urls {
            if let Some(sha256) = digest(repository, url, web).await {
                let metadata = kiwi_config::redact(url.as_str());
                state = Some(RepositoryState { metadata, sha256 });
                break;
            }
        }
        states.push(state.ok_or_else(|| format!("the metadata of {} cannot be read", repository.shown))?);
    }
    Ok(states)
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
