//! A foreign root of packages of this machine's Debian release, and the host's builds of the same packages.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::LazyLock,
};

use kiln_agent::twins::{
    call, key, layout,
    table::Table,
    world::{Package, World},
};
use kiln_records::{TwinLevel, arch::Arch};
use tempfile::TempDir;

use crate::support::{ANSWERS, foreign, kiln_program};

/// The packages of the root; their dependencies are added.
const PACKAGES: [&str; 9] = [
    "bash",
    "coreutils",
    "dash",
    "grep",
    "libc-bin",
    "libpam-modules",
    "perl-base",
    "python3-minimal",
    "sed",
];

/// The architecture of the root.
pub fn target() -> Arch {
    foreign().parse().unwrap()
}

/// A root with its directory of twins.
pub struct Debian {
    dir: TempDir,
    host: Arch,
    target: Arch,
    pub packages: Vec<Package>,
}

impl Debian {
    /// One that no test changes, with everything unpacked.
    pub fn shared() -> &'static Self {
        static SHARED: LazyLock<Debian> = LazyLock::new(|| Debian::unpack(Arch::host(), target()));
        &SHARED
    }

    /// A root without packages.
    pub fn empty() -> Self {
        Self::empty_for(Arch::host(), target())
    }

    fn empty_for(host: Arch, target: Arch) -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let root = dir.path().join("root");
        fs_err::create_dir_all(root.join("usr")).unwrap();
        for name in ["bin", "lib", "sbin"] {
            fs_err::create_dir(root.join("usr").join(name)).unwrap();
            symlink(format!("usr/{name}"), root.join(name)).unwrap();
        }
        for name in ["dev", "proc", ".kiln"] {
            fs_err::create_dir(root.join(name)).unwrap();
        }
        Self {
            dir,
            host,
            target,
            packages: Vec::new(),
        }
    }

    /// Unpacks everything for images of `target` on machines of `host`.
    pub fn unpack(host: Arch, target: Arch) -> Self {
        let debian = Self::empty_for(host, target);
        let (dir, root) = (debian.dir.path(), debian.root());
        let natives = debs(host);
        let foreign = debs(target);
        let packages = foreign.iter().filter_map(|deb| {
            run(
                "sh",
                [
                    "-c",
                    r#"dpkg-deb --fsys-tarfile "$0" | tar -x --keep-directory-symlink -C "$1""#,
                ],
            )
            .arg(deb)
            .arg(&root)
            .done();
            let (name, version) = identity(deb);
            let native = natives
                .iter()
                .find(|deb| identity(deb) == (name.clone(), version.clone()))?;
            let host = dir.join("host").join(&name);
            fs_err::create_dir_all(&host).unwrap();
            run("dpkg-deb", ["--extract"]).arg(native).arg(&host).done();
            let list = run("sh", ["-c", r#"dpkg-deb --fsys-tarfile "$0" | tar -t"#])
                .arg(deb)
                .done();
            let files = list
                .lines()
                .map(|line| PathBuf::from(line.trim_start_matches('.')))
                .collect();
            Some(Package {
                name,
                version: version.clone(),
                files,
                host,
                host_version: version,
            })
        });
        let packages = packages.collect();
        Self { packages, ..debian }
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// An empty directory of twins.
    pub fn world(&self) -> World {
        self.world_with(&kiln_program().with_file_name(ANSWERS))
    }

    /// An empty directory of twins, which load the library `answers`.
    pub fn world_with(&self, answers: &Path) -> World {
        let dir = tempfile::tempdir_in(self.dir.path()).unwrap().keep();
        let table = Table::built_in().unwrap();
        World::open(
            &dir,
            &self.root(),
            answers,
            self.host,
            self.target,
            table,
            TwinLevel::Full,
        )
        .unwrap()
    }

    /// The package `name`.
    pub fn package(&self, name: &str) -> &Package {
        self.packages.iter().find(|package| package.name == name).unwrap()
    }

    /// The key of the file at `path` in the root.
    pub fn key(&self, path: &str) -> String {
        use std::os::unix::fs::MetadataExt;
        let path = self.root().join(path.trim_start_matches('/'));
        let (bytes, status) = (fs_err::read(&path).unwrap(), fs_err::metadata(&path).unwrap());
        let mut text = [0; key::LONGEST_KEY];
        let id = key::build_id(&bytes[..key::HEAD]).unwrap();
        let length = key::write_key(&mut text, id, status.size(), status.mtime()).unwrap();
        String::from_utf8(text[..length].to_vec()).unwrap()
    }

    /// Runs the twin of `program` in the root, as the sandbox's `binfmt_misc` does.
    pub fn twin(&self, world: &World, program: &str, arguments: &[&str]) -> Output {
        let prepare = r#"
            root=$0 world=$1
            mount --bind "$world" "$root/.kiln"
            mount -t proc proc "$root/proc"
            mount --rbind /dev "$root/dev"
            exec env -i "$2" "$3" PATH=/usr/sbin:/usr/bin SHELL=/bin/sh chroot "$root" "${@:4}""#;
        let variables = [[call::EXE, program].concat(), [call::COMM, "a name"].concat()];
        let twin = [layout::BIN, &self.key(program)].concat();
        Command::new("unshare")
            .args([
                "--map-root-user",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "bash",
                "-ec",
                prepare,
            ])
            .args([self.root().as_os_str(), world.mounted().as_os_str()])
            .args(variables)
            .args(call::words(program, &twin))
            .args(arguments)
            .output()
            .unwrap()
    }
}

/// The packages of `arch`, fetched once.
fn debs(arch: Arch) -> Vec<PathBuf> {
    static FETCHED: LazyLock<()> = LazyLock::new(|| {
        fetch(Arch::host());
        fetch(target());
    });
    LazyLock::force(&FETCHED);
    let files = fs_err::read_dir(store(arch).join("cache/archives")).unwrap();
    let mut debs: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    debs.retain(|path| path.extension().is_some_and(|end| end == "deb"));
    debs.sort();
    debs
}

fn store(arch: Arch) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("twin-world-{arch}"))
}

