//! `/recipes`.

use serde_json::{Value, json};

use crate::api::{
    moments::is_moment,
    server::{IMAGES, RECIPES, Server, id_of, unique},
};

fn minimal() -> Value {
    json!({"name": unique("recipe"), "recipe_type": "kiwi-ng", "linux_distribution": "sles15"})
}

#[test]
async fn what_is_not_said_gets_a_default() {
    let api = Server::shared();
    let body = minimal();
    let made = api.make("/v3/recipes", body.clone()).await;
    is_moment(&made["created"]);
    let expected = json!({
        "id": made["id"], "created": made["created"], "name": body["name"], "recipe_type": "kiwi-ng",
        "linux_distribution": "sles15", "link": null, "arch": "x86_64", "require_dkms": true,
        "template_dictionary": [],
    });
    assert_eq!(made, expected);
    let path = id_of(&made);
    for version in ["/v3", "/v2", ""] {
        assert_eq!(api.read(&format!("{version}/recipes/{path}")).await, expected);
        let list = api.read(&format!("{version}/recipes")).await;
        assert!(list.as_array().unwrap().contains(&expected), "{version}");
    }
}

#[test]
async fn what_is_said_is_kept() {
    let api = Server::shared();
    let values = json!([{"key": "b", "value": "1"}, {"key": "a", "value": ""}, {"key": "b", "value": "2\n{{ x }}"},
                        {"key": "", "value": "nameless"}]);
    let etag = "an etag that is not the object's-131";
    let path = api.object(RECIPES, "r.tgz", b"x").await;
    for arch in ["x86_64", "aarch64", "ppc64le", "s390x", "riscv64"] {
        let mut body = minimal();
        body["arch"] = json!(arch);
        body["require_dkms"] = json!(false);
        body["template_dictionary"] = values.clone();
        let made = api.make("/v3/recipes", body).await;
        assert_eq!((&made["arch"], &made["require_dkms"]), (&json!(arch), &json!(false)));
        assert_eq!(made["template_dictionary"], values, "order and duplicates are kept");
        assert_eq!(api.read(&format!("/v3/recipes/{}", id_of(&made))).await, made);
    }
    let mut body = minimal();
    body["link"] = json!({"path": path, "etag": etag, "type": "s3"});
    let made = api.make("/v3/recipes", body.clone()).await;
    assert_eq!(made["link"], body["link"], "a wrong etag is accepted as it is");
}

#[test]
async fn what_a_recipe_needs() {
    let api = Server::shared();
    let errors = api.post("/v3/recipes", json!({"arch": "x86_64"})).await.errors();
    let required = json!(["Missing data for required field."]);
    assert_eq!(
        errors,
        json!({"name": required, "recipe_type": required, "linux_distribution": required})
    );
    let mut body = minimal();
    body["link"] = json!({"etag": "x"});
    let errors = api.post("/v3/recipes", body).await.errors();
    assert_eq!(errors["link"], json!({"path": required, "type": required}));
    let errors = api
        .post("/v3/recipes", json!({"template_dictionary": [{}]}))
        .await
        .errors();
    assert_eq!(
        errors["template_dictionary"]["0"],
        json!({"key": required, "value": required})
    );
}

#[test]
async fn a_links_object_has_to_exist_and_its_etag_need_not_be_said() {
    let api = Server::shared();
    let with = |path: &str| {
        let mut body = minimal();
        body["link"] = json!({"path": path, "type": "s3"});
        body
    };
    for missing in [
        format!("s3://{RECIPES}/{}", unique("nothing")),
        format!("s3://{}/recipe", unique("bucket")),
        "s3://Not_A_Bucket/recipe".to_owned(),
        "s3://..-/recipe".to_owned(),
        format!("s3://{RECIPES}/../{RECIPES}/x"),
    ] {
        let body = with(&missing);
        api.post("/v3/recipes", body.clone()).await.problem(422);
        assert!(!listed(&api, &body["name"]).await, "a refused recipe is not kept");
    }
    let path = api.object(IMAGES, "any bucket will do", b"x").await;
    let made = api.make("/v3/recipes", with(&path)).await;
    assert_eq!(made["link"], json!({"path": path, "etag": "", "type": "s3"}));

    // A query is part of the key.
    let queried = format!("{path}?versionId=1");
    api.post("/v3/recipes", with(&queried)).await.problem(422);
    let (bucket, key) = queried.strip_prefix("s3://").unwrap().split_once('/').unwrap();
    api.put(bucket, key, "x").await;
    assert_eq!(api.make("/v3/recipes", with(&queried)).await["link"]["path"], queried);
}

async fn listed(api: &Server, name: &Value) -> bool {
    let list = api.read("/v3/recipes").await;
    list.as_array().unwrap().iter().any(|recipe| recipe["name"] == *name)
}

#[test]
async fn a_link_is_one_recipes_only() {
    let api = Server::shared();
    let first = api.recipe(json!({})).await;
    let mut body = minimal();
    body["link"] = json!({"path": first["link"]["path"], "etag": "another", "type": "s3"});
    api.post("/v3/recipes", body.clone()).await.problem(422);
    let second = api.make("/v3/recipes", minimal()).await;
    let path = format!("/v3/recipes/{}", id_of(&second));
    api.patch(&path, json!({"link": body["link"]})).await.problem(422);
    assert_eq!(api.read(&path).await, second);
    // Live ones count, and recipes only.
    api.delete(&format!("/v3/recipes/{}", id_of(&first))).await.done();
    api.patch(&path, json!({"link": body["link"]})).await.is(200);
}

