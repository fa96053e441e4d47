//! Boots an image in a sandbox of the namespace driver and hands on what its console says. Starts a sandbox, and copies the
//! image's kernel and initrd into its directory.

use std::{
    ops::ControlFlow,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use kiln_records::{Failure, arch::Arch};
use tokio::{
    io::AsyncReadExt,
    time::{Instant, timeout_at},
};

use super::{
    NamespaceDriver,
    plan::{Plan, Task},
    trial::Trial,
};
use crate::sandbox::microvm::{
    Accelerator,
    image::{self, ImageMachine},
    qemu,
};

/// The device of the root file system in the machine.
pub const ROOT_DEVICE: &str = "/dev/vda";

/// The most that is kept of QEMU's own messages, in bytes.
const WORDS: u64 = 64 * 1024;

/// How long a console says nothing before its listener hears of that. A busy host makes pauses within a line.
const QUIET: Duration = Duration::from_secs(1);

/// An image's files, and the machine to boot them in.
#[derive(Debug)]
pub struct Bootable {
    /// The image's architecture.
    pub arch: Arch,
    /// The kernel.
    pub kernel: PathBuf,
    /// The initrd.
    pub initrd: PathBuf,
    /// The root file system, a squashfs: the first disk of the machine, read-only.
    pub root: PathBuf,
    /// The kernel's parameters.
    pub parameters: String,
    /// Bytes of the machine's memory.
    pub memory: u64,
    /// How long it may run.
    pub longest: Duration,
}

/// What a listener hears of a console.
#[derive(Debug, Clone, Copy)]
pub enum Said<'a> {
    /// The next bytes.
    Bytes(&'a [u8]),
    /// Nothing for a second after the last bytes. This is said once, until more bytes come.
    Nothing,
}

/// How a boot ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The listener has heard enough.
    Heard,
    /// The machine ended; QEMU's own last message, if there is one.
    Exited(Option<String>),
    /// It had run as long as it may.
    TimedOut,
}

/// A machine that is ready to boot.
#[derive(Debug)]
pub struct Boot {
    driver: NamespaceDriver,
    machine: ImageMachine,
    longest: Duration,
    /// The emulator and what executes the guest's instructions, for users.
    pub how: String,
    /// Whether the host's own CPU executes them.
    pub accelerated: bool,
}

impl NamespaceDriver {
    /// Finds the emulator for an image, and the best way to execute its instructions.
    ///
    /// # Errors
    ///
    /// `no_emulator` when there is no emulator for the image's architecture.
    pub async fn ready_to_boot(&self, image: Bootable) -> Result<Boot, Failure> {
        let qemu = image::emulator(image.arch)?;
        let version = qemu::version(&qemu).await?;
        let accelerated = image.arch == Arch::host() && self.is_kvm_usable().await;
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let machine = ImageMachine {
            qemu,
            arch: image.arch,
            accelerator: if accelerated {
                Accelerator::Kvm
            } else {
                Accelerator::Tcg
            },
            kernel: image.kernel,
            initrd: image.initrd,
            root: image.root,
            parameters: image.parameters,
            memory: image.memory,
            // More of them make no boot faster.
            cpus: u32::try_from(cpus.min(4)).unwrap_or(1),
        };
        Ok(Boot {
            driver: self.clone(),
            longest: image.longest,
            how: format!("{version} with {}", machine.how()),
            accelerated,
            machine,
        })
    }
}

impl Boot {
    /// Boots the machine, which ends with this future. What the console says goes to `listen`, until that breaks.
    ///
    /// # Errors
    ///
    /// When the sandbox cannot be made.
    pub async fn run(mut self, mut listen: impl FnMut(Said<'_>) -> ControlFlow<()>) -> Result<End, Failure> {
        let mut trial = Trial::new(&self.driver.sandboxes)?;
        let dir = trial.files.dir().to_owned();
        for (name, file) in [
            ("kernel", &mut self.machine.kernel),
            ("initrd", &mut self.machine.initrd),
        ] {
            *file = copy_for_all(file, &dir.join(name)).await?;
        }
        if self.accelerated {
            self.driver.lend_kvm(&trial.files)?;
        }
        let plan = Plan {
            ids: self.driver.ids()?,
            dir,
            task: Task::BootImage(Box::new(self.machine)),
        };
        let handle = trial.handle.insert(self.driver.supervise(&plan, Stdio::piped()).await?);
        let (stdout, stderr) = (handle.child.stdout.take(), handle.child.stderr.take());
        // QEMU must never wait for a reader of its messages.
        let words = tokio::spawn(async move {
            let mut kept = Vec::new();
            if let Some(mut stderr) = stderr {
                let _ = (&mut stderr).take(WORDS).read_to_end(&mut kept).await;
                let _ = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
            }
            kept
        });
        let until = Instant::now() + self.longest;
        let mut buffer = vec![0; 16 * 1024];
        let mut quiet = until;
        let heard = match stdout {
            None => End::Exited(None),
            Some(mut console) => loop {
                let said = match timeout_at(quiet, console.read(&mut buffer)).await {
                    Err(_) if quiet == until => break End::TimedOut,
                    Err(_) => {
                        quiet = until;
                        Said::Nothing
                    }
                    Ok(Ok(0) | Err(_)) => break End::Exited(None),
                    Ok(Ok(count)) => {
                        quiet = until.min(Instant::now() + QUIET);
                        Said::Bytes(&buffer[..count])
                    }
                };
                if listen(said).is_break() {
                    break End::Heard;
                }
            },
        };
        handle.kill().await;
        let report = handle.wait().await;
        if heard != End::Exited(None) {
            return Ok(heard);
        }
        if let Some(failure) = report?.failure {
            return Err(failure);
        }
        let words = words.await.unwrap_or_default();
        let words = String::from_utf8_lossy(&words);
        let last = words.lines().rfind(|line| !line.trim().is_empty());
        Ok(End::Exited(last.map(str::to_owned)))
    }
}

/// Copies a file so that the ids of sandboxes, which own nothing on this host, can read it.
async fn copy_for_all(from: &Path, to: &Path) -> Result<PathBuf, Failure> {
    let (from, copy) = (from.to_owned(), to.to_owned());
    let copied = tokio::task::spawn_blocking(move || {
        fs_err::copy(from, &copy)?;
        fs_err::set_permissions(&copy, std::fs::Permissions::from_mode(0o644))
    })
    .await;
    let copied = copied.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    copied.map_err(|error| Failure::io("cannot copy the image's boot files", &error))?;
    Ok(to.to_owned())
}
