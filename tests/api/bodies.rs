//! Tests request bodies: valid JSON, the order of the checks, and unknown members.

use serde_json::{Value, json};

use crate::api::server::{NOBODY, Server, id_of, unique};

/// Where records are made, in every version.
const POSTS: [&str; 13] = [
    "/v3/public-keys",
    "/v3/recipes",
    "/v3/images",
    "/v3/jobs",
    "/v3/remote-build-nodes",
    "/v2/public-keys",
    "/v2/recipes",
    "/v2/images",
    "/v2/jobs",
    "/public-keys",
    "/recipes",
    "/images",
    "/jobs",
];

const JSON: Option<&str> = Some("application/json");

/// Every address that takes a body, with its method; single records exist.
async fn takers(api: &Server) -> Vec<(&'static str, String)> {
    let recipe = id_of(&api.recipe(json!({})).await);
    let image = id_of(&api.image(json!({})).await);
    let key = api.key().await;
    let job =
        json!({"job_type": "create", "artifact_id": recipe, "public_key_id": key, "image_root_archive_name": "n"});
    let job = id_of(&api.make("/v3/jobs", job).await);
    let gone = [
        ("public-keys", api.key().await),
        ("recipes", id_of(&api.recipe(json!({})).await)),
        ("images", id_of(&api.image(json!({})).await)),
    ];
    let mut takers: Vec<_> = POSTS.iter().map(|path| ("POST", (*path).to_owned())).collect();
    for version in ["/v3", "/v2", ""] {
        takers.push(("PATCH", format!("{version}/recipes/{recipe}")));
        takers.push(("PATCH", format!("{version}/images/{image}")));
        takers.push(("PATCH", format!("{version}/jobs/{job}")));
    }
    for (kind, id) in gone {
        api.delete(&format!("/v3/{kind}/{id}")).await.done();
        takers.push(("PATCH", format!("/v3/deleted/{kind}/{id}")));
        takers.push(("PATCH", format!("/v3/deleted/{kind}")));
    }
    takers
}

