//! Gets packages that are listed in repositories' indexes: from other jobs, or else from the repository. Talks to S3
//! and the server, runs apt's downloader, and writes below its own directory.

use kiln_records::DigestKind;
use std::{
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use futures::future::join_all;
use kiln_records::protocol::{PackageFile, PackageUrl};
use reqwest::Client;
use tokio::{runtime::Handle, task::JoinHandle, time::timeout};

use super::index::Offer;
use crate::{
    channel::Channel,
    package_digest,
    packages::{self, Shared},
};

/// apt's own downloader by address and checksum. It handles proxies, logins and every kind of address, and repeats
/// failed downloads.
const HELPER: &str = "/usr/lib/apt/apt-helper";

/// How long the end of a build waits for its packages to be shared.
const SENDING: Duration = Duration::from_secs(5);

/// The clients for sharing packages between jobs.
#[derive(Debug, Clone)]
pub(super) struct Sharing {
    pub(super) channel: Channel,
    pub(super) http: Client,
    /// Runs the calls; the thread that makes twins is not part of a runtime.
    pub(super) runtime: Handle,
}

/// The directory of packages while they are needed.
#[derive(Debug)]
pub(super) struct Downloads {
    dir: PathBuf,
    sharing: Sharing,
    /// Number of packages that came from other jobs.
    pub(super) shared: usize,
    sending: Vec<JoinHandle<()>>,
}

/// Logins and keys for fetching and checking packages.
#[derive(Debug, Clone, Default)]
pub(super) struct Trust {
    /// apt's settings that name the logins for repositories; empty if there are none.
    pub(super) logins: String,
    /// A database of rpm with the keys of packages' signers.
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

    /// Gets packages. Returns their files in the same order; `None` for a package that is unavailable or differs from
    /// the index. Blocks.
    ///
    /// # Errors
    ///
    /// The downloader cannot be run.
    pub(super) fn get(&mut self, trust: &Trust, offers: &[&Offer]) -> io::Result<Vec<Option<PathBuf>>> {
        if offers.is_empty() {
            return Ok(Vec::new());
        }
        let listed: Vec<Shared> = offers.iter().map(|offer| self.place(offer)).collect();
        let count = listed.len();
        let Sharing { channel, http, runtime } = &self.sharing;
        let missing = runtime.block_on(packages::get(channel, http, listed));
        self.shared += count - missing.len();
        self.fetch(offers, &missing, trust)?;
        self.share(missing.into_iter().filter(|(shared, _)| is_whole(shared)).collect());
        let there = |offer: &Offer| {
            let path = self.place(offer).path;
            (path.exists() && (!offer.is_signed || is_signed(&path, trust))).then_some(path)
        };
        Ok(offers.iter().map(|offer| there(offer)).collect())
    }

    fn place(&self, offer: &Offer) -> Shared {
        let Offer { digest, size, .. } = offer;
        let file = PackageFile {
            digest: digest.clone(),
            size: *size,
        };
        let path = self.dir.join(digest.as_str());
        Shared { file, path }
    }

    /// Downloads the packages that no other job has shared.
    fn fetch(&self, offers: &[&Offer], missing: &[(Shared, Option<PackageUrl>)], trust: &Trust) -> io::Result<()> {
        if missing.is_empty() {
            return Ok(());
        }
        let mut command = downloader(&self.dir, trust)?;
        for (shared, _) in missing {
            let digest = &shared.file.digest;
            let address = offers.iter().find(|offer| offer.digest == *digest);
            let Some(Offer { address, .. }) = address else { continue };
            command.arg(address).arg(&shared.path);
            command.arg(match digest.kind() {
                DigestKind::Sha256 => format!("SHA256:{digest}"),
                DigestKind::Sha512 => format!("SHA512:{digest}"),
                // apt does not know it, and takes this for none. The file is checked afterwards.
                DigestKind::Sha384 => String::new(),
            });
        }
        command.status().map(drop)
    }

    /// Shares fetched packages with other jobs, in the background. The files are removed once they are unpacked, so
    /// links to them are sent.
    fn share(&mut self, fetched: Vec<(Shared, Option<PackageUrl>)>) {
        let link = |(shared, url): (Shared, Option<PackageUrl>)| {
            let path = self.dir.join("sent").join(shared.file.digest.as_str());
            fs_err::hard_link(&shared.path, &path).ok()?;
            Some((Shared { path, ..shared }, url?))
        };
        let sent: Vec<_> = fetched.into_iter().filter_map(link).collect();
        let http = self.sharing.http.clone();
        self.sending.push(self.sharing.runtime.spawn(async move {
            let paths: Vec<_> = sent.iter().map(|(shared, _)| shared.path.clone()).collect();
            packages::put(&http, sent).await;
            for path in paths {
                let _ = fs_err::tokio::remove_file(path).await;
            }
        }));
    }

    /// Waits a short time for uploads: another job can share the rest. Blocks.
    pub(super) fn end(self) {
        let all = join_all(self.sending);
        // Uploads that are cut off leave nothing to undo.
        let _ = self.sharing.runtime.block_on(async { timeout(SENDING, all).await });
    }
}

/// The downloader, with a configuration in `dir`. It wants an address, a path and a digest for each file.
fn downloader(dir: &Path, trust: &Trust) -> io::Result<Command> {
    let logins = &trust.logins;
    let config = format!("APT::Sandbox::User \"root\";\nAcquire::Retries \"3\";\n{logins}");
    let file = dir.join("apt.conf");
    fs_err::write(&file, config)?;
    let mut command = Command::new(HELPER);
    // Only this file, not the sandbox's own configuration, which is for the target.
    command.env("APT_CONFIG", file).env("LANG", "C");
    command.args(["-q", "download-file"]);
    // Its messages are not needed: each file is checked.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

/// Whether a package was fetched and has the right digest. A file with a wrong one is removed.
fn is_whole(shared: &Shared) -> bool {
    let is_whole = package_digest::is(&shared.path, &shared.file.digest).unwrap_or(false);
    if !is_whole {
        let _ = fs_err::remove_file(&shared.path);
    }
    is_whole
}

/// Whether one of the keys signed an rpm.
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

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write},
        net::TcpListener,
    };

    use super::*;
    use crate::twins::apt;

    /// A server that has an empty file for who logs in, and for nobody else.
    fn serve(listener: &TcpListener) {
        for connection in listener.incoming() {
            let Ok(mut connection) = connection else { return };
            let lines = BufReader::new(connection.try_clone().unwrap()).lines();
            let head: Vec<_> = lines
                .map_while(Result::ok)
                .take_while(|line| !line.is_empty())
                .collect();
            let is_login = |line: &String| line == "Authorization: Basic bWU6c2VjcmV0";
            let status = if head.iter().any(is_login) {
                "200 OK"
            } else {
                "401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"r\""
            };
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            let _ = connection.write_all(answer.as_bytes());
        }
    }

    #[test]
    fn a_login_in_either_place_of_apt_opens_packages_as_it_opens_lists() {
        const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || serve(&listener));
        let get = |logins: Option<&str>| {
            let dir = tempfile::tempdir().unwrap();
            if let Some(path) = logins {
                let file = dir.path().join(path);
                fs_err::create_dir_all(file.parent().unwrap()).unwrap();
                let text = format!("machine http://127.0.0.1:{port} login me password secret\n");
                fs_err::write(file, text).unwrap();
            }
            let trust = Trust {
                logins: apt::logins(dir.path()),
                keys: None,
            };
            let mut command = downloader(dir.path(), &trust).unwrap();
            command.arg(format!("http://127.0.0.1:{port}/a.deb"));
            let status = command
                .arg(dir.path().join("a.deb"))
                .arg(format!("SHA256:{EMPTY}"))
                .status();
            status.unwrap().success()
        };
        assert!(!get(None));
        assert!(get(Some("auth.conf.d/mine.conf")));
        assert!(get(Some("auth.conf")));
    }
}
