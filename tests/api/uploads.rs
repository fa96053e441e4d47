//! `/kiln/v1`: uploads through the API, for clients that have no keys of S3.

use futures::stream;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::api::server::{Answer, IMAGES, NOBODY, RECIPES, ROOTFS, Server, artifact, id_of, unique};
use crate::support::eventually_async;

async fn put(api: &Server, path: &str, body: impl Into<reqwest::Body>) -> Answer {
    let request = api.request("PUT", path).body(body);
    let request = request.header("content-type", "application/octet-stream");
    Answer::of(request, format!("PUT {path}")).await
}

async fn bare_recipe(api: &Server) -> String {
    id_of(&api.recipe(json!({"link": null})).await)
}

async fn bare_image(api: &Server) -> String {
    id_of(&api.image(json!({"link": null, "arch": "aarch64"})).await)
}

/// The key of an uploaded object, which is its own: `<prefix>/<random>/<name>`.
#[track_caller]
fn own_key(path: &Value, bucket: &str, prefix: &str, name: &str) -> String {
    let key = path.as_str().unwrap().strip_prefix(&format!("s3://{bucket}/")).unwrap();
    let own = key.strip_prefix(&format!("{prefix}/")).unwrap();
    let (random, rest) = own.split_once('/').unwrap();
    assert!(uuid::Uuid::parse_str(random).is_ok() && rest == name, "{key}");
    key.to_owned()
}

/// The keys of all objects with this beginning.
async fn keys(api: &Server, bucket: &str, prefix: &str) -> Vec<String> {
    let listed = api
        .s3()
        .list_objects_v2()
        .bucket(bucket)
        .prefix(prefix)
        .send()
        .await
        .unwrap();
    let keys = listed.contents().iter().map(|object| object.key().unwrap().to_owned());
    keys.collect()
}

async fn content(api: &Server, bucket: &str, key: &str) -> Vec<u8> {
    let object = api.s3().get_object().bucket(bucket).key(key).send().await.unwrap();
    object.body.collect().await.unwrap().to_vec()
}

#[test]
async fn an_archive_goes_to_its_recipe() {
    let api = Server::shared();
    let id = bare_recipe(&api).await;
    let path = format!("/kiln/v1/recipes/{id}/archive");
    let body: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    let recipe = put(&api, &path, body.clone()).await.is(200).json();
    assert_eq!(recipe, api.read(&format!("/v3/recipes/{id}")).await);
    let key = own_key(
        &recipe["link"]["path"],
        RECIPES,
        &format!("recipes/{id}"),
        "recipe.tar.gz",
    );
    let object = api.s3().get_object().bucket(RECIPES).key(&key).send().await.unwrap();
    assert_eq!(object.e_tag().unwrap().trim_matches('"'), recipe["link"]["etag"]);
    // IMS's helper takes an archive without it for another one, and uploads a second recipe.
    assert_eq!(
        object.metadata().unwrap()["md5sum"],
        hex::encode(md5::Md5::digest(&body))
    );
    assert_eq!(object.content_type(), Some("application/x-compressed-tar"));
    assert_eq!(object.body.collect().await.unwrap().to_vec(), body);
    // An existing archive is not replaced.
    put(&api, &path, "other").await.problem(409);
    assert_eq!(api.read(&format!("/v3/recipes/{id}")).await, recipe);
    let job = json!({"job_type": "create", "artifact_id": id, "public_key_id": api.key().await,
                     "image_root_archive_name": "n"});
    api.make("/v3/jobs", job).await;
}

