//! The packages that kiwi's package manager will install, as it says before it fetches any. Reads that list.

use std::path::{Component, Path};

use kiln_records::{PackageDigest, protocol::PackageFile};
use tokio::io::AsyncReadExt;

/// The list: a line `DIGEST SIZE PATH` for each package, whose path is below [`CACHE`]. kiwi.py has it written.
const LIST: &str = "/run/kiln-wanted-packages";

/// Where kiwi's package managers keep what they fetched.
pub(crate) const CACHE: &str = "/var/cache/kiwi";

/// The most bytes of that list. A package takes some 200.
const LONGEST: u64 = 8 << 20;

/// What will be installed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The packages with a known digest, each with its path below [`CACHE`].
    pub(crate) packages: Vec<(String, PackageFile)>,
    /// Whether these are all.
    pub(crate) is_whole: bool,
}

impl Wanted {
    /// Takes the list, so that a root that is made once more has a list of its own. One that cannot be read is empty, and not all.
    pub(crate) async fn take() -> Self {
        let mut list = String::new();
        let Ok(file) = fs_err::tokio::File::open(LIST).await else {
            return Self::default();
        };
        let read = file.take(LONGEST).read_to_string(&mut list).await;
        let _ = fs_err::tokio::remove_file(LIST).await;
        let Ok(read) = read else { return Self::default() };
        let mut wanted = Self::of(&list);
        wanted.is_whole &= (read as u64) < LONGEST;
        wanted
    }

    fn of(list: &str) -> Self {
        let packages: Vec<_> = list.lines().filter_map(entry).collect();
        let is_whole = packages.len() == list.lines().count();
        Self { packages, is_whole }
    }
}

/// A line of the list. `None` for any other line, and for a path that no package has.
fn entry(line: &str) -> Option<(String, PackageFile)> {
    let mut words = line.splitn(3, ' ');
    let (digest, size, path) = (words.next()?, words.next()?.parse().ok()?, words.next()?);
    let is_below = Path::new(path)
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    let name = path.rsplit('/').next()?;
    let stem = name.strip_suffix(".deb").or_else(|| name.strip_suffix(".rpm"))?;
    let is_name = !stem.is_empty() && !stem.starts_with('.');
    let digest = PackageDigest::parse(digest).filter(|_| is_below && is_name)?;
    Some((path.to_owned(), PackageFile { digest, size }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn a_list_of_packages_is_read() {
        let good = [
            format!("{DIGEST} 70 archives/c++_1%3a12~rc1_arm64.deb"),
            format!("{DIGEST}{DIGEST} 7 dnf/cache/one-01/packages/a b-1.noarch.rpm"),
        ];
        let packages = |wanted: &Wanted| -> Vec<_> {
            let packages = wanted.packages.iter();
            packages.map(|(path, file)| (path.clone(), file.size)).collect()
        };
        let whole = Wanted::of(&good.join("\n"));
        assert!(whole.is_whole);
        assert_eq!(
            packages(&whole),
            [
                ("archives/c++_1%3a12~rc1_arm64.deb".to_owned(), 70),
                ("dnf/cache/one-01/packages/a b-1.noarch.rpm".to_owned(), 7)
            ]
        );
        for other in [
            format!("{} 7 archives/short_1_all.deb", &DIGEST[1..]),
            "- 7 archives/unknown_1_all.deb".to_owned(),
            format!("{DIGEST} -1 archives/less_1_all.deb"),
            format!("{DIGEST} 7 archives/../../out_1_all.deb"),
            format!("{DIGEST} 7 /absolute_1_all.deb"),
            format!("{DIGEST} 7 archives/.hidden.deb"),
            format!("{DIGEST} 7 archives/.deb"),
            format!("{DIGEST} 7 archives/lock"),
            format!("{DIGEST} 7"),
            String::new(),
        ] {
            let list = [good[0].clone(), other.clone(), good[1].clone()].join("\n");
            let found = Wanted::of(&list);
            assert_eq!(
                (found.is_whole, found.packages),
                (false, whole.packages.clone()),
                "{other}"
            );
        }
    }
}
