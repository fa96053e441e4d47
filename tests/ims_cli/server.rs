//! With the real server.

use std::process::Command;

use nix::sys::signal::Signal;

use super::{show, words};
use crate::support::{self, Kiln, Started, source_dir};

/// A `kiln serve` with a data directory of its own.
struct Server {
    kiln: Kiln,
    process: Option<Started>,
    url: String,
}

impl Server {
    fn start(settings: &[(&str, &str)]) -> Self {
        let kiln = Kiln::bare();
        let mut command = kiln.command(["serve"]);
        command
            .env("KILN__SERVER__LISTEN", "127.0.0.1:0")
            .env("KILN__EMBEDDED_S3__LISTEN", "127.0.0.1:0")
            .envs(settings.iter().copied());
        let mut process = Started::new(command);
        let url = process.server_url();
        process.wait_until_ready();
        Self {
            kiln,
            process: Some(process),
            url,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            process.signal(Signal::SIGTERM);
            let ran = process.end();
            if !std::thread::panicking() {
                assert_eq!(ran.code, Some(0), "{}", ran.last());
            }
        }
    }
}

#[test]
fn a_session() {
    let server = Server::start(&[]);
    let mut command = Command::new(source_dir().join("examples/ims-session.sh"));
    command
        .env("KILN", support::kiln_program())
        .env("KILN_SERVER", &server.url)
        .env("HOME", server.kiln.data())
        .env_remove("XDG_CONFIG_HOME");
    let ran = support::run(command);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert_eq!(ran.stderr, "");
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../snapshots");
    for (pattern, name) in [
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?", "TIME"),
        (r#""[0-9a-f]{32}(-\d+)?""#, r#""ETAG""#),
        (r"\betag: [0-9a-f]{32}(-\d+)?", "etag: ETAG"),
        (r"/tmp/tmp\.\w+", "TMP"),
        (r"uploaded recipe \(.*?\)", "uploaded recipe (SIZE)"),
        (r"uploaded manifest \(.*?\)", "uploaded manifest (SIZE)"),
        // The widths of columns depend on the values replaced above.
        (r"(\S) {3,}", "$1   "),
    ] {
        settings.add_filter(pattern, name);
    }
    settings.bind(|| insta::assert_snapshot!(ran.stdout));

    // Nothing of it is left.
    for group in ["recipes", "images", "public-keys", "jobs", "remote-build-nodes"] {
        for group in [group.to_owned(), format!("deleted {group}")] {
            if !matches!(group.as_str(), "deleted jobs" | "deleted remote-build-nodes") {
                let list = server
                    .kiln
                    .run(words(&format!("{group} list --server {}", server.url)))
                    .ok();
                assert_eq!(list.stdout, "results = []\n", "{group}");
            }
        }
    }
}

#[test]
fn lists_are_filtered_sorted_and_paged() {
    let server = Server::start(&[]);
    let kiln = |line: &str| {
        server
            .kiln
            .run(words(&format!("--server {} {line}", server.url)))
            .ok()
            .stdout
    };
    for (name, arch) in [("c", "x86_64"), ("a", "aarch64"), ("b", "x86_64"), ("b", "aarch64")] {
        kiln(&format!("images create --name {name} --arch {arch}"));
    }
    let names = |options: &str| {
        let list: Vec<serde_json::Value> =
            serde_json::from_str(&kiln(&format!("images list --format json {options}"))).unwrap();
        list.iter()
            .map(|image| image["name"].as_str().unwrap())
            .collect::<String>()
    };
    assert_eq!(names(""), "cabb");
    assert_eq!(names("--sort name"), "abbc");
    assert_eq!(names("--sort -name --limit 3"), "cbb");
    assert_eq!(names("--reverse"), "bbac");
    assert_eq!(names("--reverse --sort -created --limit 1"), "c");
    assert_eq!(names("--arch arm64"), "ab");
    assert_eq!(names("--name b"), "bb");
    let ran = server
        .kiln
        .run(words(&format!("images describe b --server {}", server.url)));
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("`b` is more than one image:"), "{}", ran.stderr);
}

#[test]
fn tokens_and_roles() {
    let server = Server::start(&[("KILN__AUTH__MODE", "required")]);
    let kiln = &server.kiln;
    let token = |role: &str| {
        kiln.run(["tokens", "create", "--name", role, "--role", role])
            .ok()
            .stdout
            .trim()
            .to_owned()
    };
    let file = kiln.data().join("token");
    let refused = kiln.run(["images", "list", "--server", &server.url]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("hint: `kiln login"), "{}", refused.stderr);

    fs_err::write(&file, token("read")).unwrap();
    let login = |file: &std::path::Path| kiln.run(["login", &server.url, "--token", file.to_str().unwrap()]);
    let said = login(&file).ok().stderr;
    assert!(said.contains("logged in to"), "{said}");
    kiln.run(["images", "list"]).ok();
    let refused = kiln.run(["images", "create", "--name", "n"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("hint: "), "{}", refused.stderr);

    fs_err::write(&file, token("write")).unwrap();
    login(&file).ok();
    kiln.run(["images", "create", "--name", "n"]).ok();
    fs_err::write(&file, "kiln_wrong").unwrap();
    assert_eq!(login(&file).code, Some(2));
    // The login from before still holds.
    let ran = kiln.run(["images", "describe", "n"]);
    assert_eq!(ran.code, Some(0), "{}", show(&ran, kiln, &server.url));
}
