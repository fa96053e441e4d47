//! Builds toolboxes: the root file systems in which agents run. Runs host programs in sandboxes, and changes the
//! directory of toolboxes.
//!
//! ```text
//! toolboxes/<digest of the description>/toolbox.squashfs   for other machines and VMs
//! toolboxes/<digest of the description>/tree               the same, unpacked: the lower layer of every sandbox here
//! toolboxes/<digest of the description>/vm                 kernel and modules of virtual machines, beside the root
//! toolboxes/<digest of the description>/facts.json         its digest, and every package with its version
//! ```
//!
//! The tree is unpacked because a user namespace cannot mount a squashfs without FUSE, which would slow down every
//! file access.
//!
//! Each toolbox is for one architecture. The toolboxes for architectures other than this host's are for build nodes,
//! and are built under the emulator.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use kiln_inside::emulation::binfmt::Emulation;
use kiln_records::{Code, Failure, arch::Arch};
use tokio::io::AsyncReadExt;

use super::{
    microvm::boot_files,
    namespace::{HOST_COMMAND_DIR, NamespaceDriver, make_private_dir, make_shared_dir},
    toolbox::{
        FACTS, Facts, SQUASHFS, Toolbox,
        definition::{self, Definition},
    },
};
use crate::{host, proxy::Gate};
use sha2::{Digest, Sha256};

mod archive;
mod foreign;

pub use archive::Archive;

/// The toolboxes of one data directory.
#[derive(Debug)]
pub struct Toolboxes {
    dir: PathBuf,
    driver: NamespaceDriver,
    /// The way to the site's HTTP proxy, if there is one.
    gate: Option<Arc<Gate>>,
}

impl Toolboxes {
    /// The toolboxes in `dir`; `driver` runs the programs that make them.
    pub fn new(dir: &Path, driver: NamespaceDriver) -> Result<Self, Failure> {
        make_private_dir(dir)?;
        Ok(Self {
            dir: dir.to_owned(),
            driver,
            gate: None,
        })
    }

    /// With packages that come through a proxy.
    #[must_use]
    pub fn through(self, gate: Option<Arc<Gate>>) -> Self {
        Self { gate, ..self }
    }

    /// The toolbox of the built-in description for hosts of this architecture, if it has been built.
    pub fn find(&self, arch: Arch) -> Option<Toolbox> {
        Toolbox::find(&self.dir, arch)
    }

    /// The toolbox of the built-in description for hosts of this architecture, known by name only: there are no files of it,
    /// and no facts but the architecture.
    pub fn named(arch: Arch) -> Toolbox {
        let none = Path::new("/nonexistent");
        Toolbox {
            name: Self::name_of(arch),
            squashfs: none.to_owned(),
            tree: none.to_owned(),
            vm: none.to_owned(),
            facts: Facts {
                sha256: String::new(),
                size: 0,
                arch,
                built: jiff::Timestamp::UNIX_EPOCH,
                packages: Vec::new(),
            },
        }
    }

    /// The name of the toolbox of the built-in description for hosts of this architecture.
    pub fn name_of(arch: Arch) -> String {
        definition::digest(arch)
    }

    /// All built toolboxes of any description, by name; and whether each has the built-in one.
    ///
    /// # Errors
    ///
    /// The directory cannot be read.
    pub fn list(&self) -> Result<Vec<(Toolbox, bool)>, Failure> {
        let mut names = self.names()?;
        names.sort_unstable();
        let known = current();
        let read = |name: String| {
            let is_current = known.contains(&name);
            Some((Toolbox::read(&self.dir, name)?, is_current))
        };
        Ok(names.into_iter().filter_map(read).collect())
    }

