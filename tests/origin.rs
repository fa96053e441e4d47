//! What an image says of itself: its packages, its provenance and the signature over it, read by others' tools.

use std::{path::Path, process::Command};

use serde_json::Value;

use crate::{
    build::{Both, both},
    support::{self, HOST, foreign, python_tools},
};

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap()
}

#[test]
fn the_documents_of_an_image_are_what_their_specifications_want() {
    needs!(support::no_namespaces(), support::no_emulation());
    let both = both();
    let tools = python_tools("origin");
    for image in both.images.values() {
        let output = Command::new(tools.join("bin/python"))
            .arg(support::source_dir().join("tests/origin/validate.py"))
            .args([image.dir(), &both.key])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said.trim(), "valid", "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_list_of_packages_is_that_of_the_root() {
    needs!(support::no_namespaces(), support::no_emulation());
    let both = both();
    for (arch, image) in &both.images {
        let spdx = json(&image.file("sbom.spdx.json"));
        let packages: Vec<&Value> = spdx["packages"].as_array().unwrap().iter().skip(1).collect();
        let status = support::squashfs::read(&image.file("rootfs"), "var/lib/dpkg/status");
        let installed = status.matches("ok installed").count();
        assert_eq!(packages.len(), installed, "{arch}");
        let named = |name: &str| *packages.iter().find(|package| package["name"] == name).unwrap();
        assert_eq!(named("adduser")["licenseDeclared"], "GPL-2.0-or-later");
        let purl = named("bash")["externalRefs"][0]["referenceLocator"].as_str().unwrap();
        let debian = if *arch == "aarch64" { "arm64" } else { "amd64" };
        assert!(
            purl.starts_with("pkg:deb/debian/bash@") && purl.contains(&format!("arch={debian}")),
            "{purl}"
        );
        // The recipe's script installs it by itself.
        named("ed");
    }
}

#[test]
fn openssl_confirms_the_signature() {
    needs!(support::no_namespaces(), support::no_emulation());
    let both = both();
    let image = &both.images[HOST];
    let envelope = json(&image.file("provenance.dsse.json"));
    let kind = envelope["payloadType"].as_str().unwrap();
    let statement = fs_err::read(image.file("provenance.json")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (signed, signature) = (dir.path().join("signed"), dir.path().join("signature"));
    let mut bytes = format!("DSSEv1 {} {kind} {} ", kind.len(), statement.len()).into_bytes();
    bytes.extend(statement);
    fs_err::write(&signed, bytes).unwrap();
    let base64 = envelope["signatures"][0]["sig"].as_str().unwrap();
    fs_err::write(dir.path().join("base64"), base64).unwrap();
    let run = |command: &mut Command| command.output().unwrap().status.success();
    assert!(run(Command::new("openssl")
        .args(["base64", "-d", "-A", "-in"])
        .arg(dir.path().join("base64"))
        .arg("-out")
        .arg(&signature)));
    assert!(run(Command::new("openssl")
        .args(["pkeyutl", "-verify", "-pubin", "-rawin", "-inkey"])
        .arg(&both.key)
        .arg("-in")
        .arg(signed)
        .arg("-sigfile")
        .arg(signature)));
}

#[test]
fn a_changed_byte_of_any_object_is_found_and_named() {
    needs!(support::no_namespaces(), support::no_emulation());
    let both = both();
    let image = &both.images[foreign()];
    let copy = tempfile::tempdir().unwrap();
    let names: Vec<_> = [
        "manifest.json",
        "rootfs",
        "sbom.spdx.json",
        "sbom.cdx.json",
        "provenance.json",
        "provenance.dsse.json",
    ]
    .to_vec();
    for name in &names {
        fs_err::copy(image.file(name), copy.path().join(name)).unwrap();
    }
    let (code, said) = verify(both, copy.path());
    assert_eq!(code, Some(0), "{said}");
    for name in names {
        let path = copy.path().join(name);
        let good = fs_err::read(&path).unwrap();
        let mut bad = good.clone();
        let place = good.len() / 3;
        // JSON stays JSON where it can.
        bad[place] ^= if bad[place].is_ascii_alphabetic() { 0x20 } else { 1 };
        fs_err::write(&path, bad).unwrap();
        let (code, said) = verify(both, copy.path());
        assert_eq!(code, Some(1), "{name} {place}: {said}");
        assert!(said.contains(name), "{name} {place}: {said}");
        fs_err::remove_file(&path).unwrap();
        let (code, said) = verify(both, copy.path());
        // The statement that is signed is whole without its plain copy.
        assert_eq!(code, Some(i32::from(name != "provenance.json")), "{name} gone: {said}");
        fs_err::write(&path, good).unwrap();
    }
    assert_eq!(verify(both, copy.path()).0, Some(0));
}

/// The exit code of `kiln verify`, and all that it says.
fn verify(both: &Both, dir: &Path) -> (Option<i32>, String) {
    let statement = json(&both.images[foreign()].file("provenance.json"));
    let recipe = &statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"]["sha256"];
    let (dir, key) = (dir.to_str().unwrap(), both.key.to_str().unwrap());
    let ran = both
        .kiln
        .run(["verify", dir, "--key", key, "--recipe", recipe.as_str().unwrap()]);
    (ran.code, format!("{}{}", ran.stdout, ran.stderr))
}

#[test]
fn packages_of_images_are_asked_for() {
    needs!(support::no_namespaces(), support::no_emulation());
    let both = both();
    let ask = |arguments: &[&str]| {
        let local = [&["images"], arguments, &["--server", "local", "--format", "json"]].concat();
        let ran = both.kiln.run(local).ok();
        serde_json::from_str::<Value>(&ran.stdout).unwrap()
    };
    let [one, other] = [HOST, foreign()].map(|arch| both.images[arch].id());
    let packages = ask(&["packages", one]);
    assert!(packages.as_array().unwrap().len() > 50);
    let named = ask(&["packages", one, "adduser"]);
    assert_eq!(named.as_array().unwrap().len(), 1);
    assert_eq!(named[0]["licences"], "GPL-2.0-or-later");
    assert_eq!(ask(&["packages", one, "no-such"]), serde_json::json!([]));
    // Packages for all architectures are the same in both.
    let changes = ask(&["diff", one, other]);
    let changes = changes.as_array().unwrap();
    assert!(
        changes
            .iter()
            .any(|change| change["name"] == "bash" && change["change"] == "added")
    );
    assert!(changes.iter().all(|change| change["name"] != "adduser"));
    assert_eq!(ask(&["diff", one, one]), serde_json::json!([]));
    // The same recipe, for two architectures.
    let why = ask(&["why", one, other]);
    assert_eq!(why[0]["input"], "architecture", "{why}");
    assert_eq!((&why[0]["old"], &why[0]["new"]), (&HOST.into(), &foreign().into()));
    assert!(
        why.as_array().unwrap().iter().all(|row| row["input"] != "recipe"),
        "{why}"
    );
    assert_eq!(ask(&["why", one, one]), serde_json::json!([]));
    let version = named[0]["version"].as_str().unwrap();
    let found = ask(&["find-package", "adduser", "--below", &format!("{version}.1")]);
    assert_eq!(found.as_array().unwrap().len(), 2, "{found}");
    assert_eq!(
        ask(&["find-package", "adduser", "--below", version]),
        serde_json::json!([])
    );
}
