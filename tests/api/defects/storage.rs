//! Objects and records: nothing that is named is lost, whatever fails.

use std::{path::Path, process::Command};

use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};
use futures::{FutureExt, StreamExt, future::join_all, stream};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::api::{
    server::{IMAGES, ROOTFS, Server, artifact, id_of, unique},
    wire::Wire,
};

fn undelete() -> Value {
    json!({"operation": "undelete"})
}

/// S3's description of an object.
#[derive(Debug, PartialEq)]
struct Head {
    etag: String,
    size: i64,
    modified: aws_sdk_s3::primitives::DateTime,
    metadata: Vec<(String, String)>,
    kind: String,
}

async fn head(api: &Server, path: &str) -> Head {
    let (bucket, key) = path.strip_prefix("s3://").unwrap().split_once('/').unwrap();
    let head = api.s3().head_object().bucket(bucket).key(key).send().await.unwrap();
    let mut metadata: Vec<_> = head.metadata().cloned().unwrap_or_default().into_iter().collect();
    metadata.sort();
    Head {
        etag: head.e_tag().unwrap().to_owned(),
        size: head.content_length().unwrap(),
        modified: *head.last_modified().unwrap(),
        metadata,
        kind: head.content_type().unwrap().to_owned(),
    }
}

/// An object in parts, with the metadata that IMS's helper gives it.
async fn large(api: &Server, size: usize) -> String {
    const PART: usize = 8 << 20;
    let key = format!("{}/rootfs", Uuid::new_v4());
    let create = api
        .s3()
        .create_multipart_upload()
        .bucket(IMAGES)
        .key(&key)
        .content_type(ROOTFS);
    let create = create
        .metadata("md5sum", "0123456789abcdef0123456789abcdef")
        .metadata("x-shasta-ims-image-name", "an image");
    let upload = create.send().await.unwrap().upload_id().unwrap().to_owned();
    let parts = size.div_ceil(PART);
    let parts: Vec<_> = stream::iter(1..=parts)
        .map(|number| {
            let (part, key, upload) = (api.s3().upload_part(), &key, &upload);
            async move {
                let number = i32::try_from(number).unwrap();
                let length = PART.min(size - PART * (usize::try_from(number).unwrap() - 1));
                let part = part.bucket(IMAGES).key(key).upload_id(upload).part_number(number);
                let answer = part.body(vec![b'x'; length].into()).send().await.unwrap();
                CompletedPart::builder()
                    .part_number(number)
                    .e_tag(answer.e_tag().unwrap())
                    .build()
            }
        })
        .buffered(2)
        .collect()
        .await;
    let parts = CompletedMultipartUpload::builder().set_parts(Some(parts)).build();
    let complete = api
        .s3()
        .complete_multipart_upload()
        .bucket(IMAGES)
        .key(&key)
        .upload_id(&upload);
    complete.multipart_upload(parts).send().await.unwrap();
    format!("s3://{IMAGES}/{key}")
}

async fn image_of(api: &Server, artifacts: Value) -> Value {
    let link = api
        .manifest_of(&json!({"version": "1.0", "artifacts": artifacts}))
        .await;
    api.image(json!({ "link": link })).await
}

#[test]
async fn w05_an_artifact_without_md5_comes_back_and_goes_like_the_others() {
    let api = Server::shared();
    let image = api.image(json!({"link": null})).await;
    let (rootfs, kernel) = (api.own_object(&image, "r").await, api.own_object(&image, "k").await);
    let bare = json!({"type": "application/vnd.cray.image.kernel", "link": {"path": kernel, "type": "s3"}});
    let image = api.linked(&image, json!([artifact(ROOTFS, &rootfs), bare])).await;
    let path = format!("/v3/images/{}", id_of(&image));
    let gone = format!("/v3/deleted/images/{}", id_of(&image));
    api.delete(&path).await.done();
    api.patch(&gone, undelete()).await.done();
    assert_eq!(api.read(&path).await, image);
    assert!(api.exists(&kernel).await);
    api.delete(&path).await.done();
    api.delete(&gone).await.done();
    assert!(!api.exists(&kernel).await && !api.exists(&rootfs).await);
}

