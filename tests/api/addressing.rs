//! Tests the addresses of the API, and the methods of each.

use serde_json::{Value, json};

use crate::api::server::{Answer, NOBODY, Server, unique};

/// Every address of version 3 with its methods; `{id}` is an unknown id.
const V3: &[(&str, &str)] = &[
    ("/v3/public-keys", "GET POST DELETE"),
    ("/v3/public-keys/{id}", "GET DELETE"),
    ("/v3/recipes", "GET POST DELETE"),
    ("/v3/recipes/{id}", "GET PATCH DELETE"),
    ("/v3/images", "GET POST DELETE"),
    ("/v3/images/{id}", "GET PATCH DELETE"),
    ("/v3/jobs", "GET POST DELETE"),
    ("/v3/jobs/{id}", "GET PATCH DELETE"),
    ("/v3/deleted/public-keys", "GET PATCH DELETE"),
    ("/v3/deleted/public-keys/{id}", "GET PATCH DELETE"),
    ("/v3/deleted/recipes", "GET PATCH DELETE"),
    ("/v3/deleted/recipes/{id}", "GET PATCH DELETE"),
    ("/v3/deleted/images", "GET PATCH DELETE"),
    ("/v3/deleted/images/{id}", "GET PATCH DELETE"),
    ("/v3/remote-build-nodes", "GET POST DELETE"),
    ("/v3/remote-build-nodes/{id}", "GET DELETE"),
    ("/v3/remote-build-nodes/status", "GET"),
    ("/v3/remote-build-nodes/status/{id}", "GET"),
];

/// Version 2, which the addresses without a version have too.
const V2: &[(&str, &str)] = &[
    ("/public-keys", "GET POST DELETE"),
    ("/public-keys/{id}", "GET DELETE"),
    ("/recipes", "GET POST DELETE"),
    ("/recipes/{id}", "GET PATCH DELETE"),
    ("/images", "GET POST DELETE"),
    ("/images/{id}", "GET PATCH DELETE"),
    ("/jobs", "GET POST DELETE"),
    ("/jobs/{id}", "GET PATCH DELETE"),
];

const SERVICE: &[(&str, &str)] = &[("/healthz/live", "GET"), ("/healthz/ready", "GET"), ("/version", "GET")];

const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

