//! Whole builds: recipes become images, for this CPU and for another, and are read with a client that is not ours.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        LazyLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use crate::support::{
    self, HOST, Kiln, Ran, Recipe, Started, foreign, host_binfmt, repository::Repository, squashfs, tool,
};
use md5::{Digest, Md5};
use serde_json::Value;
use sha2::Sha256;

/// Says what a host does with a program for another CPU: an x86_64 or aarch64 program of ours, its machine changed.
fn exec_foreign() -> std::io::Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let mut program = fs_err::read("/bin/true").unwrap();
    let machine: u16 = if foreign() == "aarch64" { 183 } else { 62 };
    program[18..20].copy_from_slice(&machine.to_le_bytes());
    let path = dir.path().join("true");
    fs_err::write(&path, program).unwrap();
    tool("chmod", &["755", path.to_str().unwrap()]);
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // `execv` itself, in a child: the C library's other forms would hand the file to a shell.
    let status = Command::new("python3")
        .args([
            "-c",
            "import os, sys\ntry: os.execv(sys.argv[1], ['true'])\nexcept OSError as e: sys.exit(e.errno)",
        ])
        .arg(path.to_str().unwrap())
        .status()?;
    match status.code() {
        Some(0) | None => Ok(()),
        Some(errno) => Err(std::io::Error::from_raw_os_error(errno)),
    }
}

/// Whether the host itself has an emulator registered; then it runs foreign programs and that is not our doing.
fn host_emulates() -> bool {
    host_binfmt().keys().any(|name| name.starts_with("qemu-"))
}

#[track_caller]
fn assert_host_runs_nothing_foreign() {
    if !host_emulates() {
        let error = exec_foreign().expect_err("the host ran a foreign program");
        assert_eq!(error.raw_os_error(), Some(nix::libc::ENOEXEC), "{error}");
    }
}

/// debian-minimal, built for both architectures by one command, and fetched with the AWS command line.
pub struct Both {
    pub kiln: Kiln,
    /// The public key of the site that built them.
    pub key: PathBuf,
    ran: Ran,
    pub images: BTreeMap<&'static str, Fetched>,
    /// How often the host was looked at while the build ran.
    looks: u32,
}

/// An image's objects as a client gets them.
pub struct Fetched {
    id: String,
    dir: PathBuf,
    manifest: Value,
    pub job: Value,
    /// The output of `head-object`, by file name.
    heads: BTreeMap<String, Value>,
}

