//! The document in SPDX 2.3 (ISO/IEC 5962 and its successor; <https://spdx.github.io/spdx-spec/v2.3/>), as JSON. Pure: no
//! I/O.

use serde_json::{Value, json};

use super::{Inventory, LooseFile, Package, licence};

/// "There is nothing to say", in the words of the specification.
const NONE: &str = "NOASSERTION";

/// The id of the package that stands for the image as a whole.
const IMAGE: &str = "SPDXRef-Image";

pub(super) fn document(inventory: &Inventory) -> Value {
    let mut packages = vec![image(inventory)];
    let listed = inventory.packages.iter().enumerate();
    packages.extend(listed.map(|(number, package)| of_package(inventory, number, package)));
    let files: Vec<_> = inventory.loose.iter().enumerate().map(of_file).collect();
    let parts = (0..inventory.packages.len()).map(package_id);
    let parts = parts.chain((0..inventory.loose.len()).map(file_id));
    let mut relationships = vec![relationship("SPDXRef-DOCUMENT", "DESCRIBES", IMAGE)];
    relationships.extend(parts.map(|part| relationship(IMAGE, "CONTAINS", &part)));
    json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": inventory.image,
        "documentNamespace": format!("urn:uuid:{}", inventory.id),
        "creationInfo": {
            "created": inventory.read.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "creators": [concat!("Tool: kiln-", env!("CARGO_PKG_VERSION"))],
        },
        "packages": packages,
        "files": files,
        "relationships": relationships,
    })
}

fn image(inventory: &Inventory) -> Value {
    let system = &inventory.system;
    let mut image = json!({
        "name": inventory.image,
        "SPDXID": IMAGE,
        "downloadLocation": NONE,
        "filesAnalyzed": false,
        "licenseConcluded": NONE,
        "licenseDeclared": NONE,
        "copyrightText": NONE,
        "primaryPackagePurpose": "OPERATING-SYSTEM",
        "summary": format!("{} for {}", system.name.as_deref().unwrap_or("an image"), inventory.arch),
    });
    if let Some(comment) = inventory.about_the_rest() {
        image["comment"] = comment.into();
    }
    image
}

fn of_package(inventory: &Inventory, number: usize, package: &Package) -> Value {
    let expression = package.licences.as_deref().and_then(licence::expression);
    let mut value = json!({
        "name": package.name,
        "SPDXID": package_id(number),
        "versionInfo": package.version,
        "downloadLocation": NONE,
        "filesAnalyzed": false,
        "licenseConcluded": NONE,
        "licenseDeclared": expression.as_deref().unwrap_or(NONE),
        "copyrightText": NONE,
        "supplier": NONE,
    });
    if let (None, Some(declared)) = (expression, &package.licences) {
        value["licenseComments"] = format!("the package declares: {declared}").into();
    }
    if let Some(supplier) = &package.supplier {
        value["supplier"] = supplier_of(supplier).into();
    }
    if let Some(sha256) = &package.sha256 {
        value["checksums"] = json!([{"algorithm": "SHA256", "checksumValue": sha256}]);
    }
    if let Some(homepage) = package.homepage.as_deref().filter(|address| is_address(address)) {
        value["homepage"] = homepage.into();
    }
    if let Some(source) = &package.source {
        value["sourceInfo"] = format!("built from the source package {source}").into();
    }
    if let Some(purl) = inventory.purl(package) {
        value["externalRefs"] = json!([{
            "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl,
        }]);
    }
    value
}

fn of_file((number, file): (usize, &LooseFile)) -> Value {
    json!({
        "fileName": format!(".{}", file.path),
        "SPDXID": file_id(number),
        "fileTypes": ["BINARY"],
        "checksums": [
            {"algorithm": "SHA1", "checksumValue": file.sha1},
            {"algorithm": "SHA256", "checksumValue": file.sha256},
        ],
        "licenseConcluded": NONE,
        "licenseInfoInFiles": [NONE],
        "copyrightText": NONE,
    })
}

/// `Organization: name (address)`, from `name <address>`.
fn supplier_of(text: &str) -> String {
    let clean = |part: &str| part.trim().replace(['(', ')', '<', '>'], " ");
    match text.split_once('<') {
        Some((name, address)) if !name.trim().is_empty() => {
            format!("Organization: {} ({})", clean(name), clean(address).trim())
        }
        _ => format!("Organization: {}", clean(text)),
    }
}

/// Whether a text is an address that the specification allows for a home page.
pub(super) fn is_address(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    rest.is_some_and(|rest| {
        !rest.is_empty()
            && rest
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && !b"<>\"{}|\\^`".contains(&byte))
    })
}

fn package_id(number: usize) -> String {
    format!("SPDXRef-Package-{number}")
}

fn file_id(number: usize) -> String {
    format!("SPDXRef-File-{number}")
}

fn relationship(from: &str, how: &str, to: &str) -> Value {
    json!({"spdxElementId": from, "relationshipType": how, "relatedSpdxElement": to})
}
