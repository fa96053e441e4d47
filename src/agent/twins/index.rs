//! The packages that repositories list for both architectures, and which of the host's is the twin of one of the
//! target's. Pure: no I/O.
//!
//! A twin comes from the repository that the target's package came from: any other one would be a stranger whose
//! programs run in place of that package's. Repositories can copy each other's lists, so several may be possible
//! origins. Then all of them must have the same twin.

use std::collections::{BTreeSet, HashMap};

use kiln_records::{DigestKind, PackageDigest, arch::Arch};
use serde::{Deserialize, Serialize};

use super::{format::Format, version::is_newer};

/// Name and full version of a package.
pub(super) type Id = (String, String);

/// A package of a repository, as its index describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) address: String,
    /// The digest of the package's file.
    pub(super) digest: PackageDigest,
    /// Size in bytes.
    pub(super) size: u64,
    /// Whether the package must have its own signature, in addition to that of the index.
    pub(super) is_signed: bool,
}

/// A line of a repository's list. Its offer is `None` when the package cannot be fetched and checked by it.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) id: Id,
    /// What it was built from, as a text that all builds of it have; empty if that is not known.
    pub(super) source: String,
    pub(super) offer: Option<Offer>,
}

/// Why a package of the target has no twin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Lack {
    /// Its repository does not have the same version for the host, or it could not be fetched and checked.
    Missing,
    /// Its repository is not known.
    Stranger,
    /// It may have come from several repositories, whose packages for the host differ.
    Ambiguous,
    /// The host has another build of the same source only, and that has other files.
    Rebuilt,
}

impl Lack {
    /// The reason, as the log has it.
    pub(super) fn why(self, host: Arch) -> String {
        match self {
            Self::Missing => format!("emulated, since {host} has no equal package"),
            Self::Stranger => "emulated, since it is not known which repository they came from".to_owned(),
            Self::Ambiguous => format!("emulated, since repositories that have them differ in those for {host}"),
            Self::Rebuilt => format!("emulated, since {host} has a rebuild of them with other files"),
        }
    }

    /// The reason for one package.
    pub(super) fn why_of_one(self, host: Arch) -> String {
        match self {
            Self::Missing => format!("{host} has no equal package"),
            Self::Stranger => "it is not known which repository it came from".to_owned(),
            Self::Ambiguous => format!("repositories that have it differ in that for {host}"),
            Self::Rebuilt => format!("{host} has a rebuild of it with other files"),
        }
    }
}

/// One repository: what is published, and signed if at all, as one.
#[derive(Debug, Default)]
pub(super) struct Repository {
    host: HashMap<Id, Offer>,
    /// The newest build for the host of each package and source.
    rebuilds: HashMap<(String, String), String>,
    /// Whether it has packages for the host that cannot be fetched and checked by its list.
    has_unusable: bool,
    /// The builds of each package of the target.
    target: HashMap<String, Vec<Build>>,
}

/// A build of a package of the target.
#[derive(Debug)]
struct Build {
    version: String,
    source: String,
    archive: Option<Archive>,
}

/// A package for the host that may replace one of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Twin<'a> {
    pub(super) offer: &'a Offer,
    /// Its version: that of the target's package, or of another build of the same source.
    pub(super) version: &'a str,
}

/// Digest and size of a package's file.
type Archive = (PackageDigest, u64);

/// All repositories of the recipe or the image.
#[derive(Debug)]
pub(super) struct Index {
    format: Format,
    repositories: Vec<Repository>,
}

impl<'a> Twin<'a> {
    /// The digest of its file.
    const fn digest(self) -> &'a PackageDigest {
        &self.offer.digest
    }
}

impl Repository {
    /// Adds a package for the host in this `format`. For a name and version that is known already, the earlier one counts.
    pub(super) fn add_for_host(&mut self, format: Format, Listed { id, source, offer }: Listed) {
        let Some(offer) = offer else {
            self.has_unusable = true;
            return;
        };
        if !source.is_empty() {
            let newest = self
                .rebuilds
                .entry((id.0.clone(), source))
                .or_insert_with(|| id.1.clone());
            if is_newer(format, &id.1, newest) {
                newest.clone_from(&id.1);
            }
        }
        self.host.entry(id).or_insert(offer);
    }

