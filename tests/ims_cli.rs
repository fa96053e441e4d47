//! Tests the commands of `cray ims`: the requests of each, the display of the answers, and the errors.

use crate::support::fake_server;
mod login;
mod server;
mod uploads;

use std::os::unix::fs::PermissionsExt;

use crate::support::{self, Kiln, Ran};
use fake_server::{Answer, FakeServer};
use serde_json::{Value, json};

const ID: &str = "6f3c0f5e-9a43-4f0e-8f2b-0c5c0e2f0a11";
const KEY_ID: &str = "a1b2c3d4-0000-4000-8000-000000000001";

/// Words of a line, with `'…'` around words that hold blanks.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in line.split('\'').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

fn kiln_at(kiln: &Kiln, server: &FakeServer, line: &str) -> Ran {
    let mut command = kiln.command(words(line));
    command.env("KILN_SERVER", server.url());
    support::run(command)
}

fn show(ran: &Ran, kiln: &Kiln, server: &str) -> String {
    let text = format!(
        "exit code {}\n--- stdout\n{}--- stderr\n{}",
        ran.code.unwrap_or(-1),
        ran.stdout,
        ran.stderr
    );
    text.replace(server, "SERVER")
        .replace(kiln.data().to_str().unwrap(), "DATA")
}

/// Every command that `cray ims` has, and options of it, as lines of IMS's manual use them.
const COMMANDS: &str = "
recipes list
recipes create --name foo --linux-distribution sles15 --recipe-type kiwi-ng
recipes create --name foo --recipe-type kiwi-ng --linux-distribution sles15 --arch aarch64 --require-dkms True --link-type s3 --link-path s3://ims/recipes/r.tgz --link-etag abc --template-dictionary-key A,B --template-dictionary-value x,y
recipes create --name foo --recipe-type packer --linux-distribution centos7 --require-dkms False --twins tools
recipes create --name foo --recipe-type kiwi-ng --linux-distribution sles15 --arch = 'aarch64'
recipes describe ID
recipes update ID --arch x86_64 --template-dictionary-key USS_VERSION --template-dictionary-value 1.1.2-1-cos-3.1
recipes update ID --link-path s3://ims/r --link-type s3 --link-etag '' --require-dkms no
recipes update ID --twins shell
recipes update ID --twins default
recipes delete ID
recipes deleteall
images list
images create --name foo
images create --name foo --link-type s3 --link-path s3://boot-images/x/manifest.json --link-etag e --arch aarch64
images create --name foo --metadata-key name --metadata-value foo
images describe ID
images update ID --link-type s3 --link-path s3://boot-images/x/manifest.json --link-etag e
images update ID --arch arm64 --metadata-operation set --metadata-key project --metadata-value csm
images update ID --metadata-operation remove --metadata-key project
images update ID --name new
images delete ID
images deleteall
public-keys list
public-keys create --name 'my key' --public-key KEY_FILE
public-keys describe ID
public-keys delete ID
public-keys deleteall
remote-build-nodes list
remote-build-nodes create --xname x3000c1s10b1n0
remote-build-nodes describe x3000c1s10b1n0
remote-build-nodes delete x3000c1s10b1n0
remote-build-nodes deleteall
remote-build-nodes status list
remote-build-nodes status describe x3000c1s10b1n0
jobs list
jobs create --job-type create --image-root-archive-name img --artifact-id ID --public-key-id KEY_ID
jobs create --job-type create --image-root-archive-name img --artifact-id ID --public-key-id KEY_ID --enable-debug True --require-dkms False --twins off --build-env-size 15 --kernel-file-name vmlinuz --initrd-file-name initrd.img --kernel-parameters-file-name params
jobs create --job-type customize --image-root-archive-name img --artifact-id ID --public-key-id KEY_ID --ssh-containers-name customize --ssh-containers-jail True
jobs create --job-type customize --image-root-archive-name img --artifact-id ID --public-key-id KEY_ID --ssh-containers-jail False --job-mem-size 4
jobs describe ID
jobs delete ID
jobs deleteall
jobs deleteall --job-type create --age 1d --status error
jobs deleteall --status error,success --status waiting_on_user
deleted recipes list
deleted recipes describe ID
deleted recipes update ID --operation undelete
deleted recipes delete ID
deleted recipes deleteall
deleted images list
deleted images describe ID
deleted images update ID --operation undelete
deleted images delete ID
deleted images deleteall
deleted public-keys list
deleted public-keys describe ID
deleted public-keys update ID --operation undelete
deleted public-keys delete ID
deleted public-keys deleteall
version list
recipes list --format json -v --quiet
images list --format yaml -vvvv
jobs list --name img --arch aarch64 --status error --status success --job-type create --sort -created --limit 20
images list --sort name --reverse
";