    /// The names of the existing directories.
    fn names(&self) -> Result<Vec<String>, Failure> {
        let failed = |error: std::io::Error| Failure::io("cannot look through the toolboxes", &error);
        let mut names = Vec::new();
        for entry in fs_err::read_dir(&self.dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.path().is_dir() {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        Ok(names)
    }

    /// The toolbox of the built-in description for hosts of this architecture; builds it unless it is there.
    ///
    /// Only one process builds at a time; others wait for its result. The next build discards an interrupted one.
    /// `say` gets every line of the tools' output.
    ///
    /// # Errors
    ///
    /// `toolbox_*` failures that name the tool and its last output; `no_toolbox` when a foreign toolbox is requested
    /// before this host's own one, which has the emulator for it.
    pub async fn ensure(
        &self,
        arch: Arch,
        mirror: Option<host::AptMirror>,
        mut say: impl FnMut(&str),
    ) -> Result<Toolbox, Failure> {
        if let Some(toolbox) = self.find(arch) {
            return Ok(toolbox);
        }
        let _lock = self.lock().await?;
        if let Some(toolbox) = self.find(arch) {
            return Ok(toolbox);
        }
        let mirror = mirror.ok_or_else(|| {
            Failure::new(
                Code::NoMirror,
                "there is no Debian mirror: this host's apt configuration names none",
            )
            .hint("use `kiln toolbox build --mirror URL`")
        })?;
        let name = definition::digest(arch);
        let work = self.dir.join(format!("{name}.partial"));
        self.driver.remove_dir(&work).await?;
        make_shared_dir(&work)?;
        if let Err(failure) = self.build(arch, &work, &mirror, &mut say).await {
            self.driver.remove_dir(&work).await?;
            return Err(failure);
        }
        // The files in it belong to the sandbox's ids, but the directory is Kiln's: the rename needs no other right.
        fs_err::rename(&work, self.dir.join(name)).map_err(|error| Failure::io("cannot keep the toolbox", &error))?;
        self.find(arch)
            .ok_or_else(|| Failure::new(Code::ToolboxLost, "the toolbox that was just built does not exist"))
    }

    /// Waits until no other process of this data directory makes a toolbox.
    async fn lock(&self) -> Result<fs_err::File, Failure> {
        let lock = fs_err::File::create(self.dir.join("building")).map_err(|error| Failure::io("toolbox", &error))?;
        let lock = tokio::task::spawn_blocking(move || lock.file().lock().map(|()| lock)).await;
        lock.map_err(|error| Failure::new(Code::ToolboxLock, error))?
            .map_err(|error| Failure::io("toolbox", &error))
    }

    /// Removes every toolbox of another description, and the boot files of machines with earlier agents. Returns the
    /// names of the toolboxes.
    pub async fn prune(&self) -> Result<Vec<String>, Failure> {
        let (known, mut removed) = (current(), Vec::new());
        for name in self.names()? {
            if !known.contains(&name) {
                self.driver.remove_dir(&self.dir.join(&name)).await?;
                removed.push(name);
            }
        }
        let own = self.dir.join(definition::digest(Arch::host()));
        boot_files::prune(&own).map_err(|error| Failure::io("cannot look through a toolbox", &error))?;
        Ok(removed)
    }

    async fn build(
        &self,
        arch: Arch,
        work: &Path,
        mirror: &host::AptMirror,
        say: &mut impl FnMut(&str),
    ) -> Result<(), Failure> {
        let definition = Definition::read()?;
        let input = work.join("input");
        write_input(&input)?;
        let emulation = if arch == Arch::host() {
            None
        } else {
            let own = self.find(Arch::host()).ok_or_else(foreign::no_emulator)?;
            Some(foreign::bring_emulator(&own, arch, &input)?)
        };
        let sources = apt_sources(&definition, mirror);
        let include = format!("--include={}", definition.packages().join(","));
        let architectures = format!("--architectures={}", arch.debian());
        let hook = format!("--customize-hook={HOST_COMMAND_DIR}/input/customize.sh \"$1\"");
        let tree = format!("{HOST_COMMAND_DIR}/tree");
        let mut argv = vec!["mmdebstrap", "--mode=root", "--variant=apt", &architectures, &include];
        argv.extend(MMDEBSTRAP_OPTIONS);
        if emulation.is_some() {
            argv.push(foreign::MMDEBSTRAP_OPTION);
        }
        argv.extend([hook.as_str(), definition.suite.as_str(), tree.as_str()]);
        argv.extend(sources.iter().map(String::as_str));
        self.run(work, &argv, "mmdebstrap", emulation, say).await?;

        let packages = fs_err::read_to_string(work.join("packages.txt")).map_err(|e| Failure::io("toolbox", &e))?;
        definition.check_pins(&packages)?;
        let image = format!("{HOST_COMMAND_DIR}/{SQUASHFS}");
        let squash = [
            "mksquashfs",
            &tree,
            &image,
            "-comp",
            "zstd",
            "-Xcompression-level",
            "3",
            "-noappend",
            "-no-progress",
        ];
        self.run(work, &squash, "mksquashfs", None, say).await?;

        let squashfs = work.join(SQUASHFS);
        let facts = Facts {
            sha256: sha256_of(&squashfs).await?,
            size: fs_err::metadata(&squashfs)
                .map_err(|error| Failure::io("toolbox", &error))?
                .len(),
            arch,
            built: jiff::Timestamp::now(),
            packages: packages.lines().map(str::to_owned).collect(),
        };
        let json = serde_json::to_vec_pretty(&facts).map_err(|error| Failure::new(Code::ToolboxFacts, error))?;
        fs_err::write(work.join(FACTS), json).map_err(|error| Failure::io("toolbox", &error))
    }

    async fn run(
        &self,
        work: &Path,
        argv: &[&str],
        program: &str,
        emulation: Option<Emulation>,
        say: &mut impl FnMut(&str),
    ) -> Result<(), Failure> {
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let index = std::env::var("PIP_INDEX_URL").unwrap_or_default();
        let mut env = vec![
            ("PATH", path),
            ("LC_ALL", "C.UTF-8"),
            ("TMPDIR", HOST_COMMAND_DIR),
            ("HOME", HOST_COMMAND_DIR),
        ];
        if !index.is_empty() {
            env.push(("PIP_INDEX_URL", &index));
        }
        let proxied = match &self.gate {
            Some(gate) => gate.variables_here().await?,
            None => Vec::new(),
        };
        env.extend(proxied.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let (emulator, cpu) = emulation.map_or((None, String::new()), |found| (Some(found.entry), found.cpu));
        if emulator.is_some() {
            env.push(("QEMU_CPU", &cpu));
        }
        let mut last = String::new();
        let report = self
            .driver
            .run_host_command(work, argv, &env, emulator, |line| {
                if !line.trim().is_empty() {
                    line.clone_into(&mut last);
                }
                say(line);
            })
            .await
            .map_err(|failure| match failure.code {
                Code::ProgramMissing => failure.hint(format!(
                    "install the package that has `{program}` (on Debian: mmdebstrap, squashfs-tools)"
                )),
                _ => failure,
            })?;
        if report.exit_code == 0 {
            return Ok(());
        }
        Err(Failure::new(
            Code::ToolboxBuild,
            format!("{program} failed with code {}: {last}", report.exit_code),
        )
        .hint("`kiln toolbox build --verbose` shows the whole output"))
    }
}

/// The names of the toolboxes of the built-in description.
fn current() -> [String; Arch::ALL.len()] {
    Arch::ALL.map(definition::digest)
}

/// Options of mmdebstrap that leave out manuals and other files that a toolbox does not need.
const MMDEBSTRAP_OPTIONS: [&str; 9] = [
    "--aptopt=APT::Install-Recommends \"false\"",
    "--aptopt=Acquire::Languages \"none\"",
    "--aptopt=Acquire::Retries \"3\"",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/info/*",
    "--dpkgopt=path-exclude=/usr/share/lintian/*",
];

fn apt_sources(definition: &Definition, mirror: &host::AptMirror) -> Vec<String> {
    let (suite, components) = (&definition.suite, definition.components.join(" "));
    let line = |uri: &str, suite: &str| {
        format!("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {uri} {suite} {components}")
    };
    let mut sources = vec![
        line(&mirror.archive, suite),
        line(&mirror.archive, &format!("{suite}-updates")),
    ];
    sources.extend(
        mirror
            .security
            .iter()
            .map(|uri| line(uri, &format!("{suite}-security"))),
    );
    sources
}

fn write_input(dir: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt;
    let write = || -> std::io::Result<()> {
        for (name, text) in definition::FILES {
            fs_err::write(dir.join(name), text)?;
        }
        fs_err::write(dir.join("ca.pem"), host::ca_bundle().unwrap_or_default())?;
        fs_err::set_permissions(dir.join("customize.sh"), std::fs::Permissions::from_mode(0o755))
    };
    // The sandbox's root must be able to remove them again.
    make_shared_dir(dir)?;
    make_shared_dir(&dir.join("bin"))?;
    write().map_err(|error| Failure::io("cannot write the toolbox's description", &error))
}

async fn sha256_of(path: &Path) -> Result<String, Failure> {
    let failed = |error: std::io::Error| Failure::io("cannot read the toolbox", &error);
    let mut file = fs_err::tokio::File::open(path).await.map_err(failed)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).await.map_err(failed)? {
            0 => return Ok(hex::encode(hash.finalize())),
            count => hash.update(&buffer[..count]),
        }
    }
}
