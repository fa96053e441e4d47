//! A server, an image to change, and a user with a key.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{
        LazyLock,
        atomic::{AtomicU16, Ordering},
    },
};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{self, HOST, Kiln, PATIENCE, Ran, serve::Server, tool, wait::try_within};

/// Ports for the shells of one server each.
const PORTS: u16 = 20;

pub struct Site {
    pub server: Server,
    /// The user's home.
    pub home: TempDir,
    /// The image to start from.
    pub image: String,
    variables: Vec<(String, String)>,
}

/// Directories left out of the image: they are large and not needed.
const LEFT_OUT: [&str; 12] = [
    "boot",
    "opt",
    "proc",
    "sys",
    "dev",
    "run",
    "var/lib/apt",
    "var/cache",
    "usr/share",
    "usr/libexec",
    "usr/lib/git-core",
    "usr/lib/dracut",
];

/// A root of this machine's architecture as an image has it, with everything that can get lost on the way.
pub fn rootfs() -> &'static Path {
    static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("customize");
        fs_err::create_dir_all(&dir).unwrap();
        let fresh = tempfile::tempdir_in(&dir).unwrap();
        let (root, file) = (fresh.path().join("root"), fresh.path().join("rootfs.squashfs"));
        furnish(&root);
        let mut command = Command::new("mksquashfs");
        command.arg(&root).arg(&file);
        command.args("-noappend -quiet -no-progress -xattrs -all-root -comp zstd -Xcompression-level 1".split(' '));
        for definition in [
            "dev/null c 666 0 0 1 3",
            "dev/sda b 660 0 6 8 0",
            "etc/of-somebody f 640 1000 1001 echo theirs",
        ] {
            command.args(["-p", definition]);
        }
        support::succeed(&mut command);
        let kept = dir.join("rootfs.squashfs");
        fs_err::rename(file, &kept).unwrap();
        kept
    });
    &FILE
}

