//! The API's description: served, readable without a network, checked in, and true.

use std::{
    fmt::Write,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};

use crate::{
    api::server::{IMAGES, RECIPES, Server, id_of},
    support::python_tools,
};

/// The variable that says to write the checked-in description instead of comparing it.
const UPDATE: &str = "KILN_UPDATE_OPENAPI";

/// Kinds of records that can be deleted softly.
const KINDS: [&str; 3] = ["recipes", "images", "public-keys"];

/// Valid, and before every record: lists go on with the first one.
const CURSOR: &str = "MDAwMDAwMDAtMDAwMC00MDAwLTgwMDAtMDAwMDAwMDAwMDAwLzE";

fn checked_in() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/openapi.json")
}

#[test]
async fn the_checked_in_description_is_the_served_one() {
    let api = Server::shared();
    let served = api.read("/openapi.json").await;
    assert_eq!(api.read("/apis/ims/openapi.json").await, served);
    let text = format!("{}\n", serde_json::to_string_pretty(&served).unwrap());
    if std::env::var_os(UPDATE).is_some() {
        fs_err::write(checked_in(), text).unwrap();
        return;
    }
    let before: Value = serde_json::from_slice(&fs_err::read(checked_in()).unwrap()).unwrap();
    let changed: Vec<_> = differences("", &before, &served);
    assert!(
        changed.is_empty(),
        "docs/openapi.json is not what is served; look at the differences, then write it anew with\n\n    \
         {UPDATE}=1 cargo test --test api the_checked_in\n\n{}",
        changed.join("\n")
    );
}

/// Where two documents differ.
fn differences(at: &str, before: &Value, now: &Value) -> Vec<String> {
    match (before, now) {
        (Value::Object(before), Value::Object(now)) => {
            let names: std::collections::BTreeSet<_> = before.keys().chain(now.keys()).collect();
            let nothing = Value::Null;
            let of = |map: &serde_json::Map<String, Value>, name: &str| map.get(name).unwrap_or(&nothing).clone();
            let each = names.into_iter();
            each.flat_map(|name| differences(&format!("{at}/{name}"), &of(before, name), &of(now, name)))
                .collect()
        }
        _ if before == now => Vec::new(),
        _ => vec![format!("{at}\n  checked in: {before}\n  served:     {now}")],
    }
}

#[test]
async fn every_address_is_described() {
    let api = Server::shared();
    let document = api.read("/openapi.json").await;
    let paths = document["paths"].as_object().unwrap();
    for version in ["/v3", "/v2", ""] {
        for kind in ["recipes", "images", "public-keys", "jobs"] {
            assert!(
                paths.contains_key(&format!("{version}/{kind}"))
                    && paths.contains_key(&format!("{version}/{kind}/{{id}}"))
            );
        }
    }
    let mut ids = Vec::new();
    for (path, item) in paths {
        for (method, operation) in item.as_object().unwrap() {
            ids.push(operation["operationId"].as_str().unwrap().to_owned());
            assert!(
                !operation["summary"].as_str().unwrap_or_default().is_empty(),
                "{method} {path}"
            );
            for (status, response) in operation["responses"].as_object().unwrap() {
                let words = response["description"].as_str().unwrap_or_default();
                assert!(!words.is_empty(), "{method} {path} {status}");
            }
        }
    }
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count, "operation ids are unique");
}

#[test]
async fn the_page_needs_nothing_from_elsewhere() {
    let api = Server::shared();
    let page = api.get("/docs/").await.is(200);
    assert!(page.header("content-type").starts_with("text/html"), "{page:?}");
    let text = String::from_utf8(page.body).unwrap();
    assert!(
        !text.contains("//cdn") && !text.contains("https://") && !text.contains("http://"),
        "{text}"
    );
    let files: Vec<_> = text
        .split(['"', '\''])
        .filter(|part| matches!(part.rsplit_once('.'), Some((_, "js" | "css"))))
        .collect();
    assert!(files.len() >= 3, "{text}");
    for file in files {
        let path = format!("/docs/{}", file.trim_start_matches("./").trim_start_matches("/docs/"));
        let answer = api.get(&path).await.is(200);
        assert!(!answer.body.is_empty(), "{path}");
    }
    let settings = api.get("/docs/swagger-initializer.js").await.is(200);
    assert!(String::from_utf8(settings.body).unwrap().contains("/openapi.json"));
}

