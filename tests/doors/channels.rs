//! What a channel requires holds for every image that is given out by it, whatever has become of its set since the promotion.

use serde_json::{Value, json};

use crate::{
    api::catalogue::{CATALOGUE, CHANNELS, SETS, image, promote, set},
    support::server::Server,
};

/// Keeps a result of a boot check for the image of an architecture.
async fn booted(api: &Server, image: &str, manifest: &Value, up: bool) {
    let check = json!({"manifest_sha256": manifest, "up": up, "detail": "d", "seconds": 1, "machine": "m"});
    let place = format!("/kiln/v1/images/{image}/boot-check");
    api.send("PUT", &place, Some(&check)).await.is(200);
}

async fn manifest_of(api: &Server, place: &str) -> Value {
    api.read(&format!("{CATALOGUE}/n/{place}")).await["manifest_sha256"].clone()
}

/// Every way to an image by the channel leads to this answer.
async fn given_out(api: &Server, arch: &str, status: u16) {
    for what in ["", "/rootfs", "/kernel", "/manifest.json", "/boot.ipxe"] {
        let answer = api.get(&format!("{CATALOGUE}/n/channels/stable/{arch}{what}")).await;
        let is_right = answer.status == status || (status == 200 && answer.status == 307);
        assert!(is_right, "{arch}{what}: {answer:?}");
    }
    let export = format!("/kiln/v1/exports/openstack?set=n:stable&cpu_architecture={arch}");
    api.get(&export).await.is(status);
}

#[test]
async fn an_image_that_comes_into_a_set_later_meets_what_the_channel_requires() {
    let rules = r#"[{ channel = "stable", requires = ["boot"] }]"#;
    let api = Server::with(&[("KILN__CATALOGUE__CHANNELS", rules)]);
    let made = set(&api, "1", &["x86_64"]).await;
    let (id, first) = (
        made["id"].as_str().unwrap(),
        made["arches"][0]["image_id"].as_str().unwrap(),
    );
    promote(&api, "stable", json!({"version": "1"})).await.problem(409);
    booted(&api, first, &manifest_of(&api, "versions/1/x86_64").await, true).await;
    promote(&api, "stable", json!({"version": "1"})).await.is(200);
    given_out(&api, "x86_64", 200).await;

    // One more architecture.
    let added = image(&api, "aarch64", "quiet\n", json!({})).await;
    let arches = json!({"arches": [{"arch": "aarch64", "image_id": added, "required": false}]});
    api.post(&format!("{SETS}/{id}/arches"), arches).await.is(200);
    given_out(&api, "aarch64", 409).await;
    let refused = api
        .get(&format!("{CATALOGUE}/n/channels/stable/aarch64"))
        .await
        .problem(409);
    assert!(
        refused["detail"]
            .as_str()
            .unwrap()
            .contains("aarch64: it was not booted yet"),
        "{refused}"
    );
    given_out(&api, "x86_64", 200).await;
    // The version itself has no rule.
    let of_added = manifest_of(&api, "versions/1/aarch64").await;
    booted(&api, &added, &of_added, true).await;
    given_out(&api, "aarch64", 200).await;
    // A later result counts at once.
    booted(&api, &added, &of_added, false).await;
    given_out(&api, "aarch64", 409).await;

    // Another image in place of a deleted one.
    api.delete(&format!("/v3/images/{first}")).await.done();
    let other = image(&api, "x86_64", "quiet\n", json!({})).await;
    let arches = json!({"arches": [{"arch": "x86_64", "image_id": other}]});
    api.post(&format!("{SETS}/{id}/arches"), arches).await.is(200);
    given_out(&api, "x86_64", 409).await;
    booted(&api, &other, &manifest_of(&api, "versions/1/x86_64").await, true).await;
    given_out(&api, "x86_64", 200).await;

    let history = api.read(&format!("{CHANNELS}/n/stable/history")).await;
    let told: Vec<_> = history
        .as_array()
        .unwrap()
        .iter()
        .map(|change| (&change["kind"], &change["images"]))
        .collect();
    assert_eq!(
        json!(told),
        json!([
            ["change", format!("x86_64: {other} in place of {first}")],
            ["change", format!("aarch64: {added}")],
            ["promote", null],
        ])
    );
    // The changes are none to return to.
    api.post(&format!("{CHANNELS}/n/stable/rollback"), json!({}))
        .await
        .problem(409);
}
