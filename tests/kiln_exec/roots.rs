//! Small foreign roots of real Debian packages, and native twins of their programs.

use std::{
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use kiln_agent::twins::key;
use kiln_records::arch::Arch;
use tempfile::TempDir;

use crate::support::{self, succeed};

/// Stands in for the library with the target's answers; has only the parts that concern `kiln-exec`.
const ANSWERS: &str = r#"
extern char **environ;
int prctl(int, ...);
__attribute__((constructor)) static void start(void) {
    const char *name = environ[1] + sizeof "KILN_COMM=" - 1;
    prctl(15, name);
    environ += 2;
}
"#;

/// The program that is tested, as `make agent` builds it.
pub fn kiln_exec() -> PathBuf {
    support::kiln_program().with_file_name(support::KILN_EXEC)
}

/// The toolbox's emulator of the foreign architecture.
pub fn emulator() -> PathBuf {
    support::toolbox_tree().join(format!("usr/bin/qemu-{}", support::foreign()))
}

/// A directory for a test's roots that everybody may enter.
pub fn directory() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs_err::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// Where the unpacked packages of both architectures are; made once.
fn packages() -> &'static Path {
    static DIR: LazyLock<PathBuf> = LazyLock::new(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kiln-exec-packages");
        let missing = [host(), target()]
            .map(Arch::debian)
            .into_iter()
            .filter(|arch| !dir.join(arch).exists());
        let missing: Vec<_> = missing.collect();
        let output = Command::new("bash")
            .arg(support::source_dir().join("tests/kiln_exec/packages.sh"))
            .arg(&dir)
            .args(&missing)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        dir
    });
    &DIR
}

fn host() -> Arch {
    support::HOST.parse().unwrap()
}

fn target() -> Arch {
    support::foreign().parse().unwrap()
}

/// A root of one run of the corpus, which changes it.
#[derive(Debug)]
pub struct Root(TempDir);

impl Root {
    pub fn new(parent: &Path) -> Self {
        let dir = TempDir::new_in(parent).unwrap();
        fs_err::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let from = packages().join(target().debian()).join(".");
        succeed(
            Command::new("cp")
                .arg("-a")
                .arg("--reflink=auto")
                .arg(from)
                .arg(dir.path()),
        );
        Self(dir)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Gives each program of the root its twin, and its loader the text `loader_says` of its version.
    pub fn add_twins(&self, loader_says: &str) {
        let native = packages().join(host().debian());
        let world = self.path().join(".kiln");
        fs_err::create_dir_all(world.join("bin")).unwrap();
        let mut twins = 0;
        for entry in fs_err::read_dir(self.path().join("usr/bin")).unwrap() {
            let target = entry.unwrap().path();
            let twin = native.join("usr/bin").join(target.file_name().unwrap());
            if let Some(key) = key_of(&target).filter(|_| twin.is_file()) {
                fs_err::copy(twin, world.join("bin").join(key)).unwrap();
                twins += 1;
            }
        }
        assert!(twins > 90, "{twins}");
        let libraries = native.join(format!("usr/lib/{}-linux-gnu", support::HOST));
        succeed(Command::new("cp").arg("-a").arg(&libraries).arg(world.join("lib")));
        fs_err::copy(libraries.join(loader_name(support::HOST)), world.join("loader")).unwrap();
        let source = world.join("answers.c");
        fs_err::write(&source, ANSWERS).unwrap();
        succeed(
            Command::new("cc")
                .args(["-shared", "-fPIC", "-nostdlib", "-o"])
                .arg(world.join("answers.so"))
                .arg(source),
        );
        let libraries = format!("usr/lib/{}-linux-gnu", support::foreign());
        let loader = self.path().join(libraries).join(loader_name(support::foreign()));
        fs_err::create_dir(world.join("loaders")).unwrap();
        fs_err::write(world.join("loaders").join(key_of(&loader).unwrap()), loader_says).unwrap();
        let counts = world.join("counts");
        fs_err::write(&counts, [0; 16]).unwrap();
        fs_err::set_permissions(counts, std::fs::Permissions::from_mode(0o666)).unwrap();
    }
}

fn loader_name(arch: &str) -> &'static str {
    if arch == "aarch64" {
        "ld-linux-aarch64.so.1"
    } else {
        "ld-linux-x86-64.so.2"
    }
}

/// The key of a program; none for a file that is not regular or has no build-id.
fn key_of(path: &Path) -> Option<String> {
    let state = fs_err::symlink_metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let content = fs_err::read(path).unwrap();
    let mut name = [0; key::LONGEST_KEY];
    let id = key::build_id(&content[..content.len().min(key::HEAD)])?;
    let length = key::write_key(&mut name, id, state.len(), state.mtime()).unwrap();
    Some(String::from_utf8(name[..length].to_vec()).unwrap())
}
