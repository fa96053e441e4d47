//! Takes the packages of a root from other jobs, and shares with them what no job had. Talks to the server and S3, and reads
//! and writes kiwi's cache of packages.
//!
//! kiwi's package manager first says which packages it will install, each with its SHA-256 in the repository's lists, and
//! fetches none of them. A package that another job has shared is then put where the package manager would put its own
//! download. apt compares such a file with the lists by its size only, so its digest is checked here.

use std::{
    collections::BTreeSet,
    path::{Component, Path},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kiln_records::protocol::{LARGEST_PACKAGE, PackageFile, PackageUrl};
use tokio::{io::AsyncReadExt, task::JoinHandle, time::timeout};

use crate::{
    building::Building,
    packages::{self, Shared},
};

/// What will be installed: a line `SHA256 SIZE PATH` for each package, whose path is below [`CACHE`]. kiwi.py has it written.
const WANTED: &str = "/run/kiln-wanted-packages";

/// Where kiwi's package managers keep what they fetched.
const CACHE: &str = "/var/cache/kiwi";

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
    /// Gets what other jobs have shared of the packages that will be installed. All others are fetched, which is no failure.
    pub(super) async fn get(&self, building: Building<'_>) {
        let Building {
            channel, http, events, ..
        } = building;
        let mut list = String::new();
        let Ok(file) = fs_err::tokio::File::open(WANTED).await else {
            return;
        };
        let read = file.take(LONGEST).read_to_string(&mut list).await;
        // A root that is made once more has a list of its own.
        let _ = fs_err::tokio::remove_file(WANTED).await;
        if read.is_err() {
            return;
        }
        let wanted = wanted(&list, Path::new(CACHE));
        let count = wanted.len();
        for dir in wanted.iter().filter_map(|shared| shared.path.parent()) {
            if fs_err::tokio::create_dir_all(dir).await.is_err() {
                return;
            }
        }
        if count == 0 {
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

    /// Shares what was fetched, in the background.
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

/// The packages in a list that can be shared, each with its place in `cache`, without those that are there.
fn wanted(list: &str, cache: &Path) -> Vec<Shared> {
    let mut paths = BTreeSet::new();
    list.lines()
        .filter_map(entry)
        .filter(|(path, file)| file.size <= LARGEST_PACKAGE && paths.insert(*path))
        .map(|(path, file)| Shared {
            file,
            path: cache.join(path),
        })
        .filter(|shared| fs_err::symlink_metadata(&shared.path).is_err())
        .collect()
}

/// A line of the list. `None` for any other line, and for a path that no package has.
fn entry(line: &str) -> Option<(&str, PackageFile)> {
    let mut words = line.splitn(3, ' ');
    let (sha256, size, path) = (words.next()?, words.next()?.parse().ok()?, words.next()?);
    let is_digest = sha256.len() == 64 && sha256.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_below = Path::new(path)
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    let name = path.rsplit('/').next()?;
    let stem = name.strip_suffix(".deb").or_else(|| name.strip_suffix(".rpm"))?;
    let is_name = !stem.is_empty() && !stem.starts_with('.');
    let sha256 = sha256.to_owned();
    (is_digest && is_below && is_name).then_some((path, PackageFile { sha256, size }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn a_list_of_packages_is_read() {
        let cache = tempfile::tempdir().unwrap();
        fs_err::create_dir(cache.path().join("archives")).unwrap();
        fs_err::write(cache.path().join("archives/there_1_all.deb"), "").unwrap();
        let too_large = LARGEST_PACKAGE + 1;
        let list = [
            format!("{DIGEST} 70 archives/c++_1%3a12~rc1_arm64.deb"),
            format!("{DIGEST} 7 dnf/cache/one-01/packages/a b-1.noarch.rpm"),
            format!("{} 7 archives/upper_1_all.deb", DIGEST.to_uppercase()),
            format!("{} 7 archives/short_1_all.deb", &DIGEST[1..]),
            format!("{DIGEST} -1 archives/less_1_all.deb"),
            format!("{DIGEST} 7 archives/../../out_1_all.deb"),
            format!("{DIGEST} 7 /absolute_1_all.deb"),
            format!("{DIGEST} 7 archives/.hidden.deb"),
            format!("{DIGEST} 7 archives/.deb"),
            format!("{DIGEST} 7 archives/lock"),
            format!("{DIGEST} 7 archives/there_1_all.deb"),
            format!("{DIGEST} {too_large} archives/large_1_all.deb"),
            format!("{DIGEST} 8 archives/c++_1%3a12~rc1_arm64.deb"),
            format!("{DIGEST} 7"),
            String::new(),
        ];
        let found: Vec<_> = wanted(&list.join("\n"), cache.path())
            .into_iter()
            .map(|shared| (shared.path, shared.file.size, shared.file.sha256))
            .collect();
        let at = |path: &str, size| (cache.path().join(path), size, DIGEST.to_owned());
        assert_eq!(
            found,
            [
                at("archives/c++_1%3a12~rc1_arm64.deb", 70),
                at("dnf/cache/one-01/packages/a b-1.noarch.rpm", 7)
            ]
        );
    }
}
