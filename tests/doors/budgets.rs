//! What a caller can store, or have answered, has a bound, whichever door it goes through.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
};

use reqwest::redirect::Policy;
use serde_json::{Value, json};

use crate::{
    doors::{filled, operations},
    support::{
        serve,
        server::{NOBODY, Server, id_of, unique},
    },
};

/// The ways to the texts that a body can have, as bodies that have nothing else. `None` stands where the text is to be.
fn texts(document: &Value, schema: &Value, depth: usize) -> Vec<Value> {
    const TEXT: &str = "TEXT";
    if let Some(name) = schema["$ref"].as_str() {
        let schema = document.pointer(name.trim_start_matches('#')).unwrap();
        return if depth > 12 {
            Vec::new()
        } else {
            texts(document, schema, depth + 1)
        };
    }
    let mut found = Vec::new();
    for word in ["oneOf", "anyOf", "allOf"] {
        for one in schema[word].as_array().into_iter().flatten() {
            found.extend(texts(document, one, depth + 1));
        }
    }
    let types = match &schema["type"] {
        Value::Array(types) => types.clone(),
        one => vec![one.clone()],
    };
    let is = |name: &str| types.iter().any(|one| one == name);
    if is("string") && schema.get("enum").is_none() {
        found.push(json!(TEXT));
    }
    if let Some(items) = schema.get("items") {
        found.extend(texts(document, items, depth + 1).into_iter().map(|item| json!([item])));
    }
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        found.extend(
            texts(document, member, depth + 1)
                .into_iter()
                .map(|value| json!({ name.as_str(): value })),
        );
    }
    if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
        found.extend(
            texts(document, values, depth + 1)
                .into_iter()
                .map(|value| json!({ "k": value })),
        );
        found.push(json!({ TEXT: "v" }));
    }
    found
}

/// A server for this alone: what is sent has no sense, but for some routes no body needs any.
#[test]
async fn every_text_of_every_body_has_a_bound() {
    let api = Server::own();
    let document = api.read("/openapi.json").await;
    let (mut bodies, mut tried) = (0, 0);
    for operation in operations(&api).await {
        let Some(body) = operation.described.get("requestBody") else {
            continue;
        };
        let what = format!("{} {}", operation.method, operation.path);
        let most = body["x-kiln-most-bytes"]
            .as_u64()
            .unwrap_or_else(|| panic!("{what}: no bound is described"));
        let Some(content) = body["content"].get("application/json") else {
            assert!(
                operation.path.ends_with("/archive") || operation.path.contains("/artifacts/"),
                "{what}"
            );
            continue;
        };
        bodies += 1;
        let most = usize::try_from(most).unwrap();
        for shape in texts(&document, &content["schema"], 0) {
            tried += 1;
            let shape = shape.to_string();
            let text = |bytes: usize| shape.replacen("TEXT", &"a".repeat(bytes), 1);
            let answer = api
                .raw(&operation.method, &operation.path, Some("application/json"), text(most))
                .await;
            let refusal = answer.problem(413);
            let detail = refusal["detail"].as_str().unwrap();
            assert!(detail.contains(&format!("{most} bytes")), "{what}: {detail}");
            // Below it, the sense of the body is looked at.
            let answer = api
                .raw(
                    &operation.method,
                    &operation.path,
                    Some("application/json"),
                    text(most - 200),
                )
                .await;
            assert!(
                (400..500).contains(&answer.status) && answer.status != 413,
                "{what}: {answer:?}"
            );
        }
    }
    assert!(bodies > 15 && tried > 60, "{bodies} bodies, {tried} texts");
}

/// What a body that is stored as it is says of its length is believed before it is read.
#[test]
async fn every_body_that_is_a_file_has_a_bound() {
    let api = Server::shared();
    let image = id_of(&api.make("/v3/images", json!({ "name": unique("large") })).await);
    let without = json!({ "name": unique("large"), "recipe_type": "kiwi-ng", "linux_distribution": "debian" });
    let recipe = id_of(&api.make("/v3/recipes", without).await);
    let mut tried = 0;
    for operation in operations(&api).await {
        let body = &operation.described["requestBody"];
        if body.is_null() || !body["content"]["application/json"].is_null() {
            continue;
        }
        tried += 1;
        let path = match operation.path.split_once("/artifacts/") {
            Some((path, _)) => format!("{}/artifacts/rootfs", path.replace(NOBODY, &image)),
            None => operation.path.replace(NOBODY, &recipe),
        };
        let length = body["x-kiln-most-bytes"].as_u64().unwrap() + 1;
        let head = format!(
            "{} {path} HTTP/1.1\r\nContent-Type: application/octet-stream\r\nContent-Length: {length}\r\n\r\n",
            operation.method
        );
        assert_eq!(status_of(&api, &head), 413, "{path}");
    }
    assert_eq!(tried, 2);
}

/// The status of the answer to a request of which this is all that is sent.
fn status_of(api: &Server, request: &str) -> u16 {
    let host = api.base().trim_start_matches("http://");
    let request = request.replacen("\r\n", &format!("\r\nHost: {host}\r\n"), 1);
    let mut stream = TcpStream::connect(host).unwrap();
    // The server may answer, and close, before all is sent.
    let _ = stream.write_all(request.as_bytes());
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.split(' ')
        .nth(1)
        .unwrap_or_else(|| panic!("{line:?}"))
        .parse()
        .unwrap()
}

