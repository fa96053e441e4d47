//! Tests retention: what `kiln prune` and the server by itself remove, and what stays whatever the rules say.

use std::{sync::Arc, time::Duration};

use aws_sdk_s3::Client as S3;
use kiln::{
    artifacts::{ArtifactStore, S3Settings},
    config::RetentionSettings,
    retention::Retention,
    settings::{Period, Size},
    store::{Collection, SqliteStore, open},
};
use kiln_records::{Clock, Moment, PublicKey, PublicKeyId};
use kiln_s3::EmbeddedS3;
use serde_json::{Value, json};

use crate::support::{
    self, Kiln, eventually_async,
    server::{Server, id_of},
};

const RULES: &str = r#"[{ name = "compute-*", series = "rule", keep = 1 }, { name = "login", keep = 1 }]"#;

/// A server whose rules give up much, but which does not look by itself.
fn server() -> Server {
    Server::with(&[
        ("KILN__RETENTION__EVERY", "0s"),
        ("KILN__RETENTION__IMAGES", RULES),
        ("KILN__RETENTION__PURGE_AFTER", "1h"),
        ("KILN__RETENTION__JOBS_AFTER", "1h"),
        ("KILN__RETENTION__UPLOADS_AFTER", "1h"),
        ("KILN__RETENTION__PACKAGE_BYTES", "2500"),
        ("KILN__JOBS__RUN", "false"),
    ])
}

/// What that server would give up by itself two hours later.
async fn pruned_later(api: &Server) -> Value {
    let records = api.data().join("records.sqlite");
    let hour = || Period::seconds(3600);
    let retention = Retention {
        store: open(records.to_str().unwrap()).await.unwrap(),
        artifacts: ArtifactStore::connect(&api.s3_settings()).await.unwrap(),
        settings: RetentionSettings {
            images: serde_json::from_value(json!([
                { "name": "compute-*", "series": "rule", "keep": 1 }, { "name": "login", "keep": 1 }
            ]))
            .unwrap(),
            purge_after: hour(),
            jobs_after: hour(),
            uploads_after: hour(),
            package_bytes: Size(2500),
            ..RetentionSettings::default()
        },
        clock: Clock::default(),
    };
    retention.clock.forward(Duration::from_hours(2));
    let pruned = retention.prune(false, None).await.unwrap();
    retention.store.close().await;
    // The next request that prunes removes the objects that no record names any more.
    api.post("/kiln/v1/prune", json!({})).await.is(200);
    serde_json::to_value(pruned).unwrap()
}

/// Kind and name, or key, of what a pass removes.
fn removed(pruned: &Value) -> Vec<String> {
    let mut lines: Vec<String> = pruned["removed"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            let text = |member: &str| one[member].as_str().unwrap_or_default().to_owned();
            let name = if one["name"].is_null() {
                text("id")
            } else {
                text("name")
            };
            format!("{} {name} {}", text("kind"), text("why"))
        })
        .collect();
    lines.sort();
    lines
}

fn kept(pruned: &Value) -> Vec<String> {
    let kept = pruned["kept"].as_array().unwrap();
    let line = |one: &Value| format!("{} {}", one["name"].as_str().unwrap(), one["why"].as_str().unwrap());
    kept.iter().map(line).collect()
}

async fn begin_upload(s3: &S3, bucket: &str, key: &str) -> String {
    let begun = s3
        .create_multipart_upload()
        .bucket(bucket)
        .key(key)
        .send()
        .await
        .unwrap();
    begun.upload_id().unwrap().to_owned()
}

async fn open_uploads(s3: &S3, bucket: &str) -> Vec<String> {
    let listed = s3.list_multipart_uploads().bucket(bucket).send().await.unwrap();
    listed
        .uploads()
        .iter()
        .map(|upload| upload.key().unwrap().to_owned())
        .collect()
}