#[test]
fn what_each_command_sends() {
    let kiln = Kiln::bare();
    let server = FakeServer::agreeable();
    let key = kiln.data().join("key.pub");
    fs_err::write(&key, "ssh-ed25519 AAAA me@here\n").unwrap();
    let mut table = String::new();
    for line in COMMANDS.lines().filter(|line| !line.is_empty()) {
        let full = line
            .replace("KEY_FILE", key.to_str().unwrap())
            .replace("KEY_ID", KEY_ID)
            .replace(" ID", &format!(" {ID}"));
        let ran = kiln_at(&kiln, &server, &format!("ims {full}"));
        assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
        let asked = server.lines();
        assert!(!asked.is_empty(), "{line}");
        if !line.starts_with("version") {
            let again = kiln_at(&kiln, &server, &full);
            assert_eq!(again.code, Some(0), "{line}: {}", again.stderr);
            assert_eq!((&server.lines(), &again.stdout), (&asked, &ran.stdout), "{line}");
        }
        let asked = asked.join("\n  ").replace(ID, "ID").replace(KEY_ID, "KEY_ID");
        table.push_str(&format!("{line}\n  {asked}\n"));
    }
    insta::assert_snapshot!(table);
}

fn image(id: &str, name: &str, created: &str) -> Value {
    json!({
        "id": id, "created": created, "name": name, "arch": "aarch64", "metadata": { "project": "csm" },
        "link": { "path": format!("s3://boot-images/{id}/manifest.json"), "etag": "e", "type": "s3" },
    })
}

/// A server with these images that, as IMS, ignores every parameter of a list.
fn server_with_images(images: Vec<Value>) -> FakeServer {
    FakeServer::start(move |asked| {
        let path = asked.target.split('?').next().unwrap();
        match (asked.method.as_str(), path.strip_prefix("/v3/images")) {
            ("GET", Some("")) => Answer::json(200, &json!(images)),
            ("GET", Some(id)) => match images.iter().find(|image| image["id"] == id[1..]) {
                Some(image) => Answer::json(200, image),
                None => Answer::problem(404, "Not Found", "Requested resource does not exist."),
            },
            ("DELETE", Some(_)) => Answer::empty(),
            _ => Answer::json(200, &json!([])),
        }
    })
}

fn three_images() -> Vec<Value> {
    vec![
        image(ID, "debian-minimal", "2026-11-20T13:53:42.680608"),
        image(
            "6f3c0f5e-0000-4000-8000-000000000002",
            "\u{1b}[2Jevil\u{202e}\nname",
            "2026-11-20T14:00:00",
        ),
        image(
            "77777777-0000-4000-8000-000000000003",
            "debian-minimal-2",
            "2026-11-21T00:00:00.5",
        ),
    ]
}

