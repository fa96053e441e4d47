//! `kiln import ims` and `kiln export ims`, as a site that moves would run them.

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/ims-data")
        .join(name)
}

fn kiln(data: &TempDir, words: &[&str]) -> (i32, String, String) {
    let output = Command::cargo_bin("kiln")
        .unwrap()
        .env_clear()
        .env("HOME", data.path())
        .env("KILN_DATA_DIR", data.path().join("data"))
        .args(words)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn records(dir: &Path, file: &str) -> Vec<Value> {
    serde_json::from_slice(&fs_err::read(dir.join(file)).unwrap()).unwrap()
}

#[test]
fn a_site_moves_here_and_back() {
    let data = tempfile::tempdir().unwrap();
    let from = fixture("current");
    let (code, told, notes) = kiln(&data, &["import", "ims", from.to_str().unwrap()]);
    assert_eq!(code, 0, "{notes}");
    assert!(told.starts_with("imported "), "{told}");
    // No object of the fixture is in this S3, and that is said of each image.
    let images = records(&from, "v2.1_images.json");
    for image in images.iter().filter(|image| !image["link"].is_null()) {
        assert!(notes.contains(image["id"].as_str().unwrap()), "{notes}");
    }

    let to = data.path().join("out");
    let (code, told, notes) = kiln(&data, &["export", "ims", to.to_str().unwrap()]);
    assert_eq!(code, 0, "{notes}");
    assert!(told.starts_with("exported "), "{told}");
    for file in [
        "v2.1_images.json",
        "v2.2_recipes.json",
        "v2_public_keys.json",
        "v3.1_deleted_images.json",
    ] {
        let ids = |dir: &Path| {
            records(dir, file)
                .iter()
                .map(|record| record["id"].clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(ids(&to), ids(&from), "{file}");
    }

    // Once more changes nothing, and says so.
    let (code, told, notes) = kiln(&data, &["import", "ims", from.to_str().unwrap()]);
    assert_eq!((code, told.as_str()), (1, "imported   0\n"), "{notes}");
    assert!(notes.contains("is there already"), "{notes}");
}

#[test]
fn what_is_broken_is_named_and_the_rest_taken() {
    let data = tempfile::tempdir().unwrap();
    let (code, told, notes) = kiln(&data, &["import", "ims", fixture("broken").to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(told.starts_with("imported ") && told != "imported   0\n", "{told}");
    assert!(notes.contains("left out: ") && notes.contains("hint: "), "{notes}");
}

#[test]
fn a_directory_of_something_else_is_refused() {
    let data = tempfile::tempdir().unwrap();
    let (code, _, notes) = kiln(&data, &["import", "ims", data.path().to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(notes.contains("holds no file of IMS"), "{notes}");
}