#[test]
async fn rules_give_up_old_images_which_can_be_restored() {
    let api = server();
    for name in ["compute-1", "compute-2", "compute-3", "other", "login"] {
        api.image(json!({ "name": name })).await;
    }
    // Another architecture is another series, whatever the name.
    api.image(json!({ "name": "compute-0", "arch": "aarch64" })).await;
    api.image(json!({ "name": "compute-4", "link": null })).await;
    let pinned = api
        .image(json!({ "name": "login", "metadata": {"kiln.keep": ""} }))
        .await;
    api.image(json!({ "name": "login" })).await;

    let all = api.ids("/v3/images").await;
    let look = api.get("/kiln/v1/prune").await.is(200).json();
    assert_eq!((&look["dry_run"], &look["freed_bytes"]), (&json!(true), &json!(0)));
    assert_eq!(
        removed(&look),
        ["image compute-1 rule", "image compute-2 rule", "image login rule"]
    );
    assert_eq!(
        kept(&look),
        [
            "compute-3 newest",
            "compute-0 newest",
            "compute-4 unfinished",
            "login tag",
            "login newest"
        ]
    );
    assert_eq!(api.ids("/v3/images").await, all, "looking removes nothing");

    let done = api.post("/kiln/v1/prune", json!({})).await.is(200).json();
    assert_eq!((removed(&done), &done["dry_run"]), (removed(&look), &json!(false)));
    assert_eq!(api.ids("/v3/images").await.len(), all.len() - 3);
    assert!(api.ids("/v3/images").await.contains(&id_of(&pinned)));
    let deleted = api.ids("/v3/deleted/images").await;
    assert_eq!(deleted.len(), 3);
    api.patch(
        &format!("/v3/deleted/images/{}", deleted[0]),
        json!({ "operation": "undelete" }),
    )
    .await
    .done();

    // Later on they are removed for good, with their objects. The restored one goes again, and only that far.
    let later = pruned_later(&api).await;
    assert_eq!(
        removed(&later),
        [
            "deleted_image compute-2 age",
            "deleted_image login age",
            "image compute-1 rule"
        ]
    );
    assert!(later["freed_bytes"].as_u64().unwrap() > 0);
    assert_eq!(api.ids("/v3/deleted/images").await, deleted[..1]);
    for id in &deleted[1..] {
        assert!(!api.exists(&format!("s3://boot-images/{id}/rootfs")).await);
    }
    assert!(api.exists(&format!("s3://boot-images/{}/rootfs", deleted[0])).await);
}

#[test]
async fn objects_that_others_name_stay() {
    let api = server();
    let first = api.image(json!({ "name": "first" })).await;
    let second = api.make("/v3/images", json!({ "name": "second" })).await;
    let shared = format!("s3://boot-images/{}/rootfs", id_of(&first));
    let rootfs = support::server::artifact("application/vnd.cray.image.rootfs.squashfs", &shared);
    api.linked(&second, json!([rootfs])).await;
    api.delete(&format!("/v3/images/{}", id_of(&first))).await.done();
    let pruned = pruned_later(&api).await;
    assert_eq!(removed(&pruned), ["deleted_image first age"]);
    assert!(api.exists(&shared).await);
    assert!(!api.exists(&format!("s3://boot-images/{}/kernel", id_of(&first))).await);
}

#[test]
async fn uploads_packages_and_jobs_go_by_age_and_size() {
    let api = server();
    let own = uuid::Uuid::new_v4();
    begin_upload(api.s3(), "boot-images", &format!("{own}/rootfs")).await;
    begin_upload(api.s3(), "boot-images", "someone/elses").await;
    for digit in ["1", "2", "3"] {
        api.put("ims", &format!("packages/{digit}"), vec![0; 1000]).await;
        if digit == "1" {
            // S3 tells times in whole seconds, so the others are younger only after one.
            tokio::time::sleep(Duration::from_millis(1100)).await;
        }
    }
    api.put("ims", "packages-of-others/1", vec![0; 9000]).await;
    let recipe = api.recipe(json!({})).await;
    let body = json!({ "job_type": "create", "artifact_id": id_of(&recipe), "image_root_archive_name": "old",
        "public_key_id": api.key().await });
    let (ended, open) = (
        api.make("/v3/jobs", body.clone()).await,
        api.make("/v3/jobs", body).await,
    );
    api.patch(&format!("/v3/jobs/{}", id_of(&ended)), json!({ "status": "error" }))
        .await
        .is(200);

    let pruned = pruned_later(&api).await;
    assert_eq!(
        removed(&pruned),
        [
            "job old age".to_owned(),
            "package packages/1 size".to_owned(),
            format!("upload s3://boot-images/{own}/rootfs age"),
        ]
    );
    assert_eq!(open_uploads(api.s3(), "boot-images").await, ["someone/elses"]);
    assert_eq!(api.ids("/v3/jobs").await, [id_of(&open)]);
    for (key, stays) in [
        ("packages/1", false),
        ("packages/2", true),
        ("packages/3", true),
        ("packages-of-others/1", true),
    ] {
        assert_eq!(api.exists(&format!("s3://ims/{key}")).await, stays, "{key}");
    }
    assert_eq!(removed(&pruned_later(&api).await), [""; 0]);
}

