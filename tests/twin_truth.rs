//! Tests answers that are compiled into Debian's own programs: a native twin gives the same ones as the emulated
//! program.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::LazyLock,
};

use crate::support::{self, succeed};
use kiln_agent::twins::{layout, truth};
use kiln_records::arch::Arch;
use walk::files_below;

mod walk {
    use std::path::{Path, PathBuf};

    /// The regular files below `dir`. Links are not followed.
    pub fn files_below(dir: &Path) -> Vec<PathBuf> {
        let entries = fs_err::read_dir(dir).unwrap().map(Result::unwrap);
        let files = entries.flat_map(|entry| {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                files_below(&entry.path())
            } else {
                Vec::from_iter(kind.is_file().then(|| entry.path()))
            }
        });
        files.collect()
    }
}

fn target() -> Arch {
    support::foreign().parse().unwrap()
}

/// A root of the foreign architecture, with the twins under test and the emulator.
///
/// `answers.so` is not there, so what programs take from `uname` is left out here.
struct Root {
    dir: PathBuf,
    twins: PathBuf,
}

/// Made once: nothing here changes it.
fn root() -> &'static Root {
    static ROOT: LazyLock<Root> = LazyLock::new(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("twin-truth");
        for arch in [Arch::host(), target()] {
            if !dir.join(arch.debian()).exists() {
                let script = support::source_dir().join("tests/twin_truth/packages.sh");
                succeed(Command::new(script).arg(&dir).arg(arch.debian()));
            }
        }
        let root = Root {
            dir: dir.join(target().debian()),
            twins: dir.join(Arch::host().debian()),
        };
        root.fill();
        root
    });
    &ROOT
}

impl Root {
    /// Puts the twins and their libraries into `/.kiln`, and the emulator beside it.
    fn fill(&self) {
        let libraries = self.dir.join(layout::LIB.trim_start_matches('/'));
        fs_err::create_dir_all(&libraries).unwrap();
        let multiarch = Path::new("usr/lib").join(Arch::host().multiarch());
        succeed(
            Command::new("cp")
                .arg("-a")
                .arg(self.twins.join(&multiarch).join("."))
                .arg(&libraries),
        );
        for file in files_below(&self.twins.join(&multiarch)) {
            let inside = file.strip_prefix(&self.twins).unwrap();
            let told = self.told(&format!("/{}", inside.display()));
            let name = file.file_name().unwrap();
            if let Some(told) = told.filter(|_| file.parent() == Some(&self.twins.join(&multiarch))) {
                fs_err::write(libraries.join(name), told).unwrap();
            }
        }
        // The cache names the directory, and is found by its length.
        let cache = libraries.join("gconv/gconv-modules.cache");
        let old = format!("/{}/gconv/", multiarch.display());
        let new = format!(
            "{}{}/gconv/",
            layout::LIB,
            "/".repeat(old.len() - layout::LIB.len() - "/gconv/".len())
        );
        let mut content = fs_err::read(&cache).unwrap();
        let at = content.windows(old.len()).position(|bytes| bytes == old.as_bytes());
        if let Some(at) = at {
            content[at..at + old.len()].copy_from_slice(new.as_bytes());
            fs_err::write(&cache, content).unwrap();
        }
        let loader = files_below(&self.twins.join(&multiarch));
        let loader = loader
            .iter()
            .find(|file| file.file_name().unwrap().to_string_lossy().starts_with("ld-linux"));
        fs_err::copy(loader.unwrap(), self.dir.join(layout::LOADER.trim_start_matches('/'))).unwrap();
        let emulator = support::toolbox_tree().join(format!("usr/bin/qemu-{}", target()));
        fs_err::copy(emulator, self.dir.join(".kiln/qemu")).unwrap();
    }