#[test]
async fn w05_a_shared_artifact_survives_the_deletion_and_purge_of_one_image() {
    let api = Server::shared();
    let first = api.image(json!({"link": null})).await;
    let (shared, own) = (
        api.own_object(&first, "rootfs").await,
        api.own_object(&first, "kernel").await,
    );
    let first = api
        .linked(&first, json!([artifact(ROOTFS, &shared), artifact("x/kernel", &own)]))
        .await;
    let second = image_of(&api, json!([artifact(ROOTFS, &shared)])).await;
    // A recipe may name the same object, too.
    let link = json!({"path": shared, "type": "s3"});
    let recipe = id_of(&api.recipe(json!({ "link": link })).await);
    let before = head(&api, &shared).await;

    api.delete(&format!("/v3/images/{}", id_of(&first))).await.done();
    assert_eq!(head(&api, &shared).await, before);
    api.delete(&format!("/v3/deleted/images/{}", id_of(&first)))
        .await
        .done();
    assert_eq!(head(&api, &shared).await, before);
    assert!(!api.exists(&own).await, "what nobody else names goes");
    let job = json!({"job_type": "customize", "artifact_id": second["id"], "public_key_id": api.key().await,
                     "image_root_archive_name": "n"});
    api.make("/v3/jobs", job).await;

    // To the last one that names it, deleted ones included.
    api.delete(&format!("/v3/recipes/{recipe}")).await.done();
    api.delete(&format!("/v2/images/{}", id_of(&second))).await.done();
    assert_eq!(head(&api, &shared).await, before);
    api.delete(&format!("/v3/deleted/recipes/{recipe}")).await.done();
    assert!(!api.exists(&shared).await);
}

#[test]
async fn w06_deleting_and_restoring_change_no_object_however_large() {
    let api = Server::own();
    for size in [1 << 10, 200 << 20] {
        let rootfs = large(&api, size).await;
        let image = image_of(&api, json!([artifact(ROOTFS, &rootfs)])).await;
        let manifest = image["link"]["path"].as_str().unwrap();
        let before = (head(&api, &rootfs).await, head(&api, manifest).await);
        assert!(before.0.etag.contains('-'), "{before:?}");
        assert_eq!(before.0.metadata.len(), 2);

        let path = format!("/v3/images/{}", id_of(&image));
        api.delete(&path).await.done();
        assert_eq!(
            (head(&api, &rootfs).await, head(&api, manifest).await),
            before,
            "{size}"
        );
        api.patch(&format!("/v3/deleted/images/{}", id_of(&image)), undelete())
            .await
            .done();
        assert_eq!(
            (head(&api, &rootfs).await, head(&api, manifest).await),
            before,
            "{size}"
        );
        assert_eq!(api.read(&path).await, image);
    }
}

#[test]
async fn w06_deleting_asks_nothing_of_s3_and_restoring_changes_nothing_there() {
    let wire = Wire::new().await;
    let api = wire.kiln().await;
    let mut images = Vec::new();
    for _ in 0..3 {
        images.push(id_of(&api.image(json!({})).await));
    }
    let recipe = id_of(&api.recipe(json!({})).await);
    wire.take();
    api.delete(&format!("/v3/images/{}", images[0])).await.done();
    api.delete("/v3/images").await.done();
    api.delete(&format!("/v3/recipes/{recipe}")).await.done();
    assert_eq!(wire.take(), Vec::<String>::new());
    api.patch(&format!("/v3/deleted/images/{}", images[0]), undelete())
        .await
        .done();
    api.patch("/v3/deleted/images", undelete()).await.done();
    api.patch(&format!("/v3/deleted/recipes/{recipe}"), undelete())
        .await
        .done();
    let seen = wire.take();
    assert!(!seen.is_empty(), "whether the objects are there is looked at");
    let looks = |request: &String| request.starts_with("GET ") || request.starts_with("HEAD ");
    assert!(seen.iter().all(looks), "{seen:?}");
}

