//! Says which parts of a description are in force for an image, as kiwi does: by its architecture and by profiles. Pure: no I/O.

use kiln_records::{
    Code, Failure,
    arch::Arch,
    protocol::{JobDescription, Work},
};
use roxmltree::Node;

use super::elements;

/// What a build chooses of a description.
#[derive(Debug, Clone, Copy)]
pub struct Choice<'a> {
    /// The architecture of the image.
    pub arch: Arch,
    /// The profiles that were asked for. If there are none, those that the description has in force by itself.
    pub profiles: &'a [String],
}

impl<'a> Choice<'a> {
    /// What a job chooses.
    pub fn of(job: &'a JobDescription) -> Self {
        let profiles = match &job.work {
            Work::Create(work) => work.profiles.as_slice(),
            Work::Customize(_) => &[],
        };
        Self {
            arch: job.arch,
            profiles,
        }
    }
}

/// Which parts of a description are in force.
#[derive(Debug)]
pub(super) struct InForce<'a> {
    arch: Arch,
    profiles: Vec<&'a str>,
}

impl<'a> InForce<'a> {
    /// What is in force of an image.
    ///
    /// # Errors
    ///
    /// `profile_unknown`, with the profiles that there are.
    pub(super) fn of(image: Node<'a, '_>, choice: Choice<'a>) -> Result<Self, Failure> {
        let Choice { arch, profiles: asked } = choice;
        let there: Vec<Node<'a, '_>> = elements(image, "profile").filter(|node| is_for(*node, arch)).collect();
        let named = |wanted: &str| {
            let mut named = there.iter().filter(|node| node.attribute("name") == Some(wanted));
            // Of two with one name, kiwi has the last.
            named.next_back()
        };
        let mut profiles: Vec<&str> = Vec::new();
        if asked.is_empty() {
            let imported = there.iter().filter(|node| is_true(**node, "import"));
            profiles.extend(imported.filter_map(|node| node.attribute("name")));
        }
        // The last is looked at first, and what it requires next.
        let mut pending: Vec<&str> = asked.iter().rev().map(String::as_str).collect();
        while let Some(name) = pending.pop() {
            let Some(profile) = named(name) else {
                return Err(unknown(name, arch, &there));
            };
            if !profiles.contains(&name) {
                profiles.push(name);
                let required: Vec<_> = elements(*profile, "requires")
                    .filter(|node| is_for(*node, arch))
                    .collect();
                pending.extend(required.iter().rev().filter_map(|node| node.attribute("profile")));
            }
        }
        Ok(Self { arch, profiles })
    }

    /// The architecture of the image.
    pub(super) const fn arch(&self) -> Arch {
        self.arch
    }

    /// The profiles in force.
    pub(super) fn profiles(&self) -> &[&'a str] {
        &self.profiles
    }

    /// Whether a part of the description belongs to a profile in force, or to all.
    pub(super) fn has_profile_of(&self, node: Node<'_, '_>) -> bool {
        listed(node, "profiles", |name| self.profiles.contains(&name))
    }

    /// Whether a part of the description is for the architecture.
    pub(super) fn has_arch_of(&self, node: Node<'_, '_>) -> bool {
        is_for(node, self.arch)
    }

    /// The elements of this name in those preferences that are in force.
    pub(super) fn preferred<'n, 'i>(&self, image: Node<'n, 'i>, name: &'static str) -> Vec<Node<'n, 'i>> {
        let preferences = elements(image, "preferences");
        preferences
            .filter(|node| self.has_profile_of(*node) && self.has_arch_of(*node))
            .flat_map(|preferences| elements(preferences, name))
            .collect()
    }
}

/// The profiles that a description has, in its order, with those marked that are in force by themselves.
pub(super) fn said(profiles: &[Node<'_, '_>]) -> String {
    let names = profiles.iter().filter_map(|node| {
        let mark = if is_true(*node, "import") { " (by itself)" } else { "" };
        Some(format!("{}{mark}", node.attribute("name")?))
    });
    let names: Vec<_> = names.collect();
    if names.is_empty() {
        return "the recipe has no profiles".to_owned();
    }
    format!("the recipe has the profiles {}", names.join(", "))
}

fn unknown(name: &str, arch: Arch, there: &[Node<'_, '_>]) -> Failure {
    Failure::new(
        Code::ProfileUnknown,
        format!("there is no profile `{name}` for {arch}: {}", said(there)),
    )
    .hint(if there.is_empty() {
        "leave --profile out"
    } else {
        "name one of them: --profile NAME"
    })
}

