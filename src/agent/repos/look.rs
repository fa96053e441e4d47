//! Looks at a repository once, for a user who wants to know about it and does not wait. Talks HTTP to the repository.

use kiln_records::{arch::Arch, protocol::RepositoryReach};
use reqwest::Client;

use super::{architectures, ask_once, signature};
use crate::kiwi_config::{Plan, Repository};

/// What is known of a repository.
#[derive(Debug)]
pub(crate) struct Looked {
    pub(crate) state: RepositoryReach,
    /// Why it is not ready, or was not looked at.
    pub(crate) why: Option<String>,
    /// The architectures that its index names, as far as it was read.
    pub(crate) has: Vec<String>,
    /// Whether it has packages for the architecture, if that is known.
    pub(crate) has_arch: Option<bool>,
    /// Whether its index is signed, if that is known.
    pub(crate) signed: Option<bool>,
    /// The keys that signed it.
    pub(crate) signed_by: Vec<String>,
}

/// Looks at a repository of an image for `arch`.
pub(crate) async fn look(repository: &Repository, client: &Client, arch: Arch) -> Looked {
    let mut looked = Looked {
        state: RepositoryReach::Unknown,
        why: None,
        has: Vec::new(),
        has_arch: None,
        signed: None,
        signed_by: Vec::new(),
    };
    let urls = match &repository.plan {
        Plan::Wait(urls) => urls,
        Plan::Skip(why) => {
            looked.why = Some(why.clone());
            return looked;
        }
        Plan::Unused(why) => {
            (looked.state, looked.why) = (RepositoryReach::Unused, Some(why.clone()));
            return looked;
        }
    };
    if let Err(why) = ask_once(client, repository, urls).await {
        (looked.state, looked.why) = (RepositoryReach::Unreachable, Some(why));
        return looked;
    }
    looked.state = RepositoryReach::Ready;
    if let Some(declared) = architectures::declared(client, repository, urls, arch).await {
        looked.has_arch = Some(declared.has_arch);
        looked.has = declared.has;
    }
    if let Some(signature) = signature::of(client, repository, urls).await {
        looked.signed = Some(signature.is_some());
        looked.signed_by = signature.unwrap_or_default();
    }
    looked
}