#[test]
async fn w07_a_crash_loses_no_write_that_was_answered() {
    let mut api = Server::own();
    let keys: Vec<Value> = stream::iter(0..60)
        .map(|_| api.make("/v3/public-keys", json!({"name": unique("key"), "public_key": "k"})))
        .buffer_unordered(8)
        .collect()
        .await;
    let image = api.image(json!({})).await;
    let path = format!("/v3/images/{}", id_of(&image));
    let patched = api
        .patch(
            &path,
            json!({"metadata": {"operation": "set", "key": "a", "value": "b"}}),
        )
        .await
        .is(200)
        .json();
    let deleted = id_of(&keys[0]);
    api.delete(&format!("/v3/public-keys/{deleted}")).await.done();
    api = api.crashed();
    assert_eq!(api.read(&path).await, patched);
    for key in &keys[1..] {
        assert_eq!(api.read(&format!("/v3/public-keys/{}", id_of(key))).await, *key);
    }
    api.get(&format!("/v3/public-keys/{deleted}")).await.problem(404);
    api.get(&format!("/v3/deleted/public-keys/{deleted}")).await.is(200);
    assert_eq!(api.read("/v3/public-keys").await.as_array().unwrap().len(), 59);
}

#[test]
async fn w10_what_s3_does_not_answer_is_502_and_loses_no_link() {
    let wire = Wire::new().await;
    let api = wire.kiln().await;
    let (image, recipe) = (api.image(json!({})).await, api.recipe(json!({})).await);
    let (purged, kept) = (api.image(json!({})).await, api.recipe(json!({})).await);
    let key = api.key().await;
    let link = api.manifest().await;
    let spare = id_of(&api.image(json!({"link": null})).await);
    for (kind, record) in [("images", &image), ("recipes", &recipe), ("images", &purged)] {
        api.delete(&format!("/v3/{kind}/{}", id_of(record))).await.done();
    }
    wire.cut(true);
    // All at the same time: each is tried for a while.
    let (gone, lost) = (
        format!("/v3/deleted/images/{}", id_of(&image)),
        format!("/v3/deleted/recipes/{}", id_of(&recipe)),
    );
    let kernel = format!("/kiln/v1/images/{spare}/artifacts/kernel");
    let spare = format!("/v3/images/{spare}");
    let job = json!({"job_type": "create", "artifact_id": kept["id"], "public_key_id": key,
                     "image_root_archive_name": "n"});
    let refused = join_all([
        api.patch(&gone, undelete()).boxed(),
        api.patch(&lost, undelete()).boxed(),
        api.patch("/v3/deleted/recipes", undelete()).boxed(),
        api.post("/v3/images", json!({"name": "n", "link": link})).boxed(),
        api.patch(&spare, json!({ "link": link })).boxed(),
        api.post("/v3/jobs", job.clone()).boxed(),
        api.send("PUT", &kernel, Some(&job)).boxed(),
    ]);
    // Records are Kiln's own: deleting and purging need no S3. The objects follow when it is back.
    let purge = format!("/v3/deleted/images/{}", id_of(&purged));
    let (refused, purged_now) = tokio::join!(refused, api.delete(&purge));
    for answer in refused {
        let problem = answer.problem(502);
        assert_eq!(problem["code"], "s3_unreachable", "{problem}");
        assert!(
            problem["hint"].as_str().is_some_and(|hint| hint.contains("S3")),
            "{problem}"
        );
    }
    purged_now.done();
    assert_eq!(api.read(&gone).await["link"], image["link"]);
    assert_eq!(api.read(&lost).await["link"], recipe["link"]);
    assert_eq!(api.read(&spare).await["link"], Value::Null);
    assert_eq!(api.read("/v3/jobs").await, json!([]));
    api.delete(&format!("/v3/recipes/{}", id_of(&kept))).await.done();
    api.get("/healthz/ready").await.is(200);

    wire.cut(false);
    let manifest = purged["link"]["path"].as_str().unwrap();
    assert!(api.exists(manifest).await);
    // A new record cannot name an object that is about to be removed.
    api.post("/v3/images", json!({"name": "n", "link": purged["link"]}))
        .await
        .problem(409);
    let other = id_of(&api.image(json!({"link": null})).await);
    api.delete(&format!("/v2/images/{other}")).await.done();
    assert!(
        !api.exists(manifest).await,
        "the next purge removes what the last one could not"
    );

    for (kind, record) in [("images", &image), ("recipes", &recipe), ("recipes", &kept)] {
        let id = id_of(record);
        api.patch(&format!("/v3/deleted/{kind}/{id}"), undelete()).await.done();
        assert_eq!(api.read(&format!("/v3/{kind}/{id}")).await, *record);
    }
    api.make("/v3/jobs", job).await;
}

