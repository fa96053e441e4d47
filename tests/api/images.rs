//! `/images`.

use serde_json::{Value, json};

use crate::api::{
    moments::is_moment,
    server::{Server, id_of, unique},
};

#[test]
async fn what_is_not_said_gets_a_default() {
    let api = Server::shared();
    let name = unique("image");
    let made = api.make("/v3/images", json!({ "name": name })).await;
    is_moment(&made["created"]);
    let expected = json!({"id": made["id"], "created": made["created"], "name": name, "link": null,
                          "arch": "x86_64", "metadata": {}});
    assert_eq!(made, expected);
    for version in ["/v3", "/v2", ""] {
        assert_eq!(api.read(&format!("{version}/images/{}", id_of(&made))).await, expected);
        let list = api.read(&format!("{version}/images")).await;
        assert!(list.as_array().unwrap().contains(&expected), "{version}");
    }
    let errors = api.post("/v3/images", json!({"arch": "x86_64"})).await.errors();
    assert_eq!(errors, json!({"name": ["Missing data for required field."]}));
}

#[test]
async fn every_architecture_is_kept() {
    let api = Server::shared();
    for arch in ["x86_64", "aarch64", "ppc64le", "s390x", "riscv64"] {
        let made = api.image(json!({ "arch": arch })).await;
        assert_eq!(made["arch"], arch);
        let path = format!("/v3/images/{}", id_of(&made));
        assert_eq!(api.read(&path).await, made);
        let other = if arch == "s390x" { "aarch64" } else { "s390x" };
        assert_eq!(
            api.patch(&path, json!({ "arch": other })).await.is(200).json()["arch"],
            other
        );
    }
}

#[test]
async fn tags_have_two_spellings_when_an_image_is_made() {
    let api = Server::shared();
    for (metadata, means) in [
        (json!({}), json!({})),
        (json!({"foo": "bar"}), json!({"foo": "bar"})),
        (
            json!({"a": "1", "b": "", "": "nameless"}),
            json!({"a": "1", "b": "", "": "nameless"}),
        ),
        (
            json!({"value": "v", "operation": "set"}),
            json!({"value": "v", "operation": "set"}),
        ),
        (json!({"key": "k", "value": "v"}), json!({"k": "v"})),
        (json!({"key": "k"}), json!({"k": ""})),
        (
            json!({"key": "k", "value": "v", "other": 7, "operation": []}),
            json!({"k": "v"}),
        ),
        (json!({"key": "key", "value": "v"}), json!({"key": "v"})),
        (json!({"key": "", "value": ""}), json!({"": ""})),
    ] {
        let made = api.make("/v3/images", json!({"name": "n", "metadata": metadata})).await;
        assert_eq!(made["metadata"], means, "{metadata}");
        assert_eq!(
            api.read(&format!("/v3/images/{}", id_of(&made))).await["metadata"],
            means,
            "{metadata}"
        );
    }
    for metadata in [
        json!({"foo": 1}),
        json!({"foo": null}),
        json!({"foo": "bar", "baz": ["x"]}),
        json!({"key": 7}),
        json!({"key": null}),
        json!({"key": "k", "value": 7}),
        json!({"key": "k", "value": null}),
        json!([]),
        json!("foo"),
        json!(null),
    ] {
        let errors = api
            .post("/v3/images", json!({"name": "n", "metadata": metadata}))
            .await
            .errors();
        assert!(!errors["metadata"].is_null(), "{metadata}");
    }
    let mistakes = api
        .post(
            "/v3/images",
            json!({"name": "n", "metadata": {"foo": 1, "baz": "x", "bar": []}}),
        )
        .await
        .errors();
    assert_eq!(
        mistakes["metadata"],
        json!({"foo": {"value": ["Not a valid string."]}, "bar": {"value": ["Not a valid string."]}})
    );
}

