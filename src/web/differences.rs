//! Two images beside each other: their packages, files and inputs. Reads the database and S3.

use std::collections::BTreeMap;

use axum::{
    extract::{Path, State},
    response::Html,
};
use kiln_records::{
    Image, ImageId, Run,
    sbom::{self, PackageChange},
};
use maud::{Markup, html};

use super::{
    Dashboard, layout,
    origin::{found, origin},
    text::{bytes, cut, name, short, when},
    viewer::Viewer,
};
use crate::{
    api::{kiln::packages, problem::Result},
    artifacts::Listed,
    store::{Collection, Query, Side},
};

/// The packages that are shown. An upgrade of a distribution changes all of an image's.
const PACKAGES: usize = 2000;

/// The earlier images of one name that are offered for comparison.
const EARLIER: u32 = 20;

/// One thing that differs: its name, and what the older and the newer image have.
type Difference = (String, Markup, Markup);

/// The parts of an image that are compared.
struct Half {
    image: Image,
    run: Option<Run>,
    /// Or why they cannot be read: other tools may have changed or removed them in S3.
    files: std::result::Result<Vec<Listed>, String>,
    packages: std::result::Result<Option<sbom::Listed>, String>,
}

pub(super) async fn page(
    State(web): State<Dashboard>,
    viewer: Viewer,
    Path((id, since)): Path<(ImageId, ImageId)>,
) -> Result<Html<String>> {
    let (old, new) = (Half::read(&web, since).await?, Half::read(&web, id).await?);
    let body = html! {
        h1 { (name(&new.image.name)) " since " (when(old.image.created)) }
        p.line {
            span { a href={ "/ui/images/" (old.image.id) } { (short(old.image.id)) } span.dim { " made " (when(old.image.created)) } }
            span { "→ " a href={ "/ui/images/" (new.image.id) } { (short(new.image.id)) } span.dim { " made " (when(new.image.created)) } }
        }
        section aria-labelledby="inputs-title" {
            h2 #inputs-title { "Inputs" }
            (table(&inputs(&old, &new), "Both were made of the same, as far as their jobs are known.", "Input"))
            @if old.run.is_none() || new.run.is_none() { p.dim { "The job that made one of them is not known any more." } }
        }
        section aria-labelledby="files-title" {
            h2 #files-title { "Files" }
            @match (&old.files, &new.files) {
                (Ok(old), Ok(new)) => (table(&files(old, new), "All files are the same, byte for byte.", "File")),
                (Err(why), _) | (_, Err(why)) => p.note { (cut(why, 300)) },
            }
        }
        section aria-labelledby="packages-title" {
            h2 #packages-title { "Packages" }
            @match (&old.packages, &new.packages) {
                (Ok(Some(old)), Ok(Some(new))) => (package_table(&sbom::changes(&old.packages, &new.packages))),
                (Err(why), _) | (_, Err(why)) => p.note { (cut(why, 300)) },
                _ => p.dim { "One of them has no list of its packages." },
            }
        }
    };
    Ok(layout::page(&viewer, &new.image.name, "/ui/images", None, &body))
}

impl Half {
    async fn read(web: &Dashboard, id: ImageId) -> Result<Self> {
        let image = found(web, id).await?;
        let run = match origin(web, &image).await? {
            Some(job) => web.api.store.get_run(job.id).await?.map(|stored| stored.run),
            None => None,
        };
        let files = match &image.link {
            Some(link) => web.api.artifacts.read_manifest(link).await,
            None => Ok(Vec::new()),
        };
        let listed = match &files {
            Ok(_) if image.link.is_some() => packages::read(&web.api, &image).await,
            _ => Ok(None),
        };
        Ok(Self {
            image,
            run,
            files: files.map_err(|unusable| unusable.to_string()),
            packages: listed.map_err(|problem| problem.detail.unwrap_or(problem.title)),
        })
    }
}

