//! `kiln images why`: the inputs in which two images differ, by their provenance and their packages. Talks to the server and to
//! S3.

use std::collections::BTreeMap;

use clap::Args;
use kiln_records::{
    Code, Failure,
    sbom::{PackageChange, changes},
};
use serde_json::Value;

use super::{
    packages::{known, listed},
    session::Session,
};
use crate::{
    client::{
        Data,
        collection::{IMAGES, INPUT_CHANGES},
    },
    origin::{MAX_SIZE, REPOSITORY, STATEMENT_TYPE},
};

/// What was asked for, in the order in which one explains the next: where a statement has it, and its name.
const ASKED: [(&str, &str); 7] = [
    ("/buildDefinition/buildType", "kind of job"),
    ("/buildDefinition/externalParameters/arch", "architecture"),
    ("/buildDefinition/resolvedDependencies", "sources"),
    ("/buildDefinition/externalParameters/valueNames", "names of values"),
    ("/buildDefinition/externalParameters/requireDkms", "require_dkms"),
    (
        "/buildDefinition/externalParameters/squashfs",
        "options of the squashfs",
    ),
    (
        "/buildDefinition/externalParameters/sourceDateEpoch",
        "date of a reproducible image",
    ),
];

/// How it was carried out, which should make no difference.
const CARRIED_OUT: [(&str, &str); 7] = [
    ("/runDetails/builder/version/kiln", "version of Kiln"),
    ("/buildDefinition/internalParameters/how", "native or emulated"),
    ("/buildDefinition/internalParameters/sandbox/emulator", "emulator"),
    ("/buildDefinition/internalParameters/twins", "level of native twins"),
    ("/buildDefinition/internalParameters/driver", "kind of sandbox"),
    (
        "/buildDefinition/internalParameters/layer/outcome",
        "reuse of an earlier root",
    ),
    (
        "/buildDefinition/internalParameters/sandbox/kernel",
        "kernel of the sandbox",
    ),
];

/// The sources of which an image may know nothing: a job without reuse does not look at its repositories, an image that was taken as a
/// whole had no toolbox, and older statements have neither.
const MAYBE_UNKNOWN: [&str; 2] = [REPOSITORY, "toolbox"];

#[derive(Debug, Args)]
pub(super) struct Why {
    /// The image to compare with.
    old: String,

    /// The image.
    new: String,
}

/// An input, and what it was for the older and the newer image.
type Change = (String, String, String);

impl Why {
    pub(super) async fn run(self, session: &Session) -> Result<(), Failure> {
        let mut both = Vec::new();
        for given in [&self.old, &self.new] {
            let image = session.client.find(&IMAGES, given).await?.id;
            let statement = statement(session, given, &image).await?;
            let packages = session.client.image_packages(&image, None, None).await?;
            // Without a list of its packages an image's other inputs are known all the same.
            both.push((
                statement,
                known(given, &packages).ok().map(|packages| listed(&packages)),
            ));
        }
        let (Some((new, of_new)), Some((old, of_old))) = (both.pop(), both.pop()) else {
            return Ok(());
        };
        let packages = of_old.zip(of_new).map(|(old, new)| changes(&old, &new));
        let found = inputs(&old, &new, packages.as_deref());
        if packages.is_none() {
            session.printer.note("one of them has no list of its packages");
        }
        if found.is_empty() && !session.wants_data() {
            session.printer.result("all inputs that are known are the same");
            return Ok(());
        }
        let row = |(input, old, new)| {
            let fields = [("input", input), ("old", old), ("new", new)];
            Data::Map(fields.map(|(name, text)| (name.to_owned(), Data::Text(text))).to_vec())
        };
        session.show_table(&INPUT_CHANGES, found.into_iter().map(row).collect())
    }
}