#[test]
async fn tags_change_one_at_a_time() {
    let api = Server::shared();
    let made = api
        .make("/v3/images", json!({"name": "n", "metadata": {"a": "1"}}))
        .await;
    let path = format!("/v3/images/{}", id_of(&made));
    for (change, means) in [
        (
            json!({"operation": "set", "key": "b", "value": "2"}),
            json!({"a": "1", "b": "2"}),
        ),
        (
            json!({"operation": "set", "key": "a", "value": "3"}),
            json!({"a": "3", "b": "2"}),
        ),
        (json!({"operation": "set", "key": "a"}), json!({"a": "", "b": "2"})),
        (
            json!({"operation": "remove", "key": "a", "value": "ignored"}),
            json!({"b": "2"}),
        ),
        (json!({"operation": "remove", "key": "absent"}), json!({"b": "2"})),
        (
            json!({"operation": "set", "key": "key", "value": "v"}),
            json!({"b": "2", "key": "v"}),
        ),
        (json!({"operation": "remove", "key": "key"}), json!({"b": "2"})),
        (
            json!({"operation": "set", "key": "", "value": "x"}),
            json!({"b": "2", "": "x"}),
        ),
    ] {
        let patched = api.patch(&path, json!({ "metadata": change })).await.is(200).json();
        assert_eq!(patched["metadata"], means, "{change}");
        assert_eq!(api.read(&path).await, patched);
    }
    let before = api.read(&path).await;
    for change in [
        json!({"key": "k"}),
        json!({"operation": "set"}),
        json!({"operation": "add", "key": "k"}),
        json!({"operation": "SET", "key": "k"}),
        json!({"operation": "set", "key": 7}),
        json!({"operation": "set", "key": "k", "value": 7}),
        json!({"operation": "set", "key": "k", "value": null}),
        json!({"operation": null, "key": "k"}),
        json!({}),
        json!([{"operation": "set", "key": "k"}]),
        json!("set"),
        json!(null),
    ] {
        let errors = api.patch(&path, json!({ "metadata": change })).await.errors();
        assert!(!errors["metadata"].is_null(), "{change}");
    }
    assert_eq!(api.read(&path).await, before);
}

#[test]
async fn a_link_is_set_once() {
    let api = Server::shared();
    let made = api.make("/v3/images", json!({"name": unique("image")})).await;
    let path = format!("/v3/images/{}", id_of(&made));
    let link = api.manifest().await;
    let mut expected = made;
    expected["link"] = link.clone();
    assert_eq!(api.patch(&path, json!({ "link": link })).await.is(200).json(), expected);
    assert_eq!(api.read(&path).await, expected);

    // The same again is no change, even when the manifest is gone.
    api.remove(link["path"].as_str().unwrap()).await;
    assert_eq!(api.patch(&path, json!({ "link": link })).await.is(200).json(), expected);
    let mut other = link;
    other["etag"] = json!("another");
    api.patch(&path, json!({ "link": other })).await.problem(409);
    api.patch(&path, json!({"link": api.manifest().await}))
        .await
        .problem(409);
    assert_eq!(api.read(&path).await, expected);
}

#[test]
async fn a_manifest_is_one_images_only() {
    let api = Server::shared();
    let first = api.image(json!({})).await;
    let mut link = first["link"].clone();
    link["etag"] = json!("another");
    api.post("/v3/images", json!({"name": "n", "link": link}))
        .await
        .problem(422);
    let second = api.make("/v3/images", json!({"name": unique("image")})).await;
    let path = format!("/v3/images/{}", id_of(&second));
    api.patch(&path, json!({ "link": link })).await.problem(422);
    assert_eq!(api.read(&path).await, second);
    api.delete(&format!("/v3/images/{}", id_of(&first))).await.done();
    api.patch(&path, json!({ "link": link })).await.is(200);
}

#[test]
async fn an_etag_is_informative() {
    let api = Server::shared();
    let mut link = api.manifest().await;
    for etag in ["", "wrong", "0123456789abcdef0123456789abcdef-131"] {
        link["etag"] = json!(etag);
        let made = api.make("/v3/images", json!({"name": "n", "link": link})).await;
        assert_eq!(made["link"], link);
        api.delete(&format!("/v3/images/{}", id_of(&made))).await.done();
    }
    link.as_object_mut().unwrap().remove("etag");
    assert_eq!(
        api.make("/v3/images", json!({"name": "n", "link": link})).await["link"]["etag"],
        ""
    );
}

#[test]
async fn w19_an_image_can_be_renamed() {
    let api = Server::shared();
    let made = api.image(json!({"metadata": {"a": "b"}, "arch": "aarch64"})).await;
    let path = format!("/v3/images/{}", id_of(&made));
    let name = unique("renamed");
    let mut expected = made;
    expected["name"] = json!(name);
    assert_eq!(api.patch(&path, json!({ "name": name })).await.is(200).json(), expected);
    assert_eq!(api.read(&path).await, expected);
    assert!(
        api.exists(expected["link"]["path"].as_str().unwrap()).await,
        "nothing was moved"
    );
    for wrong in [json!(""), json!(null), json!(7), json!("a\nb"), json!("x".repeat(1025))] {
        let errors = api.patch(&path, json!({ "name": wrong })).await.errors();
        assert!(errors["name"].is_array(), "{wrong}");
    }
    assert_eq!(api.read(&path).await, expected);
    // Renaming and tagging go together.
    let both = json!({"name": unique("again"), "metadata": {"operation": "remove", "key": "a"}});
    let patched = api.patch(&path, both.clone()).await.is(200).json();
    assert_eq!(
        (&patched["name"], &patched["metadata"]),
        (&both["name"], &Value::Object(serde_json::Map::new()))
    );
}
