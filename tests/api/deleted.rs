//! `/deleted/…`: what deleting keeps, what restoring brings back, what purging forgets.

use serde_json::{Value, json};

use crate::api::{
    moments::is_moment,
    server::{NOBODY, Server, id_of, unique},
};

const KINDS: [&str; 3] = ["public-keys", "recipes", "images"];

/// A record of a kind with as much in it as it can hold.
async fn full(api: &Server, kind: &str) -> Value {
    match kind {
        "public-keys" => {
            let body = json!({"name": unique("key"), "public_key": "ssh-rsa AAAA\n"});
            api.make("/v3/public-keys", body).await
        }
        "recipes" => {
            let values = json!([{"key": "b", "value": "1"}, {"key": "a", "value": "2"}, {"key": "b", "value": "3"}]);
            api.recipe(json!({"arch": "aarch64", "require_dkms": false, "template_dictionary": values}))
                .await
        }
        _ => {
            api.image(json!({"arch": "s390x", "metadata": {"a": "b", "": "c"}}))
                .await
        }
    }
}

fn undelete() -> Value {
    json!({"operation": "undelete"})
}

#[test]
async fn a_deleted_record_is_whole_and_comes_back_as_it_was() {
    let api = Server::shared();
    for kind in KINDS {
        let record = full(&api, kind).await;
        let (live, gone) = (
            format!("/v3/{kind}/{}", id_of(&record)),
            format!("/v3/deleted/{kind}/{}", id_of(&record)),
        );
        api.get(&gone).await.problem(404);
        api.patch(&gone, undelete()).await.problem(404);
        api.delete(&gone).await.problem(404);

        api.delete(&live).await.done();
        api.get(&live).await.problem(404);
        api.delete(&live).await.problem(404);
        api.patch(&live, json!({"arch": "x86_64"})).await;
        assert!(!api.ids(&format!("/v3/{kind}")).await.contains(&id_of(&record)));
        let deleted = api.read(&gone).await;
        is_moment(&deleted["deleted"]);
        let mut expected = record.clone();
        expected["deleted"] = deleted["deleted"].clone();
        // The link stays where it was: deleting moves nothing.
        assert_eq!(deleted, expected);
        let list = api.read(&format!("/v3/deleted/{kind}")).await;
        assert!(list.as_array().unwrap().contains(&expected));

        api.patch(&gone, undelete()).await.done();
        api.get(&gone).await.problem(404);
        assert_eq!(
            api.read(&live).await,
            record,
            "`deleted` is gone again, and nothing else"
        );
    }
}

#[test]
async fn purging_forgets_the_record_and_its_objects() {
    let api = Server::shared();
    for kind in KINDS {
        let record = full(&api, kind).await;
        let gone = format!("/v3/deleted/{kind}/{}", id_of(&record));
        api.delete(&format!("/v3/{kind}/{}", id_of(&record))).await.done();
        let objects = objects_of(&api, &record).await;
        for object in &objects {
            assert!(api.exists(object).await, "deleting removes no object: {object}");
        }
        api.delete(&gone).await.done();
        api.get(&gone).await.problem(404);
        api.delete(&gone).await.problem(404);
        for object in &objects {
            assert!(!api.exists(object).await, "purging removes {object}");
        }
    }
}

/// The paths of all objects that a record refers to.
async fn objects_of(api: &Server, record: &Value) -> Vec<String> {
    let Some(path) = record["link"]["path"].as_str() else {
        return Vec::new();
    };
    let mut objects = vec![path.to_owned()];
    if record.get("metadata").is_some() {
        let (bucket, key) = path.strip_prefix("s3://").unwrap().split_once('/').unwrap();
        let answer = api.s3().get_object().bucket(bucket).key(key).send().await.unwrap();
        let manifest: Value = serde_json::from_slice(&answer.body.collect().await.unwrap().to_vec()).unwrap();
        for artifact in manifest["artifacts"].as_array().unwrap() {
            objects.push(artifact["link"]["path"].as_str().unwrap().to_owned());
        }
    }
    objects
}

#[test]
async fn purging_does_not_mind_objects_that_are_gone_already() {
    let api = Server::shared();
    for kind in ["recipes", "images"] {
        let record = full(&api, kind).await;
        api.delete(&format!("/v3/{kind}/{}", id_of(&record))).await.done();
        for object in objects_of(&api, &record).await {
            api.remove(&object).await;
        }
        api.delete(&format!("/v3/deleted/{kind}/{}", id_of(&record)))
            .await
            .done();
    }
}

#[test]
async fn only_the_one_operation_is_known() {
    let api = Server::shared();
    for kind in KINDS {
        let record = full(&api, kind).await;
        api.delete(&format!("/v3/{kind}/{}", id_of(&record))).await.done();
        for path in [
            format!("/v3/deleted/{kind}/{}", id_of(&record)),
            format!("/v3/deleted/{kind}"),
        ] {
            for body in [
                json!({"operation": "Undelete"}),
                json!({"operation": "delete"}),
                json!({"operation": ""}),
                json!({"operation": null}),
                json!({"operation": true}),
                json!({"operation": ["undelete"]}),
                json!({"operation": "undelete", "odd": 1}),
                json!({"odd": 1}),
            ] {
                let errors = api.patch(&path, body.clone()).await.errors();
                assert!(
                    !errors["operation"].is_null() || !errors["odd"].is_null(),
                    "{path} {body}"
                );
            }
            api.patch(&path, json!({})).await.problem(400);
        }
        api.get(&format!("/v3/deleted/{kind}/{}", id_of(&record))).await.is(200);
    }
    api.raw("PATCH", &format!("/v3/deleted/images/{NOBODY}"), None, "")
        .await
        .problem(404);
}

