//! Records that an IMS deleted before they came here: their objects lie below `deleted/`, and restoring puts them back.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::api::server::{IMAGES, RECIPES, ROOTFS, Server, artifact, id_of};

const MANIFEST: &str = "application/vnd.cray.image.manifest";

/// Writes an object with the metadata of IMS's helper; its etag.
async fn put(api: &Server, bucket: &str, key: &str, body: &str) -> String {
    let put = api.s3().put_object().bucket(bucket).key(key).metadata("md5sum", "0123");
    let answer = put.body(body.as_bytes().to_vec().into()).send().await.unwrap();
    answer.e_tag().unwrap().trim_matches('"').to_owned()
}

async fn head(api: &Server, bucket: &str, key: &str) -> Option<(String, Option<String>)> {
    let head = api.s3().head_object().bucket(bucket).key(key).send().await.ok()?;
    let md5 = head.metadata().and_then(|metadata| metadata.get("md5sum").cloned());
    Some((head.e_tag().unwrap().trim_matches('"').to_owned(), md5))
}

/// A deleted recipe whose archive IMS moved; its id and its archive's key as it was.
async fn moved_recipe(api: &Server, body: &str) -> (String, String) {
    let id = id_of(&api.recipe(json!({ "link": null })).await);
    let key = format!("recipes/{id}/recipe.tar.gz");
    put(api, RECIPES, &format!("deleted/{key}"), body).await;
    let link = json!({"path": format!("s3://{RECIPES}/deleted/{key}"), "type": "s3"});
    api.patch(&format!("/v3/recipes/{id}"), json!({ "link": link }))
        .await
        .is(200);
    api.delete(&format!("/v3/recipes/{id}")).await.done();
    (id, key)
}

async fn undelete(api: &Server, kind: &str, id: &str) -> crate::api::server::Answer {
    api.patch(&format!("/v3/deleted/{kind}/{id}"), json!({"operation": "undelete"}))
        .await
}

#[test]
async fn a_recipes_archive_comes_back_to_its_place() {
    let api = Server::shared();
    let (id, key) = moved_recipe(&api, "an archive").await;
    undelete(&api, "recipes", &id).await.done();
    let (etag, md5) = head(&api, RECIPES, &key).await.unwrap();
    let record = api.read(&format!("/v3/recipes/{id}")).await;
    let expected = json!({"path": format!("s3://{RECIPES}/{key}"), "etag": etag, "type": "s3"});
    assert_eq!(record["link"], expected);
    assert_eq!(md5.as_deref(), Some("0123"), "metadata comes along");
    assert_eq!(head(&api, RECIPES, &format!("deleted/{key}")).await, None);
}

#[test]
async fn an_image_comes_back_as_its_deleted_manifest_says() {
    let api = Server::shared();
    let image = api.image(json!({"link": null, "arch": "aarch64"})).await;
    let id = id_of(&image);
    let (rootfs, manifest) = (format!("{id}/rootfs"), format!("{id}/manifest.json"));
    let place = |key: &str| format!("s3://{IMAGES}/{key}");
    let text = json!({"version": "1.0", "artifacts": [artifact(ROOTFS, &place(&rootfs))]}).to_string();
    put(&api, IMAGES, &format!("deleted/{rootfs}"), "squash").await;
    let etag = put(&api, IMAGES, &format!("deleted/{manifest}"), &text).await;
    let deleted = json!({"version": "1.0", "created": "2026-01-01 00:00:00", "artifacts": [
        artifact(ROOTFS, &place(&format!("deleted/{rootfs}"))),
        {"type": MANIFEST, "link": {"path": place(&format!("deleted/{manifest}")), "etag": "", "type": "s3"}},
    ]});
    let list = format!("deleted/{id}/deleted_manifest.json");
    put(&api, IMAGES, &list, &deleted.to_string()).await;
    let link = json!({"path": place(&list), "etag": "", "type": "s3"});
    let path = format!("/v3/images/{id}");
    let image = api.patch(&path, json!({ "link": link })).await.is(200).json();
    api.delete(&path).await.done();
    assert_eq!(
        api.read(&format!("/v3/deleted/images/{}", id_of(&image))).await["link"],
        link
    );

    undelete(&api, "images", &id_of(&image)).await.done();
    let mut expected = image;
    expected["link"] = json!({"path": place(&manifest), "etag": etag, "type": "s3"});
    assert_eq!(api.read(&path).await, expected);
    for key in [&rootfs, &manifest] {
        assert!(head(&api, IMAGES, key).await.is_some(), "{key} is back");
        assert_eq!(head(&api, IMAGES, &format!("deleted/{key}")).await, None, "{key}");
    }
    assert_eq!(head(&api, IMAGES, &list).await, None);
    // From now on it is an image like any other.
    api.delete(&path).await.done();
    undelete(&api, "images", &id_of(&expected)).await.done();
    assert_eq!(api.read(&path).await["link"], expected["link"]);
}