#[test]
fn formats() {
    let kiln = Kiln::bare();
    let mut images = three_images();
    images[2]["link"] = Value::Null;
    let server = server_with_images(images);
    let mut shown = String::new();
    for format in ["toml", "json", "yaml", "table"] {
        for line in ["list", "describe debian-minimal"] {
            let ran = kiln_at(&kiln, &server, &format!("images {line} --format {format}")).ok();
            assert!(!ran.stdout.contains('\u{1b}'), "{:?}", ran.stdout);
            // YAML calls it printable; the other formats escape it.
            assert_eq!(ran.stdout.contains('\u{202e}'), format == "yaml" && line == "list");
            shown.push_str(&format!("# kiln images {line} --format {format}\n{}\n", ran.stdout));
        }
    }
    insta::assert_snapshot!(shown);
    let none = FakeServer::agreeable();
    for (format, text) in [
        ("toml", "results = []\n"),
        ("json", "[]\n"),
        ("yaml", "[]\n"),
        ("table", "ID  NAME  ARCH  CREATED  METADATA\n"),
    ] {
        let ran = kiln_at(&kiln, &none, &format!("images list --format {format}")).ok();
        assert_eq!(ran.stdout, text);
    }
}

#[test]
fn records_are_found_by_name_and_by_the_beginning_of_their_id() {
    let kiln = Kiln::bare();
    let server = server_with_images(three_images());
    for given in [ID, &ID.to_uppercase(), "debian-minimal", "6F3C0f5e-9"] {
        let ran = kiln_at(&kiln, &server, &format!("images delete {given}")).ok();
        let asked = server.lines();
        assert_eq!(asked.last().unwrap(), &format!("DELETE /v3/images/{ID}"), "{given}");
        // A whole id needs no look.
        assert_eq!(asked.len() == 1, given.len() == 36, "{given}: {asked:?}");
        assert!(ran.stderr.starts_with("deleted image "), "{}", ran.stderr);
    }
    let mut shown = String::new();
    for given in ["6f3c", "6f3", "debian-minmal", "windows", "..", "''"] {
        let ran = kiln_at(&kiln, &server, &format!("images delete {given}"));
        shown.push_str(&format!(
            "# kiln images delete {given}\n{}\n",
            show(&ran, &kiln, &server.url())
        ));
        assert!(server.lines().iter().all(|line| line.starts_with("GET ")), "{given}");
    }
    insta::assert_snapshot!(shown);
}

#[test]
fn jobs_take_names() {
    let kiln = Kiln::bare();
    let server = FakeServer::start(|asked| {
        let records = match asked.target.split('?').next().unwrap() {
            "/v3/recipes" => json!([{ "id": ID, "name": "debian" }]),
            "/v3/images" => json!([{ "id": "22222222-0000-4000-8000-000000000000", "name": "debian" }]),
            "/v3/public-keys" => json!([{ "id": KEY_ID, "name": "my key" }]),
            _ => json!({ "id": ID }),
        };
        Answer::json(if asked.method == "POST" { 201 } else { 200 }, &records)
    });
    let line = "jobs create --image-root-archive-name i --artifact-id debian --public-key-id 'my key' --job-type";
    kiln_at(&kiln, &server, &format!("{line} create")).ok();
    let asked = server.lines();
    assert_eq!(
        asked[..2],
        ["GET /v3/recipes?name=debian", "GET /v3/public-keys?name=my+key"]
    );
    assert!(asked[2].contains(ID) && asked[2].contains(KEY_ID), "{asked:?}");
    kiln_at(&kiln, &server, &format!("{line} customize")).ok();
    let asked = server.lines();
    assert!(asked[2].contains("22222222-0000-4000-8000-000000000000"), "{asked:?}");
}

