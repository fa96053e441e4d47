//! Tests `kiln publish IMAGE glance:NAME` against Debian's glance-api (SQLite, files, no logins), read by its own client, and
//! against answers that a real one gives seldom.

use std::{
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    self, HOST, Kiln, Ran,
    bootable::{lacking, tiny},
    eventually,
    fake_server::{Answer, FakeServer},
    tool,
};

/// Uploads that are larger are refused.
const CAP: u64 = 34 << 20;

/// A Glance of this test's own.
pub struct Glance {
    dir: TempDir,
    child: Child,
    url: String,
}

pub fn no_glance() -> Option<String> {
    let missing = ["glance-api", "glance-manage", "glance"]
        .into_iter()
        .find(|program| !Path::new("/usr/bin").join(program).exists());
    missing.map(|program| format!("{program} is not installed: `.ci/install-packages glance`"))
}

fn no_disks() -> Option<String> {
    let platform = if HOST == "aarch64" { "arm64-efi" } else { "x86_64-efi" };
    let there = Path::new("/usr/lib/grub").join(platform).exists();
    lacking(HOST).or((!there).then(|| "GRUB is not installed: `.ci/install-packages test`".to_owned()))
}

impl Glance {
    fn start() -> Self {
        Self::start_with(CAP)
    }