#[test]
async fn an_image_that_a_job_starts_from_stays() {
    let api = server();
    let source = api.image(json!({ "name": "login" })).await;
    api.image(json!({ "name": "login" })).await;
    let body = json!({ "job_type": "customize", "artifact_id": id_of(&source), "image_root_archive_name": "new",
        "public_key_id": api.key().await, "enable_debug": true });
    let job = api.make("/v3/jobs", body).await;
    let pruned = api.post("/kiln/v1/prune", json!({})).await.is(200).json();
    assert_eq!(kept(&pruned), ["login in_use", "login newest"]);
    api.patch(&format!("/v3/jobs/{}", id_of(&job)), json!({ "status": "error" }))
        .await
        .is(200);
    let pruned = api.get("/kiln/v1/prune").await.is(200).json();
    assert!(removed(&pruned).contains(&"image login rule".to_owned()));
}

#[test]
async fn the_server_prunes_by_itself() {
    let api = Server::with(&[
        ("KILN__RETENTION__EVERY", "1s"),
        ("KILN__RETENTION__IMAGES", RULES),
        ("KILN__JOBS__RUN", "false"),
    ]);
    for _ in 0..2 {
        api.image(json!({ "name": "login" })).await;
    }
    eventually_async(async || {
        let left = api.ids("/v3/images").await;
        if left.len() == 1 { Ok(()) } else { Err(api.log()) }
    })
    .await;
    assert_eq!(api.ids("/v3/deleted/images").await.len(), 1);
}

#[test]
async fn a_pass_without_time_says_that_it_is_not_complete() {
    let dir = tempfile::tempdir().unwrap();
    let s3 = EmbeddedS3::start(&dir.path().join("s3"), ([127, 0, 0, 1], 0).into())
        .await
        .unwrap();
    let store = Arc::new(SqliteStore::open(&dir.path().join("records.sqlite")).await.unwrap());
    let retention = Retention {
        store: store.clone(),
        artifacts: ArtifactStore::connect(&S3Settings::from(&s3)).await.unwrap(),
        settings: RetentionSettings {
            purge_after: Period::seconds(1),
            ..RetentionSettings::default()
        },
        clock: Clock::default(),
    };
    let key = PublicKey {
        id: PublicKeyId::new(),
        created: Moment::from_micros(0),
        name: "old".to_owned(),
        public_key: "ssh-ed25519 AAAA".to_owned(),
        deleted: Some(Moment::from_micros(1)),
    };
    Collection::<PublicKey>::insert(&*store, &key, &[]).await.unwrap();
    let answer = async |longest| {
        let pruned = retention.prune(false, longest).await.unwrap();
        serde_json::to_value(pruned).unwrap()
    };
    let broken_off = answer(Some(Duration::ZERO)).await;
    assert_eq!(
        (&broken_off["complete"], removed(&broken_off).len()),
        (&json!(false), 0)
    );
    let whole = answer(None).await;
    assert_eq!(
        (&whole["complete"], removed(&whole)),
        (&json!(true), vec!["deleted_public_key old age".to_owned()])
    );
    s3.shutdown().await;
}

#[test]
async fn the_command_says_what_goes_and_why() {
    let api = server();
    for name in ["compute-1", "compute-2"] {
        api.image(json!({ "name": name })).await;
    }
    let kiln = Kiln::bare();
    let run = |line: &[&str]| {
        let mut command = kiln.command(line.iter().copied());
        command.env("KILN_SERVER", api.base());
        support::run(command).ok()
    };
    let told = run(&["prune", "--dry-run", "--all"]);
    let mut text = format!("{}\n{}", told.stdout.trim_end(), told.stderr.trim_end());
    for image in api.get("/v3/images").await.json().as_array().unwrap() {
        text = text.replace(&id_of(image), "ID                                  ");
        text = text.replace(image["created"].as_str().unwrap(), "CREATED                   ");
    }
    insta::assert_snapshot!(text);
    assert_eq!(api.ids("/v3/images").await.len(), 2);
    let data: Value = serde_json::from_str(&run(&["prune", "--format", "json"]).stdout).unwrap();
    assert_eq!(removed(&data), ["image compute-1 rule"]);
}