/// The predicate of an image's statement.
pub(super) async fn statement(session: &Session, given: &str, id: &str) -> Result<Value, Failure> {
    let answer = session.client.get(&["kiln", "v1", "images", id, "artifacts"]).await?;
    let missing = || {
        Failure::new(
            Code::RecordUnknown,
            format!("nobody has said where `{given}` comes from"),
        )
        .hint("images that Kiln builds have a statement of provenance; see docs/origin.md")
    };
    let documents = answer.items("provenance");
    let document = documents.iter().find(|one| one.text("type") == Some(STATEMENT_TYPE));
    let url = document.and_then(|document| document.text("url")).ok_or_else(missing)?;
    let unread = |why: String| {
        Failure::new(
            Code::S3Unreachable,
            format!("cannot read where `{given}` comes from: {why}"),
        )
    };
    let answer = session.client.object(url).await?.get().send().await;
    let answer = answer.and_then(reqwest::Response::error_for_status);
    let answer = answer.map_err(|error| unread(error.without_url().to_string()))?;
    if answer.content_length().is_none_or(|size| size > MAX_SIZE as u64) {
        return Err(unread(format!("it may have more than {MAX_SIZE} bytes")));
    }
    let text = answer
        .bytes()
        .await
        .map_err(|error| unread(error.without_url().to_string()))?;
    let mut statement: Value = serde_json::from_slice(&text).map_err(|error| unread(error.to_string()))?;
    Ok(statement["predicate"].take())
}

/// The inputs that differ, the one that explains most first.
fn inputs(old: &Value, new: &Value, packages: Option<&[PackageChange]>) -> Vec<Change> {
    let mut found: Vec<_> = ASKED.iter().flat_map(|place| compared(*place, old, new)).collect();
    found.extend(packages.and_then(of_packages));
    found.extend(of_files(old, new));
    found.extend(CARRIED_OUT.iter().flat_map(|place| compared(*place, old, new)));
    found
}

fn compared((pointer, name): (&str, &str), old: &Value, new: &Value) -> Vec<Change> {
    let sides = [old, new].map(|side| side.pointer(pointer).cloned().unwrap_or_default());
    let [old, new] = &sides;
    if old == new {
        return Vec::new();
    }
    match (old, new) {
        // Each has a name and digests: the recipe, the image that was customised, the scripts.
        (Value::Array(old), Value::Array(new)) if pointer.ends_with("Dependencies") => sources(old, new),
        _ => vec![(name.to_owned(), shown(old), shown(new))],
    }
}

/// Whether a source is a package. These are compared by their lists, and by their files.
fn is_package(source: &Value) -> bool {
    source["uri"].as_str().is_some_and(|uri| uri.starts_with("pkg:"))
}

