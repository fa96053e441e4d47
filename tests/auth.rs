//! Tests who may enter the API and with which rights: Kiln's own tokens and those of an issuer.

mod oidc;
mod sign_in;
mod trusted;

use crate::support::{
    self, Kiln,
    serve::{Answer, Server, token},
};
use serde_json::json;
use sqlx::{Connection, SqliteConnection};

const REQUIRED: (&str, &str) = ("KILN__AUTH__MODE", "required");

/// Checks that the caller was refused and learned nothing more. Returns the message.
#[track_caller]
fn not_let_in(answer: &Answer) -> String {
    let told = answer.problem(401);
    assert!(
        answer.header("www-authenticate").starts_with("Bearer realm=\"kiln\""),
        "{answer:?}"
    );
    told
}

#[test]
async fn what_callers_change_is_noted() {
    let server = Server::start(&[REQUIRED]);
    let (read, write, admin) = (server.token("read"), server.token("write"), server.token("admin"));
    let image = || Some(json!({ "name": "image" }));
    let made = server.ask(&write, "POST", "/v3/images", image()).await.json();
    let path = format!("/apis/ims/v3/images/{}", made["id"].as_str().unwrap());
    assert_eq!(server.ask(&admin, "DELETE", &path, None).await.status, 204);
    server
        .ask(&write, "POST", "/v3/images", Some(json!({ "name": 1 })))
        .await
        .problem(422);
    // Reading is not noted, and neither is a request that was turned away.
    server.ask(&read, "GET", "/v3/images", None).await;
    server.ask(&read, "POST", "/v3/images", image()).await.problem(403);
    server.ask("", "POST", "/v3/images", image()).await.problem(401);
    server.ask(&write, "GET", "/kiln/v1/audit", None).await.problem(403);

    let entries = server.ask(&admin, "GET", "/kiln/v1/audit", None).await.json();
    let told: Vec<_> = entries
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            assert_eq!(
                (&entry["known_by"], &entry["from"]),
                (&json!("token"), &json!("127.0.0.1"))
            );
            assert!(entry["request_id"].is_string() && entry["identity"].is_string());
            json!([
                entry["who"],
                entry["method"],
                entry["path"],
                entry["record_id"],
                entry["status"]
            ])
        })
        .collect();
    let one = format!("/v3/images/{}", made["id"].as_str().unwrap());
    assert_eq!(
        told,
        [
            json!(["write-er", "POST", "/v3/images", null, 422]),
            json!(["admin-er", "DELETE", one, made["id"], 204]),
            json!(["write-er", "POST", "/v3/images", made["id"], 201]),
        ]
    );
    let of_image = format!(
        "/kiln/v1/audit?who=admin-er&limit=5&record_id={}",
        made["id"].as_str().unwrap()
    );
    let found = server.ask(&admin, "GET", &of_image, None).await.json();
    assert_eq!(found.as_array().unwrap().len(), 1);
    for wrong in ["record_id=1", "since=yesterday", "limit=0", "limit=1001", "whom=x"] {
        server
            .ask(&admin, "GET", &format!("/kiln/v1/audit?{wrong}"), None)
            .await
            .problem(400);
    }
    let mut command = server
        .kiln
        .command(["audit", "--server", &server.url, "--who", "write-er"]);
    command.env("KILN_TOKEN", &admin);
    let shown = support::run(command).ok().stdout;
    assert!(
        shown.contains("TIME (UTC)") && shown.contains("write-er") && !shown.contains("admin-er"),
        "{shown}"
    );
    server.stop();
}

