//! Getting packages by what their repositories' indexes say of them: from other jobs, else from the repository.

use std::{
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use futures::future::join_all;
use reqwest::Client;
use tokio::{runtime::Handle, task::JoinHandle, time::timeout};

use super::index::{Id, Index, Offer};
use crate::{
    agent::{
        channel::Channel,
        digest,
        packages::{self, Shared},
    },
    records::protocol::{PackageFile, PackageUrl},
};

/// apt's own way to download by address and checksum. It knows proxies, logins and every kind of address, and tries
/// again.
const HELPER: &str = "/usr/lib/apt/apt-helper";

/// How long the end of a build waits until other jobs can have its packages.
const SENDING: Duration = Duration::from_secs(5);

/// The way to what other jobs have fetched.
#[derive(Debug, Clone)]
pub(super) struct Sharing {
    pub(super) channel: Channel,
    pub(super) http: Client,
    /// What runs the calls; the thread that makes twins is none of its own.
    pub(super) runtime: Handle,
}

/// Where packages are put while they are needed.
#[derive(Debug)]
pub(super) struct Downloads {
    dir: PathBuf,
    sharing: Sharing,
    /// Those that came from other jobs.
    pub(super) shared: usize,
    sending: Vec<JoinHandle<()>>,
}

/// What packages are fetched and checked with.
#[derive(Debug, Clone, Default)]
pub(super) struct Trust {
    /// A directory with logins for repositories, as apt reads them.
    pub(super) logins: Option<PathBuf>,
    /// A database of rpm with the keys of those who sign packages.
    pub(super) keys: Option<PathBuf>,
}

impl Downloads {
    /// Makes the directory `dir`.
    pub(super) fn new(dir: PathBuf, sharing: Sharing) -> io::Result<Self> {
        fs_err::create_dir_all(dir.join("sent"))?;
        Ok(Self {
            dir,
            sharing,
            shared: 0,
            sending: Vec::new(),
        })
    }

    /// Gets packages by name and version. Returns their files, in the same order; none for those that could not be had
    /// or are not what the index says. Blocks.
    ///
    /// # Errors
    ///
    /// When the downloader cannot be run.
    pub(super) fn get(&mut self, index: &Index, trust: &Trust, wanted: &[Id]) -> io::Result<Vec<Option<PathBuf>>> {
        let offers: Vec<_> = wanted.iter().map(|id| index.get(id)).collect();
        let listed: Vec<Shared> = offers.iter().flatten().map(|offer| self.place(offer)).collect();
        let count = listed.len();
        let Sharing { channel, http, runtime } = &self.sharing;
        let missing = runtime.block_on(packages::get(channel, http, listed));
        self.shared += count - missing.len();
        self.fetch(&offers, &missing, trust)?;
        self.share(missing.into_iter().filter(|(shared, _)| is_whole(shared)).collect());
        let there = |offer: &Offer| {
            let path = self.place(offer).path;
            (path.exists() && (!offer.is_signed || is_signed(&path, trust))).then_some(path)
        };
        Ok(offers.into_iter().map(|offer| there(offer?)).collect())
    }

    fn place(&self, offer: &Offer) -> Shared {
        let Offer { sha256, size, .. } = offer;
        let file = PackageFile {
            sha256: sha256.clone(),
            size: *size,
        };
        let path = self.dir.join(sha256);
        Shared { file, path }
    }

    /// Downloads what no other job has.
    fn fetch(
        &self,
        offers: &[Option<&Offer>],
        missing: &[(Shared, Option<PackageUrl>)],
        trust: &Trust,
    ) -> io::Result<()> {
        if missing.is_empty() {
            return Ok(());
        }
        let logins = trust.logins.as_deref().unwrap_or(Path::new("/dev/null"));
        let config = format!(
            "APT::Sandbox::User \"root\";\nAcquire::Retries \"3\";\nDir::Etc::netrcparts \"{}\";\n",
            logins.display()
        );
        let file = self.dir.join("apt.conf");
        fs_err::write(&file, config)?;
        let mut command = Command::new(HELPER);
        // Only this file, not the sandbox's own configuration, which is for the target.
        command.env("APT_CONFIG", file).env("LANG", "C");
        command.args(["-q", "download-file"]);
        for (shared, _) in missing {
            let sha256 = &shared.file.sha256;
            let address = offers.iter().flatten().find(|offer| offer.sha256 == *sha256);
            let Some(Offer { address, .. }) = address else { continue };
            command.arg(address).arg(&shared.path).arg(format!("SHA256:{sha256}"));
        }
        // What it says of its failures is of no use: each file is looked at.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().map(drop)
    }

    /// Lets other jobs have what was fetched, while this one goes on. Its files are removed as soon as they are
    /// unpacked, so what is sent are links to them.
    fn share(&mut self, fetched: Vec<(Shared, Option<PackageUrl>)>) {
        let link = |(shared, url): (Shared, Option<PackageUrl>)| {
            let path = self.dir.join("sent").join(&shared.file.sha256);
            fs_err::hard_link(&shared.path, &path).ok()?;
            Some((Shared { path, ..shared }, url?))
        };
        let sent: Vec<_> = fetched.into_iter().filter_map(link).collect();
        let http = self.sharing.http.clone();
        self.sending.push(self.sharing.runtime.spawn(async move {
            let paths: Vec<_> = sent.iter().map(|(shared, _)| shared.path.clone()).collect();
            packages::put(&http, sent).await;
            for path in paths {
                let _ = tokio::fs::remove_file(path).await;
            }
        }));
    }

    /// Waits for what is being sent, but not for long: what is not sent by this job is sent by another. Blocks.
    pub(super) fn end(self) {
        let all = join_all(self.sending);
        // Who waits no longer leaves nothing undone.
        let _ = self.sharing.runtime.block_on(async { timeout(SENDING, all).await });
    }
}

/// Whether a package was fetched and is what it should be. What is there and is not is removed.
fn is_whole(shared: &Shared) -> bool {
    let is_whole = digest::sha256_of(&shared.path).is_ok_and(|(_, found)| found == shared.file.sha256);
    if !is_whole {
        let _ = fs_err::remove_file(&shared.path);
    }
    is_whole
}

/// Whether an rpm bears a signature by one of the keys.
fn is_signed(path: &Path, trust: &Trust) -> bool {
    let Some(keys) = &trust.keys else { return false };
    let mut command = Command::new("rpmkeys");
    command.arg("--dbpath").arg(keys);
    command
        .args(["--define", "_pkgverify_level signature", "--checksig"])
        .arg(path);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
