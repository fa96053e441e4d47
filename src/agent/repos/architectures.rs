//! Looks whether repositories have the architecture of the image at all. Without this, a package would be missing, which looks like
//! a misspelt name. Talks HTTP to the repositories.

use std::{
    collections::BTreeSet,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use kiln_records::{Code, Failure, Warning, arch::Arch, compression::Compression};
use reqwest::{Client, Url};

use super::beginning;
use crate::{
    kiwi_config::{KiwiConfig, Plan, Repository},
    process::blocking,
};

/// The most bytes of an index that are read: apt's says it in its first lines, and rpm's is short.
const INDEX: usize = 64 << 10;

/// How much of a list of rpms is read: a beginning, in which the architecture nearly always is, or all.
const PART: usize = 256 << 10;
const WHOLE: usize = 64 << 20;

/// The most bytes of a list of rpms, unpacked.
const UNPACKED: u64 = 1 << 30;

/// The most bytes of a text in such a list.
const TEXT: u64 = 64 << 10;

/// What a repository says of architectures.
#[derive(Debug)]
pub(super) struct Declared {
    /// Whether it has the one that is asked for.
    pub(super) has_arch: bool,
    /// Those that it has, as it names them. Not all of them, where packages are listed and the one that is asked for is among them.
    pub(super) has: Vec<String>,
}

/// Fails if all repositories say that they lack `arch`. Returns a warning of each that does.
///
/// # Errors
///
/// `repo_without_arch`.
pub async fn check(config: &KiwiConfig, client: &Client, arch: Arch) -> Result<Vec<Warning>, Failure> {
    let (mut lacking, mut others) = (Vec::new(), 0);
    for repository in &config.repositories {
        let Plan::Wait(urls) = &repository.plan else {
            // It may have the architecture.
            others += usize::from(matches!(repository.plan, Plan::Skip(_)));
            continue;
        };
        match declared(client, repository, urls, arch).await {
            Some(declared) if !declared.has_arch => {
                lacking.push(format!("{} has {}", repository.shown, declared.has.join(", ")));
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

/// What a repository says of architectures, if it says anything.
pub(super) async fn declared(client: &Client, repository: &Repository, urls: &[Url], arch: Arch) -> Option<Declared> {
    for url in urls {
        // Who does not answer was waited for already.
        if let Some(index) = beginning(client, repository, url, INDEX).await {
            let index = String::from_utf8_lossy(&index);
            if Path::new(url.path()).extension() != Some("xml".as_ref()) {
                return of_release(&index, arch);
            }
            let list = list_of(url, &index)?;
            return match in_list(client, repository, &list, PART, arch).await {
                Some(declared) if declared.has_arch => Some(declared),
                _ => in_list(client, repository, &list, WHOLE, arch).await,
            };
        }
    }
    None
}

/// What a Debian index says in a field of its own.
fn of_release(index: &str, arch: Arch) -> Option<Declared> {
    let field = index.lines().find_map(|line| line.strip_prefix("Architectures:"))?;
    let has: Vec<_> = field.split_whitespace().map(str::to_owned).collect();
    let has_arch = has.iter().any(|one| one == arch.debian());
    (!has.is_empty()).then_some(Declared { has_arch, has })
}

/// The address of the list of packages that the index of an rpm repository names.
fn list_of(index: &Url, text: &str) -> Option<Url> {
    let index_read = roxmltree::Document::parse(text).ok()?;
    let is = |node: &roxmltree::Node<'_, '_>, name| node.tag_name().name() == name;
    let mut all = index_read.descendants();
    let primary = all.find(|node| is(node, "data") && node.attribute("type") == Some("primary"))?;
    let path = primary
        .children()
        .find(|node| is(node, "location"))?
        .attribute("href")?;
    let mut list = index.clone();
    // The path is one from the directory above that of the index.
    let mut segments = list.path_segments_mut().ok()?;
    segments.pop().pop().extend(path.split('/'));
    drop(segments);
    Some(list)
}

/// What the first `most` bytes of a list of rpms say. `None` unless that is certain.
async fn in_list(client: &Client, repository: &Repository, list: &Url, most: usize, arch: Arch) -> Option<Declared> {
    let packed = beginning(client, repository, list, most).await?;
    let is_whole = packed.len() < most;
    let read = move || {
        let mut found = BTreeSet::new();
        let ended = read_archs(&packed, arch, &mut found);
        Ok((ended.is_ok(), found))
    };
    let (is_read, found) = blocking(read).await.ok()?;
    let has_arch = found.iter().any(|one| fits(one, arch));
    let is_certain = has_arch || (is_whole && is_read && !found.is_empty());
    let has = found.into_iter().collect();
    is_certain.then_some(Declared { has_arch, has })
}

/// Whether packages with this word are for `arch`.
fn fits(word: &str, arch: Arch) -> bool {
    // The second are those of a level of it, as x86_64_v2.
    word == arch.name() || word.strip_prefix(arch.name()).is_some_and(|rest| rest.starts_with('_'))
}

/// Adds the architectures of the packages in a list of rpms, up to the first for `arch`.
fn read_archs(packed: &[u8], arch: Arch, found: &mut BTreeSet<String>) -> io::Result<()> {
    let text: Box<dyn Read> = match Compression::detect(packed) {
        Some(compression) => compression.reader(packed)?,
        None => Box::new(packed),
    };
    let mut text = BufReader::new(text.take(UNPACKED));
    let mut piece = Vec::new();
    while text.by_ref().take(TEXT).read_until(b'>', &mut piece)? > 0 {
        let is_arch = piece.ends_with(b"<arch>");
        piece.clear();
        if !is_arch {
            continue;
        }
        text.by_ref().take(TEXT).read_until(b'<', &mut piece)?;
        let word = String::from_utf8_lossy(&piece).trim_end_matches('<').trim().to_owned();
        let is_there = fits(&word, arch);
        // Packages of these say nothing of architectures: a repository may have them alone.
        if !matches!(word.as_str(), "noarch" | "src" | "nosrc") {
            found.insert(word);
        }
        if is_there {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(list: &str, packed: fn(&str) -> Vec<u8>) -> Vec<String> {
        let mut found = BTreeSet::new();
        read_archs(&packed(list), Arch::X86_64, &mut found).unwrap();
        found.into_iter().collect()
    }

    #[test]
    fn architectures_are_read_up_to_the_one_that_is_asked_for() {
        let list = |archs: &[&str]| {
            let packages = archs
                .iter()
                .map(|arch| format!("<package><name>a</name><arch>{arch}</arch></package>"));
            format!("<metadata>{}</metadata>", packages.collect::<String>())
        };
        let plain = |text: &str| text.as_bytes().to_vec();
        let zstd = |text: &str| zstd::encode_all(text.as_bytes(), 1).unwrap();
        assert_eq!(found(&list(&["noarch", "src", "aarch64"]), plain), ["aarch64"]);
        assert_eq!(found(&list(&["i686", "x86_64", "aarch64"]), zstd), ["i686", "x86_64"]);
        assert_eq!(found(&list(&["x86_64_v2", "aarch64"]), zstd), ["x86_64_v2"]);
        assert!(fits("x86_64_v2", Arch::X86_64) && !fits("x86", Arch::X86_64));
    }

    #[test]
    fn the_list_is_where_the_index_says() {
        let index = r#"<repomd xmlns="http://linux.duke.edu/metadata/repo"><data type="filelists"><location href="repodata/f"/></data>
            <data type="primary"><checksum>x</checksum><location href="repodata/1-primary.xml.gz"/></data></repomd>"#;
        let url = Url::parse("https://h/a/b/repodata/repomd.xml?key=1").unwrap();
        assert_eq!(
            list_of(&url, index).unwrap().as_str(),
            "https://h/a/b/repodata/1-primary.xml.gz?key=1"
        );
        assert_eq!(list_of(&url, "<html>"), None);
    }
}