/// The sources that differ, by their names. One name may stand for several, such as scripts.
fn sources(old: &[Value], new: &[Value]) -> Vec<Change> {
    let mut names: Vec<&str> = Vec::new();
    for source in old.iter().chain(new).filter(|source| !is_package(source)) {
        let name = source["name"].as_str().unwrap_or("source");
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let digests = |side: &[Value], name: &str| {
        let of_name = side
            .iter()
            .filter(|source| !is_package(source) && source["name"].as_str().unwrap_or("source") == name);
        let digests: Vec<String> = of_name.map(|source| shown(&source["digest"]["sha256"])).collect();
        digests.join(", ")
    };
    names
        .into_iter()
        .map(|name| (name, digests(old, name), digests(new, name)))
        .filter(|(name, old, new)| old != new && !(MAYBE_UNKNOWN.contains(name) && (old.is_empty() || new.is_empty())))
        .map(|(name, old, new)| (name.to_owned(), old, new))
        .collect()
}

/// What the repositories gave: the same recipe gets other packages on another day.
fn of_packages(changes: &[PackageChange]) -> Option<Change> {
    let first = changes.first()?;
    let count = |kind: &str| changes.iter().filter(|change| change.kind() == kind).count();
    let new = format!(
        "{} changed, {} added, {} removed",
        count("changed"),
        count("added"),
        count("removed")
    );
    let example = [&first.name, &first.old].map(String::as_str).join(" ");
    Some(("packages".to_owned(), format!("{}, …", example.trim_end()), new))
}

/// Packages that came in another file although name and version are the same, such as those of a repository of one's own.
fn of_files(old: &Value, new: &Value) -> Option<Change> {
    let files = |side: &Value| -> BTreeMap<String, String> {
        let sources = side.pointer("/buildDefinition/resolvedDependencies");
        let packages = sources.and_then(Value::as_array).into_iter().flatten();
        let file = |source: &Value| Some((shown(&source["uri"]), source["digest"]["sha256"].as_str()?.to_owned()));
        packages.filter(|source| is_package(source)).filter_map(file).collect()
    };
    let before = files(old);
    let differs = |(uri, sha256): &(String, String)| before.get(uri).is_some_and(|before| before != sha256);
    let differ: Vec<_> = files(new).into_iter().filter(differs).collect();
    let (example, _) = differ.first()?;
    let count = differ.len();
    let new = format!("{count} with the same version and another file");
    Some(("files of packages".to_owned(), format!("{example}, …"), new))
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn statement(recipe: &str, arch: &str, how: &str) -> Value {
        json!({
            "buildDefinition": {
                "buildType": "urn:kiln:build:create",
                "externalParameters": {"arch": arch, "valueNames": ["a"]},
                "internalParameters": {"how": how},
                "resolvedDependencies": [
                    {"name": "recipe", "digest": {"sha256": recipe}},
                    {"name": "script", "digest": {"sha256": "1"}}, {"name": "script", "digest": {"sha256": "2"}},
                ],
            },
            "runDetails": {"metadata": {"invocationId": recipe}},
        })
    }

    fn names(found: &[Change]) -> Vec<&str> {
        found.iter().map(|(name, _, _)| name.as_str()).collect()
    }

    #[test]
    fn the_input_that_explains_most_comes_first() {
        let old = statement("aa", "x86_64", "native");
        let package = PackageChange {
            name: "openssl".to_owned(),
            arch: "amd64".to_owned(),
            old: "3.0".to_owned(),
            new: "3.1".to_owned(),
        };
        let packages = Some(std::slice::from_ref(&package));
        let found = inputs(&old, &statement("bb", "aarch64", "emulated"), packages);
        assert_eq!(
            names(&found),
            ["architecture", "recipe", "packages", "native or emulated"]
        );
        assert_eq!(found[1], ("recipe".to_owned(), "aa".to_owned(), "bb".to_owned()));
        assert_eq!(found[2].1, "openssl 3.0, …");
        assert_eq!(found[2].2, "1 changed, 0 added, 0 removed");
        // The same recipe on another day.
        assert_eq!(names(&inputs(&old, &old, packages)), ["packages"]);
        assert_eq!(inputs(&old, &old, Some(&[])), []);
        assert_eq!(inputs(&old, &old, None), []);
    }

    #[test]
    fn a_package_that_was_built_again_is_seen_by_its_file() {
        let with = |packages: &[(&str, Option<&str>)]| {
            let mut statement = statement("aa", "x86_64", "native");
            let sources = statement["buildDefinition"]["resolvedDependencies"].as_array_mut();
            let sources = sources.unwrap();
            sources.extend(packages.iter().map(|(name, sha256)| {
                let digest = sha256.map_or(json!({}), |sha256| json!({"sha256": sha256}));
                json!({"uri": format!("pkg:deb/debian/{name}@1?arch=amd64"), "digest": digest})
            }));
            statement
        };
        let old = with(&[("a", Some("1")), ("b", Some("2")), ("c", None), ("d", Some("4"))]);
        let found = inputs(
            &old,
            &with(&[("a", Some("1")), ("b", Some("3")), ("c", Some("5"))]),
            Some(&[]),
        );
        let expected = [
            "files of packages",
            "pkg:deb/debian/b@1?arch=amd64, …",
            "1 with the same version and another file",
        ];
        assert_eq!(found, [expected.map(str::to_owned).into()]);
        // A file that could not be looked at says nothing.
        assert_eq!(inputs(&old, &old, Some(&[])), []);
    }

    #[test]
    fn sources_are_told_apart_by_their_names() {
        let old = statement("aa", "x86_64", "native");
        let mut new = old.clone();
        let sources = new["buildDefinition"]["resolvedDependencies"].as_array_mut().unwrap();
        sources[2]["digest"]["sha256"] = json!("3");
        sources.push(json!({"name": "rootfs", "digest": {"sha256": "4"}}));
        let found = inputs(&old, &new, None);
        assert_eq!(names(&found), ["script", "rootfs"]);
        assert_eq!(found[0], ("script".to_owned(), "1, 2".to_owned(), "1, 3".to_owned()));
        assert_eq!(found[1].1, "");

        let repository = |digest: &str| {
            let mut statement = old.clone();
            let sources = statement["buildDefinition"]["resolvedDependencies"].as_array_mut();
            let repository = json!({"name": "repository", "digest": {"sha256": digest}});
            sources.unwrap().push(repository);
            statement
        };
        assert_eq!(names(&inputs(&repository("5"), &repository("6"), None)), ["repository"]);
        assert!(names(&inputs(&old, &repository("6"), None)).is_empty());
    }
}
