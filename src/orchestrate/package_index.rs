//! Enters the packages of an image into the index of the records. Reads S3 and writes rows of the store.

use std::collections::BTreeMap;

use kiln_records::{Code, Failure, ImageId, Link, Moment, sbom::Listed};

use crate::{
    artifacts::{ArtifactStore, Unlisted, Unusable},
    store::PackageIndex,
};

/// The most packages of one name in an image: what bounds an answer about a name. Systems have a few kernels.
pub const MOST_OF_A_NAME: usize = 256;

/// Reads which packages an image has, and notes them, or why nobody can tell. Repeating it is safe.
///
/// # Errors
///
/// When S3 or the store gives no answer for now: nothing is noted then, so the image counts as one that nobody has looked at.
pub async fn enter(
    store: &dyn PackageIndex,
    artifacts: &ArtifactStore,
    image: ImageId,
    link: &Link,
) -> Result<(), Failure> {
    let fault = match artifacts.packages_of(link).await {
        Ok(Some(listed)) => match fault_of(&listed) {
            None => return Ok(store.put_packages(image, &listed, Moment::now()).await?),
            Some(fault) => fault,
        },
        Ok(None) => "it has no list of packages".to_owned(),
        Err(Unlisted::S3(failure) | Unlisted::Manifest(Unusable::S3(failure))) if failure.code.is_passing() => {
            return Err(failure);
        }
        Err(unread @ Unlisted::Ending(_)) => return Err(Failure::new(Code::Interrupted, unread)),
        Err(unlisted) => unlisted.to_string(),
    };
    Ok(store.put_package_fault(image, &fault, Moment::now()).await?)
}

/// Why a list cannot be entered.
fn fault_of(listed: &Listed) -> Option<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for package in &listed.packages {
        let texts = [&package.name, &package.version, &package.arch];
        if texts.iter().any(|text| text.contains('\0')) {
            return Some("its list of packages has a null character".to_owned());
        }
        *counts.entry(&package.name).or_default() += 1;
    }
    let (name, count) = counts.into_iter().find(|(_, count)| *count > MOST_OF_A_NAME)?;
    Some(format!(
        "its list has {count} packages named `{name}`; {MOST_OF_A_NAME} are allowed"
    ))
}

#[cfg(test)]
mod tests {
    use kiln_records::sbom::{ListedPackage, PackageFormat};

    use super::*;

    #[test]
    fn a_list_that_no_answer_could_hold_is_not_entered() {
        let listed = |name: &str, count: usize| Listed {
            format: Some(PackageFormat::Rpm),
            packages: (0..count)
                .map(|number| ListedPackage {
                    name: name.to_owned(),
                    version: number.to_string(),
                    arch: "noarch".to_owned(),
                    licences: None,
                })
                .collect(),
        };
        assert_eq!(fault_of(&listed("kernel", MOST_OF_A_NAME)), None);
        assert!(fault_of(&listed("kernel", MOST_OF_A_NAME + 1)).is_some());
        assert!(fault_of(&listed("a\0b", 1)).is_some());
    }
}