#[test]
async fn roles_allow_what_they_should() {
    let server = Server::start(&[REQUIRED]);
    let (read, write, admin) = (server.token("read"), server.token("write"), server.token("admin"));
    let image = || Some(json!({ "name": "image" }));

    // Without a token.
    for (method, path) in [
        ("GET", "/v3/images"),
        ("GET", "/images"),
        ("GET", "/apis/ims/v2/recipes"),
        ("DELETE", "/v3/images"),
        ("GET", "/nowhere"),
        ("GET", "/"),
        ("OPTIONS", "/v3/images"),
        ("PUT", "/kiln/v1/images/1/artifacts/rootfs"),
    ] {
        let answer = server.ask("", method, path, None).await;
        assert_eq!(
            not_let_in(&answer),
            "This needs a token: send `Authorization: Bearer` with it.",
            "{method} {path}"
        );
    }
    for path in [
        "/healthz/live",
        "/healthz/ready",
        "/version",
        "/apis/ims/version",
        "//version",
        "/openapi.json",
    ] {
        assert_eq!(server.ask("", "GET", path, None).await.status, 200, "{path}");
        // A wrong token does no harm where none is needed.
        assert_eq!(server.ask("kiln_x", "GET", path, None).await.status, 200, "{path}");
    }

    // With the role `read`.
    assert_eq!(server.ask(&read, "GET", "/v3/images", None).await.status, 200);
    let refused = server.ask(&read, "POST", "/v3/images", image()).await.problem(403);
    assert_eq!(refused, "This needs the role `write`; `read-er` has `read`.");

    // With the role `write`.
    let made = server.ask(&write, "POST", "/v3/images", image()).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let one = format!("/v3/images/{}", made.json()["id"].as_str().unwrap());
    let change = Some(json!({ "arch": "aarch64" }));
    server.ask(&read, "PATCH", &one, change.clone()).await.problem(403);
    assert_eq!(server.ask(&write, "PATCH", &one, change).await.status, 200);
    server.ask(&read, "DELETE", &one, None).await.problem(403);
    for (method, path) in [
        ("DELETE", "/v3/images"),
        ("DELETE", "/images"),
        ("DELETE", "/v3/jobs"),
        ("DELETE", "/v3/deleted/images"),
        ("PATCH", "/v3/deleted/images"),
        ("POST", "/v3/remote-build-nodes"),
        ("DELETE", "/v3/remote-build-nodes/x1000c0s0b0n0"),
    ] {
        for token in [&read, &write] {
            let refused = server.ask(token, method, path, Some(json!({}))).await.problem(403);
            assert!(
                refused.starts_with("This needs the role `admin`;"),
                "{method} {path}: {refused}"
            );
        }
    }
    assert_eq!(server.ask(&write, "DELETE", &one, None).await.status, 204);

    // With the role `admin`.
    assert_eq!(
        server.ask(&admin, "DELETE", "/v3/deleted/images", None).await.status,
        204
    );
    assert_eq!(server.ask(&admin, "GET", "/nowhere", None).await.status, 404);
    server.stop();
}

/// However an address is written, it opens nothing that the usual one does not.
#[test]
async fn ways_of_writing_addresses_open_nothing() {
    let server = Server::start(&[REQUIRED, ("KILN__LIMITS__FAILED_LOGINS_PER_MINUTE", "0")]);
    let write = server.token("write");
    let made = server
        .ask(&write, "POST", "/v3/images", Some(json!({ "name": "kept" })))
        .await;
    assert_eq!(made.status, 201);
    for path in [
        "/v3/images",
        "//v3/images",
        "//v3//images",
        "/v3/images/",
        "/v3/images//",
        "/v3/./images",
        "/v3/images/.",
        "/v3/images/..",
        "/v3%2Fimages",
        "/v3/%69mages",
        "/v3/images%2F",
        "/v3/images?cascade=false",
        "/v3/images#x",
        "/V3/images",
        "/apis/ims/v3/images",
        "/apis/ims//v3/images",
        "//apis/ims/v3/images",
        "/apis/ims/apis/ims/v3/images",
        "/healthz/live/../../v3/images",
        "/docs/../v3/images",
        "/kiln/v1/../../v3/images",
        "http://elsewhere.example/v3/images",
    ] {
        let status = server.ask_raw(&write, "DELETE", path);
        assert!(matches!(status, 400 | 403 | 404), "{path}: {status}");
        let status = server.ask_raw("", "GET", path);
        assert!(matches!(status, 400 | 401), "{path}: {status}");
    }
    // The id of nothing.
    assert_eq!(server.ask_raw(&write, "DELETE", "/v3/images/%2e%2e"), 403);
    let images = server.ask(&write, "GET", "/v3/images", None).await.json();
    assert_eq!(images.as_array().unwrap().len(), 1);
    server.stop();
}

#[test]
async fn wrong_tokens_are_refused() {
    let server = Server::start(&[REQUIRED, ("KILN__LIMITS__FAILED_LOGINS_PER_MINUTE", "0")]);
    let good = server.token("admin");
    let last = if good.ends_with('A') { "B" } else { "A" };
    let nearly = format!("{}{last}", &good[..good.len() - 1]);
    for wrong in [
        nearly.as_str(),
        &good[..good.len() - 1],
        &format!("{good}x"),
        &good.to_uppercase(),
        "kiln_",
        "x",
        "a.b.c",
        // A reader of the database has digests, not tokens.
        &format!("kiln_{}", "0".repeat(43)),
    ] {
        let answer = server.ask(wrong, "GET", "/v3/images", None).await;
        assert_eq!(not_let_in(&answer), "The token is not valid.", "{wrong}");
        assert!(answer.header("www-authenticate").contains("error=\"invalid_token\""));
    }
    let header =
        |value: String| support::serve::send(server.request("GET", "/v3/images").header("authorization", value));
    for wrong in ["", "Bearer", "Bearer ", "Basic a2lsbjpraWxu", "Token x"] {
        not_let_in(&header(wrong.to_owned()).await);
    }
    not_let_in(&header(format!("Basic {good}")).await);
    not_let_in(&header(good.clone()).await);
    assert_eq!(header(format!("bearer {good}")).await.status, 200);
    let twice = server
        .request("GET", "/v3/images")
        .bearer_auth("kiln_x")
        .bearer_auth(&good);
    not_let_in(&support::serve::send(twice).await);
    let in_address = server
        .ask("", "GET", &format!("/v3/images?access_token={good}"), None)
        .await;
    not_let_in(&in_address);
    server.stop();
}

