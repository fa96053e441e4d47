//! Tokens: where they come from, where they are kept, and where they never go.

use std::{
    io::Write,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
};

use serde_json::json;

use super::{
    fake_server::{Answer, FakeServer},
    kiln_at, words,
};
use crate::support::{self, Kiln, Ran};

/// Takes `good` for a token.
fn guarded() -> FakeServer {
    FakeServer::start(guard)
}

fn guard(asked: &super::fake_server::Asked) -> Answer {
    match (asked.target.as_str(), asked.header("authorization")) {
        ("/version", _) => Answer::json(200, &json!({ "version": "1.2.3" })),
        (_, Some("Bearer good")) => Answer::json(200, &json!([])),
        _ => Answer::problem(401, "Unauthorized", "A valid token is needed."),
    }
}

fn with_input(mut command: Command, input: &str) -> Ran {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
        cpu: std::time::Duration::ZERO,
    }
}

#[test]
fn a_login_is_remembered_until_the_logout() {
    let kiln = Kiln::bare();
    let server = guarded();
    let file = kiln.data().join(".config/kiln/credentials.toml");

    let wrong = with_input(kiln.command(["login", &server.url(), "--token-stdin"]), "bad\n");
    assert_eq!(wrong.code, Some(2), "{}", wrong.stderr);
    assert!(!file.exists());
    let nobody = kiln.run(["login", &server.url()]);
    assert!(
        nobody.failed().contains("no terminal to ask for it"),
        "{}",
        nobody.stderr
    );

    let good = with_input(kiln.command(["login", &server.url(), "--token-stdin"]), "good\n").ok();
    assert!(good.stderr.contains("version 1.2.3"), "{}", good.stderr);
    assert!(
        !format!("{}{}", good.stdout, good.stderr).contains("good\n"),
        "the token is shown"
    );
    assert_eq!(fs_err::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    // Neither server nor token have to be named now.
    kiln.run(["recipes", "list"]).ok();
    assert_eq!(
        server.take().last().unwrap().header("authorization"),
        Some("Bearer good")
    );
    // Another server does not get it.
    let other = FakeServer::agreeable();
    kiln_at(&kiln, &other, "recipes list").ok();
    assert_eq!(other.take()[0].header("authorization"), None);

    // A file that others can read is not used.
    fs_err::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let open = kiln.run(["recipes", "list"]);
    assert!(open.failed().contains("open to others"), "{}", open.stderr);
    fs_err::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();

    kiln.run(["logout"]).ok();
    assert!(!fs_err::read_to_string(&file).unwrap().contains("good"));
    assert_eq!(kiln.run(["logout"]).code, Some(1));
}

#[test]
fn a_server_without_tokens_is_remembered_too() {
    let kiln = Kiln::bare();
    let server = FakeServer::agreeable();
    let ran = kiln.run(["login", &server.url()]).ok();
    assert!(ran.stderr.contains("needs no token"), "{}", ran.stderr);
    server.take();
    kiln.run(["images", "list"]).ok();
    assert_eq!(server.lines(), ["GET /v3/images"]);
    let stranger = FakeServer::start(|_| Answer::json(200, &json!({ "hello": "world" })));
    let ran = kiln.run(["login", &stranger.url()]);
    assert!(ran.failed().contains("is neither a Kiln"), "{}", ran.stderr);
}

#[test]
fn tokens_come_from_files_and_the_environment() {
    let kiln = Kiln::bare();
    let server = guarded();
    let (json_file, plain_file) = (kiln.data().join("token.json"), kiln.data().join("token"));
    fs_err::write(
        &json_file,
        r#"{"access_token": "good", "client_id": "shasta", "expires_in": 31536000}"#,
    )
    .unwrap();
    fs_err::write(&plain_file, "good\n").unwrap();
    for file in [&json_file, &plain_file] {
        kiln_at(&kiln, &server, &format!("images list --token {}", file.display())).ok();
    }
    let mut command = kiln.command(["images", "list", "--server", &server.url()]);
    command.env("KILN_TOKEN", "good");
    support::run(command).ok();
    let ran = kiln_at(&kiln, &server, "images list");
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.stderr.contains(&format!("hint: `kiln login {}`", server.url())),
        "{}",
        ran.stderr
    );
    // A token in place of a file is not repeated on the screen in full, and not sent.
    server.take();
    assert_eq!(
        kiln_at(&kiln, &server, "images list --token eyJhbGciOi.abc.def").code,
        Some(1)
    );
    assert!(server.take().is_empty());
}

#[test]
fn tokens_do_not_cross_networks_unencrypted() {
    let kiln = Kiln::bare();
    let mut command = kiln.command(["images", "list", "--server", "http://192.0.2.1:9000"]);
    command.env("KILN_TOKEN", "good");
    let ran = support::run(command);
    assert_eq!(
        ran.failed(),
        "your token is not sent to http://192.0.2.1:9000: anyone on the way could read it"
    );
    // A proxy would see it as well; loopback is spoken to directly.
    let server = guarded();
    let proxy = FakeServer::agreeable();
    let mut command = kiln.command(["images", "list", "--server", &server.url()]);
    command
        .env("KILN_TOKEN", "good")
        .env("http_proxy", proxy.url())
        .env("HTTP_PROXY", proxy.url());
    support::run(command).ok();
    assert!(proxy.take().is_empty());
}

#[test]
fn options_of_cray_name_the_gateway() {
    let kiln = Kiln::bare();
    let server = FakeServer::agreeable();
    kiln.run(words(&format!("images list --hostname {}", server.url())))
        .ok();
    assert_eq!(server.lines(), ["GET /apis/ims/v3/images"]);
    let dir = kiln.data().join(".config/cray/configurations");
    fs_err::create_dir_all(&dir).unwrap();
    fs_err::write(dir.join("site"), format!("[core]\nhostname = \"{}\"\n", server.url())).unwrap();
    kiln.run(words("ims --format json images list --configuration site"))
        .ok();
    assert_eq!(server.lines(), ["GET /apis/ims/v3/images"]);
    // One that names no server must not lead to another one.
    let ran = kiln.run(words("images deleteall --configuration elsewhere"));
    assert!(ran.failed().contains("`elsewhere`"), "{}", ran.stderr);
    assert!(server.take().is_empty());
}

#[test]
fn an_authority_of_ones_own_is_trusted_when_named() {
    let kiln = Kiln::bare();
    let (server, authority) = FakeServer::start_tls(guard);
    let file = kiln.data().join("ca.pem");
    fs_err::write(&file, authority).unwrap();
    let mut command = kiln.command(["images", "list", "--server", &server.url()]);
    command.env("KILN_TOKEN", "good");
    let ran = support::run(command);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("--ca-file"), "{}", ran.stderr);
    assert!(server.take().is_empty());

    // The login remembers the authority with the server.
    let ca_file = file.to_str().unwrap();
    with_input(
        kiln.command(["login", &server.url(), "--ca-file", ca_file, "--token-stdin"]),
        "good",
    )
    .ok();
    kiln.run(["images", "list"]).ok();

    fs_err::write(&file, "no certificate").unwrap();
    assert!(kiln.run(["images", "list"]).failed().contains("authorities"));
}
