//! Reads the packages of an SPDX document that an agent made. The document is not trusted: in a virtual machine, the
//! recipe may have written it. Pure: no I/O.

use packageurl::PackageUrl;
use serde::Deserialize;

use super::{LONGEST_TEXT, MOST_PACKAGES, PackageFormat};

/// A package in a document.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listed {
    /// The packages' format; `None` if there are no packages.
    pub format: Option<PackageFormat>,
    /// The packages, in the document's order.
    pub packages: Vec<ListedPackage>,
}

/// A package of an image, as a document has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, utoipa::ToSchema)]
pub struct ListedPackage {
    /// Its name.
    pub name: String,
    /// Its whole version.
    pub version: String,
    /// Its architecture, by the distribution's name for it.
    pub arch: String,
    /// The licences as an SPDX expression, or in the package's own words.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub licences: Option<String>,
}

/// Why a document cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It is no document of this kind.
    #[error("it is not an SPDX document: {0}")]
    Malformed(#[from] serde_json::Error),
    /// It says too much, or what no agent says.
    #[error("{0}")]
    Unsound(&'static str),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    spdx_version: String,
    packages: Vec<SpdxPackage>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpdxPackage {
    name: String,
    #[serde(default)]
    version_info: Option<String>,
    #[serde(default)]
    primary_package_purpose: Option<String>,
    #[serde(default)]
    license_declared: Option<String>,
    #[serde(default)]
    license_comments: Option<String>,
    #[serde(default)]
    external_refs: Vec<Reference>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reference {
    reference_type: String,
    reference_locator: String,
}

/// Reads a document.
///
/// # Errors
///
/// When it is no SPDX 2.3 document, or one that says more than Kiln's own agent would.
pub fn read(text: &[u8]) -> Result<Listed, Unreadable> {
    let document: Document = serde_json::from_slice(text)?;
    if document.spdx_version != "SPDX-2.3" {
        return Err(Unreadable::Unsound("it is not of SPDX 2.3"));
    }
    if document.packages.len() > MOST_PACKAGES + 1 {
        return Err(Unreadable::Unsound("it names too many packages"));
    }
    let mut listed = Listed {
        format: None,
        packages: Vec::new(),
    };
    for package in document.packages {
        if package.primary_package_purpose.is_some() {
            // The image itself.
            continue;
        }
        let purl = package.external_refs.iter().find(|one| one.reference_type == "purl");
        let purl = purl.and_then(|one| one.reference_locator.parse::<PackageUrl<'_>>().ok());
        let purl = purl.ok_or(Unreadable::Unsound("a package has no package URL"))?;
        let format = match purl.ty() {
            "deb" => PackageFormat::Deb,
            "rpm" => PackageFormat::Rpm,
            _ => return Err(Unreadable::Unsound("a package has an unknown format")),
        };
        if *listed.format.get_or_insert(format) != format {
            return Err(Unreadable::Unsound("its packages have different formats"));
        }
        let arch = purl.qualifiers().get("arch").map(ToString::to_string);
        let declared = package.license_declared.filter(|text| text != "NOASSERTION");
        let package = ListedPackage {
            name: package.name,
            version: package.version_info.unwrap_or_default(),
            arch: arch.unwrap_or_default(),
            licences: declared.or(package.license_comments),
        };
        let texts = [&package.name, &package.version, &package.arch];
        if texts.iter().any(|text| text.is_empty() || text.len() > LONGEST_TEXT) {
            return Err(Unreadable::Unsound(
                "a package has no name, version or architecture, or too long a one",
            ));
        }
        listed.packages.push(package);
    }
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document(packages: &serde_json::Value) -> Result<Listed, Unreadable> {
        read(
            json!({"spdxVersion": "SPDX-2.3", "packages": packages})
                .to_string()
                .as_bytes(),
        )
    }

    #[test]
    fn a_document_that_no_agent_makes_is_refused() {
        let purl = |purl: &str| json!([{"referenceType": "purl", "referenceLocator": purl}]);
        let good = json!({"name": "a", "versionInfo": "1", "externalRefs": purl("pkg:deb/debian/a@1?arch=arm64")});
        assert_eq!(document(&json!([good])).unwrap().packages.len(), 1);
        let long = "a".repeat(LONGEST_TEXT + 1);
        for bad in [
            json!([{"name": "a", "versionInfo": "1"}]),
            json!([{"name": "a", "versionInfo": "1", "externalRefs": purl("pkg:npm/a@1")}]),
            json!([{"name": "a", "versionInfo": "1", "externalRefs": purl("pkg:deb/debian/a@1")}]),
            json!([{"name": long, "versionInfo": "1", "externalRefs": purl("pkg:deb/debian/a@1?arch=arm64")}]),
            json!([good, {"name": "b", "versionInfo": "1", "externalRefs": purl("pkg:rpm/b@1?arch=x86_64")}]),
        ] {
            assert!(document(&bad).is_err(), "{bad}");
        }
        assert!(read(b"{").is_err());
        assert!(read(br#"{"spdxVersion": "SPDX-3.0", "packages": []}"#).is_err());
        assert_eq!(document(&json!([])).unwrap().format, None);
    }
}