#[test]
async fn a_link_is_set_once() {
    let api = Server::shared();
    let made = api.make("/v3/recipes", minimal()).await;
    let path = format!("/v3/recipes/{}", id_of(&made));
    let object = api.object(RECIPES, "r", b"x").await;
    let link = json!({"path": object, "etag": "e", "type": "s3"});
    let missing = json!({"path": format!("{object}-not"), "type": "s3"});
    api.patch(&path, json!({ "link": missing })).await.problem(422);

    let patched = api.patch(&path, json!({ "link": link })).await.is(200).json();
    let mut expected = made;
    expected["link"] = link.clone();
    assert_eq!(patched, expected, "the answer is the whole record");
    assert_eq!(api.read(&path).await, expected);

    // The same again is no change, even when the object is gone; another etag makes another link.
    api.remove(&object).await;
    assert_eq!(api.patch(&path, json!({ "link": link })).await.is(200).json(), expected);
    for other in [
        json!({"path": object, "type": "s3"}),
        json!({"path": object, "etag": "f", "type": "s3"}),
        json!({"path": "s3://ims/other", "etag": "e", "type": "s3"}),
        json!({"path": "nowhere", "etag": "e", "type": "s3"}),
    ] {
        api.patch(&path, json!({ "link": other })).await.problem(409);
    }
    assert_eq!(api.read(&path).await, expected);
}

#[test]
async fn members_are_replaced() {
    let api = Server::shared();
    let made = api.make("/v3/recipes", minimal()).await;
    let path = format!("/v3/recipes/{}", id_of(&made));
    let values = json!([{"key": "k", "value": "v"}, {"key": "k", "value": "w"}]);
    let mut expected = made;
    for (field, value) in [
        ("arch", json!("aarch64")),
        ("require_dkms", json!(false)),
        ("template_dictionary", values),
        ("template_dictionary", json!([{"key": "x", "value": "y"}])),
        ("template_dictionary", json!([])),
        ("arch", json!("riscv64")),
    ] {
        expected[field] = value.clone();
        assert_eq!(api.patch(&path, json!({ field: value })).await.is(200).json(), expected);
        assert_eq!(api.read(&path).await, expected);
    }
    let several = json!({"arch": "s390x", "require_dkms": true, "template_dictionary": [{"key": "a", "value": "b"}]});
    for (field, value) in several.as_object().unwrap() {
        expected[field] = value.clone();
    }
    assert_eq!(api.patch(&path, several).await.is(200).json(), expected);
}

#[test]
async fn own_members_are_there_from_when_they_are_said_until_they_are_taken_back() {
    let api = Server::shared();
    for (member, values) in [
        ("twins", json!(["off", "tools", "shell", "full"])),
        ("cache", json!(["none", "packages", "image"])),
        ("locked", json!([true, false])),
        ("profiles", json!([["Live"], ["Disk", "PXE"]])),
    ] {
        let values = values.as_array().unwrap();
        let made = api.make("/v3/recipes", minimal()).await;
        assert!(made.get(member).is_none(), "clients of IMS do not know it: {made}");
        let path = format!("/v3/recipes/{}", id_of(&made));
        for value in values {
            let patched = api.patch(&path, json!({ member: value })).await.is(200).json();
            assert_eq!(patched[member], *value);
            // Another change leaves it.
            api.patch(&path, json!({"arch": "aarch64"})).await.is(200);
            assert_eq!(api.read(&path).await[member], *value);
        }
        api.patch(&path, json!({ member: null })).await.is(200);
        assert!(api.read(&path).await.get(member).is_none());

        let mut body = minimal();
        body[member] = values[1].clone();
        let id = id_of(&api.make("/v3/recipes", body).await);
        api.delete(&format!("/v3/recipes/{id}")).await.is(204);
        assert_eq!(api.read(&format!("/v3/deleted/recipes/{id}")).await[member], values[1]);
        let undelete = json!({"operation": "undelete"});
        api.patch(&format!("/v3/deleted/recipes/{id}"), undelete).await.is(204);
        assert_eq!(api.read(&format!("/v3/recipes/{id}")).await[member], values[1]);
    }
}

#[test]
async fn a_null_dictionary_stays_null_until_it_is_replaced() {
    let api = Server::shared();
    let mut body = minimal();
    body["template_dictionary"] = Value::Null;
    let made = api.make("/v3/recipes", body).await;
    assert_eq!(made["template_dictionary"], Value::Null);
    let path = format!("/v3/recipes/{}", id_of(&made));
    assert_eq!(
        api.patch(&path, json!({"arch": "aarch64"})).await.is(200).json()["template_dictionary"],
        Value::Null
    );
    assert_eq!(
        api.patch(&path, json!({"template_dictionary": []}))
            .await
            .is(200)
            .json()["template_dictionary"],
        json!([])
    );
}