#[test]
async fn artifacts_and_a_manifest_make_an_image() {
    let api = Server::shared();
    let id = bare_image(&api).await;
    let mut artifacts = Vec::new();
    for (kind, media_type) in [
        ("rootfs", ROOTFS),
        ("kernel", "application/vnd.cray.image.kernel"),
        ("initrd", "application/vnd.cray.image.initrd"),
        ("boot_parameters", "application/vnd.cray.image.parameters.boot"),
    ] {
        let path = format!("/kiln/v1/images/{id}/artifacts/{kind}");
        put(&api, &path, "of a first attempt").await.is(200);
        let uploaded = put(&api, &path, kind).await.is(200).json();
        assert_eq!(uploaded["type"], media_type);
        assert_eq!(uploaded["size"], kind.len());
        assert_eq!(uploaded["sha256"], hex::encode(Sha256::digest(kind)));
        own_key(&uploaded["link"]["path"], IMAGES, &id, kind);
        artifacts.push(uploaded);
    }
    assert_eq!(api.read(&format!("/v3/images/{id}")).await["link"], Value::Null);
    let path = format!("/kiln/v1/images/{id}/manifest");
    let image = api
        .send("PUT", &path, Some(&json!({ "artifacts": artifacts })))
        .await
        .is(200)
        .json();
    assert_eq!(image, api.read(&format!("/v3/images/{id}")).await);
    assert_eq!(image["link"]["path"], format!("s3://{IMAGES}/{id}/manifest.json"));
    let key = format!("{id}/manifest.json");
    let object = api.s3().get_object().bucket(IMAGES).key(&key).send().await.unwrap();
    let manifest: Value = serde_json::from_slice(&object.body.collect().await.unwrap().to_vec()).unwrap();
    assert_eq!(
        (&manifest["version"], &manifest["arch"]),
        (&json!("1.0"), &json!("aarch64"))
    );
    assert_eq!(manifest["artifacts"].as_array().unwrap().len(), 4);

    api.send("PUT", &path, Some(&json!({ "artifacts": artifacts })))
        .await
        .problem(409);
    put(&api, &format!("/kiln/v1/images/{id}/artifacts/rootfs"), "late")
        .await
        .problem(409);
    let job = json!({"job_type": "customize", "artifact_id": id, "public_key_id": api.key().await,
                     "image_root_archive_name": "n"});
    assert_eq!(api.make("/v3/jobs", job).await["arch"], "aarch64");
}

#[test]
async fn what_is_not_there_takes_nothing() {
    let api = Server::shared();
    let image = bare_image(&api).await;
    for path in [
        format!("/kiln/v1/recipes/{NOBODY}/archive"),
        format!("/kiln/v1/recipes/{image}/archive"),
        format!("/kiln/v1/images/{NOBODY}/artifacts/rootfs"),
        format!("/kiln/v1/images/{image}/artifacts/manifest.json"),
        format!("/kiln/v1/images/{image}/artifacts/Rootfs"),
        format!("/kiln/v1/images/{image}/artifacts/..%2frootfs"),
        format!("/kiln/v1/images/{image}/artifacts/%ff"),
        "/kiln/v1/recipes/x/archive".to_owned(),
        format!("/kiln/v1/images/{NOBODY}/manifest"),
        "/kiln/v1/images".to_owned(),
    ] {
        put(&api, &path, "x").await.problem(404);
    }
    let path = format!("/kiln/v1/images/{image}/artifacts/rootfs");
    for method in ["GET", "POST", "PATCH", "DELETE"] {
        let answer = api.send(method, &path, None).await.is(405);
        assert_eq!(answer.header("allow"), "PUT");
    }
}

#[test]
async fn a_manifest_has_to_name_what_is_there() {
    let api = Server::shared();
    let image = bare_image(&api).await;
    let path = format!("/kiln/v1/images/{image}/manifest");
    let rootfs = put(&api, &format!("/kiln/v1/images/{image}/artifacts/rootfs"), "r")
        .await
        .is(200)
        .json();
    let changed = |member: &str, value: Value| {
        let mut changed = rootfs.clone();
        changed[member] = value;
        json!({ "artifacts": [changed] })
    };
    let nowhere = artifact(ROOTFS, &format!("s3://{IMAGES}/{}", unique("nowhere")));
    for (body, what) in [
        (json!({"artifacts": []}), "nothing"),
        (json!({"artifacts": [rootfs, rootfs]}), "two roots"),
        (json!({ "artifacts": [nowhere] }), "no such object"),
        (
            json!({"artifacts": [artifact(ROOTFS, "s3://Not_A_Bucket/r")]}),
            "no such bucket",
        ),
        (changed("size", json!(7)), "another size"),
        (changed("type", json!("application/vnd.cray.image.kernel")), "no root"),
        (changed("link", json!({"path": "rootfs", "type": "s3"})), "no path"),
        (changed("link", json!(null)), "no link"),
        (changed("size", json!(-1)), "no size"),
        (json!({"artifacts": {}}), "no list"),
        (json!({"other": []}), "nothing of use"),
        (json!([rootfs]), "no object"),
        (json!("x"), "text"),
    ] {
        let answer = api.send("PUT", &path, Some(&body)).await;
        assert_eq!(answer.status, 422, "{what}: {answer:?}");
        answer.problem(422);
    }
    api.send("PUT", &path, Some(&json!({}))).await.problem(400);
    api.raw("PUT", &path, Some("application/json"), "{").await.message(400);
    api.raw("PUT", &path, Some("text/plain"), "{}").await.message(415);
    assert_eq!(api.read(&format!("/v3/images/{image}")).await["link"], Value::Null);
    api.send("PUT", &path, Some(&json!({ "artifacts": [rootfs] })))
        .await
        .is(200);
}