    /// The twin of the target's file that the host's packages have at `path`. None when it has nothing to say.
    fn told(&self, path: &str) -> Option<Vec<u8>> {
        let counterpart = path.replace(Arch::host().multiarch(), target().multiarch());
        if !truth::concerns(&counterpart) {
            return None;
        }
        let mut twin = fs_err::read(self.twins.join(&path[1..])).unwrap();
        let original = fs_err::read(self.dir.join(&counterpart[1..])).unwrap();
        let told = truth::tell(&counterpart, &mut twin, &original, Arch::host(), target());
        assert_ne!(told, Ok(0), "{path}");
        told.unwrap();
        Some(twin)
    }

    /// Asks the twin and the emulated program; both must answer the same, and not with an error.
    fn ask(&self, program: &str, args: &[&str]) -> String {
        let twin = self
            .told(program)
            .unwrap_or_else(|| fs_err::read(self.twins.join(&program[1..])).unwrap());
        let place = format!("{}{}", layout::BIN, program.rsplit('/').next().unwrap());
        fs_err::write(self.dir.join(&place[1..]), twin).unwrap();
        let native = self.run(
            &[
                layout::LOADER,
                "--argv0",
                program,
                "--library-path",
                layout::LIB,
                &place,
            ],
            args,
        );
        let emulated = self.run(&["/.kiln/qemu", "-0", program, program], args);
        let said = |output: &Output| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            (output.status.code(), text(&output.stdout), text(&output.stderr))
        };
        assert_eq!(said(&native), said(&emulated), "{program} {args:?}");
        assert!(emulated.status.success(), "{program} {args:?}: {emulated:?}");
        said(&emulated).1
    }

    fn run(&self, start: &[&str], args: &[&str]) -> Output {
        let mut command = Command::new("unshare");
        command
            .args(["--user", "--map-root-user", "chroot"])
            .arg(&self.dir)
            .args(start)
            .args(args);
        command
            .env_clear()
            .env("PATH", "/usr/bin:/usr/sbin:/bin")
            .output()
            .unwrap()
    }
}

/// Strings that grow need x86_64's instructions; elsewhere such programs have no twin.
fn other_host() -> Option<String> {
    (Arch::host() != Arch::X86_64).then(|| "strings are moved in x86_64 programs only".to_owned())
}

#[test]
fn bash_knows_its_machine() {
    needs!(other_host());
    let said = root().ask(
        "/usr/bin/bash",
        &["-c", "echo $MACHTYPE $HOSTTYPE $OSTYPE ${BASH_VERSINFO[@]}"],
    );
    assert!(
        said.starts_with("aarch64-unknown-linux-gnu aarch64 linux-gnu"),
        "{said}"
    );
    assert!(
        root()
            .ask("/usr/bin/bash", &["--version"])
            .contains("(aarch64-unknown-linux-gnu)")
    );
}

#[test]
fn perl_uses_the_targets_modules() {
    needs!(other_host());
    let said = root().ask(
        "/usr/bin/perl",
        &["-MConfig", "-e", "print join qq(\n), @INC, $Config{archname}"],
    );
    assert!(
        said.contains("/usr/lib/aarch64-linux-gnu/perl-base\n") && said.ends_with("\naarch64-linux-gnu-thread-multi")
    );
    root().ask("/usr/bin/perl", &["-v"]);
}

#[test]
fn python_looks_for_the_targets_modules() {
    needs!(other_host());
    let python = fs_err::read_link(root().dir.join("usr/bin/python3")).unwrap();
    let program = format!("/usr/bin/{}", python.display());
    let question = "import sys, _imp, sysconfig\n\
        print(sys.implementation, sys.path, sys.version, _imp.extension_suffixes(), sysconfig._get_sysconfigdata_name())";
    let said = root().ask(&program, &["-c", question]);
    assert!(
        said.contains("_multiarch='aarch64-linux-gnu'") && said.contains("-aarch64-linux-gnu.so'"),
        "{said}"
    );
}

#[test]
fn dpkg_and_apt_handle_the_targets_packages() {
    needs!(other_host());
    assert_eq!(root().ask("/usr/bin/dpkg", &["--print-architecture"]), "arm64\n");
    for program in [
        "dpkg-deb",
        "dpkg-query",
        "dpkg-split",
        "dpkg-trigger",
        "dpkg-divert",
        "apt-get",
        "apt-cache",
    ] {
        let said = root().ask(&format!("/usr/bin/{program}"), &["--version"]);
        assert!(said.contains("arm64"), "{said}");
    }
    let said = root().ask("/usr/bin/apt-config", &["dump"]);
    assert!(said.contains("APT::Architecture \"arm64\";"), "{said}");
}