#[test]
fn lists_are_followed_to_their_end() {
    let kiln = Kiln::bare();
    // Behind a gateway the server does not know its own address.
    let server = FakeServer::start(|asked| {
        let page = |ids: &[&str]| {
            let records: Vec<_> = ids.iter().map(|id| image(id, "n", "2026")).collect();
            Answer::json(200, &json!(records))
        };
        match asked.target.as_str() {
            "/gw/v3/images" | "/gw/v3/images?limit=2" => {
                page(&["1", "2"]).header("link", "</v3/images?cursor=a>; rel=\"next\"")
            }
            "/gw/v3/images?cursor=a" => page(&["3"]).header("link", "</v3/images?cursor=b>; rel=\"next\""),
            "/gw/v3/images?limit=10000" => {
                page(&["1"]).header("link", "</v3/images?cursor=b&limit=10000>; rel=\"next\"")
            }
            _ => page(&["4"]),
        }
    });
    let count = |line: &str| {
        let url = format!("{}/gw", server.url());
        let ran = kiln
            .run(words(&format!("images list --format json --server {url} {line}")))
            .ok();
        serde_json::from_str::<Vec<Value>>(&ran.stdout).unwrap().len()
    };
    assert_eq!(count(""), 4);
    assert_eq!(server.take().len(), 3);
    assert_eq!(count("--limit 2"), 2);
    assert_eq!(server.take().len(), 1);
    assert_eq!(count("--limit 20000"), 2);
}

#[test]
fn images_with_a_package_are_found_page_by_page() {
    let kiln = Kiln::bare();
    // The first page is whole once the server has looked at the image that it puts off.
    let asked_before = std::sync::atomic::AtomicUsize::new(0);
    let server = FakeServer::start(move |asked| {
        let found =
            json!({"id": "1", "name": "old", "arch": "x86_64", "package": "a", "version": "1", "package_arch": "all"});
        let unknown = |id: &str, is_pending: bool| json!({"id": id, "name": "n", "arch": "x86_64", "why": "it has no list", "is_pending": is_pending});
        let answer = match asked.target.as_str() {
            "/kiln/v1/packages?name=a&below=2" => {
                match asked_before.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
                    0 => json!({"images": [], "not_looked_at": [unknown("2", true)], "next": "c"}),
                    _ => json!({"images": [found], "not_looked_at": [unknown("2", false)], "next": "c"}),
                }
            }
            // Nobody can look at this one, whoever asks how often.
            "/kiln/v1/packages?name=a&below=2&cursor=c" => {
                json!({"images": [found], "not_looked_at": [unknown("3", true)]})
            }
            other => panic!("{other}"),
        };
        Answer::json(200, &answer)
    });
    let ran = kiln_at(&kiln, &server, "images find-package a --below 2 --format json").ok();
    let found: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    let expected = json!({"id": "1", "image": "old", "arch": "x86_64", "name": "a", "version": "1"});
    assert_eq!(found, [expected.clone(), expected]);
    assert_eq!(server.lines().len(), 4);
    for id in ["2", "3"] {
        let note = format!("{id}: it has no list");
        assert!(ran.stderr.contains(&note), "{}", ran.stderr);
    }
}

