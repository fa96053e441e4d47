//! Packages shared between jobs: a package that another job fetched need not come from the distribution's mirror
//! again. Asks the server for addresses, and talks to S3.
//!
//! A package is identified by its digest from the repository's signed index, and every download is checked against
//! it. So it does not matter which job put it there.

use std::{
    fs::File,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    time::Duration,
};

use fs_err::os::unix::fs::OpenOptionsExt;
use futures::StreamExt;
use kiln_records::protocol::{PackageFile, PackageUrl};
use nix::fcntl::OFlag;
use reqwest::{Body, Client, Response, header};
use tokio::{io::AsyncWriteExt, time::timeout};

use super::{channel::Channel, package_digest};

/// The most packages transferred at a time.
const AT_ONCE: usize = 4;

/// How long the server is asked for addresses. It looks for each package in S3, which may fail time and again.
const ASKING: Duration = Duration::from_secs(20);

/// The time for S3's answer to a file, and the slowest transfer that is waited for, in bytes a second.
const ANSWER: Duration = Duration::from_mins(2);
const SLOWEST: u64 = 2 << 20;

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
    let Ok(Ok(urls)) = timeout(ASKING, channel.find_packages(files)).await else {
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
        let size = shared.file.size;
        if let Some(file) = whole(shared).await {
            let _ = send(http, &url, headers, file, size).await;
        }
    });
    futures::stream::iter(sent)
        .buffer_unordered(AT_ONCE)
        .collect::<()>()
        .await;
}

/// Sends a file of this size to S3, in one request.
///
/// # Errors
///
/// S3 does not take it, or takes too long.
pub async fn send(
    http: &Client,
    url: &str,
    headers: Vec<(String, String)>,
    file: File,
    size: u64,
) -> reqwest::Result<()> {
    let patience = ANSWER + Duration::from_secs(size / SLOWEST);
    let mut request = http.put(url).timeout(patience).header(header::CONTENT_LENGTH, size);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let answer = request.body(Body::from(tokio::fs::File::from_std(file))).send().await;
    answer.and_then(Response::error_for_status).map(drop)
}

/// The package, if it is what the index says. A program of the root can have put anything in its place.
async fn whole(shared: Shared) -> Option<File> {
    let open = move || -> Option<File> {
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
        let by_number = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
        let is_whole = package_digest::is(&by_number, &file.digest).ok()?;
        is_whole.then(|| opened.into_parts().0)
    };
    tokio::task::spawn_blocking(open).await.ok()?
}

/// Downloads and checks the package. Returns whether it is there.
async fn download(http: &Client, url: &str, shared: &Shared) -> bool {
    // The file appears only when it is complete.
    let partial = shared.path.with_extension("partial");
    let is_whole = receive(http, url, &partial, &shared.file).await.is_some()
        && fs_err::tokio::rename(&partial, &shared.path).await.is_ok();
    if !is_whole {
        let _ = fs_err::tokio::remove_file(partial).await;
    }
    is_whole
}

/// Downloads a package to a file. `None` if what came is not the package, or if anything fails.
async fn receive(http: &Client, url: &str, to: &Path, package: &PackageFile) -> Option<()> {
    let answer = http.get(url).send().await.ok()?.error_for_status().ok()?;
    if answer.content_length() != Some(package.size) {
        return None;
    }
    let mut file = fs_err::tokio::File::create(to).await.ok()?;
    let (mut body, mut hasher) = (answer.bytes_stream(), package_digest::hasher(package.digest.kind()));
    while let Some(bytes) = body.next().await {
        let bytes = bytes.ok()?;
        hasher.update(&bytes);
        file.write_all(&bytes).await.ok()?;
    }
    file.flush().await.ok()?;
    (hex::encode(hasher.finalize()) == package.digest.as_str()).then_some(())
}
