//! A directory with more images than anybody would look through.

use kiln_registry::{Location, digest::Digest, inspect, mirror, open};
use serde_json::{Value, json};

use crate::rig;

const TAGS: usize = 10_000;

#[test(threads = 2)]
async fn one_of_ten_thousand_tags_is_copied_and_all_others_stay() {
    let dir = tempfile::tempdir().unwrap();
    let blobs = dir.path().join("blobs/sha256");
    fs_err::create_dir_all(&blobs).unwrap();
    fs_err::write(dir.path().join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    let blob = |bytes: &[u8]| {
        let digest = Digest::of(bytes);
        fs_err::write(blobs.join(digest.parts().1), bytes).unwrap();
        digest.as_str().to_owned()
    };
    let media_type = "application/vnd.oci.image.manifest.v1+json";
    let empty = blob(b"{}");
    let entries: Vec<Value> = (0..TAGS)
        .map(|number| {
            let manifest = json!({
                "schemaVersion": 2, "mediaType": media_type, "layers": [],
                "config": { "mediaType": "application/vnd.oci.empty.v1+json", "digest": empty, "size": 2 },
                "annotations": { "number": number.to_string() },
            });
            let bytes = manifest.to_string().into_bytes();
            let name = json!({ "org.opencontainers.image.ref.name": format!("t{number}") });
            json!({ "mediaType": media_type, "digest": blob(&bytes), "size": bytes.len(), "annotations": name })
        })
        .collect();
    let index = dir.path().join("index.json");
    fs_err::write(&index, json!({ "schemaVersion": 2, "manifests": entries }).to_string()).unwrap();

    let place = async |tag: &str, to_write| {
        let location: Location = format!("oci:{}:{tag}", dir.path().display()).parse().unwrap();
        let which = location.which().cloned();
        (open(&location, &rig::access(), to_write).await.unwrap(), which)
    };
    let (from, which) = place("t5000", false).await;
    let (to, to_which) = place("new", true).await;
    let mirrored = mirror::mirror(&from, which.as_ref(), &to, to_which.as_ref(), &rig::notes().0)
        .await
        .unwrap();
    assert_eq!(mirrored.digest.as_str(), entries[5000]["digest"]);
    inspect::inspect(&to, to_which.as_ref()).await.unwrap();
    let (to, unknown) = place("t10000", false).await;
    inspect::inspect(&to, unknown.as_ref()).await.unwrap_err();

    let index: Value = serde_json::from_slice(&fs_err::read(&index).unwrap()).unwrap();
    let after = index["manifests"].as_array().unwrap();
    assert_eq!(after.len(), TAGS + 1);
    assert_eq!(after[..TAGS], entries);
}
