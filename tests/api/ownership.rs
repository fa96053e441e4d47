//! Which objects a record may name, and which of them go with it.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::api::{
    server::{IMAGES, RECIPES, ROOTFS, Server, artifact, id_of, unique},
    wire::Wire,
};

/// Makes an object in a bucket that is not Kiln's. Returns its path.
async fn foreign(api: &Server) -> String {
    let bucket = unique("site");
    api.s3().create_bucket().bucket(&bucket).send().await.unwrap();
    api.object(&bucket, "backup", b"somebody else's").await
}

fn link(path: &str) -> Value {
    json!({"path": path, "etag": "", "type": "s3"})
}

#[test]
async fn a_record_names_nothing_in_foreign_buckets() {
    let api = Server::shared();
    let foreign = foreign(&api).await;
    let image = api.image(json!({"link": null})).await;
    let recipe = api.recipe(json!({"link": null})).await;
    let naming = api
        .manifest_of(&json!({"version": "1.0", "artifacts": [artifact(ROOTFS, &foreign)]}))
        .await;
    let new = json!({"name": "n", "recipe_type": "kiwi-ng", "linux_distribution": "sles15", "link": link(&foreign)});
    for (method, path, body) in [
        ("POST", "/v3/recipes".to_owned(), new),
        (
            "POST",
            "/v3/images".to_owned(),
            json!({"name": "n", "link": link(&foreign)}),
        ),
        ("POST", "/v3/images".to_owned(), json!({"name": "n", "link": naming})),
        (
            "PATCH",
            format!("/v3/recipes/{}", id_of(&recipe)),
            json!({"link": link(&foreign)}),
        ),
        (
            "PATCH",
            format!("/v3/images/{}", id_of(&image)),
            json!({ "link": naming }),
        ),
        (
            "PUT",
            format!("/kiln/v1/images/{}/manifest", id_of(&image)),
            json!({"artifacts": [artifact(ROOTFS, &foreign)]}),
        ),
    ] {
        let problem = api.send(method, &path, Some(&body)).await.problem(422);
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("foreign_buckets"), "{method} {path}: {detail}");
    }
}

#[test]
async fn purging_takes_nothing_that_is_not_the_records_own() {
    let api = Server::shared();
    let other = api.image(json!({"link": null})).await;
    let victims = [
        api.own_object(&other, "rootfs").await,
        api.object(IMAGES, "rootfs", b"of a job that runs").await,
        api.object(RECIPES, "x", b"anything").await,
        format!("s3://{RECIPES}/logs/{}/build.log.zst", Uuid::new_v4()),
        format!("s3://{RECIPES}/recipes/{}/recipe.tar.gz", Uuid::new_v4()),
    ];
    for path in &victims[3..] {
        let key = path.strip_prefix(&format!("s3://{RECIPES}/")).unwrap();
        api.put(RECIPES, key, "of a job").await;
    }
    for (live, gone) in [("/v2/images", None), ("/v3/images", Some("/v3/deleted/images"))] {
        let image = api.image(json!({"link": null})).await;
        let own = api.own_object(&image, "rootfs").await;
        let mut artifacts = vec![artifact(ROOTFS, &own)];
        artifacts.extend(victims.iter().map(|path| artifact("x/victim", path)));
        api.linked(&image, json!(artifacts)).await;
        let recipe = api.recipe(json!({"link": link(&victims[2])})).await;
        api.delete(&format!("{live}/{}", id_of(&image))).await.done();
        if let Some(gone) = gone {
            api.delete(&format!("{gone}/{}", id_of(&image))).await.done();
        }
        api.delete(&format!("/v2/recipes/{}", id_of(&recipe))).await.done();
        assert!(!api.exists(&own).await, "{live}");
        for path in &victims {
            assert!(api.exists(path).await, "{live}: {path}");
        }
    }
}

#[test]
async fn objects_in_foreign_buckets_can_be_read_where_allowed_and_are_never_deleted() {
    let wire = Wire::new().await;
    let api = wire.kiln_with(&[("KILN__S3__FOREIGN_BUCKETS", "read")]).await;
    let foreign = foreign(&api).await;
    let recipe = api.recipe(json!({"link": link(&foreign)})).await;
    let naming = api
        .manifest_of(&json!({"version": "1.0", "artifacts": [artifact(ROOTFS, &foreign)]}))
        .await;
    let image = api.image(json!({ "link": naming })).await;
    let key = api.key().await;
    for (job_type, artifact) in [("create", &recipe), ("customize", &image)] {
        let job = json!({"job_type": job_type, "artifact_id": artifact["id"], "public_key_id": key,
                         "image_root_archive_name": "n"});
        api.make("/v3/jobs", job).await;
    }
    api.delete(&format!("/v2/recipes/{}", id_of(&recipe))).await.done();
    api.delete(&format!("/v2/images/{}", id_of(&image))).await.done();
    assert!(api.exists(&foreign).await);

    // What an IMS has moved is not put back there.
    let bucket = foreign.strip_prefix("s3://").unwrap().split_once('/').unwrap().0;
    let recipe = api.recipe(json!({"link": null})).await;
    let moved = format!("deleted/recipes/{}/recipe.tar.gz", id_of(&recipe));
    api.put(bucket, &moved, "moved").await;
    let path = format!("/v3/recipes/{}", id_of(&recipe));
    let there = json!({"link": link(&format!("s3://{bucket}/{moved}"))});
    api.patch(&path, there).await.is(200);
    api.delete(&path).await.done();
    let gone = format!("/v3/deleted/recipes/{}", id_of(&recipe));
    api.patch(&gone, json!({"operation": "undelete"})).await.problem(422);
    api.delete(&gone).await.done();
    assert!(api.exists(&format!("s3://{bucket}/{moved}")).await);
}