#[test]
fn what_ims_ignores_is_done_by_the_client() {
    let kiln = Kiln::bare();
    let server = server_with_images(three_images());
    let names = |line: &str| {
        let ran = kiln_at(&kiln, &server, &format!("images list --format json {line}")).ok();
        let list: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
        list.iter()
            .map(|image| image["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names("--name debian-minimal"), ["debian-minimal"]);
    assert_eq!(names("--arch amd64"), [""; 0]);
    assert_eq!(names("--sort -created --limit 1"), ["debian-minimal-2"]);
    assert_eq!(names("--sort -name --reverse --limit 2")[1], "debian-minimal");
}

#[test]
fn refusals_say_why() {
    let kiln = Kiln::bare();
    let cases = [
        (
            "fields",
            Answer::json(
                422,
                &json!({
                    "status": 422, "title": "Unprocessable Entity", "detail": "Input data was understood, but failed validation.",
                    "errors": { "name": ["Length must be between 1 and 1024."], "link": { "path": ["Missing data for required field."] } },
                }),
            ),
        ),
        (
            "title only",
            Answer::json(400, &json!({ "status": 400, "title": "Not a recognised age: foo" })),
        ),
        ("message only", Answer::json(415, &json!({ "message": "Not JSON" }))),
        (
            "unauthorized",
            Answer::problem(401, "Unauthorized", "A token is needed."),
        ),
        (
            "forbidden",
            Answer::problem(403, "Forbidden", "The role read may not do this."),
        ),
        (
            "hint of the server",
            Answer::json(409, &json!({ "title": "Conflict", "detail": "no", "hint": "do this" })),
        ),
        (
            "terminal codes",
            Answer::problem(400, "Bad\u{1b}[31m", "line\nbreak\u{9b}2J"),
        ),
        (
            "no JSON",
            Answer {
                status: 502,
                headers: Vec::new(),
                body: b"<html>".to_vec(),
            },
        ),
        (
            "moved",
            Answer {
                status: 301,
                headers: vec![("location", "https://elsewhere/".to_owned())],
                body: Vec::new(),
            },
        ),
        (
            "a web page",
            Answer {
                status: 200,
                headers: Vec::new(),
                body: b"<html>".to_vec(),
            },
        ),
        ("no list", Answer::json(200, &json!({}))),
    ];
    let mut shown = String::new();
    for (what, answer) in cases {
        let answer = std::sync::Mutex::new(Some(answer));
        let server = FakeServer::start(move |_| answer.lock().unwrap().take().unwrap());
        let ran = kiln_at(&kiln, &server, "images list");
        assert_eq!(ran.stdout, "");
        shown.push_str(&format!("# {what}\n{}\n", show(&ran, &kiln, &server.url())));
    }
    let ran = kiln.run(["images", "list", "--server", "http://127.0.0.1:1"]);
    shown.push_str(&format!("# nobody there\n{}\n", show(&ran, &kiln, "no server")));
    insta::assert_snapshot!(shown);
}

/// A failure of a Kiln server has its own advice and its own exit code.
#[test]
fn a_failure_of_the_server_is_shown_as_such() {
    let kiln = Kiln::bare();
    for (code, exit) in [
        ("s3_unreachable", 1),
        ("store_unavailable", 1),
        ("not_of_this_version", 2),
    ] {
        let server = FakeServer::start(move |_| {
            Answer::json(
                503,
                &json!({ "status": 503, "title": "Service Unavailable", "detail": "no", "code": code, "hint": "start it",
                    "type": format!("urn:kiln:failure:{code}") }),
            )
        });
        let ran = kiln_at(&kiln, &server, "images list");
        assert_eq!(ran.code, Some(exit), "{code}");
        assert_eq!(
            ran.stderr, "error: Service Unavailable: no\n\nhint: start it\n",
            "{code}"
        );
    }
}

#[test]
fn slips_are_recognised() {
    let kiln = Kiln::bare();
    // Without a server's name the output would depend on what listens at the usual address.
    let credentials = kiln.data().join(".config/kiln/credentials.toml");
    fs_err::create_dir_all(credentials.parent().unwrap()).unwrap();
    fs_err::write(&credentials, "default = \"http://127.0.0.1:9000\"\n").unwrap();
    fs_err::set_permissions(&credentials, PermissionsExt::from_mode(0o600)).unwrap();
    let recipe = "recipes create --name n --recipe-type kiwi-ng --linux-distribution sles15";
    let lines = [
        format!("{recipe} --reqire-dkms False"),
        format!("{recipe} --arch = arch64"),
        format!("{recipe} --require-dkms perhaps"),
        format!("{recipe} --template-dictionary-key A,B --template-dictionary-value x"),
        format!("{recipe} --template-dictionary-key A"),
        "recipes create --name n --recipe-type kiwi".to_owned(),
        "recipes create --name n --recipe-type kiwi-ng".to_owned(),
        "public-keys create --name n".to_owned(),
        "public-keys create --name n --public-key /nowhere/key.pub".to_owned(),
        "remote-build-nodes create".to_owned(),
        "jobs create --job-type create --artifact-id a --public-key-id b".to_owned(),
        "jobs create --job-type custom --image-root-archive-name n --artifact-id a --public-key-id b".to_owned(),
        format!(
            "jobs create --job-type customize --image-root-archive-name n --artifact-id {ID} --public-key-id {ID} --ssh-containers-name a,b --ssh-containers-jail 1"
        ),
        "jobs deleteall --status sucess".to_owned(),
        "jobs update x".to_owned(),
        "ims recipe list".to_owned(),
        "image list".to_owned(),
        "deleted images undelete x".to_owned(),
        "deleted images update x --operation restore".to_owned(),
        "images update x".to_owned(),
        "images update x --metadata-key k --metadata-value v".to_owned(),
        "images list --sort size".to_owned(),
        "images list --limit 0".to_owned(),
        "images list --format xml".to_owned(),
        "images list --server ftp://x".to_owned(),
        "images list --server https://me:secret@example.org".to_owned(),
        "images list --hostname x --server y".to_owned(),
    ];
    let mut shown = String::new();
    for line in lines {
        let ran = kiln.run(words(&line));
        assert!(matches!(ran.code, Some(1 | 2)), "{line}");
        shown.push_str(&format!("# kiln {line}\n{}\n", show(&ran, &kiln, "no server")));
    }
    insta::assert_snapshot!(shown);
}

#[test]
fn a_private_key_is_not_sent() {
    let kiln = Kiln::bare();
    let server = FakeServer::agreeable();
    let key = kiln.data().join("id_ed25519");
    fs_err::write(&key, "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n").unwrap();
    let ran = kiln_at(
        &kiln,
        &server,
        &format!("public-keys create --name n --public-key {}", key.display()),
    );
    assert!(ran.failed().contains("private key"), "{}", ran.stderr);
    assert!(server.take().is_empty());
    // No shell expands this one.
    fs_err::write(kiln.data().join("k.pub"), "ssh-rsa A").unwrap();
    kiln_at(&kiln, &server, "public-keys create --name n --public-key=~/k.pub").ok();
    assert!(server.lines()[0].ends_with(r#"{"name":"n","public_key":"ssh-rsa A"}"#));
}

#[test]
fn help_of_each_group() {
    let kiln = Kiln::bare();
    let mut shown = String::new();
    for line in [
        "ims",
        "recipes",
        "recipes create",
        "recipes update",
        "images",
        "images create",
        "images update",
        "images list",
        "jobs",
        "jobs create",
        "jobs list",
        "jobs deleteall",
        "public-keys",
        "public-keys create",
        "deleted",
        "deleted images",
        "deleted images update",
        "remote-build-nodes",
        "remote-build-nodes status",
        "ims version",
        "login",
        "logout",
        "man",
    ] {
        let mut command = kiln.command(words(&format!("{line} --help")));
        command.env_remove("KILN_DATA_DIR");
        let ran = support::run(command).ok();
        shown.push_str(&format!("# kiln {line} --help\n{}\n", ran.stdout));
    }
    insta::assert_snapshot!(shown);
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    let kiln = Kiln::bare();
    let pages = kiln.data().join("man");
    kiln.run(["man", pages.to_str().unwrap()]).ok();
    for page in [
        "kiln",
        "kiln-ims-deleted-images-update",
        "kiln-recipes-create",
        "kiln-login",
        "kiln-build",
    ] {
        let text = fs_err::read_to_string(pages.join(format!("{page}.1"))).unwrap();
        assert!(text.contains(".SH SYNOPSIS"), "{page}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = kiln.run(["completions", shell]).ok().stdout;
        for word in [
            "remote-build-nodes",
            "deleteall",
            "metadata-operation",
            "logout",
            "template-dictionary-key",
            "man",
        ] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}