/// Schemathesis's settings for this server: existing records, and facts that a description cannot express.
async fn settings(api: &Server) -> String {
    let mut text = format!("[parameters]\n\"query.cursor\" = \"{CURSOR}\"\n");
    let mut operation = |name: &str, what: &str| {
        writeln!(text, "\n[[operations]]\ninclude-name-regex = '^{name}$'\n{what}").unwrap();
    };
    // Whether what a body refers to is there, no description can say.
    let accepted = "checks.positive_data_acceptance.expected-statuses";
    // The client makes no line for a repository that fits its pattern, and sends another one.
    operation("POST .*/jobs", &format!("{accepted} = ['2xx', '400', '422']"));
    operation("POST .*/(recipes|images)", &format!("{accepted} = ['2xx', '422']"));
    operation("PUT /kiln/.*/manifest", &format!("{accepted} = ['2xx', '404', '422']"));
    // Nor which content an image has, whether it has a list of packages, and what a version is.
    operation(
        "(GET|PUT) /kiln/.*/(boot-check|packages)",
        &format!("{accepted} = ['2xx', '400', '404', '409', '422']"),
    );
    // Nor what a cron line or a time zone is.
    operation(
        "POST /kiln/.*/schedules",
        &format!("{accepted} = ['2xx', '400', '422']"),
    );

    let recipe = api.recipe(json!({})).await;
    let image = api.image(json!({})).await;
    let key = api.key().await;
    let job = json!({"job_type": "create", "artifact_id": recipe["id"], "public_key_id": key,
                     "image_root_archive_name": "n"});
    let job = id_of(&api.make("/v3/jobs", job).await);
    api.make("/v3/remote-build-nodes", json!({"xname": "localhost"})).await;
    for (kind, id) in [
        ("recipes", id_of(&recipe)),
        ("images", id_of(&image)),
        ("public-keys", key),
        ("jobs", job),
    ] {
        let what = format!("parameters = {{ id = '{id}' }}\n{accepted} = ['2xx', '409', '422']");
        operation(&format!("(GET|PATCH) (/v[23])?/{kind}/\\{{id\\}}"), &what);
    }
    // Nor that a change has one content, and what that is.
    let what = format!(
        "parameters = {{ id = '{}' }}\n{accepted} = ['2xx', '409', '422']",
        id_of(&image)
    );
    operation("POST /kiln/v1/images/\\{id\\}/customize", &what);
    let schedule = json!({"name": "n", "recipe_id": recipe["id"], "cron": "0 2 * * *"});
    let schedule = id_of(&api.make("/kiln/v1/schedules", schedule).await);
    operation(
        "(GET|PATCH|POST) /kiln/v1/schedules/\\{id\\}.*",
        &format!("parameters = {{ id = '{schedule}' }}\n{accepted} = ['2xx', '400', '422']"),
    );
    // Nor whether there are the recipes and images of a set, nor which sets are complete.
    let arches = json!([{"arch": "x86_64", "image_id": image["id"]}]);
    let set = id_of(
        &api.make("/kiln/v1/sets", json!({"name": "n", "version": "1", "arches": arches}))
            .await,
    );
    let refused = "['2xx', '3xx', '400', '404', '409', '422']";
    operation("POST /kiln/v1/sets", &format!("{accepted} = {refused}"));
    operation(
        "(GET|POST) /kiln/v1/sets/\\{id\\}.*",
        &format!("parameters = {{ id = '{set}' }}\n{accepted} = {refused}"),
    );
    operation(
        "[A-Z]+ /kiln/v1/(catalogue|channels|exports)/.*",
        &format!("{accepted} = {refused}"),
    );
    for kind in KINDS {
        let id = match kind {
            "recipes" => id_of(&api.recipe(json!({})).await),
            "images" => id_of(&api.image(json!({})).await),
            _ => api.key().await,
        };
        api.delete(&format!("/v3/{kind}/{id}")).await.done();
        operation(
            &format!("GET /v3/deleted/{kind}/\\{{id\\}}"),
            &format!("parameters = {{ id = '{id}' }}"),
        );
    }
    operation(
        "GET /v3/remote-build-nodes/(status/)?\\{xname\\}",
        "parameters = { xname = 'localhost' }",
    );
    text
}

#[test]
async fn a_client_that_tries_everything_finds_the_description_true() {
    let program = python_tools("schemathesis").join("bin/schemathesis");
    let api = Server::with(&[("KILN__REMOTE_BUILD_NODES__CONNECT_TIMEOUT", "1s")]);
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("schemathesis.toml");
    fs_err::write(&config, settings(&api).await).unwrap();
    // Deleting operations and whole collections come last, because they remove the records. Version 2 is the same as no
    // version.
    let deleting = "^DELETE |^PATCH (/v3(/deleted)?)?/(recipes|images|public-keys|jobs|remote-build-nodes)$";
    let others = format!("{deleting}|^[A-Z]+ /v2/");
    for (filter, what, examples) in [
        ("--exclude-name-regex", others.as_str(), "4"),
        ("--include-name-regex", deleting, "2"),
    ] {
        let mut command = Command::new(&program);
        command
            .current_dir(dir.path())
            .env("HOME", dir.path())
            .env("NO_COLOR", "1")
            .env("NO_PROXY", "127.0.0.1")
            .arg("--config-file")
            .arg(&config)
            .args(["run", &format!("{}/openapi.json", api.base()), "--url", api.base()])
            .args([
                "--checks",
                "all",
                "--phases",
                "examples,coverage,fuzzing",
                "--max-examples",
                examples,
            ])
            .args([
                "--generation-deterministic",
                "--continue-on-failure",
                "--warnings",
                "off",
                // How fast a busy machine makes up data says nothing about the API.
                "--suppress-health-check",
                "too_slow",
            ])
            .args([filter, what]);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap())
            .await
            .unwrap();
        let found = String::from_utf8_lossy(&output.stdout);
        let summary = found.rsplit_once("= SUMMARY =").map_or("", |(_, summary)| summary);
        println!("{summary}");
        assert!(
            output.status.success(),
            "{found}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        // A run without tests proves nothing.
        assert!(
            found.contains("Test cases:") && !found.contains("Selected: 0/"),
            "{found}"
        );
    }
    api.get("/healthz/ready").await.is(200);
    for bucket in [RECIPES, IMAGES] {
        api.s3().head_bucket().bucket(bucket).send().await.unwrap();
    }
}
