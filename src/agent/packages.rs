//! Packages shared between jobs: a package that another job fetched need not come from the distribution's mirror
//! again. Asks the server for addresses, and talks to S3.
//!
//! A package is identified by its SHA-256 from the repository's signed index, and every download is checked against
//! it. So it does not matter which job put it there.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use fs_err::os::unix::fs::OpenOptionsExt;
use futures::StreamExt;
use kiln_records::{
    Failure,
    protocol::{PackageFile, PackageUrl},
};
use nix::fcntl::OFlag;
use reqwest::Client;
use sha2::{Digest, Sha256};

use super::channel::Channel;

/// The most packages transferred at a time.
const AT_ONCE: usize = 4;

/// A package and its path.
#[derive(Debug, Clone)]
pub struct Shared {
    /// Its size and digest.
    pub file: PackageFile,
    /// Its path in the sandbox.
    pub path: PathBuf,
}

/// Gets the packages that other jobs have shared. Returns the others, to be fetched from their repository, each with
/// the address for sharing it, if there is one.
///
/// A server that cannot help now is not a failure: everything is returned then.
pub async fn get(channel: &Channel, http: &Client, wanted: Vec<Shared>) -> Vec<(Shared, Option<PackageUrl>)> {
    let files = wanted.iter().map(|shared| shared.file.clone()).collect();
    let Ok(urls) = channel.find_packages(files).await else {
        return wanted.into_iter().map(|shared| (shared, None)).collect();
    };
    let got = wanted.into_iter().zip(urls).map(async |(shared, url)| match url {
        PackageUrl::Get(url) => {
            let there = download(http, &url, &shared).await;
            (!there).then_some((shared, None))
        }
        put @ PackageUrl::Put { .. } => Some((shared, Some(put))),
    });
    futures::stream::iter(got)
        .buffered(AT_ONCE)
        .filter_map(std::future::ready)
        .collect()
        .await
}

/// Shares packages that were fetched. Packages that cannot be shared now are left to the next job; files that are not what
/// the index says are not shared.
pub async fn put(http: &Client, fetched: Vec<(Shared, PackageUrl)>) {
    let sent = fetched.into_iter().map(async |(shared, put)| {
        let PackageUrl::Put { url, headers } = put else { return };
        let Some(bytes) = whole(shared).await else { return };
        let request = headers
            .iter()
            .fold(http.put(url), |request, (name, value)| request.header(name, value));
        let _ = request.body(bytes).send().await;
    });
    futures::stream::iter(sent)
        .buffer_unordered(AT_ONCE)
        .collect::<()>()
        .await;
}

/// The package, if it is what the index says. A program of the root can have put anything in its place.
async fn whole(shared: Shared) -> Option<Vec<u8>> {
    let read = move || -> Option<Vec<u8>> {
        let Shared { file, path } = shared;
        // Opening a FIFO would wait for its other end.
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        let opened = fs_err::OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(path)
            .ok()?;
        let about = opened.metadata().ok()?;
        if !about.is_file() || about.len() != file.size {
            return None;
        }
        let mut bytes = Vec::new();
        opened.take(file.size).read_to_end(&mut bytes).ok()?;
        (hex::encode(Sha256::digest(&bytes)) == file.sha256).then_some(bytes)
    };
    tokio::task::spawn_blocking(read).await.ok()?
}

/// Downloads and checks the package. Returns whether it is there.
async fn download(http: &Client, url: &str, shared: &Shared) -> bool {
    let answer = http.get(url).send().await.and_then(reqwest::Response::error_for_status);
    let Ok(answer) = answer else { return false };
    if answer.content_length() != Some(shared.file.size) {
        return false;
    }
    let Ok(bytes) = answer.bytes().await else { return false };
    hex::encode(Sha256::digest(&bytes)) == shared.file.sha256 && write(&shared.path, &bytes).await.is_ok()
}

/// Writes the file, which appears only when it is complete.
async fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let partial = path.with_extension("partial");
    let failed = |error: std::io::Error| Failure::io("cannot store a package", &error);
    fs_err::tokio::write(&partial, bytes).await.map_err(failed)?;
    fs_err::tokio::rename(&partial, path).await.map_err(failed)
}