    /// Adds a package for the target.
    pub(super) fn add_for_target(&mut self, Listed { id, source, offer }: Listed) {
        let (name, version) = id;
        let archive = offer.map(|offer| (offer.digest, offer.size));
        let build = Build {
            version,
            source,
            archive,
        };
        self.target.entry(name).or_default().push(build);
    }

    /// Its builds of a package of the target.
    fn builds(&self, (name, version): &Id) -> impl Iterator<Item = &Build> {
        let builds = self.target.get(name).into_iter().flatten();
        builds.filter(move |build| build.version == *version)
    }

    /// Its package for the host that has the same name and version as a `build` of the target, or else the same source.
    fn twin(&self, id: &Id, build: &Build) -> Option<Twin<'_>> {
        let rebuild = || {
            let source = (id.0.clone(), build.source.clone());
            let version = self.rebuilds.get(&source)?.clone();
            self.host.get_key_value(&(source.0, version))
        };
        let ((_, version), offer) = self.host.get_key_value(id).or_else(rebuild)?;
        Some(Twin { offer, version })
    }

    /// Whether it lists a newer version of a package of the target.
    fn has_newer(&self, format: Format, (name, version): &Id) -> bool {
        let mut builds = self.target.get(name).into_iter().flatten();
        builds.any(|build| is_newer(format, &build.version, version))
    }
}

impl Index {
    pub(super) const fn new(format: Format, repositories: Vec<Repository>) -> Self {
        Self { format, repositories }
    }