fn furnish(root: &Path) {
    let at = |path: &str| root.join(path);
    // Copies: other tests read the toolbox meanwhile.
    let excluded: Vec<String> = LEFT_OUT.iter().map(|path| format!("--exclude=/{path}")).collect();
    let from = format!("{}/", support::toolbox_tree().display());
    let excluded: Vec<&str> = excluded.iter().map(String::as_str).collect();
    tool(
        "rsync",
        &[
            &["-aHX"],
            &excluded[..],
            &["--exclude=/usr/bin/qemu-*", &from, root.to_str().unwrap()],
        ]
        .concat(),
    );
    for path in ["boot", "proc", "sys", "dev", "run"] {
        fs_err::create_dir(at(path)).unwrap();
    }
    fs_err::remove_file(at("etc/resolv.conf")).unwrap();
    std::os::unix::fs::symlink("../run/systemd/resolve/stub-resolv.conf", at("etc/resolv.conf")).unwrap();
    nix::unistd::mkfifo(&at("etc/pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (name, mode) in [("etc/able", 0o755), ("etc/set-id", 0o4755)] {
        fs_err::write(at(name), name).unwrap();
        fs_err::set_permissions(at(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }
    fs_err::hard_link(at("etc/able"), at("etc/also-able")).unwrap();
    // cap_net_raw, effective and permitted.
    let mut capability = [0; 20];
    (capability[0], capability[3], capability[5]) = (1, 2, 0x20);
    xattr::set(at("etc/able"), "security.capability", &capability).unwrap();
    xattr::set(at("etc/able"), "user.note", b"kept").unwrap();
    // Lists of files show times by the minute; later changes must be visible all the same.
    for dir in ["etc", "root", "tmp"] {
        tool("touch", &["--date=2020-02-02", at(dir).to_str().unwrap()]);
    }
}

impl Site {
    /// With that image, in sandboxes of namespaces.
    pub fn start(variables: &[(&str, &str)]) -> Self {
        let mut site = Self::empty(variables);
        site.image = site.upload(rootfs(), HOST);
        site
    }

    /// Without any image.
    pub fn empty(variables: &[(&str, &str)]) -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let first = 30_000 + u16::try_from(std::process::id() % 400).unwrap() * 70;
        let first = first.saturating_add(NEXT.fetch_add(PORTS, Ordering::Relaxed));
        let mut all = vec![
            (
                "KILN__SHELL__PORTS".to_owned(),
                format!("{first}-{}", first + PORTS - 1),
            ),
            ("KILN__JOBS__ENABLE_DKMS".to_owned(), "false".to_owned()),
            ("KILN__ISOLATION__FOREIGN".to_owned(), "namespace".to_owned()),
            ("KILN__WATCH__KEEP_FAILED".to_owned(), "0s".to_owned()),
            // Small images need little, and tests run side by side.
            ("KILN__CAPACITY__FIRST_DISK".to_owned(), "1GiB".to_owned()),
            // Sandboxes that outlive a server find the next one where it was.
            ("KILN__SERVER__LISTEN".to_owned(), free_address()),
            ("KILN__EMBEDDED_S3__LISTEN".to_owned(), free_address()),
        ];
        all.extend(
            variables
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        let server = start(Kiln::new(), &all);
        let home = tempfile::Builder::new().prefix("kiln-home-").tempdir().unwrap();
        fs_err::create_dir(home.path().join(".ssh")).unwrap();
        for name in ["id_ed25519", "other"] {
            let path = home.path().join(".ssh").join(name);
            tool(
                "ssh-keygen",
                &["-q", "-t", "ed25519", "-N", "", "-f", path.to_str().unwrap()],
            );
        }
        let site = Self {
            server,
            home,
            image: String::new(),
            variables: all,
        };
        let key = site.key_file("id_ed25519.pub");
        site.json(&["public-keys", "create", "--name", "me", "--public-key", &key]);
        site
    }

    /// Kills the server, and starts it again where it was.
    pub fn crash(self) -> Self {
        let Self { server, variables, .. } = self;
        server.started.signal(nix::sys::signal::Signal::SIGKILL);
        server.started.end();
        Self {
            server: start(server.kiln, &variables),
            variables,
            home: self.home,
            image: self.image,
        }
    }

    pub fn key_file(&self, name: &str) -> String {
        self.home.path().join(".ssh").join(name).display().to_string()
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.server.command(args);
        command.env("HOME", self.home.path());
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        support::run(self.command(args))
    }

    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        self.server.json(args)
    }

    pub fn upload(&self, rootfs: &Path, arch: &str) -> String {
        let dir = self.home.path().join(format!("image-{arch}"));
        fs_err::create_dir_all(&dir).unwrap();
        fs_err::copy(rootfs, dir.join("rootfs.squashfs")).unwrap();
        let dir = dir.display().to_string();
        self.server
            .make(&["images", "create", "--name", "base", "--arch", arch, "--from", &dir])
    }

    /// Makes a customize job. Returns its id.
    pub fn customize(&self, more: &[&str]) -> String {
        self.server.make(
            &[
                &[
                    "jobs",
                    "create",
                    "--job-type",
                    "customize",
                    "--artifact-id",
                    &self.image,
                    "--public-key-id",
                    "me",
                    "--image-root-archive-name",
                    "changed",
                ],
                more,
            ]
            .concat(),
        )
    }

    pub fn record(&self, job: &str) -> Value {
        self.json(&["jobs", "describe", job])
    }

    pub fn status(&self, job: &str) -> Value {
        self.json(&["jobs", "status", job])
    }

    pub fn log(&self, job: &str) -> String {
        self.run(&["jobs", "logs", job]).ok().stdout
    }

    #[track_caller]
    pub fn wait(&self, job: &str, mut is_so: impl FnMut(&Value) -> bool) -> Value {
        let outcome = try_within(PATIENCE, || {
            let status = self.status(job);
            if is_so(&status) { Ok(status) } else { Err(status) }
        });
        outcome.unwrap_or_else(|status| panic!("{status}\n{}", self.log(job)))
    }

    /// Waits until the shell can be logged in to.
    #[track_caller]
    pub fn open(&self, job: &str) -> Shell {
        let status = self.wait(job, |status| {
            assert!(status["error"].is_null(), "{status:#}\n{}", self.log(job));
            status["shell"]["status"] == "ready"
        });
        Shell::of(self, &status["shell"])
    }

    /// Waits until everything of the job is cleared away.
    #[track_caller]
    pub fn end(&self, job: &str) -> Value {
        self.wait(job, |status| status["log"].is_string())
    }

    /// Waits for its end without an image. Returns the code of the failure.
    #[track_caller]
    pub fn failed(&self, job: &str) -> String {
        let status = self.end(job);
        assert_eq!(status["state"], "error", "{status:#}\n{}", self.log(job));
        let record = self.record(job);
        assert_eq!(
            (&record["status"], &record["resultant_image_id"]),
            (&"error".into(), &Value::Null)
        );
        status["error"]["code"].as_str().unwrap().to_owned()
    }

    /// Waits for its image. Returns the image's record and its root file system.
    #[track_caller]
    pub fn succeeded(&self, job: &str) -> (Value, PathBuf) {
        let status = self.end(job);
        assert_eq!(status["state"], "success", "{status:#}\n{}", self.log(job));
        let image = self.record(job)["resultant_image_id"].as_str().unwrap().to_owned();
        (
            self.json(&["images", "describe", &image]),
            self.object(&format!("{image}/rootfs")),
        )
    }

    /// The files in which the embedded S3 service keeps an object of an image. An object that was uploaded through the
    /// API has a random part in its key.
    pub fn pieces(&self, key: &str) -> Vec<PathBuf> {
        let script = "import sqlite3, sys\n\
            base = sqlite3.connect(sys.argv[1])\n\
            select = 'select body from piece join object on id = object where key = ? or cast(key as text) like ? order by ordinal'\n\
            key = sys.argv[2]\n\
            uploaded = key.replace('/', '/%/')\n\
            for row in base.execute(select, [key.encode(), uploaded]): print(row[0])\n";
        let s3 = self.server.kiln.data().join("s3");
        let database = s3.join("names.sqlite");
        let bodies = tool("python3", &["-c", script, database.to_str().unwrap(), key]);
        bodies.lines().map(|body| s3.join("bodies").join(body)).collect()
    }

    /// A copy of an object of an image.
    pub fn object(&self, key: &str) -> PathBuf {
        let copy = self.home.path().join(key.replace('/', "-"));
        let pieces = self.pieces(key);
        assert!(!pieces.is_empty(), "there is no {key}");
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| fs_err::read(piece).unwrap()).collect();
        fs_err::write(&copy, bytes).unwrap();
        copy
    }

    /// Stops the server; nothing is left behind.
    #[track_caller]
    pub fn stop(self) {
        self.server.stop();
    }
}

fn start(kiln: Kiln, variables: &[(String, String)]) -> Server {
    let variables: Vec<_> = variables
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    Server::start_in(kiln, &variables)
}

fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// How a job's shell is reached.
#[derive(Debug, Clone)]
pub struct Shell {
    pub host: String,
    pub port: u16,
    options: Vec<String>,
}

impl Shell {
    fn of(site: &Site, shell: &Value) -> Self {
        let host = shell["host"].as_str().unwrap().to_owned();
        let port = u16::try_from(shell["port"].as_u64().unwrap()).unwrap();
        let known = site.home.path().join(format!("known-{port}"));
        let line = format!("[{host}]:{port} {}\n", shell["host_key"].as_str().unwrap());
        fs_err::write(&known, line).unwrap();
        let options = [
            "BatchMode=yes".to_owned(),
            "StrictHostKeyChecking=yes".to_owned(),
            "IdentitiesOnly=yes".to_owned(),
            format!("UserKnownHostsFile={}", known.display()),
            "GlobalKnownHostsFile=/dev/null".to_owned(),
            format!("IdentityFile={}", site.key_file("id_ed25519")),
        ];
        let options = options
            .into_iter()
            .flat_map(|option| ["-o".to_owned(), option])
            .collect();
        Self { host, port, options }
    }

    /// The same with another of the user's keys.
    pub fn with_key(&self, path: &str) -> Self {
        let mut other = self.clone();
        *other.options.last_mut().unwrap() = format!("IdentityFile={path}");
        other
    }

    pub fn options(&self) -> &[String] {
        &self.options
    }

    pub fn ssh(&self, more: &[&str]) -> Command {
        let mut command = Command::new("ssh");
        command
            .args(&self.options)
            .args(["-p", &self.port.to_string()])
            .args(more);
        command
    }

    fn target(&self) -> String {
        format!("root@{}", self.host)
    }

    pub fn try_run(&self, script: &str) -> Output {
        let target = self.target();
        self.ssh(&[&target, script]).stdin(Stdio::null()).output().unwrap()
    }

    /// Has sftp carry out its commands.
    #[track_caller]
    pub fn sftp(&self, commands: &str) {
        let batch = tempfile::NamedTempFile::new().unwrap();
        fs_err::write(batch.path(), commands).unwrap();
        let mut command = Command::new("sftp");
        command.args(&self.options).args(["-P", &self.port.to_string(), "-b"]);
        support::succeed(command.arg(batch.path()).arg(self.target()));
    }

    /// The output of a command that succeeds.
    #[track_caller]
    pub fn run(&self, script: &str) -> String {
        let output = self.try_run(script);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{script}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        said
    }
}

/// Every entry of a squashfs as `unsquashfs` lists it: type, mode, owner, size or device, time, target of a link.
pub fn listing(image: &Path) -> BTreeMap<String, String> {
    let text = tool("unsquashfs", &["-d", "", "-lln", "-UTC", image.to_str().unwrap()]);
    let entry = |line: &str| {
        let place = line.find(" /")?;
        let path = line[place + 1..].split(" -> ").next()?;
        let mut words: Vec<&str> = line.split_whitespace().collect();
        if line.starts_with('d') {
            // A directory's size depends on its storage, not on its content.
            words.remove(2);
        }
        Some((path.to_owned(), words.join(" ")))
    };
    text.lines().filter_map(entry).collect()
}

/// Paths that two squashfs do not have in common, by type, mode, owner, size, time, content, links and attributes.
pub fn changed(before: &Path, after: &Path) -> BTreeSet<String> {
    let (old, new) = (listing(before), listing(after));
    let paths: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let mut differing: BTreeSet<String> = paths
        .into_iter()
        .filter(|path| old.get(*path) != new.get(*path))
        .cloned()
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let [before, after] = [before, after].map(|image| {
        let into = dir
            .path()
            .join(image.file_name().unwrap())
            .join(differing.len().to_string());
        let into = if into.exists() { into.join("other") } else { into };
        fs_err::create_dir_all(into.parent().unwrap()).unwrap();
        tool(
            "unsquashfs",
            &[
                "-quiet",
                "-no-progress",
                "-d",
                into.to_str().unwrap(),
                image.to_str().unwrap(),
            ],
        );
        kiln_agent::verify::tree::read(&into).unwrap()
    });
    for (path, node) in &before {
        if after.get(path) != Some(node) {
            differing.insert(path.display().to_string());
        }
    }
    differing
}

pub fn paths(paths: &[&str]) -> BTreeSet<String> {
    paths.iter().map(|path| (*path).to_owned()).collect()
}