fn addresses() -> Vec<(String, &'static str)> {
    let v2 = ["", "/v2"].into_iter().flat_map(|prefix| {
        let below = move |(path, methods): &(&str, &'static str)| (format!("{prefix}{path}"), *methods);
        V2.iter().map(below)
    });
    let others = V3
        .iter()
        .chain(SERVICE)
        .map(|(path, methods)| ((*path).to_owned(), *methods));
    others
        .chain(v2)
        .map(|(path, methods)| (path.replace("{id}", NOBODY), methods))
        .collect()
}

fn allowed(answer: &Answer) -> Vec<String> {
    let mut allowed: Vec<_> = answer
        .header("allow")
        .split(',')
        .map(|one| one.trim().to_owned())
        .collect();
    allowed.sort();
    allowed
}

#[test]
async fn other_methods_are_405_and_say_which_there_are() {
    let api = Server::shared();
    for (path, methods) in addresses() {
        let mut expected: Vec<_> = methods.split(' ').map(str::to_owned).collect();
        if methods.contains("GET") {
            expected.push("HEAD".to_owned());
        }
        expected.sort();
        for method in METHODS.into_iter().filter(|method| !methods.contains(method)) {
            let answer = api.send(method, &path, None).await.is(405);
            assert_eq!(answer.header("content-type"), "application/json", "{answer:?}");
            assert_eq!(allowed(&answer), expected, "{answer:?}");
            let body = answer.json();
            assert!(body["message"].is_string(), "{answer:?}");
            if SERVICE.iter().any(|(service, _)| path == *service) {
                assert_eq!(body.as_object().unwrap().len(), 1, "{answer:?}");
            } else {
                assert_eq!(
                    (&body["status"], &body["title"]),
                    (&json!(405), &json!("Method Not Allowed"))
                );
                assert!(
                    body["detail"].is_string() && body.as_object().unwrap().len() == 4,
                    "{answer:?}"
                );
            }
        }
    }
}

#[test]
async fn options_lists_the_methods() {
    let api = Server::shared();
    for (path, methods) in addresses() {
        let answer = api.send("OPTIONS", &path, None).await.is(200);
        assert!(answer.body.is_empty(), "{answer:?}");
        for method in methods.split(' ') {
            assert!(allowed(&answer).iter().any(|one| one == method), "{answer:?}");
        }
    }
}

#[test]
async fn methods_that_exist_answer_what_they_should_for_nobody() {
    let api = Server::shared();
    let single = addresses().into_iter().filter(|(path, _)| path.ends_with(NOBODY));
    for (path, methods) in single {
        for method in methods.split(' ') {
            // Whether the record exists comes first, even without a body.
            api.send(method, &path, None).await.problem(404);
            api.raw(method, &path, Some("text/plain"), "{").await.problem(404);
        }
    }
    let lists = addresses()
        .into_iter()
        .filter(|(path, methods)| !path.ends_with(NOBODY) && methods.contains("GET"));
    for (path, _) in lists {
        let answer = api.get(&path).await.is(200);
        assert_eq!(answer.header("content-type"), "application/json", "{answer:?}");
    }
}

#[test]
async fn head_works_wherever_get_does() {
    let api = Server::shared();
    for (path, methods) in addresses() {
        if methods.contains("GET") {
            let get = api.get(&path).await;
            let head = api.send("HEAD", &path, None).await;
            assert_eq!(head.status, get.status, "{head:?}");
            assert!(head.body.is_empty(), "{head:?}");
            assert_eq!(head.header("content-type"), get.header("content-type"), "{head:?}");
        }
    }
}

#[test]
async fn what_is_not_there_is_404() {
    let api = Server::shared();
    for path in [
        "/",
        "/v3",
        "/v3/",
        "/v1/images",
        "/v4/images",
        "/v3/image",
        "/v3/Images",
        "/v3/recipes/",
        "/v3/images/",
        "/v3/jobs/",
        "/images/",
        "/v2/public-keys/",
        "/v3/deleted",
        "/v3/deleted/jobs",
        "/v3/deleted/images/",
        "/v3/deleted/remote-build-nodes",
        "/v2/deleted/images",
        "/deleted/images",
        "/v2/remote-build-nodes",
        "/remote-build-nodes",
        "/healthz",
        "/version/",
        "/apis/ims",
        "/apis/ims/",
        "/apis/imsx/v3/images",
        "/apis/ims/v3/images/",
        "/v3//images",
    ] {
        for method in ["GET", "DELETE"] {
            api.send(method, path, None).await.problem(404);
        }
    }
}

#[test]
async fn an_id_is_compared_as_text() {
    let api = Server::shared();
    let key = api.key().await;
    for path in ["/v3/public-keys", "/v2/public-keys", "/public-keys"] {
        api.get(&format!("{path}/{key}")).await.is(200);
        let without_hyphens = key.replace('-', "");
        for other in [
            key.to_uppercase(),
            without_hyphens,
            format!("{{{key}}}"),
            format!("urn:uuid:{key}"),
            "not-a-uuid".to_owned(),
            "%00".to_owned(),
            "%ff".to_owned(),
            "..".to_owned(),
            format!("{key}%20"),
            "%F0%9F%94%A5".to_owned(),
            "x".repeat(4000),
        ] {
            // The client itself resolves `..`.
            if other != ".." {
                api.get(&format!("{path}/{other}")).await.problem(404);
                api.delete(&format!("{path}/{other}")).await.problem(404);
            }
        }
    }
    api.get(&format!("/v3/public-keys/{key}")).await.is(200);
}

#[test]
async fn the_gateways_prefix_and_a_doubled_slash_are_tolerated() {
    let api = Server::shared();
    let key = api.key().await;
    for path in [
        format!("/apis/ims/v3/public-keys/{key}"),
        format!("/apis/ims/v2/public-keys/{key}"),
        format!("/apis/ims/public-keys/{key}"),
        format!("//v3/public-keys/{key}"),
        format!("/apis/ims//v3/public-keys/{key}"),
        format!("//apis/ims/v3/public-keys/{key}"),
    ] {
        assert_eq!(api.read(&path).await["id"], key, "{path}");
    }
    api.get("/apis/ims/version").await.is(200);
    api.get("/apis/ims/healthz/ready").await.is(200);
}

#[test]
async fn a_static_segment_is_never_a_nodes_name() {
    let api = Server::own();
    api.make("/v3/remote-build-nodes", json!({"xname": "status"})).await;
    assert!(api.read("/v3/remote-build-nodes/status").await.is_array());
    api.delete("/v3/remote-build-nodes/status").await.is(405);
    api.delete("/v3/remote-build-nodes").await.done();
}

#[test]
async fn the_service_tells_of_itself() {
    let api = Server::shared();
    for path in ["/healthz/live", "/healthz/ready"] {
        assert_eq!(api.read(path).await, json!({}));
    }
    let version = api.read("/version").await;
    assert_eq!(version.as_object().unwrap().len(), 1);
    assert!(
        version["version"].as_str().is_some_and(|text| !text.is_empty()),
        "{version}"
    );
}

#[test]
async fn creation_says_201_without_a_location_and_deletion_204_without_a_body() {
    let api = Server::shared();
    let body = json!({"name": unique("key"), "public_key": "k"});
    let made = api.post("/v3/public-keys", body).await.is(201);
    assert_eq!(made.header("content-type"), "application/json");
    assert_eq!(made.header("location"), "");
    let id = made.json()["id"].as_str().unwrap().to_owned();
    api.delete(&format!("/v3/public-keys/{id}")).await.done();
}

#[test]
async fn get_and_delete_ignore_a_body_and_unknown_parameters() {
    let api = Server::shared();
    let key = api.key().await;
    let path = format!("/v3/public-keys/{key}?colour=blue&colour=%ff");
    let read: Value = api.raw("GET", &path, Some("text/plain"), "{").await.is(200).json();
    assert_eq!(read["id"], key);
    let list = api.ids("/v3/public-keys?colour=blue&page=2&offset=1").await;
    assert!(list.contains(&key));
    api.raw("DELETE", &path, Some("application/json"), "{").await.done();
}