/// The compiler of libapt-pkg knew the length of the name.
#[test]
fn apt_handles_packages_of_a_name_of_another_length() {
    needs!(other_host());
    let libraries = root().twins.join("usr/lib").join(Arch::host().multiarch());
    let library = files_below(&libraries)
        .into_iter()
        .find(|file| {
            file.file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with("libapt-pkg.so.")
        })
        .unwrap();
    let name = library.file_name().unwrap().to_string_lossy();
    let (soname, _) = name.rsplit_once('.').unwrap();
    for target in [Arch::Ppc64le, Arch::Riscv64] {
        let dir = tempfile::tempdir().unwrap();
        let mut twin = fs_err::read(&library).unwrap();
        // Of the target's build, only what it says of itself matters.
        let original = ["\0", target.debian(), "\0"].concat();
        let told = truth::tell(
            &format!("/usr/lib/{name}"),
            &mut twin,
            original.as_bytes(),
            Arch::host(),
            target,
        );
        assert_ne!(told.unwrap(), 0);
        fs_err::write(dir.path().join(soname), twin).unwrap();
        // The machine's own apt has this library.
        let mut apt = Command::new("apt-config");
        let said = apt.arg("dump").env("LD_LIBRARY_PATH", dir.path()).output().unwrap();
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        for line in ["APT::Architecture", "APT::Architectures::"] {
            let line = format!("{line} \"{}\";", target.debian());
            assert!(said.contains(&line), "{said}");
        }
    }
}

#[test]
fn make_knows_its_machine() {
    needs!(other_host());
    assert!(
        root()
            .ask("/usr/bin/make", &["--version"])
            .contains("Built for aarch64-unknown-linux-gnu")
    );
}

/// Converters are code of the host: libc must take them from beside the twins, never from the root.
#[test]
fn character_sets_are_converted_natively() {
    let root = root();
    let said = root.ask("/usr/bin/iconv", &["-f", "UTF-8", "-t", "EBCDIC-AT-DE", "/etc/text"]);
    assert!(!said.is_empty());
    root.ask("/usr/bin/iconv", &["-l"]);
    fs_err::rename(root.dir.join(".kiln/lib/gconv"), root.dir.join(".kiln/lib/away")).unwrap();
    let start = [layout::LOADER, "--library-path", layout::LIB, "/.kiln/bin/iconv"];
    let alone = root.run(&start, &["-f", "UTF-8", "-t", "EBCDIC-AT-DE", "/etc/text"]);
    fs_err::rename(root.dir.join(".kiln/lib/away"), root.dir.join(".kiln/lib/gconv")).unwrap();
    assert!(!alone.status.success(), "{alone:?}");
}

/// Damaged files and files of other kinds are refused, and never make the agent fail.
#[test]
fn broken_files_are_refused() {
    let original = fs_err::read(root().dir.join("usr/bin/bash")).unwrap();
    let whole = fs_err::read(root().twins.join("usr/bin/bash")).unwrap();
    let tell =
        |twin: &mut Vec<u8>, original: &[u8]| truth::tell("/usr/bin/bash", twin, original, Arch::host(), target());
    assert!(tell(&mut Vec::new(), &original).is_err());
    for length in [4, 64, 100, 4096, whole.len() / 2, whole.len() - 1] {
        assert!(tell(&mut whole[..length].to_vec(), &original).is_err(), "{length}");
    }
    for at in (0..64).chain((whole.len() - 1920..whole.len()).step_by(40)) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0xff;
        let _ = tell(&mut damaged, &original);
    }
    // Nothing is guessed when the target's program is of no help.
    let mut twin = whole.clone();
    assert_eq!(tell(&mut twin, b""), Ok(0));
    assert_eq!(twin, whole);
}