/// Fetches the packages of the root, and what they need.
fn fetch(arch: Arch) {
    fetch_to(&store(arch), arch, None, &PACKAGES);
}

/// apt with directories of its own, and this machine's sources or a list of others. Returns where the packages are.
pub fn fetch_to(store: &Path, arch: Arch, sources: Option<&Path>, packages: &[&str]) -> PathBuf {
    for dir in ["state/lists/partial", "cache/archives/partial"] {
        fs_err::create_dir_all(store.join(dir)).unwrap();
    }
    fs_err::write(store.join("status"), "").unwrap();
    let apt = || {
        let settings = [
            format!("Dir::State={}", store.join("state").display()),
            format!("Dir::State::status={}", store.join("status").display()),
            format!("Dir::Cache={}", store.join("cache").display()),
            format!("APT::Architecture={}", arch.debian()),
            format!("APT::Architectures={}", arch.debian()),
            "APT::Install-Recommends=0".to_owned(),
            "APT::Sandbox::User=".to_owned(),
        ];
        let mut apt = run("apt-get", ["--quiet"]);
        for setting in settings {
            apt = apt.arg("-o").arg(setting);
        }
        if let Some(sources) = sources {
            let list = format!("Dir::Etc::SourceList={}", sources.display());
            apt = apt.arg("-o").arg(list).arg("-o").arg("Dir::Etc::SourceParts=-");
        }
        apt
    };
    apt().arg("update").done();
    let mut install = apt().arg("install").arg("--download-only").arg("--yes");
    for package in packages {
        install = install.arg(package);
    }
    install.done();
    store.join("cache/archives")
}

/// Name and version of a package, from its file's name as apt chooses it.
fn identity(deb: &Path) -> (String, String) {
    let name = deb.file_name().unwrap().to_str().unwrap();
    let mut parts = name.split('_').map(str::to_owned);
    (parts.next().unwrap(), parts.next().unwrap())
}

/// A command that must succeed.
pub struct Run(Command);

pub fn run<const COUNT: usize>(program: &str, arguments: [&str; COUNT]) -> Run {
    let mut command = Command::new(program);
    command.args(arguments);
    Run(command)
}

impl Run {
    pub fn arg(mut self, argument: impl AsRef<std::ffi::OsStr>) -> Self {
        self.0.arg(argument);
        self
    }

    pub fn done(mut self) -> String {
        let output = self.0.output().unwrap();
        assert!(
            output.status.success(),
            "{:?}: {}",
            self.0,
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }
}
