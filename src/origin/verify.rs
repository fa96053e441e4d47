//! Compares a statement with the objects of an image. Pure: no I/O.
//!
//! Only what is shown to be right is: an object that the statement does not name, and one that it names and that is not
//! there, are faults.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{MANIFEST, Statement};

/// What is known of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The last part of its key.
    pub name: String,
    /// What is wrong with it; `None` if it is what the statement and the manifest say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
}

/// What is wrong with an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Its content has another digest.
    #[error("its content has another digest than the {0} says")]
    Changed(&'static str),
    /// It is not there.
    #[error("it is named by the {0}, and is not there")]
    Missing(&'static str),
    /// Nothing vouches for it.
    #[error("the {0} does not name it")]
    Unknown(&'static str),
}

/// Compares digests (SHA-256, by name) that were computed from the objects with those in the manifest and in the
/// statement. The manifest itself is among the objects; the statement and its envelope are not. `None` as a digest
/// means that the object is not there.
pub fn check(
    found: &BTreeMap<String, Option<String>>,
    manifest: &BTreeMap<String, Option<String>>,
    statement: Option<&Statement>,
) -> Vec<Finding> {
    let mut findings: BTreeMap<&str, Option<Fault>> = BTreeMap::new();
    for (name, digest) in found {
        let mut fault = None;
        if name != MANIFEST {
            fault = judge(
                "manifest",
                manifest.get(name).and_then(Option::as_deref),
                digest.as_deref(),
            );
        }
        if let (None, Some(statement)) = (&fault, statement) {
            let named = statement.subject.iter().find(|subject| subject.name == *name);
            fault = judge("provenance", named.and_then(super::Subject::sha256), digest.as_deref());
        }
        findings.insert(name, fault);
    }
    let subjects = statement.map(|statement| &statement.subject[..]).unwrap_or_default();
    let named = subjects.iter().map(|subject| (subject.name.as_str(), "provenance"));
    for (name, by) in manifest.keys().map(|name| (name.as_str(), "manifest")).chain(named) {
        findings.entry(name).or_insert(Some(Fault::Missing(by)));
    }
    let finding = |(name, fault): (&str, Option<Fault>)| Finding {
        name: name.to_owned(),
        fault,
    };
    findings.into_iter().map(finding).collect()
}

fn judge(by: &'static str, expected: Option<&str>, found: Option<&str>) -> Option<Fault> {
    match (expected, found) {
        (_, None) => Some(Fault::Missing(by)),
        (None, Some(_)) => Some(Fault::Unknown(by)),
        (Some(expected), Some(found)) => (!expected.eq_ignore_ascii_case(found)).then_some(Fault::Changed(by)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::origin::Subject;

    fn digests(of: &[(&str, &str)]) -> BTreeMap<String, Option<String>> {
        let one =
            |(name, digest): &(&str, &str)| ((*name).to_owned(), (!digest.is_empty()).then(|| (*digest).to_owned()));
        of.iter().map(one).collect()
    }

    fn faults(
        found: &[(&str, &str)],
        manifest: &[(&str, &str)],
        subjects: &[(&str, &str)],
    ) -> Vec<(String, Option<Fault>)> {
        let subjects = subjects
            .iter()
            .map(|(name, digest)| Subject::new(*name, *digest))
            .collect();
        let statement = Statement::provenance(subjects, json!({}));
        check(&digests(found), &digests(manifest), Some(&statement))
            .into_iter()
            .map(|finding| (finding.name, finding.fault))
            .collect()
    }

    #[test]
    fn only_what_both_vouch_for_is_right() {
        let good = [("manifest.json", "m"), ("rootfs", "r")];
        let right = |name: &str| (name.to_owned(), None);
        let wrong = |name: &str, fault| (name.to_owned(), Some(fault));
        assert_eq!(
            faults(&good, &good[1..], &good),
            [right("manifest.json"), right("rootfs")]
        );
        for (found, manifest, subjects, expected) in [
            (
                &[("manifest.json", "x"), ("rootfs", "r")][..],
                &good[1..],
                &good[..],
                wrong("manifest.json", Fault::Changed("provenance")),
            ),
            (
                &[("manifest.json", "m"), ("rootfs", "x")],
                &good[1..],
                &good,
                wrong("rootfs", Fault::Changed("manifest")),
            ),
            (
                &[("manifest.json", "m"), ("rootfs", "x")],
                &[("rootfs", "x")],
                &good,
                wrong("rootfs", Fault::Changed("provenance")),
            ),
            (
                &[("manifest.json", "m"), ("rootfs", "")],
                &good[1..],
                &good,
                wrong("rootfs", Fault::Missing("manifest")),
            ),
            (
                &[("manifest.json", "m")],
                &good[1..],
                &good,
                wrong("rootfs", Fault::Missing("manifest")),
            ),
            (
                &[("manifest.json", "m"), ("rootfs", "r")],
                &[("rootfs", "")],
                &good,
                wrong("rootfs", Fault::Unknown("manifest")),
            ),
            (
                &good,
                &good[1..],
                &good[..1],
                wrong("rootfs", Fault::Unknown("provenance")),
            ),
            (
                &good,
                &good[1..],
                &[("manifest.json", "m"), ("rootfs", "r"), ("kernel", "k")],
                wrong("kernel", Fault::Missing("provenance")),
            ),
        ] {
            let faults = faults(found, manifest, subjects);
            assert!(faults.contains(&expected), "{expected:?} {faults:?}");
            assert_eq!(
                faults.iter().filter(|(_, fault)| fault.is_some()).count(),
                1,
                "{faults:?}"
            );
        }
    }
}