/// What the jobs were given and where they ran: what can explain the rest.
fn inputs(old: &Half, new: &Half) -> Vec<Difference> {
    let of = |side: &Half| {
        let mut inputs = BTreeMap::new();
        let mut add = |name: &str, text: String| inputs.insert(name.to_owned(), text);
        add("architecture", side.image.arch.name().to_owned());
        if let Some(run) = &side.run {
            let plan = &run.plan;
            add(
                "recipe archive (SHA-256)",
                run.recipe_sha256.clone().unwrap_or_default(),
            );
            add("how it ran", plan.how.name().to_owned());
            add("native twins", run.twins_in_force().name().to_owned());
            if let Some(base) = &plan.image {
                add("image that was customised", base.id.to_string());
            }
            add("profiles", plan.profiles.join(", "));
            add("Containerfile", plan.containerfile.file.clone().unwrap_or_default());
            add("stage", plan.containerfile.target.clone().unwrap_or_default());
            for (number, (option, text)) in plan.additions.shown().into_iter().enumerate() {
                add(&format!("addition {}", number + 1), format!("{option} {text}"));
            }
            for (name, value) in &plan.values {
                add(&format!("value of {name}"), value.clone());
            }
        }
        inputs
    };
    pairs(&of(old), &of(new), |text| html! { code.digest { (cut(text, 200)) } })
}

/// A file by what a manifest says of it. Two are equal only if a digest shows it: manifests of other tools may have none.
struct Content<'a>(&'a Listed);

impl PartialEq for Content<'_> {
    fn eq(&self, other: &Self) -> bool {
        let (one, other) = (self.0, other.0);
        let same = |one: Option<&String>, other: Option<&String>| Some(one? == other?);
        let digests = same(one.sha256.as_ref(), other.sha256.as_ref());
        digests.or_else(|| same(one.md5.as_ref(), other.md5.as_ref())) == Some(true)
    }
}

fn files(old: &[Listed], new: &[Listed]) -> Vec<Difference> {
    fn of(files: &[Listed]) -> BTreeMap<String, Content<'_>> {
        files
            .iter()
            .map(|file| {
                // The rest of a path is the image's id.
                let name = file.path.rsplit('/').next().unwrap_or_default();
                (name.to_owned(), Content(file))
            })
            .collect()
    }
    pairs(&of(old), &of(new), |Content(file)| {
        html! {
            @if let Some(size) = file.size { (bytes(size)) " " }
            @match file.sha256.as_ref().or(file.md5.as_ref()) {
                Some(digest) => code.digest { (cut(digest, 12)) },
                None => span.dim { "no digest" },
            }
        }
    })
}