#[test]
async fn w09_a_broken_manifest_stands_in_nobodys_way() {
    let api = Server::own();
    let (good, broken) = (api.image(json!({})).await, api.image(json!({})).await);
    let (gone, fourth) = (api.image(json!({})).await, api.image(json!({})).await);
    let place = |record: &Value| {
        let path = record["link"]["path"].as_str().unwrap().to_owned();
        path.strip_prefix("s3://boot-images/").unwrap().to_owned()
    };
    api.put(IMAGES, &place(&broken), "[]").await;
    api.remove(gone["link"]["path"].as_str().unwrap()).await;

    api.delete("/v3/images").await.done();
    assert_eq!(api.read("/v3/images").await, json!([]));
    let problem = api.patch("/v3/deleted/images", undelete()).await.problem(422);
    let named: Vec<_> = problem["errors"].as_object().unwrap().keys().cloned().collect();
    let mut expected = [id_of(&broken), id_of(&gone)];
    expected.sort();
    assert_eq!(
        named.iter().collect::<std::collections::BTreeSet<_>>(),
        expected.iter().collect()
    );
    assert_eq!(
        api.read("/v3/images").await,
        json!([good, fourth]),
        "the others are back, in order"
    );
    assert_eq!(api.ids("/v3/deleted/images").await, [id_of(&broken), id_of(&gone)]);

    api.delete("/v3/deleted/images").await.done();
    assert_eq!(api.read("/v3/deleted/images").await, json!([]));
    api.put(IMAGES, &place(&good), "not json").await;
    api.delete("/v2/images").await.done();
    assert_eq!(api.read("/v3/images").await, json!([]));
}

/// Changes rows behind Kiln's back, with a program that is not ours.
fn change_rows(data: &Path, statement: &str) {
    let script =
        "import sqlite3, sys\nbase = sqlite3.connect(sys.argv[1])\nbase.executescript(sys.argv[2])\nbase.close()\n";
    let output = Command::new("python3")
        .args(["-c", script])
        .arg(data.join("records.sqlite"))
        .arg(statement)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
async fn w10_start_up_never_fails_on_data() {
    let mut api = Server::own();
    let key = api.key().await;
    for (change, is_readable) in [
        (
            "UPDATE images SET record = json_set(record, '$.link.path', ''), link_path = ''",
            true,
        ),
        (
            "UPDATE images SET record = json_set(record, '$.link.path', 'nonsense'), link_path = NULL",
            true,
        ),
        (
            "UPDATE images SET record = json_set(record, '$.created', '0001-01-01T00:00:00+00:00')",
            true,
        ),
        (
            "UPDATE images SET record = json_set(record, '$.odd', 1), name = 'other', arch = 'other'",
            true,
        ),
        ("UPDATE images SET record = json_set(record, '$.arch', 'sparc')", false),
        ("UPDATE images SET record = json_remove(record, '$.name')", false),
        ("UPDATE images SET record = '{'", false),
        (
            "DELETE FROM object_refs; INSERT INTO doomed_objects VALUES ('nonsense', 1, 1)",
            true,
        ),
    ] {
        let image = id_of(&api.image(json!({})).await);
        api = api.restarted_after(|data| change_rows(data, change));
        api.get("/healthz/ready").await.is(200);
        assert_eq!(api.ids("/v3/public-keys").await, std::slice::from_ref(&key), "{change}");
        if is_readable {
            assert_eq!(api.ids("/v3/images").await, std::slice::from_ref(&image), "{change}");
        }
        let answer = api.get(&format!("/v3/images/{image}")).await;
        assert_eq!(answer.status == 200, is_readable, "{change}: {answer:?}");
        // In any state the image can be deleted.
        api.delete(&format!("/v3/images/{image}")).await.done();
        let answer = api.patch(&format!("/v3/deleted/images/{image}"), undelete()).await;
        assert!(answer.status < 500 || !is_readable, "{change}: {answer:?}");
        api.delete("/v3/images").await.done();
        api.delete("/v3/deleted/images").await.done();
        assert_eq!(api.read("/v3/images").await, json!([]), "{change}");
    }
}
