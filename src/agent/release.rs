//! Has programs of a root told, by `uname -r`, of the kernel that the image boots, and not of the builder's. Reads the root, listens
//! on a socket, and writes the file from which the sandbox's first process answers.

use std::{
    collections::HashMap,
    os::unix::fs::MetadataExt,
    path::Path,
    process::Command,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kiln_inside::room::Release;
use kiln_records::{Code, Failure, Warning, arch::Arch, recipe_settings::Uname};
use tokio::{
    io::AsyncWriteExt,
    net::UnixListener,
    time::{MissedTickBehavior, interval},
};

use crate::{boot_files, events::Events, kernel::Kernel, process::blocking};

/// The socket on which scripts.py asks for a look before it runs a program of the root.
const SOCKET: &str = "/run/kiln-release.sock";

/// The pause between looks while programs run: a package manager unpacks a kernel some time before it runs scripts for it.
const LOOK: Duration = Duration::from_millis(250);

/// C libraries that are in use refuse to run on a kernel before this one.
const OLDEST: [u64; 2] = [3, 10];

/// The most letters of a release (`__NEW_UTS_LEN` of `linux/utsname.h`).
const LONGEST: usize = 64;

/// What programs are told.
#[derive(Debug)]
pub struct Releases {
    channel: Option<Release>,
    arch: Arch,
    told: Mutex<Told>,
    read: Versions,
}

/// The versions of kernels whose names have none, by the files.
type Versions = Arc<Mutex<HashMap<File, Option<String>>>>;

/// A file as it was read: device, number, size, and the time of its last change.
type File = (u64, u64, u64, i64, i64);

#[derive(Debug, Default)]
struct Told {
    /// The newest kernel, as it was last seen.
    newest: Option<String>,
    /// Whether it was seen that programs are told.
    is_tried: bool,
}

impl Releases {
    /// Those of a sandbox whose first process reads `channel`, for an image of this architecture.
    pub fn new(channel: Option<Release>, arch: Arch) -> Self {
        Self {
            channel,
            arch,
            told: Mutex::default(),
            read: Arc::default(),
        }
    }

    /// Has programs told of the newest kernel in `root`, for as long as this is polled, or leaves the builder's. Returns only if it
    /// cannot.
    pub(crate) async fn follow(&self, root: &Path, uname: Uname, events: &Events) -> Failure {
        let _ = fs_err::remove_file(SOCKET);
        if uname == Uname::Builder {
            return match self.tell(None, events).await {
                Ok(()) => std::future::pending().await,
                Err(failure) => failure,
            };
        }
        let listener = match UnixListener::bind(SOCKET) {
            Ok(listener) => listener,
            Err(error) => return failed(&error),
        };
        let mut pause = interval(LOOK);
        pause.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let asking = tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => Some(stream),
                    Err(error) => return failed(&error),
                },
                _ = pause.tick() => None,
            };
            if let Err(failure) = self.look(root, events).await {
                return failure;
            }
            if let Some(mut stream) = asking {
                // Whoever hangs up does not want the answer.
                let _ = stream.write_all(b"looked\n").await;
            }
        }
    }

    /// Has programs told of the newest kernel in `root`, or of the builder's if it has none.
    ///
    /// # Errors
    ///
    /// The first process cannot be told.
    pub(crate) async fn look(&self, root: &Path, events: &Events) -> Result<(), Failure> {
        let (root, arch, read) = (root.to_owned(), self.arch, Arc::clone(&self.read));
        let newest = blocking(move || {
            let mut version = |kernel: &Path| version_of(kernel, arch, &read);
            Ok(boot_files::newest_release(&root, &mut version))
        });
        self.tell(newest.await?, events).await
    }

    async fn tell(&self, newest: Option<String>, events: &Events) -> Result<(), Failure> {
        let is_possible = newest.as_deref().is_none_or(is_release);
        let is_first = {
            let mut told = lock(&self.told);
            if told.newest == newest {
                return Ok(());
            }
            told.newest.clone_from(&newest);
            if let Some(channel) = &self.channel {
                channel
                    .set(newest.as_deref().filter(|_| is_possible))
                    .map_err(|error| failed(&error))?;
            }
            is_possible && newest.is_some() && !std::mem::replace(&mut told.is_tried, true)
        };
        let Some(newest) = newest else { return Ok(()) };
        let untold = |text| Warning::new(Code::KernelReleaseUntold, text);
        if !is_possible {
            let text = format!(
                "programs see the builder's kernel by `uname -r`, since {} is no release that they can run with",
                newest.escape_debug()
            );
            events.warn(untold(text)).await;
        } else if is_first && !is_told(&newest).await? {
            let text = format!(
                "scripts see the builder's kernel by `uname -r`, and not {newest}: this host's kernel, or its container engine, \
                 cannot let Kiln answer for it"
            );
            events.warn(untold(text)).await;
        } else if self.channel.is_some() {
            events
                .say(format!("`uname -r` in the root is {newest}, its newest kernel"))
                .await;
        }
        Ok(())
    }
}

/// Whether programs of the sandbox are told this release. The agent itself is not: nothing can read or write its memory.
async fn is_told(release: &str) -> Result<bool, Failure> {
    let release = release.to_owned();
    blocking(move || {
        let said = Command::new("uname").arg("-r").output();
        let said = said.map_err(|error| Failure::io("cannot run uname", &error))?;
        Ok(String::from_utf8_lossy(&said.stdout).trim() == release)
    })
    .await
}

/// Whether a directory's name can be the release of a kernel on which the programs of today run.
fn is_release(name: &str) -> bool {
    let mut numbers = name.split(['.', '-']).map(str::parse::<u64>);
    let number = numbers.next().zip(numbers.next());
    let is_new = matches!(number, Some((Ok(first), Ok(second))) if [first, second] >= OLDEST);
    is_new && name.len() <= LONGEST && name.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The version that a kernel has for itself. Reading it may mean to unpack it.
fn version_of(kernel: &Path, arch: Arch, read: &Versions) -> Option<String> {
    let found = fs_err::metadata(kernel).ok()?;
    let file = (found.dev(), found.ino(), found.len(), found.ctime(), found.ctime_nsec());
    if let Some(known) = lock(read).get(&file) {
        return known.clone();
    }
    let version = Kernel::inspect(kernel, arch).ok().and_then(|kernel| kernel.version());
    lock(read).insert(file, version.clone());
    version
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(error: &std::io::Error) -> Failure {
    Failure::io("cannot tell programs of the image's kernel", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_programs_can_run_with_is_a_release() {
        for name in [
            "6.1.0-40-amd64",
            "3.10.0-1160.el7.x86_64",
            "6.12.0",
            "5.14.21-150500.55.7-default",
            "10.0-rc1",
        ] {
            assert!(is_release(name), "{name}");
        }
        let long = format!("6.1.0-{}", "x".repeat(LONGEST));
        for name in [
            "2.6.32-754.el6",
            "3.9.0",
            "extramodules-6.1",
            "6",
            "",
            "lts",
            "6.1 0",
            &long,
        ] {
            assert!(!is_release(name), "{name}");
        }
    }
}
