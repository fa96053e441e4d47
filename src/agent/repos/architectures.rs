//! Looks whether apt's repositories have the architecture of the image at all. Without this, a package would be missing, which
//! looks like a misspelt name. Talks HTTP to the repositories.

use kiln_records::{Code, Failure, Warning, arch::Arch};
use reqwest::{Client, Url};

use super::beginning;
use crate::kiwi_config::{KiwiConfig, Plan, Repository};

/// The most bytes of an index that are read: the field is in its first lines.
const MOST: usize = 64 << 10;

/// Fails if all repositories say that they lack `arch`. Returns a warning of each that does.
///
/// # Errors
///
/// `repo_without_arch`.
pub async fn check(config: &KiwiConfig, client: &Client, arch: Arch) -> Result<Vec<Warning>, Failure> {
    if config.package_manager != "apt" {
        return Ok(Vec::new());
    }
    let wanted = arch.debian();
    let (mut lacking, mut others) = (Vec::new(), 0);
    for repository in &config.repositories {
        let Plan::Wait(urls) = &repository.plan else {
            // It may have the architecture.
            others += usize::from(matches!(repository.plan, Plan::Skip(_)));
            continue;
        };
        match declared(client, repository, urls).await {
            Some(architectures) if !architectures.iter().any(|one| one == wanted) => {
                lacking.push(format!("{} has {}", repository.shown, architectures.join(", ")));
            }
            _ => others += 1,
        }
    }
    if others == 0 && !lacking.is_empty() {
        let detail = format!(
            "no repository of the recipe has packages for {arch}: {}",
            lacking.join("; ")
        );
        return Err(Failure::new(Code::RepoWithoutArch, detail).hint(
            "build for an architecture that they have, or name a release of the distribution that has this one",
        ));
    }
    let warning = |one| {
        let message = format!("a repository has no packages for {arch}: {one}");
        Warning::new(Code::RepoWithoutArch, message)
    };
    Ok(lacking.into_iter().map(warning).collect())
}

/// The architectures that the index of a repository names, if it names any.
pub(super) async fn declared(client: &Client, repository: &Repository, urls: &[Url]) -> Option<Vec<String>> {
    for url in urls {
        // Who does not answer was waited for already.
        if let Some(index) = beginning(client, repository, url, MOST).await {
            return named(&String::from_utf8_lossy(&index));
        }
    }
    None
}

/// The field of a Debian index.
fn named(index: &str) -> Option<Vec<String>> {
    let field = index.lines().find_map(|line| line.strip_prefix("Architectures:"))?;
    let architectures: Vec<_> = field.split_whitespace().map(str::to_owned).collect();
    (!architectures.is_empty()).then_some(architectures)
}