#[test]
async fn an_object_is_not_larger_than_allowed() {
    let api = Server::with(&[("KILN__LIMITS__UPLOAD_BYTES", "1000")]);
    let id = bare_recipe(&api).await;
    let path = format!("/kiln/v1/recipes/{id}/archive");
    put(&api, &path, vec![0; 1001]).await.problem(413);
    // Without saying so beforehand.
    let chunks = stream::iter((0..11).map(|_| Ok::<_, std::io::Error>(vec![0_u8; 100])));
    put(&api, &path, reqwest::Body::wrap_stream(chunks)).await.problem(413);
    assert_eq!(
        keys(&api, RECIPES, &format!("recipes/{id}/")).await,
        [""; 0],
        "something is left of it"
    );
    let uploads = api.s3().list_multipart_uploads().bucket(RECIPES).send().await.unwrap();
    assert_eq!(uploads.uploads().len(), 0);
    put(&api, &path, vec![0; 1000]).await.is(200);
}

#[test]
async fn an_upload_that_breaks_off_leaves_nothing() {
    let api = Server::own();
    let id = bare_recipe(&api).await;
    let path = format!("/kiln/v1/recipes/{id}/archive");
    let chunks = stream::iter([Ok(vec![0_u8; 100]), Err(std::io::Error::other("gone"))]);
    let request = api.request("PUT", &path).body(reqwest::Body::wrap_stream(chunks));
    assert!(request.send().await.is_err());
    // No parts are left.
    eventually_async(async || {
        let uploads = api.s3().list_multipart_uploads().bucket(RECIPES).send().await.unwrap();
        uploads.uploads().is_empty()
    })
    .await;
    assert_eq!(keys(&api, RECIPES, &format!("recipes/{id}/")).await, [""; 0]);
    assert_eq!(api.read(&format!("/v3/recipes/{id}")).await["link"], Value::Null);
    put(&api, &path, "whole").await.is(200);
}

#[test]
async fn what_was_uploaded_goes_with_its_image() {
    let api = Server::shared();
    for version in ["/v2", "/v3"] {
        let id = bare_image(&api).await;
        let uploaded = put(&api, &format!("/kiln/v1/images/{id}/artifacts/kernel"), "k").await;
        let object = uploaded.is(200).json()["link"]["path"].as_str().unwrap().to_owned();
        api.delete(&format!("{version}/images/{id}")).await.done();
        if version == "/v3" {
            assert!(api.exists(&object).await);
            api.patch(&format!("/v3/deleted/images/{id}"), json!({"operation": "undelete"}))
                .await
                .done();
            api.delete(&format!("/v3/images/{id}")).await.done();
            api.delete(&format!("/v3/deleted/images/{id}")).await.done();
        }
        assert!(!api.exists(&object).await, "{version}");
    }
}

/// An upload that has begun and does not end before it is told to.
fn slow<'a>(api: &'a Server, path: &str) -> (tokio::sync::oneshot::Sender<()>, impl Future<Output = Answer> + use<'a>) {
    let (end, ended) = tokio::sync::oneshot::channel();
    let begin = stream::iter([Ok::<_, std::io::Error>(b"late".to_vec())]);
    let rest = stream::once(async {
        ended.await.unwrap();
        Ok(b"comer".to_vec())
    });
    let body = reqwest::Body::wrap_stream(futures::StreamExt::chain(begin, rest));
    let request = api.request("PUT", path).body(body);
    (end, Answer::of(request, format!("PUT {path}, slowly")))
}

/// Waits until an upload has reached S3.
async fn begun(api: &Server, bucket: &str, prefix: &str) {
    eventually_async(async || {
        let uploads = api.s3().list_multipart_uploads().bucket(bucket).send().await.unwrap();
        let begins = |key: Option<&str>| key.is_some_and(|key| key.starts_with(prefix));
        uploads.uploads().iter().any(|upload| begins(upload.key()))
    })
    .await;
}

