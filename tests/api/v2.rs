//! `/v2` and the addresses without a version: the same records, deleted for good.

use serde_json::{Value, json};

use crate::api::server::{ROOTFS, Server, artifact, id_of, unique};

const VERSIONS: [&str; 2] = ["/v2", ""];

async fn objects_of(api: &Server, image: &Value) -> Vec<String> {
    let path = image["link"]["path"].as_str().unwrap();
    let (bucket, key) = path.strip_prefix("s3://").unwrap().split_once('/').unwrap();
    let answer = api.s3().get_object().bucket(bucket).key(key).send().await.unwrap();
    let manifest: Value = serde_json::from_slice(&answer.body.collect().await.unwrap().to_vec()).unwrap();
    let artifacts = manifest["artifacts"].as_array().unwrap().iter();
    let paths = artifacts.map(|artifact| artifact["link"]["path"].as_str().unwrap().to_owned());
    paths.chain([path.to_owned()]).collect()
}

#[test]
async fn a_record_is_the_same_in_every_version() {
    let api = Server::shared();
    let (recipe, image, key) = (api.recipe(json!({})).await, api.image(json!({})).await, api.key().await);
    for version in VERSIONS {
        assert_eq!(api.read(&format!("{version}/recipes/{}", id_of(&recipe))).await, recipe);
        assert_eq!(api.read(&format!("{version}/images/{}", id_of(&image))).await, image);
        api.get(&format!("{version}/public-keys/{key}")).await.is(200);
        let body = json!({"job_type": "create", "artifact_id": recipe["id"], "public_key_id": key,
                          "image_root_archive_name": "n"});
        let job = api.make(&format!("{version}/jobs"), body).await;
        assert_eq!(job.as_object().unwrap().len(), 24);
        assert_eq!(api.read(&format!("/v3/jobs/{}", id_of(&job))).await, job);

        let made = api.make(&format!("{version}/images"), json!({"name": "n"})).await;
        let link = api.manifest().await;
        let path = format!("{version}/images/{}", id_of(&made));
        let patched = api.patch(&path, json!({ "link": link })).await.is(200).json();
        assert_eq!(patched["link"], link);
        assert_eq!(api.read(&format!("/v3/images/{}", id_of(&made))).await, patched);
        let made = api
            .make(
                &format!("{version}/recipes"),
                json!({"name": "n", "recipe_type": "kiwi-ng", "linux_distribution": "sles12"}),
            )
            .await;
        let path = format!("{version}/recipes/{}", id_of(&made));
        assert_eq!(
            api.patch(&path, json!({"arch": "aarch64"})).await.is(200).json()["arch"],
            "aarch64"
        );
        let made = api
            .make(
                &format!("{version}/public-keys"),
                json!({"name": "n", "public_key": "k"}),
            )
            .await;
        api.get(&format!("/v3/public-keys/{}", id_of(&made))).await.is(200);
    }
}

#[test]
async fn deleting_is_for_good_and_takes_the_objects_along() {
    let api = Server::shared();
    for version in VERSIONS {
        let (recipe, image, key) = (api.recipe(json!({})).await, api.image(json!({})).await, api.key().await);
        let mut objects = objects_of(&api, &image).await;
        objects.push(recipe["link"]["path"].as_str().unwrap().to_owned());
        for (kind, id) in [
            ("recipes", id_of(&recipe)),
            ("images", id_of(&image)),
            ("public-keys", key),
        ] {
            api.delete(&format!("{version}/{kind}/{id}")).await.done();
            api.delete(&format!("{version}/{kind}/{id}")).await.problem(404);
            api.get(&format!("/v3/{kind}/{id}")).await.problem(404);
            api.get(&format!("/v3/deleted/{kind}/{id}")).await.problem(404);
        }
        for object in objects {
            assert!(!api.exists(&object).await, "{object}");
        }
    }
}

