//! Native twins of the root's programs, made while the root is built.
//!
//! ```text
//!  kiwi ── packages are fetched, unpacked ──▶ root     the agent's thread ([`sync`])
//!    │                                         │  ◀───  what is there ([`packages`])? the same for the host, please
//!    │                                         │        ([`source`], [`download`]); unchanged files become twins
//!    │                                         │        ([`unchanged`], the world)
//!    └─ chroot ROOT …, zypper --root ROOT … ── "may I?" ─▶ brings everything up to date, then answers ([`stand_in`])
//!          └─ the twins at ROOT/.kiln, for this call only ([`mount`])
//! ```
//!
//! Without twins a build takes longer and gives the same image, so nothing that goes wrong here fails the job: the log
//! says why, and programs are emulated.

use std::{
    io,
    path::PathBuf,
    sync::mpsc::{self, Sender},
    thread,
};

use reqwest::Client;
use tokio::runtime::Handle;

use self::download::Sharing;
use super::{channel::Channel, events::Events, outputs::Outputs};
use crate::{
    arch::Arch,
    emulation::twins::table::Table,
    records::{Failure, TwinLevel, protocol::JobDescription},
};

mod apt;
mod archive;
mod compare;
mod deb;
mod download;
mod facts;
mod format;
mod index;
mod installed;
mod mount;
mod packages;
mod primary;
pub mod probe;
mod rpm;
mod rpm_md;
mod side_by_side;
mod source;
pub mod stand_in;
mod sync;
mod unchanged;

/// Where the library that answers for the target is in the sandbox.
const ANSWERS: &str = "/run/answers.so";

/// What twins are made of, and for what.
#[derive(Debug, Clone)]
struct Settings {
    /// The root that is built.
    root: PathBuf,
    /// Its architecture.
    target: Arch,
    /// The architecture that programs run on.
    host: Arch,
    /// Which programs may have twins.
    level: TwinLevel,
    /// A directory for packages and twins, emptied first and removed in the end.
    dir: PathBuf,
    /// The library that answers for the target.
    answers: PathBuf,
}

/// Twins in the making.
#[derive(Debug)]
pub struct Twins {
    requests: Sender<sync::Request>,
    dir: PathBuf,
}

impl Twins {
    /// Those of a job that may have some. One that cannot have them goes on without, and its log says why.
    ///
    /// `channel` and `http` lead to packages that jobs share.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn of_job(
        job: &JobDescription,
        outputs: &Outputs,
        events: &Events,
        channel: &Channel,
        http: &Client,
    ) -> Option<Self> {
        if job.emulator.is_none() || job.twins == TwinLevel::Off {
            return None;
        }
        let settings = Settings {
            root: outputs.root(),
            target: job.arch,
            host: Arch::host(),
            level: job.twins,
            dir: outputs.twins(),
            answers: PathBuf::from(ANSWERS),
        };
        let sharing = Sharing {
            channel: channel.clone(),
            http: http.clone(),
            runtime: Handle::current(),
        };
        let started = Self::start(settings, events.clone(), sharing);
        let say = |failure: &Failure| events.say_soon(&format!("no native twins: {}", failure.detail));
        started.inspect_err(say).ok()
    }

    /// Starts to make twins for a root that is not there yet.
    ///
    /// # Errors
    ///
    /// When the sandbox does not let it. The root can then be built without twins.
    fn start(settings: Settings, events: Events, sharing: Sharing) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::io("cannot make native twins", &error);
        if settings.dir.exists() {
            fs_err::remove_dir_all(&settings.dir).map_err(failed)?;
        }
        fs_err::create_dir_all(&settings.dir).map_err(failed)?;
        let dir = settings.dir.clone();
        let keeper = sync::Keeper::new(settings, Table::built_in()?, events, sharing);
        let (requests, queue) = mpsc::channel();
        stand_in::listen(requests.clone()).map_err(failed)?;
        thread::spawn(move || keeper.run(&queue));
        Ok(Self { requests, dir })
    }

    /// Ends it: nothing of the twins is in the root after that. Returns how often programs of the root were started as
    /// twins and under the emulator, if anybody entered the root. Blocks.
    ///
    /// # Errors
    ///
    /// When the root could not be cleaned of them.
    pub fn finish(self) -> Result<Option<(u64, u64)>, Failure> {
        let failed = |error: io::Error| Failure::io("cannot remove the native twins from the root", &error);
        let (reply, ended) = mpsc::channel();
        // A thread that has crashed drops both ends, and may have left the mount point behind.
        let _ = self.requests.send(sync::Request::End { reply });
        let crashed = |_| Err(io::Error::other("their maker has crashed"));
        let counts = ended.recv().unwrap_or_else(crashed).map_err(failed)?;
        fs_err::remove_dir_all(&self.dir).map_err(failed)?;
        Ok(counts)
    }
}