#[test]
async fn what_comes_too_late_changes_nothing() {
    let api = Server::own();
    let image = bare_image(&api).await;
    let path = format!("/kiln/v1/images/{image}/artifacts/rootfs");
    let (end, upload) = slow(&api, &path);
    let meanwhile = async {
        begun(&api, IMAGES, &format!("{image}/")).await;
        let rootfs = put(&api, &path, "in time").await.is(200).json();
        let manifest = format!("/kiln/v1/images/{image}/manifest");
        api.send("PUT", &manifest, Some(&json!({ "artifacts": [rootfs] })))
            .await
            .is(200);
        end.send(()).unwrap();
        own_key(&rootfs["link"]["path"], IMAGES, &image, "rootfs")
    };
    let (late, key) = tokio::join!(upload, meanwhile);
    late.problem(409);
    assert_eq!(content(&api, IMAGES, &key).await, b"in time");
    let manifest = format!("{image}/manifest.json");
    let mut expected = [key, manifest];
    expected.sort();
    assert_eq!(keys(&api, IMAGES, &format!("{image}/")).await, expected);

    // The record went, and with it everything that belongs to it.
    for kind in ["recipes", "images"] {
        let (id, bucket, key) = if kind == "recipes" {
            let id = bare_recipe(&api).await;
            (id.clone(), RECIPES, format!("recipes/{id}/"))
        } else {
            let id = bare_image(&api).await;
            (id.clone(), IMAGES, format!("{id}/"))
        };
        let part = if kind == "recipes" {
            "archive"
        } else {
            "artifacts/kernel"
        };
        let (end, upload) = slow(&api, &format!("/kiln/v1/{kind}/{id}/{part}"));
        let meanwhile = async {
            begun(&api, bucket, &key).await;
            api.delete(&format!("/v2/{kind}/{id}")).await.done();
            end.send(()).unwrap();
        };
        let (late, ()) = tokio::join!(upload, meanwhile);
        late.problem(404);
        assert_eq!(keys(&api, bucket, &key).await, [""; 0], "{kind}");
        let uploads = api.s3().list_multipart_uploads().bucket(bucket).send().await.unwrap();
        assert_eq!(uploads.uploads().len(), 0, "{kind}");
    }
}

/// Of uploads to one record at the same time, none changes what another one was told.
#[test(threads = 2)]
async fn uploads_at_the_same_time_leave_each_others_objects_alone() {
    const CLIENTS: usize = 8;
    let api = Server::own();
    for round in 0..4 {
        let id = bare_recipe(&api).await;
        let path = format!("/kiln/v1/recipes/{id}/archive");
        let body = |client: usize| format!("client {client} of round {round} ").repeat(1000 + client);
        let answers = futures::future::join_all((0..CLIENTS).map(|client| put(&api, &path, body(client)))).await;
        let mut won = Vec::new();
        for (client, answer) in answers.into_iter().enumerate() {
            match answer.status {
                200 => won.push((client, answer.json())),
                _ => drop(answer.problem(409)),
            }
        }
        let [(client, recipe)] = won.as_slice() else {
            panic!("not one has won: {won:?}");
        };
        let key = own_key(
            &recipe["link"]["path"],
            RECIPES,
            &format!("recipes/{id}"),
            "recipe.tar.gz",
        );
        assert_eq!(content(&api, RECIPES, &key).await, body(*client).into_bytes());
        let head = api.s3().head_object().bucket(RECIPES).key(&key).send().await.unwrap();
        assert_eq!(head.e_tag().unwrap().trim_matches('"'), recipe["link"]["etag"]);
        let left = keys(&api, RECIPES, &format!("recipes/{id}/")).await;
        assert_eq!(left, [key], "those of the others are left");

        // Those of an image are all there until its manifest chooses.
        let id = bare_image(&api).await;
        let path = format!("/kiln/v1/images/{id}/artifacts/kernel");
        let answers = futures::future::join_all((0..CLIENTS).map(|client| put(&api, &path, body(client)))).await;
        for (client, answer) in answers.into_iter().enumerate() {
            let uploaded = answer.is(200).json();
            let key = own_key(&uploaded["link"]["path"], IMAGES, &id, "kernel");
            let kept = content(&api, IMAGES, &key).await;
            assert_eq!(kept, body(client).into_bytes());
            assert_eq!(uploaded["sha256"], hex::encode(Sha256::digest(&kept)));
        }
    }
}
