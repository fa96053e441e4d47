//! `kiln images files`: lists and reads what is in the roots of images in S3, of which it reads a little only.

use std::{
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use rand::Rng;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    Kiln, Ran,
    fake_server::{Answer, FakeServer},
    run,
    serve::Server,
    server::NOBODY,
    tool,
};

/// Bytes of the file that makes the root large.
const BIG: usize = 20 << 20;

/// A root to pack, and the directories with the files of images.
struct Site {
    dir: TempDir,
    server: Server,
}

impl Site {
    fn new() -> Self {
        let site = Self {
            dir: tempfile::tempdir().unwrap(),
            server: Server::start(&[("KILN__JOBS__RUN", "false")]),
        };
        let root = site.dir.path().join("root");
        for dir in ["etc/ssh", "usr/bin", "var"] {
            fs_err::create_dir_all(root.join(dir)).unwrap();
        }
        let mut big = vec![0; BIG];
        rand::rng().fill_bytes(&mut big);
        fs_err::write(root.join("usr/big"), big).unwrap();
        fs_err::write(root.join("etc/os-release"), "ID=kiln\n").unwrap();
        fs_err::write(root.join("usr/bin/tool"), "#!/bin/sh\n").unwrap();
        fs_err::set_permissions(root.join("usr/bin/tool"), PermissionsExt::from_mode(0o4755)).unwrap();
        fs_err::write(root.join("var/a\u{1b}[31m\u{202e}b"), "").unwrap();
        symlink("usr/bin", root.join("bin")).unwrap();
        symlink("../../../../etc/os-release", root.join("usr/release")).unwrap();
        symlink("/etc/shadow", root.join("etc/ssh/key")).unwrap();
        let (root, packed) = (site.path("root"), site.path("packed"));
        tool(
            "mksquashfs",
            &[&root, &packed, "-quiet", "-noappend", "-all-root", "-comp", "zstd"],
        );
        site
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn out(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes an image whose root has these bytes.
    fn image(&self, name: &str, rootfs: &[u8]) {
        let files = self.out(&format!("files-{name}"));
        fs_err::create_dir(&files).unwrap();
        fs_err::write(files.join("rootfs"), rootfs).unwrap();
        let from = files.to_str().unwrap();
        self.server
            .make(&["images", "create", "--name", name, "--arch", "x86_64", "--from", from]);
    }

    fn packed(&self) -> Vec<u8> {
        fs_err::read(self.path("packed")).unwrap()
    }

    fn files(&self, args: &[&str]) -> Ran {
        self.server.run(&[&["images", "files"], args].concat())
    }

    fn list(&self, args: &[&str]) -> Vec<Value> {
        let list = self.server.json(&[&["images", "files"], args].concat());
        list.as_array().unwrap().clone()
    }

    /// The code of the failure of a command.
    fn refused(&self, args: &[&str], says: &str) {
        let ran = self.files(args);
        let error = ran.failed();
        assert!(error.contains(says), "{error}");
        assert_eq!(ran.stdout, "");
    }

    /// Bytes that the server has read of its files so far.
    fn read(&self) -> u64 {
        let io = fs_err::read_to_string(format!("/proc/{}/io", self.server.started.pid())).unwrap();
        let line = io.lines().find_map(|line| line.strip_prefix("rchar: "));
        line.unwrap().parse().unwrap()
    }
}

fn paths(list: &[Value]) -> Vec<&str> {
    list.iter().map(|file| file["path"].as_str().unwrap()).collect()
}

fn column(ran: Ran, name: &str) -> Vec<String> {
    let ran = ran.ok();
    let (heading, rows) = ran.stdout.split_once('\n').unwrap();
    let at = heading.find(name).unwrap();
    let word = |line: &str| line.get(at..).unwrap_or_default().split(' ').next().unwrap().to_owned();
    rows.lines().map(word).collect()
}

#[test]
fn the_files_of_an_image_are_listed_and_read_without_its_download() {
    let site = Site::new();
    site.image("compute", &site.packed());
    let before = site.read();

    assert_eq!(paths(&site.list(&["compute"])), ["/bin", "/etc", "/usr", "/var"]);
    let usr = site.list(&["compute", "/usr"]);
    assert_eq!(paths(&usr), ["/usr/big", "/usr/bin", "/usr/release"]);
    assert_eq!((&usr[0]["size"], &usr[0]["owner"]), (&BIG.into(), &"0:0".into()));
    assert_eq!(usr[2]["target"], "../../../../etc/os-release");
    let tool = &site.list(&["compute", "bin/tool"])[0];
    assert_eq!(
        (&tool["path"], &tool["mode"]),
        (&"/usr/bin/tool".into(), &"-rwsr-xr-x".into())
    );
    let time = tool["time"].as_str().unwrap();
    assert!(
        time.starts_with("20") && time.len() == "2026-11-20T13:53:42+00:00".len(),
        "{time}"
    );
    // A link is shown itself, and what is behind it with a slash.
    assert_eq!(site.list(&["compute", "bin"])[0]["mode"], "lrwxrwxrwx");
    assert_eq!(paths(&site.list(&["compute", "bin/"])), ["/usr/bin/tool"]);
    let all = site.list(&["compute", "-r"]);
    assert_eq!(all.len(), 12);
    // People see names that steer no terminal; programs see them as they are.
    assert_eq!(
        column(site.files(&["compute", "var"]), "PATH"),
        ["/var/a\\u{1b}[31m\\u{202e}b"]
    );
    assert_eq!(site.list(&["compute", "var"])[0]["path"], "/var/a\u{1b}[31m\u{202e}b");
    assert_eq!(column(site.files(&["compute", "/etc/ssh/"]), "TARGET"), ["/etc/shadow"]);

    let to = site.path("os-release");
    let ran = site.files(&["compute", "usr/release", "--output", &to]).ok();
    assert_eq!(ran.stdout.trim(), to);
    assert_eq!(fs_err::read_to_string(&to).unwrap(), "ID=kiln\n");
    assert_eq!(
        site.files(&["compute", "/etc/os-release", "--output", "-"]).ok().stdout,
        "ID=kiln\n"
    );

    // All of this was less than half of what one download is.
    let some = site.read() - before;
    assert!(some < BIG as u64 / 2, "{some} bytes were read");
    let big = site.path("big");
    site.files(&["compute", "/usr/big", "--output", &big]).ok();
    assert!(fs_err::read(&big).unwrap() == fs_err::read(site.out("root/usr/big")).unwrap());
    let whole = site.read() - before - some;
    assert!(whole > BIG as u64, "{whole} bytes were read");
}

#[test]
fn what_cannot_be_listed_or_read_is_said() {
    let site = Site::new();
    let packed = site.packed();
    site.image("compute", &packed);
    site.refused(&["compute", "/etc/nothing"], "there is no /etc/nothing");
    site.refused(&["compute", "/etc/os-release/x"], "/etc/os-release is not a directory");
    // The link leads to the image's own file, which is not there, and not to this machine's.
    site.refused(&["compute", "/etc/ssh/key", "--output", "-"], "there is no /etc/shadow");
    let to = site.path("out");
    let ran = site.files(&["compute", "/etc", "--output", &to]);
    assert_eq!(ran.code, Some(2), "{}", ran.last());
    assert!(
        ran.stderr.contains("/etc is a directory, not a regular file"),
        "{}",
        ran.stderr
    );
    fs_err::write(&to, "mine").unwrap();
    site.refused(&["compute", "/etc/os-release", "--output", &to], "exists already");
    assert_eq!(fs_err::read_to_string(&to).unwrap(), "mine");
    assert_eq!(site.files(&["nobody"]).code, Some(2));

    site.image("nonsense", &vec![b'x'; 5000]);
    site.refused(&["nonsense"], "does not begin like a squashfs");
    site.image("truncated", &packed[..packed.len() / 2]);
    site.refused(&["truncated"], "its tables do not lie in it");
    // The content of the big file is stored as it is: only its digest would tell. A table is packed, and checked.
    let mut bad = packed.clone();
    bad[BIG / 2..][..1 << 20].fill(0xff);
    let inodes = usize::try_from(u64::from_le_bytes(packed[64..72].try_into().unwrap())).unwrap();
    let mut worse = packed.clone();
    worse[inodes + 2..][..20].fill(0xff);
    site.image("bad", &bad);
    site.image("worse", &worse);
    site.files(&["bad", "-r"]).ok();
    assert!(
        site.files(&["bad", "/usr/big", "--output", &site.path("none")])
            .ok()
            .stdout
            .ends_with("none\n")
    );
    site.refused(&["worse"], "damaged");
    assert!(!leftovers(&site.out("")));
}

/// Whether a temporary file was left.
fn leftovers(dir: &Path) -> bool {
    let mut names = fs_err::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.any(|name| name.to_string_lossy().starts_with(".tmp"))
}

#[test]
fn without_a_server_too_the_files_are_listed_and_a_lack_is_said() {
    let site = Site::new();
    let kiln = Kiln::bare();
    let files = site.out("files");
    fs_err::create_dir(&files).unwrap();
    fs_err::copy(site.path("packed"), files.join("rootfs")).unwrap();
    let from = files.to_str().unwrap();
    let local = |args: &[&str]| run(kiln.command([args, &["--server=local", "--format=json"]].concat()));
    local(&["images", "create", "--name=own", "--from", from]).ok();
    let listed = json(&local(&["images", "files", "own", "usr"]));
    assert_eq!(
        paths(listed.as_array().unwrap()),
        ["/usr/big", "/usr/bin", "/usr/release"]
    );

    local(&["images", "create", "--name=empty"]).ok();
    let ran = local(&["images", "files", "empty"]);
    assert!(ran.stderr.contains("no artifacts yet"), "{}", ran.stderr);

    // Kiln takes no manifest without a root. Another server may.
    let artifact =
        json!({"type": "application/vnd.cray.image.kernel", "path": "s3://b/k", "size": 1, "url": "http://x/"});
    let other = FakeServer::start(move |_| Answer::json(200, &json!({"artifacts": [artifact]})));
    let server = format!("--server={}", other.url());
    let ran = run(kiln.command(["images", "files", NOBODY, &server]));
    assert_eq!(ran.failed(), format!("the image `{NOBODY}` has no root file system"));
}

fn json(ran: &Ran) -> Value {
    assert_eq!(ran.code, Some(0), "{}", ran.last());
    serde_json::from_str(&ran.stdout).unwrap()
}
