//! Reads what a description says at all, and marks what of it is in force. Reads files of the recipe only.

use std::path::Path;

use kiln_records::{
    Failure,
    protocol::{ProfileRead, TypeRead},
};
use roxmltree::Node;

use super::{
    Choice, elements,
    force::{InForce, is_true, names_in},
    parsed, redact,
};

/// A description.
#[derive(Debug)]
pub(crate) struct Whole {
    /// The image's name.
    pub(crate) name: Option<String>,
    /// The architectures that its elements name, in its order.
    pub(crate) archs: Vec<String>,
    /// Its profiles.
    pub(crate) profiles: Vec<ProfileRead>,
    /// Its image types.
    pub(crate) types: Vec<TypeRead>,
    /// Its repositories, in the order of [`KiwiConfig::repositories`](super::KiwiConfig).
    pub(crate) sources: Vec<Source>,
}

/// A repository, by its description.
#[derive(Debug)]
pub(crate) struct Source {
    /// Its address without secrets.
    pub(crate) shown: String,
    /// Its kind, if it is said.
    pub(crate) kind: Option<String>,
    /// The profiles that it belongs to.
    pub(crate) profiles: Vec<String>,
    /// The architectures that it is for.
    pub(crate) archs: Vec<String>,
    /// The keys that are named for it, without secrets.
    pub(crate) keys: Vec<String>,
}

/// Reads the whole description in the recipe's directory. Where the choice cannot be made, nothing is in force.
///
/// # Errors
///
/// Those of [`read`](super::read), but for the choice.
pub(crate) fn whole(recipe: &Path, choice: Choice<'_>) -> Result<Whole, Failure> {
    parsed(recipe, |image| {
        let force = InForce::of(image, choice).ok();
        let preferences = elements(image, "preferences");
        Ok(Whole {
            name: image.attribute("name").map(str::to_owned),
            archs: archs(image),
            profiles: elements(image, "profile")
                .filter_map(|node| profile(node, force.as_ref()))
                .collect(),
            types: preferences.flat_map(|part| types(part, force.as_ref())).collect(),
            sources: elements(image, "repository").flat_map(sources).collect(),
        })
    })
}

fn archs(image: Node<'_, '_>) -> Vec<String> {
    let mut archs = Vec::new();
    for name in image.descendants().flat_map(|node| names_in(node, "arch")) {
        if !archs.contains(&name) {
            archs.push(name);
        }
    }
    archs
}

fn profile(node: Node<'_, '_>, force: Option<&InForce<'_>>) -> Option<ProfileRead> {
    let name = node.attribute("name")?;
    Some(ProfileRead {
        name: name.to_owned(),
        by_itself: is_true(node, "import"),
        archs: names_in(node, "arch"),
        requires: elements(node, "requires")
            .filter_map(|required| required.attribute("profile").map(str::to_owned))
            .collect(),
        in_force: force.is_some_and(|force| force.profiles().contains(&name) && force.has_arch_of(node)),
    })
}

fn types(part: Node<'_, '_>, force: Option<&InForce<'_>>) -> Vec<TypeRead> {
    let in_force = force.is_some_and(|force| force.has_profile_of(part) && force.has_arch_of(part));
    let images = elements(part, "type").filter_map(|node| node.attribute("image"));
    let read = |image: &str| TypeRead {
        image: image.to_owned(),
        profiles: names_in(part, "profiles"),
        archs: names_in(part, "arch"),
        in_force,
    };
    images.map(read).collect()
}

fn sources(repository: Node<'_, '_>) -> Vec<Source> {
    let source = |node: Node<'_, '_>| {
        let keys = elements(node, "signing").filter_map(|signing| signing.attribute("key"));
        Some(Source {
            shown: redact(node.attribute("path")?.trim()),
            kind: repository.attribute("type").map(str::to_owned),
            profiles: names_in(repository, "profiles"),
            archs: names_in(repository, "arch"),
            keys: keys.map(redact).collect(),
        })
    };
    elements(repository, "source").filter_map(source).collect()
}

#[cfg(test)]
mod tests {
    use kiln_records::arch::Arch;

    use super::*;

    #[test]
    fn all_is_read_and_what_is_in_force_is_marked() {
        let text = r#"<image name="i">
            <profiles><profile name="A"/><profile name="B" arch="x86_64"><requires profile="A"/></profile></profiles>
            <preferences profiles="A, B" arch="aarch64"><type image="tbz"/><type image="oem"/></preferences>
            <preferences profiles="B"><type image="iso"/></preferences>
            <repository type="rpm-md" profiles="B" arch="x86_64">
              <source path="http://u:p@h/x?token=1"><signing key="https://u:p@h/key"/></source>
            </repository>
            <packages type="image"><package name="x" arch="riscv64"/></packages>
        </image>"#;
        let recipe = tempfile::tempdir().unwrap();
        fs_err::write(recipe.path().join("config.xml"), text).unwrap();
        let of = |arch, profiles: &[&str]| {
            let profiles: Vec<_> = profiles.iter().map(|name| (*name).to_owned()).collect();
            let choice = Choice {
                arch,
                profiles: &profiles,
            };
            whole(recipe.path(), choice).unwrap()
        };
        let found = of(Arch::Aarch64, &["A"]);
        assert_eq!(found.archs, ["x86_64", "aarch64", "riscv64"]);
        assert_eq!(found.profiles[1].requires, ["A"]);
        let in_force: Vec<_> = found.profiles.iter().map(|profile| profile.in_force).collect();
        assert_eq!(in_force, [true, false]);
        let types: Vec<_> = found.types.iter().map(|it| (it.image.as_str(), it.in_force)).collect();
        assert_eq!(types, [("tbz", true), ("oem", true), ("iso", false)]);
        assert_eq!(found.types[0].profiles, ["A", "B"]);
        assert_eq!(found.sources[0].shown, "http://h/x");
        assert_eq!(found.sources[0].keys, ["https://h/key"]);
        // A profile that is not there for the architecture.
        let found = of(Arch::Aarch64, &["B"]);
        assert!(found.types.iter().all(|it| !it.in_force) && found.profiles.len() == 2);
    }
}