/// What two maps have under the same name, where that differs.
fn pairs<T: PartialEq>(
    old: &BTreeMap<String, T>,
    new: &BTreeMap<String, T>,
    show: impl Fn(&T) -> Markup,
) -> Vec<Difference> {
    let mut names: Vec<_> = old.keys().chain(new.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let none = || html! { span.dim { "none" } };
    let shown = |side: Option<&T>| side.map_or_else(none, &show);
    let differ = names.into_iter().filter(|name| old.get(*name) != new.get(*name));
    differ
        .map(|name| (name.clone(), shown(old.get(name)), shown(new.get(name))))
        .collect()
}

fn table(differences: &[Difference], same: &str, what: &str) -> Markup {
    html! {
        @if differences.is_empty() { p.dim { (same) } }
        @else {
            div.wide tabindex="0" { table {
                thead { tr { th { (what) } th { "Before" } th { "After" } } }
                tbody { @for (name, old, new) in differences { tr { td { (cut(name, 100)) } td { (old) } td { (new) } } } }
            } }
        }
    }
}

fn package_table(changes: &[PackageChange]) -> Markup {
    let count = |kind: &str| changes.iter().filter(|change| change.kind() == kind).count();
    html! {
        @if changes.is_empty() { p.dim { "Both have the same packages." } }
        @else {
            p { (count("changed")) " changed, " (count("added")) " added, " (count("removed")) " removed." }
            div.wide tabindex="0" { table {
                thead { tr { th { "Package" } th { "Architecture" } th { "Change" } th { "Before" } th { "After" } } }
                tbody { @for change in changes.iter().take(PACKAGES) { tr {
                    td { (cut(&change.name, 100)) }
                    td { (cut(&change.arch, 40)) }
                    td { (change.kind()) }
                    td { (cut(&change.old, 100)) }
                    td { (cut(&change.new, 100)) }
                } } }
            } }
            @if changes.len() > PACKAGES { p.dim { (changes.len() - PACKAGES) " more: " code { "kiln images diff" } " shows all." } }
        }
    }
}

/// Links from an image's page to what changed since earlier images of its name and architecture.
pub(super) async fn earlier(web: &Dashboard, image: &Image) -> Result<Markup> {
    let query = Query {
        descending: true,
        limit: EARLIER,
        name: Some(image.name.clone()),
        ..Query::default()
    };
    let rows = Collection::<Image>::page(&*web.api.store, Side::Live, &query).await?;
    let before: Vec<_> = rows
        .iter()
        .map(|stored| &stored.record)
        .filter(|other| other.arch == image.arch && other.created < image.created && other.link.is_some())
        .collect();
    Ok(html! {
        @if before.is_empty() || image.link.is_none() { p.dim { "There is no earlier image of this name and architecture." } }
        @else {
            ol.plain { @for other in before {
                li { a href={ "/ui/images/" (image.id) "/since/" (other.id) } { "since " (when(other.created)) } " " span.dim { (short(other.id)) } }
            } }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_compared_by_their_names() {
        let file = |path: &str, sha256: &str, size: u64| Listed::for_tests(path, sha256, size);
        let old = [
            file("s3://b/one/rootfs", "aaaaaaaaaaaaaaaaaaaa", 1_000_000),
            file("s3://b/one/kernel", "cccc", 7),
        ];
        let new = [
            file("s3://b/two/rootfs", "bbbbbbbbbbbbbbbbbbbb", 2_000_000),
            file("s3://b/two/kernel", "cccc", 7),
            file("s3://b/two/initrd", "dddd", 9),
        ];
        let found: Vec<_> = files(&old, &new)
            .into_iter()
            .map(|(name, old, new)| format!("{name}: {} > {}", old.into_string(), new.into_string()))
            .collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("initrd: ") && found[0].contains("none"),
            "{found:?}"
        );
        assert!(
            found[1].starts_with("rootfs: ") && found[1].contains("aaaaaaaaaaa"),
            "{found:?}"
        );
        assert_eq!(files(&new, &new).len(), 0);
    }

    #[test]
    fn files_without_digests_are_not_taken_for_equal() {
        let mut unknown = [Listed::for_tests("s3://b/one/rootfs", "", 7)];
        unknown[0].sha256 = None;
        unknown[0].md5 = None;
        let [(name, old, _)] = &files(&unknown, &unknown)[..] else {
            panic!("it is taken for equal")
        };
        assert_eq!(name, "rootfs");
        assert!(old.0.contains("no digest"), "{}", old.0);
        // MD5 is what manifests of IMS have.
        unknown[0].md5 = Some("aa".to_owned());
        assert_eq!(files(&unknown, &unknown).len(), 0);
    }

    #[test]
    fn a_new_distribution_does_not_make_an_endless_page() {
        let change = |number: usize| PackageChange {
            name: format!("<package>-{number}"),
            arch: "all".to_owned(),
            old: if number.is_multiple_of(2) {
                String::new()
            } else {
                "1".to_owned()
            },
            new: "2".to_owned(),
        };
        let changes: Vec<_> = (0..PACKAGES + 10).map(change).collect();
        let page = package_table(&changes).into_string();
        assert!(
            page.contains("1005 changed, 1005 added, 0 removed."),
            "{}",
            &page[..200]
        );
        assert!(page.contains("&lt;package&gt;-7") && page.contains("10 more"));
        assert!(package_table(&[]).into_string().contains("the same packages"));
    }
}
