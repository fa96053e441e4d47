//! Recipes and images that are made of local files.

use std::{
    io::{Read, Write},
    path::Path,
    sync::{Mutex, mpsc},
    time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::json;

use super::{
    ID,
    fake_server::{Answer, Asked, FakeServer},
    kiln_at,
};
use crate::support::{Kiln, Started, eventually};

/// A Kiln server, as far as uploads need one. Requests whose target ends with `broken` fail.
fn uploads(broken: &'static str) -> FakeServer {
    FakeServer::start(move |asked| {
        let path = asked.target.as_str();
        match asked.method.as_str() {
            "PUT" if !broken.is_empty() && path.ends_with(broken) => {
                Answer::problem(507, "Insufficient Storage", "No space is left.")
            }
            "PUT" if path.contains("/artifacts/") => {
                Answer::json(200, &json!({ "type": path, "link": { "path": "s3://b/k" } }))
            }
            "DELETE" => Answer::empty(),
            _ => Answer::json(200, &json!({ "id": ID, "name": "n" })),
        }
    })
}

fn shapes(asked: &[Asked]) -> Vec<String> {
    asked
        .iter()
        .map(|asked| format!("{} {}", asked.method, asked.target))
        .collect()
}

fn recipe_dir(parent: &Path) -> std::path::PathBuf {
    let dir = parent.join("my-recipe");
    fs_err::create_dir_all(dir.join("root/etc")).unwrap();
    fs_err::write(
        dir.join("config.xml"),
        "<image><preferences arch=\"aarch64\"><type image=\"tbz\"/></preferences></image>",
    )
    .unwrap();
    fs_err::write(dir.join("root/etc/motd"), "hello").unwrap();
    dir
}

#[test]
fn a_recipe_is_packed_uploaded_and_linked() {
    let kiln = Kiln::bare();
    let server = uploads("");
    let dir = recipe_dir(kiln.data());
    let line = format!("recipes create --linux-distribution sles15 --from {}", dir.display());
    let ran = kiln_at(&kiln, &server, &line).ok();
    assert!(
        ran.stdout.contains(ID) && ran.stderr.contains("uploaded recipe ("),
        "{ran:?}"
    );
    let asked = server.take();
    assert_eq!(
        asked[0].line(),
        r#"POST /v3/recipes {"arch":"aarch64","linux_distribution":"sles15","name":"my-recipe","recipe_type":"kiwi-ng"}"#
    );
    assert_eq!(shapes(&asked[1..]), [format!("PUT /kiln/v1/recipes/{ID}/archive")]);
    let upload = &asked[1];
    assert_eq!(upload.header("content-type"), Some("application/gzip"));
    assert_eq!(
        upload.header("content-length"),
        Some(upload.body.len().to_string().as_str())
    );
    let mut names = Vec::new();
    for entry in tar::Archive::new(flate2::read::GzDecoder::new(&upload.body[..]))
        .entries()
        .unwrap()
    {
        let entry = entry.unwrap();
        assert!(
            entry.header().mtime().unwrap() <= 1_153_704_088,
            "tar's own moment zero"
        );
        names.push(entry.path().unwrap().display().to_string());
    }
    assert_eq!(names, ["config.xml", "root", "root/etc", "root/etc/motd"]);

    // The same again gives the same bytes; an archive is sent as it is.
    kiln_at(&kiln, &server, &line).ok();
    let again = server.take();
    assert_eq!(again[1].body, upload.body);
    let archive = kiln.data().join("other.tgz");
    fs_err::write(&archive, &upload.body).unwrap();
    let line = format!(
        "recipes create --linux-distribution sles15 --arch x86_64 --name x --from {}",
        archive.display()
    );
    kiln_at(&kiln, &server, &line).ok();
    let sent = server.take();
    assert!(sent[0].line().contains(r#""arch":"x86_64""#) && sent[0].line().contains(r#""name":"x""#));
    assert_eq!(sent[1].body, upload.body);
}

#[test]
fn what_cannot_be_completed_is_removed_again() {
    let kiln = Kiln::bare();
    let recipe = recipe_dir(kiln.data());
    let image = kiln.data().join("img");
    fs_err::create_dir(&image).unwrap();
    fs_err::write(image.join("rootfs"), "squash").unwrap();
    for (broken, line, kind) in [
        (
            "archive",
            format!("recipes create --linux-distribution debian --from {}", recipe.display()),
            "recipes",
        ),
        ("rootfs", format!("images create --from {}", image.display()), "images"),
        (
            "manifest",
            format!("images create --from {}", image.display()),
            "images",
        ),
    ] {
        let server = uploads(broken);
        let ran = kiln_at(&kiln, &server, &line);
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert_eq!(ran.stdout, "");
        assert!(
            ran.stderr.contains("error: Insufficient Storage: No space is left."),
            "{}",
            ran.stderr
        );
        assert!(ran.stderr.contains("made for it was removed again"), "{}", ran.stderr);
        let asked = shapes(&server.take());
        assert_eq!(asked[0], format!("POST /v3/{kind}"));
        assert_eq!(
            asked[asked.len() - 2..],
            [
                format!("DELETE /v3/{kind}/{ID}"),
                format!("DELETE /v3/deleted/{kind}/{ID}")
            ]
        );
    }
    // IMS takes no uploads.
    let ims = FakeServer::start(|asked| match asked.method.as_str() {
        "PUT" => Answer::problem(404, "Not Found", "The requested URL was not found."),
        "DELETE" => Answer::empty(),
        _ => Answer::json(201, &json!({ "id": ID })),
    });
    let ran = kiln_at(&kiln, &ims, &format!("images create --from {}", image.display()));
    assert!(
        ran.stderr.contains("hint: only a Kiln server accepts uploads"),
        "{}",
        ran.stderr
    );
}

#[test]
fn nothing_is_made_of_what_cannot_be_uploaded() {
    let kiln = Kiln::bare();
    let server = uploads("");
    let empty = kiln.data().join("empty");
    fs_err::create_dir(&empty).unwrap();
    for line in [
        format!("images create --from {}", empty.display()),
        format!("recipes create --linux-distribution debian --from {}", empty.display()),
        "images create --name n --from /nowhere/manifest.json".to_owned(),
        format!("images create --name n --link-path s3://a/b --from {}", empty.display()),
    ] {
        assert!(matches!(kiln_at(&kiln, &server, &line).code, Some(1 | 2)), "{line}");
        assert!(server.take().is_empty(), "{line}");
    }
}

#[test]
fn an_image_is_uploaded_from_a_directory() {
    let kiln = Kiln::bare();
    let server = uploads("");
    let dir = kiln.data().join("web-1.0");
    fs_err::create_dir(&dir).unwrap();
    let rootfs: Vec<u8> = (0..3_000_000_u32).map(|i| i.to_le_bytes()[0]).collect();
    fs_err::write(dir.join("web.squashfs"), &rootfs).unwrap();
    fs_err::write(dir.join("Image"), "kernel").unwrap();
    fs_err::write(dir.join("initrd.img"), "").unwrap();
    fs_err::write(dir.join("kernel-parameters"), "quiet").unwrap();
    let line = format!(
        "images create --arch aarch64 --metadata-key a --metadata-value b --from {}",
        dir.display()
    );
    kiln_at(&kiln, &server, &line).ok();
    let asked = server.take();
    assert_eq!(
        asked[0].line(),
        r#"POST /v3/images {"arch":"aarch64","metadata":{"key":"a","value":"b"},"name":"web-1.0"}"#
    );
    let to = |name: &str| format!("PUT /kiln/v1/images/{ID}/artifacts/{name}");
    assert_eq!(
        shapes(&asked[1..]),
        [
            to("rootfs"),
            to("kernel"),
            to("initrd"),
            to("boot_parameters"),
            format!("PUT /kiln/v1/images/{ID}/manifest")
        ]
    );
    assert_eq!(asked[1].body, rootfs);
    assert_eq!(asked[1].header("content-length"), Some("3000000"));
    assert_eq!(asked[1].header("transfer-encoding"), None);
    assert_eq!(asked[3].header("content-length"), Some("0"));
    assert_eq!(asked[5].header("content-type"), Some("application/json"));
    let manifest: serde_json::Value = serde_json::from_slice(&asked[5].body).unwrap();
    assert_eq!(manifest["artifacts"].as_array().unwrap().len(), 4);
    assert_eq!(manifest["artifacts"][0]["link"]["path"], "s3://b/k");
}

#[test]
fn an_image_is_made_of_a_manifest() {
    let kiln = Kiln::bare();
    let server = uploads("");
    let file = kiln.data().join("manifest.json");
    let manifest = |path: &str| {
        json!({ "version": "1.0", "created": "2026-11-20 13:53:42.000000", "arch": "aarch64", "artifacts": [
            { "type": "application/vnd.cray.image.rootfs.squashfs", "md5": "d41d8cd98f00b204e9800998ecf8427e",
              "link": { "path": path, "etag": "", "type": "s3" } },
        ] })
    };
    let line = format!("images create --name n --from {}", file.display());
    fs_err::write(&file, manifest("s3://boot-images/x/rootfs").to_string()).unwrap();
    kiln_at(&kiln, &server, &line).ok();
    let asked = server.take();
    assert_eq!(asked[0].line(), r#"POST /v3/images {"arch":"aarch64","name":"n"}"#);
    let sent: serde_json::Value = serde_json::from_slice(&asked[1].body).unwrap();
    assert_eq!(sent, manifest("s3://boot-images/x/rootfs"));
    for wrong in [
        manifest("/local/rootfs").to_string(),
        "{}".to_owned(),
        "no JSON".to_owned(),
    ] {
        fs_err::write(&file, wrong).unwrap();
        assert_eq!(kiln_at(&kiln, &server, &line).code, Some(1));
        assert!(server.take().is_empty());
    }
}

/// Ctrl-C while the server takes its time.
#[test]
fn an_interrupted_upload_leaves_nothing() {
    let kiln = Kiln::bare();
    let (ended, has_ended) = mpsc::channel::<()>();
    let has_ended = Mutex::new(has_ended);
    let server = FakeServer::start(move |asked| match asked.method.as_str() {
        "PUT" => {
            let _ = has_ended.lock().unwrap().recv();
            Answer::json(200, &json!({}))
        }
        "DELETE" => Answer::empty(),
        _ => Answer::json(201, &json!({ "id": ID })),
    });
    // Before the server, which waits for its answers, also when this test fails.
    let ended = ended;
    let dir = recipe_dir(kiln.data());
    let mut command = kiln.command(["recipes", "create", "--linux-distribution", "debian", "--from"]);
    command.arg(&dir).env("KILN_SERVER", server.url());
    let uploading = Started::new(command);
    let mut asked = Vec::new();
    eventually(|| {
        asked.extend(shapes(&server.take()));
        asked.iter().any(|asked| asked.starts_with("PUT "))
    });
    uploading.signal(Signal::SIGINT);
    let ran = uploading.end();
    drop(ended);
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    assert!(ran.stderr.contains("removed again"), "{}", ran.stderr);
    asked.extend(shapes(&server.take()));
    assert!(asked.contains(&format!("DELETE /v3/deleted/recipes/{ID}")), "{asked:?}");
}

/// Purging an image takes its objects along, so one that may name objects of others by now is not purged.
#[test]
fn objects_of_others_are_not_put_at_risk() {
    let kiln = Kiln::bare();
    let file = kiln.data().join("manifest.json");
    let rootfs = json!({ "type": "application/vnd.cray.image.rootfs.squashfs",
        "link": { "path": "s3://boot-images/x/rootfs", "etag": "", "type": "s3" } });
    fs_err::write(&file, json!({ "version": "1.0", "artifacts": [rootfs] }).to_string()).unwrap();
    let server = FakeServer::start(|asked| match asked.method.as_str() {
        // More is promised than comes: the answer is lost.
        "PUT" => Answer::json(200, &json!({})).header("content-length", "1000"),
        "DELETE" => Answer::empty(),
        _ => Answer::json(201, &json!({ "id": ID })),
    });
    let ran = kiln_at(
        &kiln,
        &server,
        &format!("images create --name n --from {}", file.display()),
    );
    assert!(ran.failed().contains("broke off"), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("`kiln deleted images list` still shows it"),
        "{}",
        ran.stderr
    );
    let asked = shapes(&server.take());
    assert_eq!(asked.last().unwrap(), &format!("DELETE /v3/images/{ID}"));
}

/// The server is killed in the middle of an upload.
#[test]
fn a_server_that_goes_away_is_spoken_of() {
    let kiln = Kiln::bare();
    let dir = kiln.data().join("img");
    fs_err::create_dir(&dir).unwrap();
    fs_err::write(dir.join("rootfs"), vec![7; 20_000_000]).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut first, _) = listener.accept().unwrap();
        let mut buffer = [0; 4096];
        let _ = first.read(&mut buffer).unwrap();
        let body = format!("{{\"id\":\"{ID}\"}}");
        let head = "HTTP/1.1 201 Created\r\nconnection: close\r\ncontent-length";
        first
            .write_all(format!("{head}: {}\r\n\r\n{body}", body.len()).as_bytes())
            .unwrap();
        drop(first);
        let (mut second, _) = listener.accept().unwrap();
        let _ = second.read(&mut buffer).unwrap();
        drop(listener);
    });
    let ran = kiln.run(["images", "create", "--server", &url, "--from", dir.to_str().unwrap()]);
    server.join().unwrap();
    assert!(ran.failed().contains("broke off"), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("the image made for it is still there"),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stderr.contains(&format!("`kiln images delete {ID}` removes it")),
        "{}",
        ran.stderr
    );
}

/// The waiting time of a site with many images.
#[test]
fn fifty_thousand_records_are_shown_quickly() {
    let kiln = Kiln::bare();
    let (few, server) = (many(5_000), many(50_000));
    for format in ["table", "toml", "json", "yaml"] {
        let line = format!("images list --format {format}");
        let brief = kiln_at(&kiln, &few, &line).ok().cpu;
        let ran = kiln_at(&kiln, &server, &line).ok();
        assert!(ran.stdout.lines().count() > 50_000, "{format}");
        println!("{format}: {brief:?}, {:?}", ran.cpu);
        // Ten times as many; a quadratic step takes a hundred times as long.
        assert!(
            ran.cpu < 30 * brief.max(Duration::from_millis(100)),
            "{format}: {brief:?}, {:?}",
            ran.cpu
        );
    }
    kiln_at(&kiln, &server, "images describe image-49999").ok();
}

/// A server with so many images.
fn many(count: usize) -> FakeServer {
    let records: Vec<_> = (0..count)
        .map(|n| {
            super::image(
                &format!("{n:08}-0000-4000-8000-000000000000"),
                &format!("image-{n}"),
                "2026-11-20T13:53:42.680608",
            )
        })
        .collect();
    let text = serde_json::to_vec(&records).unwrap();
    FakeServer::start(move |_| Answer {
        status: 200,
        headers: Vec::new(),
        body: text.clone(),
    })
}
