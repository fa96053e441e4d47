//! Takes the packages of a root from other jobs, and shares with them what no job had. Talks to the server and S3, and reads
//! and writes the directory of apt's archives.
//!
//! kiwi's apt first says which packages it will install, each with its SHA-256 in the signed lists, and fetches none of
//! them. A package that another job has shared is then put where apt would put its own download. apt compares such a file
//! with the lists by its size only, so its digest is checked here.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kiln_records::protocol::{LARGEST_PACKAGE, PackageFile, PackageUrl};
use tokio::{io::AsyncReadExt, task::JoinHandle, time::timeout};

use crate::{
    building::Building,
    packages::{self, Shared},
};

/// What apt will install, as `apt-get --print-uris` lists it. kiwi.py writes it.
const WANTED: &str = "/run/kiln-wanted-packages";

/// Where kiwi's apt keeps what it fetched.
const ARCHIVES: &str = "/var/cache/kiwi/apt-get/archives";

/// The most bytes of that list. A package takes some 200.
const LONGEST: u64 = 8 << 20;

/// How long packages of other jobs are waited for. Whatever has not come by then is downloaded.
const GETTING: Duration = Duration::from_mins(5);

/// How long the end of a root waits for its packages to be shared.
const SENDING: Duration = Duration::from_secs(5);

/// The packages of a job that no other job had.
#[derive(Debug, Default)]
pub(super) struct Downloads {
    missing: Mutex<Vec<(Shared, PackageUrl)>>,
    sending: Mutex<Option<JoinHandle<()>>>,
}

impl Downloads {
    /// Gets what other jobs have shared of the packages that apt will install. apt fetches all others, which is no failure.
    pub(super) async fn get(&self, building: Building<'_>) {
        let Building {
            channel, http, events, ..
        } = building;
        let mut list = String::new();
        let Ok(file) = fs_err::tokio::File::open(WANTED).await else {
            return;
        };
        if file.take(LONGEST).read_to_string(&mut list).await.is_err() {
            return;
        }
        let wanted = wanted(&list, Path::new(ARCHIVES));
        let count = wanted.len();
        if count == 0 || fs_err::tokio::create_dir_all(ARCHIVES).await.is_err() {
            return;
        }
        let Ok(left) = timeout(GETTING, packages::get(channel, http, wanted)).await else {
            events
                .say("packages are downloaded: those of other jobs take too long")
                .await;
            return;
        };
        let others = count - left.len();
        events
            .say(format!("of {count} packages to install, {others} came from other jobs"))
            .await;
        let missing = left.into_iter().filter_map(|(shared, url)| Some((shared, url?)));
        *lock(&self.missing) = missing.collect();
    }

    /// Shares what apt has fetched, in the background.
    pub(super) fn share(&self, building: Building<'_>) {
        let fetched = std::mem::take(&mut *lock(&self.missing));
        if !fetched.is_empty() {
            let http = building.http.clone();
            let sending = tokio::spawn(async move { packages::put(&http, fetched).await });
            *lock(&self.sending) = Some(sending);
        }
    }

    /// Waits a short time for what is being shared: another job can share the rest.
    pub(super) async fn end(&self) {
        let sending = lock(&self.sending).take();
        if let Some(mut sending) = sending
            && timeout(SENDING, &mut sending).await.is_err()
        {
            // Uploads that are cut off leave nothing to undo.
            sending.abort();
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The packages in a list of apt's that can be shared, each with its place in `archives`, without those that are there.
fn wanted(list: &str, archives: &Path) -> Vec<Shared> {
    let mut names = BTreeSet::new();
    list.lines()
        .filter_map(entry)
        .filter(|(name, file)| file.size <= LARGEST_PACKAGE && names.insert(*name))
        .map(|(name, file)| Shared {
            file,
            path: archives.join(name),
        })
        .filter(|shared| fs_err::symlink_metadata(&shared.path).is_err())
        .collect()
}

/// A line of the list, `'ADDRESS' NAME SIZE SHA256:DIGEST`. `None` for any other line, and for a package whose digest the lists
/// do not have.
fn entry(line: &str) -> Option<(&str, PackageFile)> {
    let (_, rest) = line.strip_prefix('\'')?.rsplit_once("' ")?;
    let mut words = rest.split(' ');
    let (name, size, digest) = (words.next()?, words.next()?, words.next()?);
    let stem = name.strip_suffix(".deb")?;
    let is_name = !stem.starts_with('.') && !stem.contains('/');
    let sha256 = digest.strip_prefix("SHA256:")?.to_ascii_lowercase();
    let is_digest = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
    let size = size.parse().ok()?;
    (is_name && is_digest).then_some((name, PackageFile { sha256, size }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn a_list_of_apt_is_read() {
        let archives = tempfile::tempdir().unwrap();
        fs_err::write(archives.path().join("there_1_all.deb"), "").unwrap();
        let too_large = LARGEST_PACKAGE + 1;
        let list = [
            "Reading package lists...".to_owned(),
            format!("'http://m/d/pool/c%2b%2b_12%7erc1_arm64.deb' c++_1%3a12~rc1_arm64.deb 70 SHA256:{DIGEST}"),
            format!("'http://m/it's' odd_1_all.deb 7 SHA256:{}", DIGEST.to_uppercase()),
            format!("'http://m/d/bash.deb' bash_1_arm64.deb 7 MD5Sum:{DIGEST}"),
            "'http://m/d/plain.deb' plain_1_arm64.deb 7 ".to_owned(),
            format!("'http://m/d/short.deb' short_1_arm64.deb 7 SHA256:{}", &DIGEST[1..]),
            format!("'http://m/d/out.deb' ../out_1_arm64.deb 7 SHA256:{DIGEST}"),
            format!("'http://m/d/hidden.deb' .hidden.deb 7 SHA256:{DIGEST}"),
            format!("'http://m/d/lock' lock 7 SHA256:{DIGEST}"),
            format!("'http://m/d/there.deb' there_1_all.deb 7 SHA256:{DIGEST}"),
            format!("'http://m/d/large.deb' large_1_all.deb {too_large} SHA256:{DIGEST}"),
            format!("'http://n/d/odd.deb' odd_1_all.deb 8 SHA256:{DIGEST}"),
            "' ".to_owned(),
            "'".to_owned(),
        ];
        let found: Vec<_> = wanted(&list.join("\n"), archives.path())
            .into_iter()
            .map(|shared| (shared.path, shared.file.size, shared.file.sha256))
            .collect();
        let at = |name: &str, size| (archives.path().join(name), size, DIGEST.to_owned());
        assert_eq!(found, [at("c++_1%3a12~rc1_arm64.deb", 70), at("odd_1_all.deb", 7)]);
    }
}
