//! What several tests need: a small image, ways to a registry, and Debian's registry as a process of the test's own.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, Once},
    time::Duration,
};

use bytes::Bytes;
use kiln_records::arch::Arch;
use kiln_registry::{
    Access, Notes, Patience,
    credentials::Login,
    digest::Digest,
    publish::{Artifact, Image},
    source::FileSource,
};
use tempfile::TempDir;

pub fn start() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    });
}

/// Plain HTTP, and little patience.
pub fn access() -> Access {
    start();
    Access {
        insecure: true,
        patience: Patience {
            connect: Duration::from_secs(5),
            idle: Duration::from_millis(700),
            finish: Duration::from_secs(10),
            asked: Duration::from_secs(2),
            pause: Duration::from_millis(20),
            tries: 5,
        },
        ..Access::default()
    }
}

/// Keeps what is said.
pub fn notes() -> (Notes, Arc<Mutex<Vec<String>>>) {
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let keep = Arc::clone(&said);
    (
        Arc::new(move |line: &str| keep.lock().unwrap().push(line.to_owned())),
        said,
    )
}

pub fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Makes a root for the host, with everything that is easily lost, and its squashfs. Returns both paths.
pub fn root(dir: &Path) -> (PathBuf, PathBuf) {
    let root = dir.join("root");
    let script = r#"
        set -eu
        mkdir -p "$1/bin" "$1/etc" "$1/dev" "$1/name with spaces"
        cp /bin/bash "$1/bin/bash"; ln -s bash "$1/bin/sh"
        # The libraries are not needed: only the loader is looked for.
        loader=$(readelf -p .interp /bin/bash | grep -o '/[^ ]*ld[^ ]*' | tail -1)
        mkdir -p "$1/$(dirname "$loader")"; cp -L "$loader" "$1/$loader"
        mknod "$1/dev/null" c 1 3; mknod "$1/dev/loop0" b 7 0; mkfifo "$1/dev/fifo"
        printf hi > "$1/etc/x"; ln "$1/etc/x" "$1/etc/y"; chown 7:8 "$1/etc/x"; chmod 2640 "$1/etc/x"
        setfattr -n user.note -v text "$1/etc/x"
        cp /bin/true "$1/bin/ping"; setcap cap_net_raw+ep "$1/bin/ping"
        chmod 4755 "$1/bin/bash"; chown 3:4 "$1"; chmod 750 "$1"
        head -c 3000000 /dev/urandom > "$1/name with spaces/data"
        truncate -s 1M "$1/holes"
        mksquashfs "$1" "$2" -noappend -quiet -no-progress -comp zstd
    "#;
    let squashfs = dir.join("rootfs");
    run(
        "sh",
        &["-c", script, "sh", root.to_str().unwrap(), squashfs.to_str().unwrap()],
    );
    (root, squashfs)
}

/// The kind of the document about an image.
pub const SPDX: &str = "application/spdx+json";

pub fn image(squashfs: &Path, arch: Arch) -> Image {
    let blob = |name: &str, content: &'static [u8]| Artifact {
        name: name.to_owned(),
        media_type: format!("application/vnd.cray.image.{name}"),
        digest: Some(Digest::of(content)),
        size: Some(content.len() as u64),
        source: Arc::new(Bytes::from_static(content)),
    };
    // Neither its digest nor its size is known before it is read.
    let document = Artifact {
        name: "sbom.spdx.json".to_owned(),
        media_type: SPDX.to_owned(),
        digest: None,
        size: None,
        source: Arc::new(Bytes::from_static(br#"{"spdxVersion": "SPDX-2.3"}"#)),
    };
    Image {
        container: None,
        name: "compute".to_owned(),
        arch,
        created: "2026-01-02T03:04:05Z".to_owned(),
        manifest: Digest::of(b"manifest"),
        rootfs: Artifact {
            name: "rootfs".to_owned(),
            media_type: "application/vnd.cray.image.rootfs.squashfs".to_owned(),
            digest: None,
            size: None,
            source: Arc::new(FileSource(squashfs.to_owned())),
        },
        boot: vec![blob("kernel", b"the kernel"), blob("initrd", b"the initrd")],
        documents: vec![document],
    }
}

pub fn host() -> Arch {
    std::env::consts::ARCH.parse().unwrap()
}

/// Debian's registry, with TLS and one account.
pub struct Registry {
    pub dir: TempDir,
    pub port: u16,
    child: Child,
}

impl Registry {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let key = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        fs_err::write(dir.path().join("cert.pem"), key.cert.pem()).unwrap();
        fs_err::write(dir.path().join("key.pem"), key.signing_key.serialize_pem()).unwrap();
        let accounts = run("htpasswd", &["-nbB", "me", "pass word"]);
        fs_err::write(dir.path().join("htpasswd"), accounts).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let at = dir.path().display();
        let text = format!(
            "version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\nstorage: {{filesystem: {{rootdirectory: \
             {at}/store}}}}\nauth: {{htpasswd: {{realm: test, path: {at}/htpasswd}}}}\nhttp: {{addr: '127.0.0.1:{port}', \
             secret: kept, tls: {{certificate: {at}/cert.pem, key: {at}/key.pem}}}}\n"
        );
        fs_err::write(dir.path().join("config.yml"), text).unwrap();
        let child = spawn(dir.path(), port);
        Self { dir, port, child }
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn restart(&mut self) {
        self.child = spawn(self.dir.path(), self.port);
    }

    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn access(&self) -> Access {
        Access {
            insecure: false,
            authorities: Some(self.dir.path().join("cert.pem")),
            login: Some(Login::Password {
                user: "me".to_owned(),
                password: "pass word".to_owned(),
            }),
            patience: Patience {
                idle: Duration::from_secs(30),
                pause: Duration::from_millis(200),
                tries: 8,
                ..access().patience
            },
            ..access()
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(dir: &Path, port: u16) -> Child {
    let log = fs_err::File::create(dir.join("log")).unwrap().into_parts().0;
    let mut child = Command::new("docker-registry")
        .arg("serve")
        .arg(dir.join("config.yml"))
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    for _ in 0..12_000 {
        if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return child;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = child.kill();
    let _ = child.wait();
    panic!("{}", fs_err::read_to_string(dir.join("log")).unwrap());
}

/// Why the real registry cannot be had, if so.
pub fn lacks() -> Option<String> {
    let is_root = rustix::process::geteuid().is_root();
    let there = |program: &str| {
        Command::new("sh")
            .args(["-c", &format!("command -v {program}")])
            .output()
            .unwrap()
            .status
            .success()
    };
    let missing = [
        "docker-registry",
        "skopeo",
        "htpasswd",
        "sqfs2tar",
        "mksquashfs",
        "setcap",
        "setfattr",
        "readelf",
    ];
    match missing.into_iter().find(|program| !there(program)) {
        Some(program) => Some(format!("{program} is not installed: `.ci/install-packages test`")),
        None if !is_root => Some("device nodes need root".to_owned()),
        None => None,
    }
}