    /// The twin of a package of the target whose archive has these digests, of [all kinds](Self::kinds) that it may be listed by.
    ///
    /// Without an archive, the package may have come from any repository that lists its version. One that lists newer
    /// ones only may have had it earlier, so that its origin is not known.
    ///
    /// # Errors
    ///
    /// There is none, and why.
    pub(super) fn twin(&self, id: &Id, archive: Option<&[PackageDigest]>) -> Result<Twin<'_>, Lack> {
        let mut twin = None;
        for repository in &self.repositories {
            // A listed file without a usable digest may be any.
            let is_origin = |build: &&Build| match (archive, &build.archive) {
                (Some(archive), Some((digest, _))) => archive.contains(digest),
                _ => true,
            };
            let mut builds = repository.builds(id).filter(is_origin).peekable();
            if builds.peek().is_some() {
                for found in builds.map(|build| repository.twin(id, build)) {
                    match twin {
                        None => twin = Some(found),
                        Some(known) if known.map(Twin::digest) == found.map(Twin::digest) => {}
                        Some(_) => return Err(Lack::Ambiguous),
                    }
                }
            } else if archive.is_none() && repository.has_newer(self.format, id) {
                return Err(Lack::Stranger);
            }
        }
        twin.ok_or(Lack::Stranger)?.ok_or(Lack::Missing)
    }

    /// The kinds of digests by which a package of the target is listed.
    pub(super) fn kinds(&self, id: &Id) -> BTreeSet<DigestKind> {
        self.archives(id).flatten().map(|(digest, _)| digest.kind()).collect()
    }

    /// The archives by which a package of the target is listed.
    fn archives(&self, id: &Id) -> impl Iterator<Item = Option<&Archive>> {
        let builds = self.repositories.iter().flat_map(|repository| repository.builds(id));
        builds.map(|build| build.archive.as_ref())
    }

    /// Whether an archive of the target of this size is not complete yet.
    pub(super) fn is_arriving(&self, id: &Id, size: u64) -> bool {
        let mut is_longer = false;
        !self.archives(id).any(|file| {
            is_longer |= file.is_some_and(|(_, whole)| size < *whole);
            file.is_some_and(|(_, whole)| size == *whole)
        }) && is_longer
    }

    /// Why no repository has anything for the host, if that is so.
    pub(super) fn why_empty(&self) -> Option<&'static str> {
        let has_any = self.repositories.iter().any(|repository| !repository.host.is_empty());
        let is_unusable = self.repositories.iter().any(|repository| repository.has_unusable);
        (!has_any).then_some(if is_unusable {
            "the repositories list their packages for it without a digest of SHA-256, SHA-384 or SHA-512"
        } else {
            "the repositories have no packages for it"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A digest that a word stands for.
    fn digest(word: &str) -> PackageDigest {
        PackageDigest::parse(&format!("{:0<64}", hex::encode(word))).unwrap()
    }

    fn listed(version: &str, file: &str) -> Listed {
        let offer = Offer {
            address: format!("http://h/{file}"),
            digest: digest(file),
            size: 100,
            is_signed: false,
        };
        Listed {
            id: sed(version),
            source: String::new(),
            offer: Some(offer),
        }
    }

    fn sed(version: &str) -> Id {
        ("sed".to_owned(), version.to_owned())
    }

    /// A repository with builds of sed for the target and the host: versions and digests.
    fn repository(target: &[(&str, &str)], host: &[(&str, &str)]) -> Repository {
        let mut made = Repository::default();
        for (version, file) in target {
            made.add_for_target(listed(version, file));
        }
        for (version, file) in host {
            made.add_for_host(Format::Deb, listed(version, file));
        }
        made
    }

    fn twin(repositories: Vec<Repository>, version: &str, archive: Option<&str>) -> Result<String, Lack> {
        let index = Index::new(Format::Deb, repositories);
        let archive = archive.map(|file| vec![digest(file)]);
        let found = index.twin(&sed(version), archive.as_deref());
        found.map(|twin| twin.offer.address.trim_start_matches("http://h/").to_owned())
    }

    /// The repository that the packages came from.
    fn honest() -> Repository {
        repository(&[("4.9-1", "target")], &[("4.9-1", "host")])
    }

    #[test]
    fn a_twin_comes_from_no_other_repository() {
        for evil in [
            // The host's package only, then with a build of its own for the target.
            repository(&[], &[("4.9-1", "evil")]),
            repository(&[("4.9-1", "own")], &[("4.9-1", "evil")]),
        ] {
            assert_eq!(twin(vec![evil, honest()], "4.9-1", Some("target")).unwrap(), "host");
        }
        // One that copies the list for the target: it may be the origin.
        let evil = || repository(&[("4.9-1", "target")], &[("4.9-1", "evil")]);
        let found = |honest| twin(vec![evil(), honest, evil()], "4.9-1", Some("target"));
        assert_eq!(found(honest()), Err(Lack::Ambiguous));
        assert_eq!(found(repository(&[("4.9-1", "target")], &[])), Err(Lack::Ambiguous));
        // A digest of another kind may be of any file.
        let mut other = Repository::default();
        other.add_for_target(Listed {
            offer: None,
            ..listed("4.9-1", "any")
        });
        assert_eq!(found(other), Err(Lack::Ambiguous));
    }

    #[test]
    fn mirrors_of_one_repository_have_the_same_twin() {
        assert_eq!(twin(vec![honest(), honest()], "4.9-1", Some("target")).unwrap(), "host");
    }

    #[test]
    fn a_package_of_unknown_origin_has_no_twin() {
        assert_eq!(twin(vec![honest()], "4.9-1", Some("local")), Err(Lack::Stranger));
        assert_eq!(twin(vec![honest()], "4.9-2", None), Err(Lack::Stranger));
        assert_eq!(twin(vec![], "4.9-1", None), Err(Lack::Stranger));
        let missing = repository(&[("4.9-1", "target")], &[("4.9-2", "host")]);
        assert_eq!(twin(vec![missing], "4.9-1", Some("target")), Err(Lack::Missing));
    }

    #[test]
    fn without_an_archive_all_that_may_have_had_the_package_count() {
        let evil = || repository(&[("4.9-1", "own")], &[("4.9-1", "evil")]);
        let with = |other| twin(vec![evil(), other], "4.9-1", None);
        assert_eq!(with(honest()), Err(Lack::Ambiguous));
        // The origin has gone on, and does not list the installed version any more.
        assert_eq!(
            with(repository(&[("4.9-2", "t")], &[("4.9-2", "h")])),
            Err(Lack::Stranger)
        );
        // An older version says nothing: a distribution and its updates.
        let older = repository(&[("4.8-3", "t")], &[("4.8-3", "h")]);
        assert_eq!(twin(vec![older, honest()], "4.9-1", None).unwrap(), "host");
    }

    #[test]
    fn a_rebuild_of_the_same_source_is_a_twin() {
        let of = |source: &str, version: &str| Listed {
            source: source.to_owned(),
            ..listed(version, version)
        };
        let index = |target: &[&str], host: &[(&str, &str)]| {
            let mut made = Repository::default();
            for version in target {
                made.add_for_target(of("sed 4.9-1", version));
            }
            for (source, version) in host {
                made.add_for_host(Format::Deb, of(source, version));
            }
            Index::new(Format::Deb, vec![made])
        };
        let twin = |target: &[&str], host: &[(&str, &str)]| {
            let index = index(target, host);
            let found = index.twin(&sed(target[0]), None);
            found.map(|twin| (twin.version.to_owned(), twin.offer.address.clone()))
        };
        let found = |version: &str| Ok((version.to_owned(), format!("http://h/{version}")));
        let same = "sed 4.9-1";
        assert_eq!(twin(&["4.9-1+b1"], &[(same, "4.9-1")]), found("4.9-1"));
        assert_eq!(
            twin(&["4.9-1"], &[(same, "4.9-1+b2"), (same, "4.9-1+b10")]),
            found("4.9-1+b10")
        );
        // The same version comes first.
        assert_eq!(
            twin(&["4.9-1+b1"], &[(same, "4.9-1+b1"), (same, "4.9-1+b2")]),
            found("4.9-1+b1")
        );
        assert_eq!(
            twin(
                &["4.9-1+b1"],
                &[("sed 4.9-2", "4.9-2"), ("sed 4.9-1 rust (= 1)", "4.9-1")]
            ),
            Err(Lack::Missing)
        );
        assert_eq!(twin(&["4.9-1+b1"], &[("", "4.9-1")]), Err(Lack::Missing));
    }

    #[test]
    fn a_package_can_be_listed_by_several_kinds_of_digests() {
        let long = PackageDigest::parse(&"5".repeat(128)).unwrap();
        let mut other = Repository::default();
        let of_kind = |file| {
            let mut listed = listed("4.9-1", file);
            listed.offer.as_mut().unwrap().digest = long.clone();
            listed
        };
        other.add_for_target(of_kind("t"));
        other.add_for_host(Format::Rpm, of_kind("h"));
        let index = Index::new(Format::Rpm, vec![other, repository(&[("4.9-1", "target")], &[])]);
        assert_eq!(
            index.kinds(&sed("4.9-1")),
            BTreeSet::from([DigestKind::Sha256, DigestKind::Sha512])
        );
        let twin = |archive: &[PackageDigest]| {
            let twin = index.twin(&sed("4.9-1"), Some(archive));
            twin.map(|twin| &*twin.offer.address)
        };
        assert_eq!(twin(&[digest("some"), long.clone()]), Ok("http://h/h"));
        assert_eq!(twin(&[digest("target"), long]), Err(Lack::Ambiguous));
        assert_eq!(twin(&[digest("target")]), Err(Lack::Missing));
    }

    #[test]
    fn it_is_said_why_nothing_can_be_had() {
        let why = |repository: Repository| Index::new(Format::Rpm, vec![repository]).why_empty();
        assert_eq!(why(honest()), None);
        assert!(why(Repository::default()).unwrap().ends_with("no packages for it"));
        let mut weak = Repository::default();
        let unusable = Listed {
            offer: None,
            ..listed("4.9-1", "any")
        };
        weak.add_for_host(Format::Deb, unusable);
        assert!(why(weak).unwrap().contains("SHA-512"));
    }

    #[test]
    fn an_archive_is_waited_for_until_it_has_its_listed_size() {
        let index = Index::new(Format::Rpm, vec![honest()]);
        assert!(index.is_arriving(&sed("4.9-1"), 99));
        assert!(!index.is_arriving(&sed("4.9-1"), 100) && !index.is_arriving(&sed("4.9-1"), 101));
        assert!(!index.is_arriving(&sed("4.9-2"), 99));
    }
}
