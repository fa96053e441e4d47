//! Tests manifests: the checks when an image gets its link, one after the other, in POST and in PATCH alike.

use serde_json::{Value, json};

use crate::api::server::{IMAGES, ROOTFS, Server, artifact, id_of, unique};

const KERNEL: &str = "application/vnd.cray.image.kernel";

fn manifest(artifacts: &Value) -> Value {
    json!({"version": "1.0", "created": "2026-01-01 00:00:00", "artifacts": artifacts})
}

/// Tries a link in both ways; neither may leave a trace.
async fn refused(api: &Server, link: &Value, status: u16, what: &str) {
    let name = unique("refused");
    let problem = api.post("/v3/images", json!({"name": name, "link": link})).await;
    assert_eq!(problem.status, status, "POST, {what}: {problem:?}");
    problem.problem(status);
    let image = api.make("/v3/images", json!({ "name": name })).await;
    let path = format!("/v3/images/{}", id_of(&image));
    let problem = api.patch(&path, json!({"link": link, "arch": "aarch64"})).await;
    assert_eq!(problem.status, status, "PATCH, {what}: {problem:?}");
    problem.problem(status);
    assert_eq!(api.read(&path).await, image, "{what}");
    let list = api.read(&format!("/v3/images?name={name}")).await;
    assert_eq!(list, json!([image]), "{what}");
}

#[test]
async fn every_check_has_its_status() {
    let api = Server::shared();
    let rootfs = api.object(IMAGES, "rootfs", b"r").await;
    let good = artifact(ROOTFS, &rootfs);
    let nowhere = format!("s3://{IMAGES}/{}", unique("nowhere"));
    let without = |member: &str| {
        let mut artifact = good.clone();
        artifact.as_object_mut().unwrap().remove(member);
        artifact
    };
    let link_with = |member: &str, value: Option<Value>| {
        let mut artifact = good.clone();
        let link = artifact["link"].as_object_mut().unwrap();
        match value {
            Some(value) => link.insert(member.to_owned(), value),
            None => link.remove(member),
        };
        artifact
    };
    for (document, status, what) in [
        // IMS accepts these five, and can then never delete the image (W9).
        (json!({}), 422, "empty object"),
        (json!([]), 422, "empty list"),
        (json!(null), 422, "null"),
        (json!(0), 422, "zero"),
        (json!(""), 422, "empty text"),
        (json!([good]), 422, "list"),
        (json!("1.0"), 422, "text"),
        (json!({"artifacts": [good]}), 422, "no version"),
        (json!({"version": "2.0", "artifacts": [good]}), 422, "version 2.0"),
        (json!({"version": 1.0, "artifacts": [good]}), 422, "numeric version"),
        (json!({"version": null, "artifacts": [good]}), 422, "null version"),
        (json!({"version": "1.0"}), 422, "no artifacts"),
        (manifest(&json!({})), 422, "artifacts are no list"),
        (manifest(&json!(null)), 422, "artifacts are null"),
        (manifest(&json!([1])), 422, "artifact is no object"),
        (manifest(&json!([good, null])), 422, "artifact is null"),
        (manifest(&json!([without("link")])), 422, "no link"),
        (manifest(&json!([without("type")])), 422, "no type"),
        (
            manifest(&json!([{"type": ROOTFS, "link": "s3://x/y"}])),
            422,
            "link is no object",
        ),
        (manifest(&json!([{"type": ROOTFS, "link": null}])), 422, "link is null"),
        (
            manifest(&json!([{"type": 7, "link": good["link"]}])),
            422,
            "type is no text",
        ),
        (manifest(&json!([link_with("type", None)])), 422, "no link type"),
        (
            manifest(&json!([link_with("type", Some(json!("swift")))])),
            422,
            "other link type",
        ),
        (manifest(&json!([link_with("path", None)])), 422, "no link path"),
        (
            manifest(&json!([link_with("path", Some(json!(7)))])),
            422,
            "path is no text",
        ),
        (
            manifest(&json!([link_with("path", Some(json!("/rootfs")))])),
            422,
            "path is none of S3's",
        ),
        (
            manifest(&json!([link_with("path", Some(json!(nowhere)))])),
            422,
            "no such object",
        ),
        (
            manifest(&json!([good, artifact(KERNEL, &nowhere)])),
            422,
            "no such kernel",
        ),
        (manifest(&json!([])), 400, "no artifact"),
        (
            manifest(&json!([artifact(KERNEL, &rootfs)])),
            400,
            "no root file system",
        ),
        (manifest(&json!([good, good])), 400, "two root file systems"),
        (
            manifest(&json!([good, artifact(&format!("{ROOTFS}.v2"), &rootfs)])),
            400,
            "two types that begin alike",
        ),
    ] {
        let link = api.manifest_of(&document).await;
        refused(&api, &link, status, what).await;
    }
}

