//! `/kiln/v1/packages`: which images have a package.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::api::server::{IMAGES, ROOTFS, Server, artifact, id_of};

/// An SPDX document with these packages.
fn document(kind: &str, packages: &[(&str, &str)]) -> String {
    let packages = packages.iter().map(|(name, version)| {
        let locator = format!("pkg:{kind}/x/{name}@1?arch=arm64");
        let purl = json!([{"referenceType": "purl", "referenceLocator": locator}]);
        json!({"name": name, "versionInfo": version, "externalRefs": purl})
    });
    json!({"spdxVersion": "SPDX-2.3", "packages": packages.collect::<Vec<_>>()}).to_string()
}

/// Makes an image with a document, if there is one. Returns it, and the document's path.
async fn image(api: &Server, name: &str, document: Option<&str>) -> (Value, String) {
    let image = api.make("/v3/images", json!({"name": name, "link": null})).await;
    let mut artifacts = vec![artifact(ROOTFS, &api.own_object(&image, "rootfs").await)];
    let path = api.own_object(&image, "sbom.spdx.json").await;
    if let Some(document) = document {
        let key = format!("{}/sbom.spdx.json", id_of(&image));
        api.put(IMAGES, &key, document.as_bytes()).await;
        let mut listed = artifact("application/spdx+json", &path);
        listed["sha256"] = json!(hex::encode(Sha256::digest(document)));
        artifacts.push(listed);
    }
    (api.linked(&image, json!(artifacts)).await, path)
}

fn versions(answer: &Value) -> Vec<(&str, &str)> {
    let images = answer["images"].as_array().unwrap().iter();
    images
        .map(|found| (found["name"].as_str().unwrap(), found["version"].as_str().unwrap()))
        .collect()
}

fn unknown(answer: &Value) -> Vec<(&str, &str)> {
    let images = answer["not_looked_at"].as_array().unwrap().iter();
    images
        .map(|image| (image["name"].as_str().unwrap(), image["why"].as_str().unwrap()))
        .collect()
}

const ALL: &str = "/kiln/v1/packages?name=openssl";

#[test]
async fn images_are_found_by_a_package_and_the_unknown_are_named() {
    let api = Server::own();
    assert_eq!(api.read(ALL).await, json!({"images": [], "not_looked_at": []}));
    let deb = document("deb", &[("openssl", "3.0.9-1"), ("openssl", "3.0.15-1"), ("bash", "5")]);
    let (first, path) = image(&api, "deb", Some(&deb)).await;
    image(&api, "rpm", Some(&document("rpm", &[("openssl", "0:3.0.9-4")]))).await;
    image(&api, "none", Some(&document("deb", &[("bash", "5")]))).await;
    image(&api, "listless", None).await;
    let (changed, _) = image(&api, "changed", Some(&deb)).await;
    api.own_object(&changed, "sbom.spdx.json").await;
    image(&api, "malformed", Some("{")).await;
    api.make("/v3/images", json!({"name": "empty", "link": null})).await;

    let answer = api.read(ALL).await;
    let all = [("deb", "3.0.15-1"), ("deb", "3.0.9-1"), ("rpm", "0:3.0.9-4")];
    assert_eq!(versions(&answer), all);
    let expected = json!({"id": first["id"], "name": "deb", "arch": "x86_64", "package": "openssl",
                          "version": "3.0.15-1", "package_arch": "arm64"});
    assert_eq!(answer["images"][0], expected);
    let names: Vec<&str> = unknown(&answer).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["listless", "changed", "malformed", "empty"], "{answer}");
    assert!(unknown(&answer)[0].1.contains("no list"));
    assert!(unknown(&answer)[1].1.contains("digest"));
    assert!(!answer.to_string().contains(r#""is_pending":true"#));

    // From the index: the document is gone.
    api.remove(&path).await;
    let below = api.read(&format!("{ALL}&below=3.0.15")).await;
    assert_eq!(versions(&below), [("deb", "3.0.9-1"), ("rpm", "0:3.0.9-4")]);
    assert_eq!(unknown(&below).len(), 4);

    api.delete(&format!("/v3/images/{}", id_of(&first))).await.done();
    assert_eq!(versions(&api.read(ALL).await), [("rpm", "0:3.0.9-4")]);
    api.delete(&format!("/v3/images/{}", id_of(&changed))).await.done();
    assert_eq!(unknown(&api.read(ALL).await).len(), 3);
}

#[test]
async fn a_list_of_images_is_looked_through_page_by_page() {
    let api = Server::own();
    for number in 0..3 {
        let name = format!("i{number}");
        image(&api, &name, Some(&document("deb", &[("openssl", "1")]))).await;
    }
    let (mut seen, mut address) = (Vec::new(), format!("{ALL}&limit=2"));
    loop {
        let answer = api.read(&address).await;
        seen.extend(versions(&answer).into_iter().map(|(name, _)| name.to_owned()));
        let Some(next) = answer.get("next") else { break };
        address = format!("{ALL}&limit=2&cursor={}", next.as_str().unwrap());
    }
    assert_eq!(seen, ["i0", "i1", "i2"]);
    for wrong in [
        "?name=",
        "?name=a&limit=0",
        "?name=a&cursor=x",
        "?name=a&below=a%20b",
        "",
    ] {
        api.get(&format!("/kiln/v1/packages{wrong}")).await.problem(400);
    }
}