impl Fetched {
    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn dir(&self) -> &PathBuf {
        &self.dir
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// What the recipe's script does first: it installs a package itself, and reports facts about the twins, one per line.
const SCRIPT: &str = r#"#!/bin/bash
set -eu
count() { ls /.kiln/bin 2>/dev/null | wc -l; }
before=$(count)
if touch /.kiln/bin/mine 2>/dev/null; then echo "fact writable"; fi
# kiwi's own sources are there until the end.
kiwi=/var/cache/kiwi/apt-get
apt-get -q -y -o "Dir::State=$kiwi" -o Dir::State::status=/var/lib/dpkg/status -o "Dir::Cache=$kiwi" \
    -o "Dir::Etc=$kiwi" install ed
# The agent looks several times a second.
for second in 1 2 3 4 5 6 7 8 9 10; do
    after=$(count)
    [ "$after" = "$before" ] && [ "$before" != 0 ] || break
    sleep 1
done
echo "fact grown $((after - before))"
printf 'a\nfact edited\n.\n,p\nQ\n' | ed -s
echo "fact machine $(uname -m)"
while read -r line; do echo "fact early: $line"; done < /etc/early
# The emulator runs od, and the last of the three starts of the loader for ldd.
emulated() { [ ! -e /.kiln/counts ] || od -An -t u8 -j 8 /.kiln/counts; }
before=$(emulated)
ldd /bin/bash > /dev/null
echo "fact emulated $(($(emulated) - before))"
"#;

/// A script that runs before most packages are there. Its shell computes what depends on the CPU, after it has written: the
/// twin ends, and the root is made once more, from the same repositories. Before that, perl computes a NaN in a handler of a
/// signal, in which no CPU raises another one, and ends there: only the tracer can see it.
const EARLY_SCRIPT: &str = r#"#!/bin/bash
set -eu
echo early > /etc/early
PERL_SIGNALS=unsafe perl -MPOSIX -e '
    $SIG{USR1} = sub { my $inf = 9 ** 9 ** 9; syswrite STDOUT, unpack("H*", pack("d", $inf - $inf)) . "\n"; POSIX::_exit(0) };
    kill USR1 => $$;
' >> /etc/early
printf '%.2f %a\n' 1.115 0.1 >> /etc/early
"#;

/// debian-minimal with these scripts before its own. Its images have their repositories configured, as images do that are
/// changed later.
fn recipe(dir: &Path) -> PathBuf {
    let own = fs_err::read_to_string(support::source_dir().join("recipes/debian-minimal/config.sh")).unwrap();
    let recipe = Recipe::copy_of("debian-minimal")
        .with_config("repository_gpgcheck=", "imageinclude=\"true\" repository_gpgcheck=")
        .with("post_bootstrap.sh", EARLY_SCRIPT)
        .with("config.sh", &(SCRIPT.to_owned() + &own));
    let named = dir.join("debian-minimal");
    tool("cp", &["-a", recipe.path(), named.to_str().unwrap()]);
    named
}

/// One for all tests of this program: it takes minutes.
pub fn both() -> &'static Both {
    static BOTH: LazyLock<Both> = LazyLock::new(build_both);
    &BOTH
}

fn build_both() -> Both {
    // Nothing drops it at the end, so it lies in cargo's directory, and the next run replaces it.
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kiln-test-both");
    let _ = fs_err::remove_dir_all(&dir);
    fs_err::create_dir_all(&dir).unwrap();
    let kiln = Kiln::at(&dir);
    kiln.link_toolboxes();

    let before = host_binfmt();
    assert_host_runs_nothing_foreign();
    let archs = format!("{HOST},{}", if foreign() == "aarch64" { "arm64" } else { "amd64" });
    let recipe = recipe(&dir);
    let (settings, key) = signing(&dir);
    let all = [
        "--config",
        settings.to_str().unwrap(),
        "build",
        "--verbose",
        recipe.to_str().unwrap(),
        "--arch",
        &archs,
        "--twins",
        "full",
    ];
    let build = kiln.start(all);
    let (over, looks) = (AtomicBool::new(false), AtomicU32::new(0));
    let ran = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                assert_eq!(host_binfmt(), before, "while a build runs");
                assert_host_runs_nothing_foreign();
                looks.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        let ran = build.end();
        over.store(true, Ordering::Relaxed);
        watch.join().unwrap();
        ran
    });
    assert_eq!(host_binfmt(), before);
    assert_host_runs_nothing_foreign();
    assert_eq!(ran.code, Some(0), "{}", ran.last());
    kiln.assert_clean();

    let client = Client::new(&kiln);
    let images = [HOST, foreign()].map(|arch| (arch, client.fetch(&kiln, arch, &dir.join(arch))));
    drop(client);
    Both {
        images: BTreeMap::from(images),
        looks: looks.into_inner(),
        key,
        kiln,
        ran,
    }
}

/// A configuration of a site that signs its images, and the public key.
fn signing(dir: &Path) -> (PathBuf, PathBuf) {
    let (settings, secret, key) = (dir.join("kiln.toml"), dir.join("signing.pem"), dir.join("signing.pub"));
    let secret = secret.to_str().unwrap();
    tool("openssl", &["genpkey", "-algorithm", "ed25519", "-out", secret]);
    tool(
        "openssl",
        &["pkey", "-in", secret, "-pubout", "-out", key.to_str().unwrap()],
    );
    fs_err::write(&settings, format!("[signing]\nkey_file = \"{secret}\"\n")).unwrap();
    (settings, key)
}