/// The names in a comma-separated attribute.
pub(super) fn names_in(node: Node<'_, '_>, attribute: &str) -> Vec<String> {
    let names = node.attribute(attribute).unwrap_or_default().split(',').map(str::trim);
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn is_for(node: Node<'_, '_>, arch: Arch) -> bool {
    listed(node, "arch", |name| name == arch.name())
}

/// Whether a comma-separated attribute is absent, or one of its names is wanted.
fn listed(node: Node<'_, '_>, attribute: &str, wanted: impl Fn(&str) -> bool) -> bool {
    let list: Option<&str> = node.attribute(attribute);
    list.filter(|list| !list.is_empty())
        .is_none_or(|list| list.split(',').map(str::trim).any(wanted))
}

pub(super) fn is_true(node: Node<'_, '_>, attribute: &str) -> bool {
    node.attribute(attribute)
        .is_some_and(|value| ["true", "1"].contains(&value.trim()))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{KiwiConfig, Plan, read},
        *,
    };

    /// A description with profiles that have types, package managers, and repositories of their own.
    const PROFILES: &str = r#"<image name="i">
        <profiles>
            <profile name="Common"/>
            <profile name="Compute"><requires profile="Common"/><requires profile="Other" arch="x86_64"/></profile>
            <profile name="Other" arch="x86_64" import="1"/>
        </profiles>
        <preferences profiles="Compute"><type image="tbz"/></preferences>
        <preferences profiles="Other"><type image="cpio"/><packagemanager>zypper</packagemanager></preferences>
        <preferences arch="x86_64"><packagemanager>dnf5</packagemanager></preferences>
        <preferences><packagemanager>apt</packagemanager></preferences>
        <repository profiles="Common"><source path="http://common"/></repository>
        <repository profiles="Compute,Other"><source path="http://both"/></repository>
    </image>"#;

    fn chosen(arch: Arch, profiles: &[&str]) -> Result<KiwiConfig, Failure> {
        let recipe = tempfile::tempdir().unwrap();
        fs_err::write(recipe.path().join("config.xml"), PROFILES).unwrap();
        let profiles: Vec<_> = profiles.iter().map(|name| (*name).to_owned()).collect();
        read(
            recipe.path(),
            Choice {
                arch,
                profiles: &profiles,
            },
        )
    }

    #[test]
    fn profiles_decide_what_is_in_force() {
        for (arch, asked, profiles, types, manager, used) in [
            (Arch::Aarch64, &[][..], &[][..], &[][..], "apt", 0),
            (Arch::Aarch64, &["Compute"], &["Compute", "Common"], &["tbz"], "apt", 2),
            (Arch::Aarch64, &["Common"], &["Common"], &[], "apt", 1),
            (Arch::X86_64, &[], &["Other"], &["cpio"], "zypper", 1),
            (
                Arch::X86_64,
                &["Common", "Compute"],
                &["Common", "Compute", "Other"],
                &["tbz", "cpio"],
                "zypper",
                2,
            ),
            (Arch::X86_64, &["Common"], &["Common"], &[], "dnf5", 1),
        ] {
            let config = chosen(arch, asked).unwrap();
            assert_eq!(config.profiles, profiles, "{arch} {asked:?}");
            assert_eq!(config.types, types, "{arch} {asked:?}");
            assert_eq!(config.package_manager, manager, "{arch} {asked:?}");
            let waits = config.repositories.iter().filter(|it| matches!(it.plan, Plan::Wait(_)));
            assert_eq!(waits.count(), used, "{arch} {asked:?}");
            assert_eq!(config.has_tbz(), types.contains(&"tbz"));
            let code = config.check_types(arch).map_err(|failure| failure.code);
            assert_eq!(code.err(), types.is_empty().then_some(Code::NoImageType));
        }
    }

    #[test]
    fn a_profile_that_is_not_there_is_refused_with_those_that_are() {
        let failure = chosen(Arch::Aarch64, &["Compute", "Other"]).unwrap_err();
        assert_eq!(failure.code, Code::ProfileUnknown);
        let said = "there is no profile `Other` for aarch64: the recipe has the profiles Common, Compute";
        assert_eq!(failure.detail, said);
        let failure = chosen(Arch::X86_64, &["compute"]).unwrap_err();
        assert!(
            failure.detail.ends_with("Common, Compute, Other (by itself)"),
            "{failure}"
        );
        let failure = chosen(Arch::Aarch64, &[])
            .unwrap()
            .check_types(Arch::Aarch64)
            .unwrap_err();
        assert!(
            failure
                .detail
                .contains("without a profile: the recipe has the profiles"),
            "{failure}"
        );
    }
}