#[test]
async fn tokens_end() {
    let server = Server::start(&[REQUIRED]);
    let short = token(&server.kiln, &["--name", "short", "--role", "read", "--expires", "1h"]);
    let long = token(&server.kiln, &["--name", "long", "--role", "read", "--expires", "90d"]);
    assert_eq!(server.ask(&short, "GET", "/v3/images", None).await.status, 200);
    // It was made more than an hour ago.
    let database = server.kiln.data().join("records.sqlite");
    let mut database = SqliteConnection::connect(database.to_str().unwrap()).await.unwrap();
    let an_hour_less = "UPDATE tokens SET expires = expires - 3600000001 WHERE name = 'short'";
    sqlx::raw_sql(an_hour_less).execute(&mut database).await.unwrap();
    database.close().await.unwrap();
    let answer = server.ask(&short, "GET", "/v3/images", None).await;
    assert_eq!(not_let_in(&answer), "The token has expired.");

    // One that is deleted is refused from the next request on.
    assert_eq!(server.ask(&long, "GET", "/v3/images", None).await.status, 200);
    let list = server.kiln.run(["tokens", "list"]).ok().stdout;
    let line = |name: &str| list.lines().find(|line| line.contains(name)).unwrap().to_owned();
    assert!(line("short").ends_with("short  (expired)"), "{list}");
    let id = line("long").split(' ').next().unwrap().to_owned();
    server.kiln.run(["tokens", "delete", &id]).ok();
    let answer = server.ask(&long, "GET", "/v3/images", None).await;
    assert_eq!(not_let_in(&answer), "The token is not valid.");
    server.kiln.run(["tokens", "delete", &id]).failed();
    server.stop();
}

#[test]
fn tokens_are_kept_nowhere() {
    let kiln = Kiln::bare();
    let text = token(&kiln, &["--name", "somebody's own", "--role", "write"]);
    let ran = kiln.run(["tokens", "list"]).ok();
    assert!(
        ran.stdout.contains("write  created ") && ran.stdout.trim_end().ends_with("somebody's own"),
        "{}",
        ran.stdout
    );
    let digits = &text["kiln_".len()..];
    assert!(!ran.stdout.contains(digits));
    for name in ["records.sqlite", "records.sqlite-wal"] {
        if let Ok(bytes) = fs_err::read(kiln.data().join(name)) {
            assert!(!String::from_utf8_lossy(&bytes).contains(digits), "{name}");
        }
    }
    // Invalid names, roles and periods are reported.
    for wrong in [
        &["--name", "", "--role", "read"][..],
        &["--name", "a\nb", "--role", "read"],
        &["--name", "x", "--role", "root"],
        &["--name", "x", "--role", "read", "--expires", "soon"],
        &["--name", "x", "--role", "read", "--expires", "0s"],
        &["--name", "x"],
    ] {
        assert_eq!(
            kiln.run([&["tokens", "create"], wrong].concat()).code,
            Some(2),
            "{wrong:?}"
        );
    }
    kiln.run([
        "tokens",
        "create",
        "--name",
        "x",
        "--role",
        "read",
        "--expires",
        "3000000d",
    ])
    .failed();
    assert_eq!(kiln.run(["tokens", "list"]).ok().stdout.lines().count(), 1);
    kiln.assert_clean();
}

#[test]
async fn addresses_with_many_wrong_tokens_are_told_to_wait() {
    let server = Server::start(&[REQUIRED, ("KILN__LIMITS__FAILED_LOGINS_PER_MINUTE", "5")]);
    let good = server.token("read");
    let mut statuses = Vec::new();
    for _ in 0..10 {
        statuses.push(server.ask("kiln_wrong", "GET", "/v3/images", None).await.status);
    }
    assert_eq!(statuses, [401, 401, 401, 401, 401, 429, 429, 429, 429, 429]);
    let answer = server.ask("kiln_wrong", "GET", "/v3/images", None).await;
    assert!(answer.header("retry-after").parse::<u32>().unwrap() <= 60);
    // Others behind the same gateway are not shut out.
    assert_eq!(server.ask(&good, "GET", "/v3/images", None).await.status, 200);
    // A caller that only forgot its token is not shut out either.
    not_let_in(&server.ask("", "GET", "/v3/images", None).await);
    server.stop();
}

/// The first message of `kiln serve` with authentication and without tokens.
#[test]
fn the_first_token_is_asked_for() {
    let mut server = Server::start(&[REQUIRED]);
    server.started.wait_for("auth       tokens");
    server
        .started
        .wait_for("none yet: create one with `kiln tokens create --name NAME --role admin`");
    let kiln = Kiln::bare();
    let ran = kiln.run(["tokens", "create", "--name", "x", "--role", "read"]).ok();
    assert!(
        ran.stderr.contains("Servers with this configuration need no token"),
        "{}",
        ran.stderr
    );
    server.stop();
}
