//! Takes the packages of a root from other jobs, and shares with them what no job had. Talks to the server and S3, and reads
//! and writes kiwi's cache of packages.
//!
//! kiwi's package manager first says which packages it will install, each with its SHA-256 in the repository's lists, and
//! fetches none of them. A package that another job has shared is then put where the package manager would put its own
//! download. apt compares such a file with the lists by its size only, so its digest is checked here.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kiln_records::{
    Installed,
    protocol::{LARGEST_PACKAGE, PackageUrl},
};
use tokio::{task::JoinHandle, time::timeout};

use crate::{
    building::Building,
    packages::{self, Shared},
    wanted::{CACHE, Wanted},
};

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
    /// Gets what other jobs have shared of the packages that are `wanted` and not `there`. All others are fetched, which is no failure.
    pub(super) async fn get(&self, building: Building<'_>, wanted: &Wanted, there: Option<&Installed>) {
        let Building {
            channel, http, events, ..
        } = building;
        let wanted = to_fetch(wanted, there, Path::new(CACHE));
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

/// The packages that can be shared, each with its place in `cache`, without those that need not be fetched.
fn to_fetch(wanted: &Wanted, there: Option<&Installed>, cache: &Path) -> Vec<Shared> {
    let there: BTreeSet<_> = there
        .into_iter()
        .flat_map(|installed| &installed.packages)
        .filter_map(|package| package.sha256.as_deref())
        .collect();
    let mut paths = BTreeSet::new();
    wanted
        .packages
        .iter()
        .filter(|(path, file)| file.size <= LARGEST_PACKAGE && paths.insert(path))
        .filter(|(_, file)| !there.contains(file.digest.as_str()))
        .map(|(path, file)| Shared {
            file: file.clone(),
            path: cache.join(path),
        })
        .filter(|shared| fs_err::symlink_metadata(&shared.path).is_err())
        .collect()
}

#[cfg(test)]
mod tests {
    use kiln_records::{InstalledPackage, PackageDigest, protocol::PackageFile};

    use super::*;

    #[test]
    fn only_what_has_to_be_fetched_is_looked_for() {
        let cache = tempfile::tempdir().unwrap();
        fs_err::create_dir(cache.path().join("archives")).unwrap();
        fs_err::write(cache.path().join("archives/there_1_all.deb"), "").unwrap();
        let digest = |digit: &str| digit.repeat(64);
        let file = |digit: &str, size| PackageFile {
            digest: PackageDigest::parse(&digest(digit)).unwrap(),
            size,
        };
        let packages = [
            ("archives/new_1_all.deb", file("a", 7)),
            ("archives/there_1_all.deb", file("b", 7)),
            ("archives/large_1_all.deb", file("c", LARGEST_PACKAGE + 1)),
            ("archives/new_1_all.deb", file("d", 8)),
            ("archives/installed_1_all.deb", file("e", 7)),
        ];
        let wanted = Wanted {
            packages: packages.map(|(path, file)| (path.to_owned(), file)).to_vec(),
            is_whole: true,
        };
        let installed = Installed {
            packages: vec![InstalledPackage {
                name: "installed".to_owned(),
                version: "1".to_owned(),
                arch: "all".to_owned(),
                sha256: Some(digest("e")),
            }],
            ..Installed::default()
        };
        let digests = |there| -> Vec<_> {
            let found = to_fetch(&wanted, there, cache.path()).into_iter();
            found.map(|shared| shared.file.digest.to_string()).collect()
        };
        assert_eq!(digests(None), [digest("a"), digest("e")]);
        assert_eq!(digests(Some(&installed)), [digest("a")]);
    }
}
