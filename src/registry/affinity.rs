//! Writes the node affinity of pods that run an image: on nodes whose architecture the image has. Pure: no I/O.

use std::fmt::Write;

use kiln_records::{Code, Failure};

use crate::inspect::Inspected;

/// The architectures of an image's Linux platforms, in its own order, as Kubernetes and Go name them.
///
/// # Errors
///
/// It has none.
pub fn architectures(image: &Inspected) -> Result<Vec<String>, Failure> {
    let mut found: Vec<String> = Vec::new();
    for entry in &image.entries {
        let platform = entry.platform.as_deref().unwrap_or_default();
        let mut parts = platform.split('/');
        if let (Some("linux"), Some(architecture)) = (parts.next(), parts.next())
            && is_plain(architecture)
            && !found.iter().any(|other| other == architecture)
        {
            found.push(architecture.to_owned());
        }
    }
    if found.is_empty() {
        return Err(Failure::new(
            Code::RegistryMissing,
            format!("{} has no image for Linux", image.reference),
        )
        .hint("`kiln inspect` shows what it has"));
    }
    Ok(found)
}

/// Whether a name can be a label's value, and needs no quotes in YAML that it would escape from.
fn is_plain(name: &str) -> bool {
    (1..=63).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// The affinity as YAML: required for all of `architectures`, preferred in the order of `preferred`.
pub fn yaml(architectures: &[String], preferred: &[String]) -> String {
    let mut yaml = String::from(
        "affinity:\n  nodeAffinity:\n    requiredDuringSchedulingIgnoredDuringExecution:\n      nodeSelectorTerms:\n        \
         - matchExpressions:\n            - key: kubernetes.io/os\n              operator: In\n              values:\n                \
         - \"linux\"\n            - key: kubernetes.io/arch\n              operator: In\n              values:\n",
    );
    for architecture in architectures {
        let _ = writeln!(yaml, "                - \"{architecture}\"");
    }
    if preferred.is_empty() {
        return yaml;
    }
    yaml.push_str("    preferredDuringSchedulingIgnoredDuringExecution:\n");
    for (place, architecture) in preferred.iter().enumerate() {
        // Weights are from 1 to 100.
        let weight = (preferred.len() - place) * 100 / preferred.len();
        let _ = write!(
            yaml,
            "      - weight: {}\n        preference:\n          matchExpressions:\n            - key: kubernetes.io/arch\n              \
             operator: In\n              values:\n                - \"{architecture}\"\n",
            weight.max(1)
        );
    }
    yaml
}