#[test]
async fn w05_restoring_never_replaces_what_has_come_to_its_place() {
    let api = Server::shared();
    let (id, key) = moved_recipe(&api, "theirs").await;
    let ours = put(&api, RECIPES, &key, "ours, which is something else").await;
    let link = json!({"path": format!("s3://{RECIPES}/{key}"), "type": "s3"});
    api.recipe(json!({ "link": link })).await;
    undelete(&api, "recipes", &id).await.problem(422);
    assert_eq!(head(&api, RECIPES, &key).await.unwrap().0, ours);
    assert!(head(&api, RECIPES, &format!("deleted/{key}")).await.is_some());
    // Purging it takes its own object only.
    api.delete(&format!("/v3/deleted/recipes/{id}")).await.done();
    assert_eq!(head(&api, RECIPES, &key).await.unwrap().0, ours);
    assert_eq!(head(&api, RECIPES, &format!("deleted/{key}")).await, None);
}

#[test]
async fn a_restoration_that_broke_off_can_be_repeated() {
    let api = Server::shared();
    let (id, key) = moved_recipe(&api, "the same").await;
    put(&api, RECIPES, &key, "the same").await;
    undelete(&api, "recipes", &id).await.done();
    assert_eq!(
        api.read(&format!("/v3/recipes/{id}")).await["link"]["path"],
        format!("s3://{RECIPES}/{key}")
    );
}

#[test]
async fn what_is_gone_cannot_come_back() {
    let api = Server::shared();
    let (id, key) = moved_recipe(&api, "x").await;
    api.remove(&format!("s3://{RECIPES}/deleted/{key}")).await;
    undelete(&api, "recipes", &id).await.problem(422);

    let place = |key: &str| format!("s3://{IMAGES}/deleted/{key}");
    let gone: Value = artifact(MANIFEST, &place("gone"));
    for (what, text) in [
        ("no JSON", "not json".to_owned()),
        ("no artifacts", json!({"version": "1.0"}).to_string()),
        ("no manifest", json!({"artifacts": []}).to_string()),
        ("nothing is there", json!({ "artifacts": [gone] }).to_string()),
        ("empty", "{}".to_owned()),
    ] {
        let image = api.image(json!({"link": deleted_manifest(&api).await})).await;
        let (path, id) = (image["link"]["path"].as_str().unwrap(), id_of(&image));
        let (bucket, key) = path.strip_prefix("s3://").unwrap().split_once('/').unwrap();
        api.delete(&format!("/v3/images/{id}")).await.done();
        put(&api, bucket, key, &text).await;
        let answer = undelete(&api, "images", &id).await;
        assert_eq!(answer.status, 422, "{what}: {answer:?}");
        assert_eq!(
            api.read(&format!("/v3/deleted/images/{id}")).await["link"],
            image["link"],
            "{what}"
        );
    }
}

/// A list of moved objects that an image can be made with.
async fn deleted_manifest(api: &Server) -> Value {
    let id = Uuid::new_v4();
    let rootfs = format!("deleted/{id}/rootfs");
    put(api, IMAGES, &rootfs, "r").await;
    let key = format!("deleted/{id}/deleted_manifest.json");
    let path = format!("s3://{IMAGES}/{rootfs}");
    let text = json!({"version": "1.0", "artifacts": [artifact(ROOTFS, &path)]}).to_string();
    put(api, IMAGES, &key, &text).await;
    json!({"path": format!("s3://{IMAGES}/{key}"), "etag": "", "type": "s3"})
}