#[test]
async fn w09_a_manifest_that_is_no_json_is_422() {
    let api = Server::shared();
    let deep = "[".repeat(200_000);
    for text in [
        &b""[..],
        b"{",
        b"not json",
        b"\xff\xfe\x00",
        b"{\"version\": \"1.0\xff\"}",
        deep.as_bytes(),
    ] {
        let link = api.manifest_text(text).await;
        refused(&api, &link, 422, &String::from_utf8_lossy(&text[..text.len().min(20)])).await;
    }
}

#[test]
async fn a_missing_manifest_is_422() {
    let api = Server::shared();
    for path in [
        format!("s3://{IMAGES}/{}", unique("nowhere")),
        format!("s3://{}/manifest.json", unique("bucket")),
        // No bucket can be called so; S3 says that in its own way.
        "s3://Not_A_Bucket/manifest.json".to_owned(),
        "s3://192.168.0.1/manifest.json".to_owned(),
        "s3://...---/manifest.json".to_owned(),
    ] {
        refused(&api, &json!({"path": path, "type": "s3"}), 422, &path).await;
    }
}

#[test]
async fn a_manifest_is_smaller_than_a_mebibyte() {
    let api = Server::shared();
    let rootfs = api.object(IMAGES, "rootfs", b"r").await;
    let padded = |size: usize| {
        let mut text = manifest(&json!([artifact(ROOTFS, &rootfs)])).to_string();
        text.push_str(&" ".repeat(size - text.len()));
        text
    };
    let link = api.manifest_text(padded(1 << 20)).await;
    refused(&api, &link, 400, "1 MiB").await;
    let link = api.manifest_text("x".repeat(2 << 20)).await;
    refused(&api, &link, 400, "2 MiB, before it is looked at").await;
    let link = api.manifest_text(padded((1 << 20) - 1)).await;
    api.make("/v3/images", json!({"name": "n", "link": link})).await;
}

#[test]
async fn what_manifests_may_be() {
    let api = Server::shared();
    let rootfs = api.object(IMAGES, "rootfs", b"r").await;
    let kernel = api.object("ims", "in another bucket", b"k").await;
    let bare = |kind: &str, path: &str| json!({"type": kind, "link": {"path": path, "type": "s3"}});
    for (document, what) in [
        (manifest(&json!([bare(ROOTFS, &rootfs)])), "no md5, no etag"),
        (
            manifest(&json!([bare(&format!("{ROOTFS}; version=2"), &rootfs)])),
            "a type that begins right",
        ),
        (
            manifest(&json!([
                bare("x/y", &kernel),
                bare(ROOTFS, &rootfs),
                bare("x/y", &kernel)
            ])),
            "unknown types",
        ),
        (
            json!({"version": "1.0", "created": 7, "more": {}, "artifacts": [
                {"type": ROOTFS, "md5": null, "odd": [], "link": {"path": rootfs, "etag": 5, "type": "s3", "odd": 1}}]}),
            "members that nobody reads",
        ),
    ] {
        let link = api.manifest_of(&document).await;
        let made = api
            .post("/v3/images", json!({"name": what, "link": link}))
            .await
            .is(201)
            .json();
        assert_eq!(made["link"], link, "{what}");
        // Objects may be those of several images.
        let link = api.manifest_of(&document).await;
        api.make("/v3/images", json!({"name": what, "link": link})).await;
    }
}
