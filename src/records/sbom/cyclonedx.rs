//! The document in CycloneDX 1.6 (ECMA-424; <https://cyclonedx.org/docs/1.6/json/>), as JSON. Pure: no I/O.

use serde_json::{Value, json};

use super::{Inventory, LooseFile, Package, licence, spdx::is_address};

pub(super) fn document(inventory: &Inventory) -> Value {
    let packages = inventory.packages.iter().enumerate();
    let mut components: Vec<_> = packages
        .map(|(number, package)| of_package(inventory, number, package))
        .collect();
    components.extend(inventory.loose.iter().enumerate().map(of_file));
    let mut image = json!({
        "type": "operating-system",
        "bom-ref": "image",
        "name": inventory.image,
        "properties": [property("kiln:arch", &inventory.arch)],
    });
    if let Some(name) = &inventory.system.name {
        image["description"] = name.as_str().into();
    }
    if let (Some(rest), Some(properties)) = (inventory.about_the_rest(), image["properties"].as_array_mut()) {
        properties.push(property("kiln:not-listed", &rest));
    }
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": format!("urn:uuid:{}", inventory.id),
        "version": 1,
        "metadata": {
            "timestamp": inventory.read.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "tools": {"components": [
                {"type": "application", "name": "kiln", "version": env!("CARGO_PKG_VERSION")},
            ]},
            "component": image,
        },
        "components": components,
    })
}

fn of_package(inventory: &Inventory, number: usize, package: &Package) -> Value {
    let mut value = json!({
        "type": "library",
        "bom-ref": format!("package-{number}"),
        "name": package.name,
        "version": package.version,
    });
    if let Some(purl) = inventory.purl(package) {
        value["purl"] = purl.into();
    }
    if let Some(sha256) = &package.sha256 {
        value["hashes"] = json!([{"alg": "SHA-256", "content": sha256}]);
    }
    if let Some(supplier) = &package.supplier {
        value["supplier"] = json!({"name": supplier});
    }
    if let Some(declared) = &package.licences {
        value["licenses"] = match licence::expression(declared) {
            Some(expression) => json!([{"expression": expression}]),
            None => json!([{"license": {"name": declared}}]),
        };
    }
    if let Some(homepage) = package.homepage.as_deref().filter(|address| is_address(address)) {
        value["externalReferences"] = json!([{"type": "website", "url": homepage}]);
    }
    if let Some(source) = &package.source {
        value["properties"] = json!([property("kiln:source", source)]);
    }
    value
}

fn of_file((number, file): (usize, &LooseFile)) -> Value {
    json!({
        "type": "file",
        "bom-ref": format!("file-{number}"),
        "name": file.path,
        "hashes": [{"alg": "SHA-1", "content": file.sha1}, {"alg": "SHA-256", "content": file.sha256}],
    })
}

fn property(name: &str, value: &str) -> Value {
    json!({"name": name, "value": value})
}