#[test]
async fn cascade_says_whether_the_objects_go() {
    let api = Server::shared();
    for (query, goes) in [
        ("", true),
        ("?cascade=true", true),
        ("?cascade=True", true),
        ("?cascade=TRUE", true),
        ("?cascade=yes", true),
        ("?cascade=t", true),
        ("?cascade=1", true),
        ("?other=false", true),
        ("?cascade=false", false),
        ("?cascade=False", false),
        ("?cascade=no", false),
        ("?cascade=0", false),
        ("?cascade=", false),
        ("?cascade", false),
        ("?cascade=on", false),
        ("?cascade=%ff", false),
    ] {
        for version in VERSIONS {
            let image = api.image(json!({})).await;
            let objects = objects_of(&api, &image).await;
            api.delete(&format!("{version}/images/{}{query}", id_of(&image)))
                .await
                .done();
            for object in objects {
                assert_eq!(api.exists(&object).await, !goes, "{query}: {object}");
            }
            let recipe = api.recipe(json!({})).await;
            api.delete(&format!("{version}/recipes/{}{query}", id_of(&recipe)))
                .await
                .done();
            assert_eq!(
                api.exists(recipe["link"]["path"].as_str().unwrap()).await,
                !goes,
                "{query}"
            );
        }
    }
}

#[test]
async fn w05_a_shared_object_outlives_all_but_its_last_record() {
    let api = Server::shared();
    let artifacts = |rootfs: &str, own: &str| json!([artifact(ROOTFS, rootfs), artifact("x/own", own)]);
    let (mut images, mut shared) = (Vec::new(), None);
    for _ in 0..2 {
        let image = api.image(json!({"link": null})).await;
        let own = api.own_object(&image, "own").await;
        let rootfs = match &shared {
            Some(rootfs) => String::clone(rootfs),
            None => shared.insert(api.own_object(&image, "shared").await).clone(),
        };
        images.push((id_of(&api.linked(&image, artifacts(&rootfs, &own)).await), own));
    }
    let rootfs = shared.unwrap();
    api.delete(&format!("/v2/images/{}", images[0].0)).await.done();
    assert!(!api.exists(&images[0].1).await && api.exists(&rootfs).await);
    // A deleted image still names it.
    api.delete(&format!("/v3/images/{}", images[1].0)).await.done();
    let link = api
        .manifest_of(&json!({"version": "1.0", "artifacts": artifacts(&rootfs, &rootfs)}))
        .await;
    let third = id_of(&api.image(json!({ "link": link })).await);
    api.delete(&format!("/images/{third}")).await.done();
    assert!(api.exists(&rootfs).await);
    api.delete(&format!("/v3/deleted/images/{}", images[1].0)).await.done();
    assert!(!api.exists(&rootfs).await && !api.exists(&images[1].1).await);
}

#[test]
async fn w07_deleting_a_collection_lasts_and_what_comes_after_is_kept() {
    for version in VERSIONS {
        let mut api = Server::own();
        let (recipe, image) = (api.recipe(json!({})).await, api.image(json!({})).await);
        let key = api.key().await;
        // Version 2 does not touch softly deleted records.
        let deleted = id_of(&api.image(json!({})).await);
        api.delete(&format!("/v3/images/{deleted}")).await.done();
        for kind in ["recipes", "images", "public-keys"] {
            api.delete(&format!("{version}/{kind}")).await.done();
            assert_eq!(api.read(&format!("/v3/{kind}")).await, json!([]));
        }
        assert!(!api.exists(recipe["link"]["path"].as_str().unwrap()).await);
        assert!(!api.exists(image["link"]["path"].as_str().unwrap()).await);
        let later = api
            .make(&format!("{version}/images"), json!({"name": unique("later")}))
            .await;
        let later_key = api.key().await;
        for crash in [false, true] {
            api = if crash { api.crashed() } else { api.restarted() };
            assert_eq!(api.read("/v3/recipes").await, json!([]));
            assert_eq!(api.read("/v3/images").await, json!([later]));
            assert_eq!(api.ids("/v3/public-keys").await, std::slice::from_ref(&later_key));
            assert_eq!(api.ids("/v3/deleted/images").await, std::slice::from_ref(&deleted));
        }
        assert_ne!(key, later_key);
    }
}

#[test]
async fn a_collection_can_go_without_its_objects() {
    let api = Server::own();
    let (recipe, image) = (api.recipe(json!({})).await, api.image(json!({})).await);
    for kind in ["recipes", "images", "public-keys"] {
        api.delete(&format!("/v2/{kind}?cascade=false")).await.done();
        assert_eq!(api.read(&format!("/v2/{kind}")).await, json!([]));
    }
    for record in [recipe, image] {
        assert!(api.exists(record["link"]["path"].as_str().unwrap()).await);
    }
}