#[test]
async fn what_has_no_link_comes_back_too() {
    let api = Server::shared();
    for kind in ["recipes", "images"] {
        let mut record = json!({"name": unique("bare")});
        if kind == "recipes" {
            record["recipe_type"] = json!("packer");
            record["linux_distribution"] = json!("sles12");
        }
        let record = api.make(&format!("/v3/{kind}"), record).await;
        let path = format!("/v3/{kind}/{}", id_of(&record));
        api.delete(&path).await.done();
        api.patch(&format!("/v3/deleted/{kind}/{}", id_of(&record)), undelete())
            .await
            .done();
        assert_eq!(api.read(&path).await, record);
    }
}

#[test]
async fn what_s3_has_lost_cannot_come_back() {
    let api = Server::shared();
    let recipe = full(&api, "recipes").await;
    let image = full(&api, "images").await;
    let broken = full(&api, "images").await;
    let empty = full(&api, "images").await;
    let part = full(&api, "images").await;
    for (kind, record) in [
        ("recipes", &recipe),
        ("images", &image),
        ("images", &broken),
        ("images", &empty),
        ("images", &part),
    ] {
        let path = record["link"]["path"].as_str().unwrap();
        let objects = objects_of(&api, record).await;
        api.delete(&format!("/v3/{kind}/{}", id_of(record))).await.done();
        let (bucket, key) = path.strip_prefix("s3://").unwrap().split_once('/').unwrap();
        if *record == broken {
            api.put(bucket, key, "not json").await;
        } else if *record == empty {
            api.put(bucket, key, r#"{"version": "1.0", "artifacts": []}"#).await;
        } else if *record == part {
            api.remove(objects.last().unwrap()).await;
        } else {
            api.remove(path).await;
        }
        let gone = format!("/v3/deleted/{kind}/{}", id_of(record));
        api.patch(&gone, undelete()).await.problem(422);
        assert_eq!(api.read(&gone).await["link"], record["link"]);
        api.get(&format!("/v3/{kind}/{}", id_of(record))).await.problem(404);
        // It can still be got rid of.
        api.delete(&gone).await.done();
    }
}

#[test]
async fn a_link_that_somebody_else_took_meanwhile_cannot_come_back() {
    let api = Server::shared();
    for kind in ["recipes", "images"] {
        let first = full(&api, kind).await;
        api.delete(&format!("/v3/{kind}/{}", id_of(&first))).await.done();
        let second = match kind {
            "recipes" => api.recipe(json!({"link": first["link"]})).await,
            _ => api.image(json!({"link": first["link"]})).await,
        };
        let gone = format!("/v3/deleted/{kind}/{}", id_of(&first));
        api.patch(&gone, undelete()).await.problem(422);
        // Purging one record leaves the objects of the other.
        api.delete(&gone).await.done();
        for object in objects_of(&api, &second).await {
            assert!(api.exists(&object).await, "{object}");
        }
        api.get(&format!("/v3/{kind}/{}", id_of(&second))).await.is(200);
    }
}

#[test]
async fn collections_go_come_back_and_go_for_good() {
    let api = Server::own();
    for kind in KINDS {
        let (live, gone) = (format!("/v3/{kind}"), format!("/v3/deleted/{kind}"));
        // Nothing to do is done.
        api.delete(&live).await.done();
        api.delete(&gone).await.done();
        api.patch(&gone, undelete()).await.done();

        let mut records = Vec::new();
        for _ in 0..3 {
            records.push(full(&api, kind).await);
        }
        api.delete(&live).await.done();
        assert_eq!(api.read(&live).await, json!([]));
        let deleted = api.read(&gone).await;
        assert_eq!(deleted.as_array().unwrap().len(), 3);

        api.patch(&gone, undelete()).await.done();
        assert_eq!(
            api.read(&live).await,
            Value::Array(records.clone()),
            "in the same order"
        );
        assert_eq!(api.read(&gone).await, json!([]));

        api.delete(&live).await.done();
        api.delete(&gone).await.done();
        assert_eq!(api.read(&gone).await, json!([]));
        for record in &records {
            if let Some(path) = record["link"]["path"].as_str() {
                assert!(!api.exists(path).await, "{path}");
            }
        }
    }
}

#[test]
async fn a_restored_record_goes_to_the_end_of_the_list() {
    let api = Server::own();
    for kind in KINDS {
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.push(id_of(&full(&api, kind).await));
        }
        assert_eq!(api.ids(&format!("/v3/{kind}")).await, ids);
        let first = ids.remove(0);
        api.delete(&format!("/v3/{kind}/{first}")).await.done();
        api.patch(&format!("/v3/deleted/{kind}/{first}"), undelete())
            .await
            .done();
        ids.push(first);
        assert_eq!(api.ids(&format!("/v3/{kind}")).await, ids);
        // Deleted ones stand in the order in which they were deleted.
        api.delete(&format!("/v3/{kind}/{}", ids[2])).await.done();
        api.delete(&format!("/v3/{kind}/{}", ids[0])).await.done();
        assert_eq!(
            api.ids(&format!("/v3/deleted/{kind}")).await,
            [ids[2].clone(), ids[0].clone()]
        );
    }
}

#[test]
async fn jobs_are_never_softly_deleted() {
    let api = Server::shared();
    for method in ["GET", "PATCH", "DELETE"] {
        api.send(method, "/v3/deleted/jobs", None).await.problem(404);
        api.send(method, &format!("/v3/deleted/jobs/{NOBODY}"), None)
            .await
            .problem(404);
    }
}