/// The AWS command line, pointed at `kiln artifacts serve`.
struct Client {
    _server: Started,
    endpoint: String,
    keys: Value,
}

impl Client {
    fn new(kiln: &Kiln) -> Self {
        let mut server = kiln.start(["artifacts", "serve", "--port", "0"]);
        let line = server.wait_for("export AWS_ENDPOINT_URL=");
        let keys = fs_err::read(kiln.data().join("s3/credentials.json")).unwrap();
        Self {
            _server: server,
            endpoint: line.split_once('=').unwrap().1.to_owned(),
            keys: serde_json::from_slice(&keys).unwrap(),
        }
    }

    fn aws(&self, args: &[&str]) -> String {
        let output = Command::new("aws")
            .args([
                "--endpoint-url",
                &self.endpoint,
                "--region",
                "us-east-1",
                "--output",
                "json",
            ])
            .args(args)
            .env("AWS_ACCESS_KEY_ID", self.keys["access_key"].as_str().unwrap())
            .env("AWS_SECRET_ACCESS_KEY", self.keys["secret_key"].as_str().unwrap())
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "aws {args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Everything of the image that was built for `arch`, and nothing but S3 is asked.
    fn fetch(&self, kiln: &Kiln, arch: &str, into: &Path) -> Fetched {
        let job = kiln.jobs().into_iter().find(|job| job["arch"] == arch).unwrap();
        let id = job["image"].as_str().unwrap().to_owned();
        self.aws(&[
            "s3",
            "cp",
            "--recursive",
            &format!("s3://boot-images/{id}/"),
            into.to_str().unwrap(),
        ]);
        let manifest = serde_json::from_slice(&fs_err::read(into.join("manifest.json")).unwrap()).unwrap();
        let head = |name: String| {
            let key = format!("{id}/{name}");
            let head = self.aws(&["s3api", "head-object", "--bucket", "boot-images", "--key", &key]);
            (name, serde_json::from_str(&head).unwrap())
        };
        let names = fs_err::read_dir(into)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let uploads = self.aws(&["s3api", "list-multipart-uploads", "--bucket", "boot-images"]);
        assert!(!uploads.contains("UploadId"), "{uploads}");
        Fetched {
            heads: names.map(head).collect(),
            dir: into.to_owned(),
            id,
            manifest,
            job,
        }
    }
}

fn md5_and_sha256(path: &Path) -> (String, String) {
    let content = fs_err::read(path).unwrap();
    (
        hex::encode(Md5::digest(&content)),
        hex::encode(Sha256::digest(&content)),
    )
}

/// Checks a manifest against IMS's format and against the objects themselves.
fn check_manifest(image: &Fetched, expected: &[(&str, &str)]) {
    let manifest = image.manifest.as_object().unwrap();
    assert_eq!(manifest["version"], "1.0");
    let created = manifest["created"].as_str().unwrap();
    assert!(
        jiff::civil::DateTime::strptime("%Y-%m-%d %H:%M:%S%.f", created).is_ok(),
        "{created}"
    );
    let names: Vec<_> = manifest.keys().map(String::as_str).collect();
    assert_eq!(names, ["arch", "artifacts", "created", "version"]);
    assert_eq!(manifest["arch"], image.job["arch"]);
    let artifacts = manifest["artifacts"].as_array().unwrap();
    assert_eq!(artifacts.len(), expected.len(), "{artifacts:#?}");
    for (name, media_type) in expected {
        let artifact = artifacts.iter().find(|artifact| artifact["type"] == *media_type);
        let artifact = artifact.unwrap_or_else(|| panic!("no {media_type}: {artifacts:#?}"));
        let (md5, sha256) = md5_and_sha256(&image.file(name));
        let head = &image.heads[*name];
        assert_eq!(artifact["link"]["type"], "s3");
        assert_eq!(
            artifact["link"]["path"],
            format!("s3://boot-images/{}/{name}", image.id)
        );
        assert_eq!(
            artifact["link"]["etag"],
            head["ETag"].as_str().unwrap().trim_matches('"')
        );
        assert_eq!(artifact["md5"], md5);
        assert_eq!(artifact["sha256"], sha256);
        assert_eq!(artifact["size"], head["ContentLength"]);
        assert_eq!(artifact["size"], fs_err::metadata(image.file(name)).unwrap().len());
    }
    assert_eq!(image.heads["manifest.json"]["ContentType"], "application/json");
}

const SPDX: (&str, &str) = ("sbom.spdx.json", "application/spdx+json");
const CYCLONEDX: (&str, &str) = ("sbom.cdx.json", "application/vnd.cyclonedx+json");
const ROOTFS: (&str, &str) = ("rootfs", "application/vnd.cray.image.rootfs.squashfs");
const KERNEL: (&str, &str) = ("kernel", "application/vnd.cray.image.kernel");
const INITRD: (&str, &str) = ("initrd", "application/vnd.cray.image.initrd");

#[test]
fn one_command_makes_an_image_per_architecture() {
    needs!(support::no_namespaces(), support::no_emulation());
    let both = both();
    assert_eq!(both.ran.values("image").len(), 2, "{}", both.ran.stdout);
    for (arch, image) in &both.images {
        assert!(
            both.ran.values("image").contains(&format!("{} ({arch})", image.id)),
            "{}",
            both.ran.stdout
        );
        assert_eq!(image.job["state"], "success");
        assert_eq!(image.job["name"], "debian-minimal");
        assert_eq!(image.job["how"], if *arch == HOST { "native" } else { "emulated" });
        check_manifest(image, &[ROOTFS, SPDX, CYCLONEDX]);
    }
    let listed = both.kiln.run(["artifacts", "list"]).ok().stdout;
    // Of each: three artifacts, the manifest, the log, and the provenance as it is and signed.
    assert_eq!(listed.lines().count(), 14, "{listed}");
}

#[test]
fn the_host_runs_foreign_programs_neither_before_nor_during_nor_after() {
    needs!(
        support::no_namespaces(),
        support::no_emulation(),
        host_emulates().then(|| "this host has emulators of its own, so it runs foreign programs".to_owned())
    );
    // The looking itself is in `build_both`.
    assert!(both().looks > 20, "{}", both().looks);
}

#[test]
fn owners_modes_and_capabilities_are_the_recipes() {
    needs!(support::no_namespaces(), support::no_emulation());
    for (arch, image) in &both().images {
        let list = squashfs::list(&image.file("rootfs"));
        assert!(list.len() > 3000, "{arch}: {}", list.len());
        for (path, mode, uid, gid) in [
            ("", "drwxr-xr-x", 0, 0),
            ("/etc/passwd", "-rw-r--r--", 0, 0),
            ("/etc/shadow", "-rw-r-----", 0, 42),
            ("/usr/bin/passwd", "-rwsr-xr-x", 0, 0),
            ("/usr/bin/chage", "-rwxr-sr-x", 0, 42),
            ("/tmp", "drwxrwxrwt", 0, 0),
            ("/var/mail", "drwxrwsr-x", 0, 8),
            ("/var/local", "drwxrwsr-x", 0, 50),
            ("/root", "drwx------", 0, 0),
        ] {
            let found = list.get(path).unwrap_or_else(|| panic!("{arch}: no {path}"));
            assert_eq!(*found, squashfs::Entry::new(mode, uid, gid), "{arch}: {path}");
        }
        // kiwi's copy of the recipe may hold secrets.
        let mut kept = list
            .iter()
            .filter(|(path, _)| *path == "/image" || path.starts_with("/image/"))
            .peekable();
        assert!(kept.peek().is_some(), "{arch}: no /image");
        for (path, entry) in kept {
            assert!(
                entry.uid == 0 && &entry.mode[4..] == "------",
                "{arch}: {path} {entry:?}"
            );
        }
        // Debian's accounts, and none of the sandbox's own ids.
        let strange: Vec<_> = list
            .iter()
            .filter(|(_, entry)| entry.uid > 200 || entry.gid > 200)
            .collect();
        assert!(strange.is_empty(), "{arch}: {strange:?}");
        // Nothing of the sandbox's furniture is in the image.
        let more: Vec<_> = list
            .keys()
            .filter(|path| {
                ["/proc/", "/sys/", "/run/kiln", "/scratch"]
                    .iter()
                    .any(|start| path.starts_with(start))
            })
            .collect();
        assert!(more.is_empty(), "{arch}: {more:?}");
    }
}

#[test]
fn file_capabilities_are_those_of_a_real_root() {
    needs!(support::no_namespaces(), support::no_emulation(), support::not_root());
    for (arch, image) in &both().images {
        let dir = tempfile::tempdir().unwrap();
        squashfs::unpack(&image.file("rootfs"), &dir.path().join("root"), &["usr/bin/ping"]);
        let ping = dir.path().join("root/usr/bin/ping");
        let ping = ping.to_str().unwrap();
        let says = tool("getcap", &["-n", ping]);
        assert_eq!(says.trim(), format!("{ping} cap_net_raw=ep"), "{arch}");
        // Version 2 is for every user namespace, version 3 would be for the sandbox's only.
        let raw = tool(
            "getfattr",
            &["--absolute-names", "--only-values", "-n", "security.capability", ping],
        );
        assert_eq!(raw.len(), 20, "{arch}: {raw:?}");
    }
}

#[test]
fn binaries_are_of_the_images_architecture() {
    needs!(support::no_namespaces(), support::no_emulation());
    for (arch, image) in &both().images {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        squashfs::unpack(
            &image.file("rootfs"),
            &root,
            &["usr/bin/true", "usr/bin/bash", "usr/sbin/ldconfig"],
        );
        let name = if *arch == "aarch64" { "ARM aarch64" } else { "x86-64" };
        for program in ["usr/bin/true", "usr/bin/bash", "usr/sbin/ldconfig"] {
            let says = tool("file", &["--brief", root.join(program).to_str().unwrap()]);
            assert!(
                says.starts_with("ELF 64-bit") && says.contains(name),
                "{arch}: {program}: {says}"
            );
        }
        // Its scripts ran as that architecture, and no emulator stayed in the root.
        let debian = if *arch == "aarch64" { "arm64" } else { "amd64" };
        let log = both().kiln.log(&image.job);
        assert!(
            log.contains(&format!("config.sh: {arch}, dpkg says {debian}")),
            "{arch}"
        );
        let list = squashfs::list(&image.file("rootfs"));
        let emulators: Vec<_> = list.keys().filter(|path| path.contains("qemu")).collect();
        assert!(emulators.is_empty(), "{arch}: {emulators:?}");
    }
}

#[test]
fn the_log_is_an_artifact_and_holds_every_step() {
    needs!(support::no_namespaces(), support::no_emulation());
    for (arch, image) in &both().images {
        let packed = fs_err::File::open(image.file("build.log.zst")).unwrap();
        let log = String::from_utf8(zstd::decode_all(packed).unwrap()).unwrap();
        let mut rest = log.as_str();
        for step in ["prepare", "fetch", "template", "repos", "build", "package", "upload"] {
            let begins = rest
                .find(&format!("{step:<8} * started"))
                .unwrap_or_else(|| panic!("{arch}: no {step}"));
            let done = rest
                .find(&format!("{step:<8} * done in "))
                .unwrap_or_else(|| panic!("{arch}: no end of {step}"));
            assert!(begins < done);
            rest = &rest[done..];
        }
        assert_eq!(image.heads["build.log.zst"]["ContentType"], "application/zstd");
        // The log contains the tools' output, with times in UTC.
        assert!(log.contains("config.sh: "), "{arch}");
        let first = log.split_whitespace().next().unwrap();
        assert!(first.parse::<jiff::Timestamp>().is_ok(), "{first}");
    }
}

#[test]
fn artifacts_can_be_got_and_deleted_by_kiln_too() {
    needs!(support::no_namespaces());
    let (kiln, repository) = (Kiln::new(), Repository::native());
    let recipe = Recipe::copy_of("rpm-minimal");
    let out = tempfile::tempdir().unwrap();
    let (direct, got) = (out.path().join("direct"), out.path().join("got"));
    let ran = kiln
        .run([
            "build",
            recipe.path(),
            &repository.set(),
            "--output",
            direct.to_str().unwrap(),
            "--name",
            "by-name",
        ])
        .ok();
    let job = &kiln.jobs()[0];
    assert_eq!(job["name"], "by-name");
    let image = job["image"].as_str().unwrap();
    kiln.run(["artifacts", "get", image, "--output", got.to_str().unwrap()])
        .ok();
    for name in ["rootfs", "kernel", "initrd", "manifest.json"] {
        let same = fs_err::read(direct.join(HOST).join(name)).unwrap() == fs_err::read(got.join(name)).unwrap();
        assert!(same, "{name}: {}", ran.stdout);
    }
    kiln.run(["artifacts", "delete", image]).ok();
    assert_eq!(kiln.run(["artifacts", "list"]).ok().stdout, "");
    kiln.assert_nothing_built();
}

/// Builds rpm-minimal with a package manager, and checks its peculiarities.
fn rpm_root(arch: &str, manager: &str, recipe: &Recipe, repository: &Repository) {
    let kiln = Kiln::new();
    let out = tempfile::tempdir().unwrap();
    let manager = format!("package_manager={manager}");
    let args = [
        "build",
        recipe.path(),
        "--arch",
        arch,
        "--set",
        &manager,
        &repository.set(),
        "--image-set",
        "rpm@1",
        "--output",
    ];
    let ran = kiln.run([&args[..], &[out.path().to_str().unwrap()]].concat()).ok();
    assert!(ran.stdout.contains("set        rpm@1 ("), "{}", ran.stdout);
    let set = kiln.run(["sets", "describe", "rpm@1", "--server", "local"]).ok();
    assert!(
        set.stdout.starts_with("rpm@1 (") && set.stdout.contains("): complete"),
        "{}",
        set.stdout
    );
    let dir = out.path().join(arch);
    let manifest: Value = serde_json::from_slice(&fs_err::read(dir.join("manifest.json")).unwrap()).unwrap();
    let types: Vec<_> = manifest["artifacts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|artifact| artifact["type"].as_str().unwrap())
        .collect();
    let expected = [ROOTFS.1, KERNEL.1, INITRD.1, SPDX.1, CYCLONEDX.1];
    assert_eq!(types, expected, "{}", ran.stdout);
    let spdx: Value = serde_json::from_slice(&fs_err::read(dir.join("sbom.spdx.json")).unwrap()).unwrap();
    let packages: Vec<_> = spdx["packages"].as_array().unwrap().iter().skip(1).collect();
    assert!(!packages.is_empty());
    for package in packages {
        let purl = package["externalRefs"][0]["referenceLocator"].as_str().unwrap();
        assert!(
            purl.starts_with("pkg:rpm/") && package["versionInfo"].as_str().unwrap().contains('-'),
            "{package}"
        );
    }

    let rootfs = dir.join("rootfs");
    assert_eq!(
        squashfs::read(&rootfs, "boot/installed-on").trim(),
        arch,
        "the scriptlet ran elsewhere"
    );
    assert_eq!(
        squashfs::read(&rootfs, "etc/configured").trim(),
        format!("configured on {arch}")
    );
    let list = squashfs::list(&rootfs);
    assert!(list.values().all(|entry| (entry.uid, entry.gid) == (0, 0)), "{list:?}");

    // The header that a boot loader of the architecture checks; never the compressed file's.
    let kernel = fs_err::read(dir.join("kernel")).unwrap();
    let (at, magic): (usize, &[u8]) = if arch == "aarch64" {
        (56, b"ARM\x64")
    } else {
        (0x202, b"HdrS")
    };
    assert_eq!(kernel.get(at..at + 4), Some(magic), "{arch}: the kernel is none");
    assert_eq!(fs_err::read(dir.join("initrd")).unwrap()[..2], [0x1f, 0x8b]);
    kiln.assert_clean();
}

#[test]
fn rpm_roots_by_zypper_and_dnf() {
    needs!(support::no_namespaces());
    let (recipe, repository) = (Recipe::copy_of("rpm-minimal"), Repository::native());
    for manager in ["zypper", "dnf4"] {
        rpm_root(HOST, manager, &recipe, &repository);
    }
}

#[test]
fn foreign_rpm_roots_by_zypper_and_dnf() {
    needs!(support::no_namespaces(), support::no_emulation());
    let (recipe, repository) = (Recipe::copy_of("rpm-minimal"), Repository::foreign());
    for manager in ["zypper", "dnf4"] {
        rpm_root(foreign(), manager, &recipe, &repository);
    }
}

/// zypper's collections are packages that say so, and dnf's are in a list of the repository.
#[test]
fn collections_products_and_environments_are_found() {
    needs!(support::no_namespaces());
    let repository = Repository::native();
    for (manager, wanted) in [
        ("zypper", r#"<namedCollection name="node"/><product name="Tiny"/>"#),
        ("dnf4", r#"<namedCollection name="node"/>"#),
        ("dnf4", r#"<namedCollection name="tiny-environment"/>"#),
    ] {
        let last = "<package name=\"tiny-kernel\"/>";
        let recipe = Recipe::copy_of("rpm-minimal")
            .with_config(last, &format!("{last}{wanted}"))
            .with("config.sh", "test \"$(cat /etc/extra)\" = extra\n");
        let manager = format!("--set=package_manager={manager}");
        Kiln::new()
            .run(["build", recipe.path(), &manager, &repository.set()])
            .ok();
    }
}

#[test]
fn scripts_of_rpms_that_fail_are_in_the_result_and_decide_where_that_is_wanted() {
    needs!(support::no_namespaces());
    let last = "<package name=\"tiny-kernel\"/>";
    let recipe =
        || Recipe::copy_of("rpm-minimal").with_config(last, &format!("{last}<package name=\"tiny-failing\"/>"));
    let repository = Repository::native();
    for manager in ["zypper", "dnf5"] {
        let kiln = Kiln::new();
        let manager = format!("--set=package_manager={manager}");
        // The second root has the packages of the first, which are not installed again.
        for is_reused in [false, true] {
            let ran = kiln
                .run(["build", recipe().path(), &manager, &repository.set(), "--verbose"])
                .ok();
            let said = ran.stdout + &ran.stderr;
            assert_eq!(said.contains("its root after them is reused"), is_reused, "{said}");
            for script in [
                "%post(tiny-failing-1.0-1.noarch) scriptlet failed, exit status 3 (root_packages)",
                "lua script failed: ",
            ] {
                assert!(said.contains(script), "{said}");
            }
        }
    }
    let (kiln, strict) = (Kiln::new(), "[checks]\nroot_packages = \"fail\"\n");
    let recipe = recipe().with("kiln-recipe.toml", strict);
    let error = kiln.run(["build", recipe.path(), &repository.set()]).failed();
    assert_eq!(kiln.failure_code(), "root_packages", "{error}");
}

/// As Debian has it on arm64: `vmlinuz` is the kernel in gzip, which no boot loader takes.
#[test]
fn a_packed_kernel_is_delivered_unpacked() {
    needs!(support::no_namespaces(), support::no_emulation());
    let script = fs_err::read_to_string(support::source_dir().join("recipes/rpm-minimal/config.sh")).unwrap()
        + "\nfor kernel in /boot/vmlinuz-*; do gzip -9 \"$kernel\" && mv \"$kernel.gz\" \"$kernel\"; done\n";
    let recipe = Recipe::copy_of("rpm-minimal").with("config.sh", &script);
    rpm_root(
        "aarch64",
        "zypper",
        &recipe,
        &if HOST == "aarch64" {
            Repository::native()
        } else {
            Repository::foreign()
        },
    );
}

#[test]
fn a_kernel_of_another_architecture_is_refused() {
    needs!(support::no_namespaces());
    // ARM64's magic, and none of x86's.
    let script =
        "cd /boot && { head -c 56 /dev/zero; printf 'ARM\\144'; head -c 4000 /dev/zero; } > k && mv k vmlinuz-*";
    let script = if HOST == "aarch64" {
        script.replace("ARM\\144", "RSC\\005")
    } else {
        script.to_owned()
    };
    let (kiln, repository) = (Kiln::new(), Repository::native());
    let ran = kiln.run(["build", Recipe::with_script(&script).path(), &repository.set()]);
    let error = ran.failed();
    assert_eq!(kiln.failure_code(), "kernel_wrong_arch", "{error}");
    assert!(
        error.contains("/boot/vmlinuz-6.1.0-tiny") && error.contains(HOST),
        "{error}"
    );
    kiln.assert_nothing_built();
}

#[test]
fn no_password_of_a_repository_is_in_any_log() {
    needs!(support::no_namespaces());
    let (kiln, repository) = (Kiln::new(), Repository::native());
    let url = repository.url().replace("://", "://me:in-the-address@");
    let recipe = Recipe::with_script(
        "echo \"curl -u me:as-an-attribute and me:in-the-address\"; echo https://a:unknown-before@host/x >&2",
    )
    .with_config(
        "alias=\"tiny\"",
        "alias=\"tiny\" username=\"me\" password=\"as-an-attribute\"",
    );
    let set = format!("--set=rpm_repo={url}");
    kiln.run(["build", recipe.path(), &set]).ok();
    let job = &kiln.jobs()[0];
    let artifact = kiln.data().join("packed");
    let from = format!("s3://boot-images/{}/build.log.zst", job["image"].as_str().unwrap());
    Client::new(&kiln).aws(&["s3", "cp", &from, artifact.to_str().unwrap()]);
    let packed = fs_err::File::open(artifact).unwrap();
    let packed = std::io::read_to_string(zstd::Decoder::new(packed).unwrap()).unwrap();
    for (what, text) in [("log", kiln.log(job)), ("artifact", packed)] {
        assert!(text.contains("curl -u me:***"), "{what}: {text}");
        for secret in ["as-an-attribute", "in-the-address", "unknown-before"] {
            let shown = text.lines().find(|line| line.contains(secret));
            assert_eq!(shown, None, "{what}");
        }
    }
}

#[test]
fn kept_files_stay_and_say_where() {
    needs!(support::no_namespaces());
    let (kiln, repository) = (Kiln::new(), Repository::native());
    let recipe = Recipe::copy_of("rpm-minimal");
    let ran = kiln.run(["build", recipe.path(), &repository.set(), "--keep"]).ok();
    let kept = PathBuf::from(&ran.values("kept")[0]);
    assert!(kept.join("root/etc/configured").exists());
    assert!(kiln.processes().is_empty());
    // The next build's sweep passes it by.
    kiln.run(["build", recipe.path(), &repository.set()]).ok();
    assert!(kept.join("root/etc/configured").exists());
}

#[test]
fn recipes_as_archives_of_every_kind() {
    needs!(support::no_namespaces());
    let (recipe, repository) = (Recipe::copy_of("rpm-minimal"), Repository::native());
    let dir = tempfile::tempdir().unwrap();
    for (ending, how) in [
        ("tar.gz", "--gzip"),
        ("tar.xz", "--xz"),
        ("tar.zst", "--zstd"),
        ("tar", "--verbose"),
    ] {
        let kiln = Kiln::new();
        let archive = dir.path().join(format!("tiny-1.{ending}"));
        let archive = archive.to_str().unwrap();
        tool(
            "tar",
            &["--create", how, "--file", archive, "--directory", recipe.path(), "."],
        );
        kiln.run(["build", archive, &repository.set()]).ok();
        assert_eq!(kiln.jobs()[0]["name"], "tiny-1");
        kiln.assert_clean();
    }
}