    /// A Glance that refuses images of more bytes than this.
    pub fn start_with(cap: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().display();
        for name in ["store", "staging"] {
            fs_err::create_dir(dir.path().join(name)).unwrap();
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = format!(
            "[DEFAULT]\nbind_host = 127.0.0.1\nbind_port = {port}\nworkers = 1\nimage_size_cap = {cap}\n\
             node_staging_uri = file://{at}/staging\n[database]\nconnection = sqlite:///{at}/glance.sqlite\n\
             [glance_store]\nstores = file\ndefault_store = file\nfilesystem_store_datadir = {at}/store\n\
             [paste_deploy]\nconfig_file = /etc/glance/glance-api-paste.ini\n"
        );
        let path = dir.path().join("glance.conf");
        fs_err::write(&path, config).unwrap();
        let file = path.to_str().unwrap();
        tool("glance-manage", &["--config-file", file, "db_sync"]);
        let log = fs_err::File::create(dir.path().join("log")).unwrap();
        let child = Command::new("glance-api")
            .args(["--config-file", file])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::from(log.into_parts().0))
            .spawn()
            .unwrap();
        let url = format!("http://127.0.0.1:{port}");
        let glance = Self { dir, child, url };
        eventually(|| {
            let log = || fs_err::read_to_string(glance.dir.path().join("log")).unwrap();
            let does_not = |_| format!("Glance does not start: {}", log());
            std::net::TcpStream::connect(("127.0.0.1", port)).map_err(does_not)
        });
        glance
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Runs lines of Python with the library of that client. They know `images`.
    fn python(&self, lines: &str) -> String {
        let script = format!(
            "import json, sys\nfrom glanceclient.v2.client import Client\n\
             images = Client(endpoint=sys.argv[1], token='none').images\n{lines}"
        );
        // Debian's own: the library is one of its packages.
        tool("/usr/bin/python3", &["-c", &script, &self.url])
    }

    /// The names and states of all images.
    pub fn images(&self) -> Vec<(String, String)> {
        let text = self.python("print(json.dumps({'images': [dict(image) for image in images.list()]}))");
        let page: Value = serde_json::from_str(&text).unwrap();
        let images = page["images"].as_array().unwrap().iter();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        images
            .map(|image| (text(&image["name"]), text(&image["status"])))
            .collect()
    }
}

impl Drop for Glance {
    fn drop(&mut self) {
        // Its workers end with it.
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

fn publish(kiln: &Kiln, url: &str, image: &Path, options: &[&str]) -> Ran {
    let mut command = kiln.command(["publish"]);
    command.arg(image).arg("glance:tiny").args(options);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("OS_") {
            command.env_remove(name);
        }
    }
    command.env("OS_AUTH_TYPE", "none").env("OS_IMAGE_URL", url);
    support::run(command)
}

#[test]
fn an_image_is_published_once_and_read_by_glances_own_client() {
    needs!(no_glance(), no_disks());
    let (glance, kiln) = (Glance::start(), Kiln::bare());
    // An earlier attempt was killed.
    glance.python("images.create(name='tiny', disk_format='qcow2', container_format='bare', kiln_disk='x')");
    assert_eq!(glance.images(), [("tiny".to_owned(), "queued".to_owned())]);
    // What the root says of itself, unless the user says otherwise.
    let properties = ["--property", "os_version=12"];
    let ran = publish(&kiln, &glance.url, &tiny(HOST), &properties);
    let said = ran.ok();
    assert!(said.stderr.contains("removed 1 unfinished images"), "{}", said.stderr);
    let line = said.stdout.lines().find(|line| line.starts_with("glance ")).unwrap();
    let id = line.split_whitespace().nth(1).unwrap().to_owned();
    let shown = glance.python(&format!("print(json.dumps(dict(images.get('{id}'))))"));
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let machine = if HOST == "aarch64" { "virt" } else { "q35" };
    for (name, value) in [
        ("name", "tiny"),
        ("status", "active"),
        ("disk_format", "qcow2"),
        ("architecture", HOST),
        ("hw_firmware_type", "uefi"),
        ("hw_machine_type", machine),
        ("os_distro", "tiny"),
        ("os_version", "12"),
    ] {
        assert_eq!(shown[name], value, "{shown}");
    }
    // What is in Glance is the disk that `export` writes.
    let (exported, stored) = (kiln.data().join("disk.qcow2"), kiln.data().join("stored"));
    let mut command = kiln.command(["export", "disk"]);
    command.arg(tiny(HOST)).arg(&exported);
    support::run(command).ok();
    glance.python(&format!(
        "with open('{}', 'wb') as file:\n    for piece in images.data('{id}'):\n        file.write(piece)",
        stored.display()
    ));
    assert!(
        fs_err::read(exported).unwrap() == fs_err::read(stored).unwrap(),
        "Glance has another disk"
    );
    // Once more: nothing is sent.
    let again = publish(&kiln, &glance.url, &tiny(HOST), &properties);
    let again = again.ok().stdout;
    assert!(again.contains(&format!("{id} tiny (was there)")), "{again}");
    // Too large: the raw form is larger than the cap. The refused image does not stay.
    let refused = publish(&kiln, &glance.url, &tiny(HOST), &["--type", "raw"]);
    assert!(refused.failed().contains("413"), "{}", refused.stderr);
    assert_eq!(glance.images(), [("tiny".to_owned(), "active".to_owned())]);
    let left: Vec<_> = fs_err::read_dir(kiln.data())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(
        !left.iter().any(|name| name.to_string_lossy().starts_with("publish-")),
        "{left:?}"
    );
}

#[test]
fn what_glance_refuses_or_garbles_leaves_no_image() {
    needs!(no_disks());
    let kiln = Kiln::bare();
    let image = |status: &str| json!({ "id": "abc", "status": status, "checksum": "00", "os_hash_algo": "sha512", "os_hash_value": "00" });
    let server = FakeServer::start(move |asked| match (asked.method.as_str(), asked.target.as_str()) {
        ("GET", target) if target.starts_with("/v2/images?") => Answer::json(200, &json!({ "images": [] })),
        ("POST", "/v2/images") => Answer::json(201, &image("queued")),
        ("GET", "/v2/images/abc") => Answer::json(200, &image("active")),
        _ => Answer::empty(),
    });
    let said = publish(&kiln, &server.url(), &tiny(HOST), &[]).failed();
    assert!(
        said.starts_with("Glance has stored other bytes than were sent"),
        "{said}"
    );
    let last = server.take().pop().unwrap();
    assert_eq!(last.line(), "DELETE /v2/images/abc");
    for (status, expected) in [
        (401, "OpenStack answers 401 Unauthorized: no \\u{1b}[31m"),
        (500, "OpenStack answers 500"),
    ] {
        let server = FakeServer::start(move |_| Answer {
            status,
            headers: Vec::new(),
            body: b"<html><b>no \x1b[31m".to_vec(),
        });
        let said = publish(&kiln, &server.url(), &tiny(HOST), &[]).failed();
        assert!(said.starts_with(expected), "{said}");
    }
    let said = publish(&kiln, "http://127.0.0.1:9", &tiny(HOST), &[]).failed();
    assert!(said.starts_with("127.0.0.1 cannot be reached"), "{said}");
}

#[test]
fn destinations_and_logins_are_checked_first() {
    let kiln = Kiln::bare();
    let mut command = kiln.command(["publish", "nothing", "glance:x"]);
    command
        .env_remove("OS_AUTH_URL")
        .env_remove("OS_AUTH_TYPE")
        .env_remove("OS_TOKEN");
    assert_eq!(support::run(command).failed(), "OS_AUTH_URL is not set");
    let ran = support::run(kiln.command(["publish", "nothing", "docker:x"]));
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
}