/// An address is read whole before a route is known, so that all have one bound.
#[test]
async fn every_text_of_every_address_has_a_bound() {
    let api = Server::shared();
    let document = api.read("/openapi.json").await;
    let long = "a".repeat(65_536);
    let mut tried = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, described) in item.as_object().unwrap() {
            for parameter in described["parameters"].as_array().into_iter().flatten() {
                let name = parameter["name"].as_str().unwrap();
                let address = match parameter["in"].as_str().unwrap() {
                    "path" => filled(&path.replace(&format!("{{{name}}}"), &long)),
                    "query" => format!("{}?{name}={long}", filled(path)),
                    _ => continue,
                };
                tried += 1;
                let head = format!("{} {address} HTTP/1.1\r\n\r\n", method.to_uppercase());
                assert_eq!(status_of(&api, &head), 431, "{method} {path} {name}");
            }
        }
    }
    assert!(tried > 200, "{tried}");
}

#[test]
async fn a_record_grows_to_its_bound_and_no_further() {
    let api = Server::shared();
    let image = id_of(&api.make("/v3/images", json!({ "name": unique("grown") })).await);
    let path = format!("/v3/images/{image}");
    let tag = |key: &str| json!({ "metadata": { "operation": "set", "key": key, "value": "v".repeat(30_000) } });
    for key in ["a", "b"] {
        api.patch(&path, tag(key)).await.is(200);
    }
    let refusal = api.patch(&path, tag("c")).await.problem(413);
    assert!(refusal["detail"].as_str().unwrap().contains("65536"), "{refusal}");
    assert_eq!(api.read(&path).await["metadata"].as_object().unwrap().len(), 2);
    let schedule = json!({
        "name": unique("grown"), "recipe_id": id_of(&api.recipe(json!({})).await), "cron": "0 2 * * *",
    });
    let schedule = id_of(&api.make("/kiln/v1/schedules", schedule).await);
    let path = format!("/kiln/v1/schedules/{schedule}");
    let names = |name: &str| json!({ name: (0..2_500).map(|n| format!("package-{n:08}")).collect::<Vec<_>>() });
    api.patch(&path, names("add_packages")).await.is(200);
    api.patch(&path, names("delete_packages")).await.problem(413);
}

#[test]
async fn a_caller_makes_so_many_records_and_leaves_others_theirs() {
    let server = serve::Server::start(&[
        ("KILN__AUTH__MODE", "required"),
        ("KILN__LIMITS__RECORDS_OF_CALLER", "2"),
        ("KILN__LIMITS__RECORDS", "3"),
    ]);
    let (one, other) = (server.token("write"), server.token("write"));
    let make = async |token: &str, path: &str, body: Value| server.ask(token, "POST", path, Some(body)).await;
    let image = json!({ "name": "i" });
    for _ in 0..2 {
        assert_eq!(make(&one, "/v3/images", image.clone()).await.status, 201);
    }
    let refusal = make(&one, "/v3/images", image.clone()).await.problem(409);
    assert!(refusal.contains("records_of_caller"), "{refusal}");
    // Another kind has a number of its own.
    let key = json!({ "name": "k", "public_key": "ssh-ed25519 AAAA k" });
    assert_eq!(make(&one, "/v3/public-keys", key).await.status, 201);
    assert_eq!(make(&other, "/images", image.clone()).await.status, 201);
    let refusal = make(&other, "/v2/images", image.clone()).await.problem(409);
    assert!(refusal.contains("3 ([limits] records)"), "{refusal}");
    let admin = server.token("admin");
    let node = async |name: &str| make(&admin, "/v3/remote-build-nodes", json!({ "xname": name })).await;
    for name in ["x1", "x2", "x1"] {
        assert_eq!(node(name).await.status, 201);
    }
    let refusal = node("x3").await.problem(409);
    assert!(refusal.contains("as many remote build nodes"), "{refusal}");
    server.stop();
}

#[test]
async fn a_session_that_ends_before_its_time_is_told_of() {
    let mut server = serve::Server::start(&[("KILN__AUTH__MODE", "required")]);
    let unfollowed = reqwest::Client::builder().no_proxy().redirect(Policy::none());
    server.client = unfollowed.build().unwrap();
    let token = server.token("read");
    for _ in 0..=64 {
        let sign_in = server
            .request("POST", "/ui/login")
            .header("accept", "text/html")
            .header("content-type", "application/x-www-form-urlencoded")
            .body(format!("token={token}"));
        assert!(
            serve::send(sign_in)
                .await
                .header("set-cookie")
                .contains("kiln_session=")
        );
    }
    let metrics = server.ask(&token, "GET", "/metrics", None).await;
    assert!(
        metrics.text.contains("kiln_dropped_total{kind=\"session\"} 1\n"),
        "{}",
        metrics.text
    );
    let doctor = server.run(&["doctor"]);
    assert!(doctor.stdout.contains("1 session (the last at "), "{}", doctor.stdout);
    server.stop();
}