#[test]
async fn what_is_not_called_json_is_415() {
    let api = Server::shared();
    for (method, path) in takers(&api).await {
        for kind in [
            None,
            Some("text/plain"),
            Some("text/json"),
            Some("application/jsonx"),
            Some("application/x-www-form-urlencoded"),
            Some("multipart/form-data; boundary=x"),
            Some("application/"),
            Some(""),
        ] {
            api.raw(method, &path, kind, r#"{"name": "n"}"#).await.message(415);
            // The type comes first, whatever the body.
            api.raw(method, &path, kind, "").await.message(415);
        }
    }
}

#[test]
async fn json_has_many_names() {
    let api = Server::shared();
    for kind in [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        "application/json;x=y",
        " application/json ",
        "application/merge-patch+json",
        "application/vnd.api+JSON; a=b",
    ] {
        let body = json!({"name": unique("key"), "public_key": "k"}).to_string();
        api.raw("POST", "/v3/public-keys", Some(kind), body).await.is(201);
    }
}

#[test]
async fn what_is_no_json_is_400() {
    let api = Server::shared();
    let deep = "[".repeat(60_000);
    for (method, path) in takers(&api).await {
        for body in [
            &b""[..],
            b" ",
            b"{",
            b"{]",
            b"{'name': 'n'}",
            b"name=n",
            b"{} {}",
            b"{\"name\": NaN}",
            b"{\"name\": \"\xff\"}",
            b"\xff\xfe",
            deep.as_bytes(),
        ] {
            api.raw(method, &path, JSON, body).await.message(400);
        }
    }
}

#[test]
async fn a_body_that_says_nothing_is_400() {
    let api = Server::shared();
    for (method, path) in takers(&api).await {
        for body in ["{}", "[]", "null", "false", "0", "0.0", "-0", "\"\"", " {\n} "] {
            let problem = api.raw(method, &path, JSON, body).await.problem(400);
            assert!(problem.get("errors").is_none(), "{problem}");
        }
    }
}

#[test]
async fn w20_a_body_that_is_no_object_is_422() {
    let api = Server::shared();
    for (method, path) in takers(&api).await {
        for body in [
            json!([1]),
            json!([{}]),
            json!("text"),
            json!(7),
            json!(1.5),
            json!(true),
            json!([null]),
        ] {
            let errors = api.send(method, &path, Some(&body)).await.errors();
            assert_eq!(
                errors,
                json!({"_schema": ["Invalid input type."]}),
                "{method} {path} {body}"
            );
        }
    }
}

#[test]
async fn no_field_that_nobody_knows_is_taken() {
    let api = Server::shared();
    let unknown = json!(["Unknown field."]);
    for (method, path) in takers(&api).await {
        for name in [
            "colour",
            "id",
            "created",
            "deleted",
            "Name",
            "",
            "_schema",
            "ſ",
            "__proto__",
            "tags",
        ] {
            let mut body = serde_json::Map::new();
            body.insert(name.to_owned(), json!(1));
            let errors = api.send(method, &path, Some(&Value::Object(body))).await.errors();
            assert_eq!(errors[name], unknown, "{method} {path} {name}: {errors}");
        }
    }
}

#[test]
async fn fields_that_only_the_server_sets_are_unknown() {
    let api = Server::shared();
    let recipe = id_of(&api.recipe(json!({})).await);
    let image = id_of(&api.image(json!({})).await);
    let job = json!({"job_type": "create", "artifact_id": recipe, "public_key_id": api.key().await,
                     "image_root_archive_name": "n"});
    let job = id_of(&api.make("/v3/jobs", job).await);
    for (method, path, names) in [
        ("POST", "/v3/public-keys".to_owned(), "id created deleted"),
        ("POST", "/v3/recipes".to_owned(), "id created deleted metadata"),
        (
            "PATCH",
            format!("/v3/recipes/{recipe}"),
            "id created deleted name recipe_type linux_distribution",
        ),
        ("POST", "/v3/images".to_owned(), "id created deleted require_dkms tags"),
        ("PATCH", format!("/v3/images/{image}"), "id created deleted"),
        (
            "POST",
            "/v3/jobs".to_owned(),
            "id created status arch resultant_image_id kubernetes_job kubernetes_service kubernetes_configmap \
             kubernetes_pvc kubernetes_secret kubernetes_namespace remote_build_node",
        ),
        (
            "PATCH",
            format!("/v3/jobs/{job}"),
            "id created arch job_type artifact_id public_key_id enable_debug kernel_file_name require_dkms kubernetes_job",
        ),
        (
            "POST",
            "/v3/remote-build-nodes".to_owned(),
            "id sshStatus nodeArch numCurrentJobs",
        ),
    ] {
        for name in names.split_whitespace() {
            let errors = api.send(method, &path, Some(&json!({ name: "x" }))).await.errors();
            assert_eq!(errors[name], json!(["Unknown field."]), "{method} {path} {name}");
        }
    }
}

#[test]
async fn nested_fields_that_nobody_knows_are_named_at_their_place() {
    let api = Server::shared();
    let recipe = id_of(&api.recipe(json!({"link": null})).await);
    let image = id_of(&api.image(json!({"link": null})).await);
    let link = json!({"path": "s3://ims/k", "type": "s3", "odd": 1});
    let unknown = json!(["Unknown field."]);
    for (method, path) in [
        ("POST", "/v3/recipes".to_owned()),
        ("POST", "/v3/images".to_owned()),
        ("PATCH", format!("/v3/recipes/{recipe}")),
        ("PATCH", format!("/v3/images/{image}")),
    ] {
        let errors = api.send(method, &path, Some(&json!({ "link": link }))).await.errors();
        assert_eq!(errors["link"], json!({ "odd": unknown }), "{method} {path}");
    }
    let values = json!([{"key": "a", "value": "b"}, {"key": "a", "value": "b", "odd": null}]);
    for (method, path) in [
        ("POST", "/v3/recipes".to_owned()),
        ("PATCH", format!("/v3/recipes/{recipe}")),
    ] {
        let errors = api
            .send(method, &path, Some(&json!({ "template_dictionary": values })))
            .await
            .errors();
        assert_eq!(
            errors["template_dictionary"],
            json!({"1": {"odd": unknown}}),
            "{method} {path}"
        );
    }
    let errors = api
        .post("/v3/jobs", json!({"ssh_containers": [{"jail": true}, {"port": 22}]}))
        .await
        .errors();
    assert_eq!(errors["ssh_containers"], json!({"1": {"port": unknown}}));
    let tag = json!({"operation": "set", "key": "k", "odd": 1});
    let errors = api
        .patch(&format!("/v3/images/{image}"), json!({ "metadata": tag }))
        .await
        .errors();
    assert_eq!(errors["metadata"], json!({ "odd": unknown }));
}

#[test]
async fn several_errors_are_reported_together() {
    let api = Server::shared();
    let body = json!({"name": 7, "recipe_type": "rpm", "arch": null, "odd": 1,
                      "link": {"path": "", "type": "nfs"}, "template_dictionary": [{"key": 1}]});
    let errors = api.post("/v3/recipes", body).await.errors();
    for (pointer, count) in [
        ("/name", 1),
        ("/recipe_type", 1),
        ("/arch", 1),
        ("/odd", 1),
        ("/linux_distribution", 1),
        ("/link/path", 1),
        ("/link/type", 1),
        ("/template_dictionary/0/key", 1),
        ("/template_dictionary/0/value", 1),
    ] {
        let list = errors.pointer(pointer).and_then(Value::as_array).map(Vec::len);
        assert_eq!(list, Some(count), "{pointer}: {errors}");
    }
}

#[test]
async fn of_duplicate_keys_the_last_one_wins() {
    let api = Server::shared();
    let body = r#"{"name": 7, "public_key": "first", "name": "last", "public_key": "second"}"#;
    let key = api.raw("POST", "/v3/public-keys", JSON, body).await.is(201).json();
    assert_eq!((&key["name"], &key["public_key"]), (&json!("last"), &json!("second")));

    let body = r#"{"name": "n", "name": null, "public_key": "k"}"#;
    let errors = api.raw("POST", "/v3/public-keys", JSON, body).await.errors();
    assert_eq!(errors, json!({"name": ["Field may not be null."]}));

    let body = r#"{"name": "n", "metadata": {"a": "1", "a": "2"}, "metadata": {"b": "1", "b": "2"}}"#;
    let image = api.raw("POST", "/v3/images", JSON, body).await.is(201).json();
    assert_eq!(image["metadata"], json!({"b": "2"}));
}

#[test]
async fn checks_come_in_order() {
    let api = Server::shared();
    let key = api.key().await;
    let recipe = api.recipe(json!({})).await;
    let path = format!("/v3/recipes/{}", id_of(&recipe));
    // Whether it exists, before anything of the body.
    api.raw("PATCH", &format!("/v3/recipes/{NOBODY}"), None, "")
        .await
        .problem(404);
    api.raw("PATCH", &format!("/v3/recipes/{NOBODY}"), JSON, "{")
        .await
        .problem(404);
    // The checks in order: media type, syntax, emptiness, content.
    api.raw("PATCH", &path, Some("text/plain"), "{").await.message(415);
    api.raw("PATCH", &path, JSON, "{").await.message(400);
    api.raw("PATCH", &path, JSON, "{}").await.problem(400);
    // A field that is wrong, before a link that cannot be changed.
    let other = json!({"path": "s3://ims/other", "type": "s3"});
    api.patch(&path, json!({"link": other, "arch": "sparc"})).await.errors();
    api.patch(&path, json!({ "link": other })).await.problem(409);
    // Fields are checked before their references.
    let job = |artifact: &str, more: Value| {
        let mut job = json!({"job_type": "create", "artifact_id": artifact, "public_key_id": key,
                             "image_root_archive_name": "n"});
        for (name, value) in more.as_object().unwrap() {
            job[name] = value.clone();
        }
        job
    };
    let shell = json!([{"name": "x"}]);
    api.post("/v3/jobs", job(NOBODY, json!({"ssh_containers": shell, "odd": 1})))
        .await
        .errors();
    let problem = api
        .post("/v3/jobs", job(NOBODY, json!({ "ssh_containers": shell })))
        .await
        .problem(400);
    assert!(
        problem["detail"].as_str().unwrap().contains("ssh_containers"),
        "{problem}"
    );
    let problem = api
        .post("/v3/jobs", job(NOBODY, json!({"public_key_id": NOBODY})))
        .await
        .problem(400);
    assert!(problem["detail"].as_str().unwrap().contains("recipe"), "{problem}");
}

#[test]
async fn a_body_that_is_too_large_is_refused() {
    let api = Server::shared();
    let body = json!({"name": "n", "public_key": "k".repeat(3 << 20)}).to_string();
    api.raw("POST", "/v3/public-keys", JSON, body).await.problem(413);
}
