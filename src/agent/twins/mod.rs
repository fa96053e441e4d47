//! Makes native twins of the root's programs while the root is built or changed. Fetches packages, and mounts twins
//! into the root.
//!
//! ```text
//!  kiwi ── packages are fetched, unpacked ──▶ root     the agent's thread ([`sync`])
//!    │                                         │  ◀───  which packages ([`packages`])? the same ones for the host
//!    │                                         │        ([`source`], [`download`]); unchanged files become twins
//!    │                                         │        ([`unchanged`], the world)
//!    └─ chroot ROOT …, zypper --root ROOT … ── "may I?" ─▶ brings everything up to date, then answers ([`stand_in`])
//!          └─ the twins at ROOT/.kiln, for this call only ([`mount`])
//! ```
//!
//! A root unpacked from an image has its packages already, and names its repositories itself (`image`).
//!
//! Without twins a job takes longer and gives the same image, so no error here fails the job: the log has the reason,
//! and programs are emulated.

use std::{
    io,
    path::{Path, PathBuf},
    sync::mpsc::{self, Sender},
    thread,
};

use kiln_records::{
    Account, Code, Execs, FailedTwin, Failure, TwinLevel, Warning,
    arch::Arch,
    protocol::{Emulator, JobDescription, RecipeType, Work},
    twins::no_twins_between,
};
use reqwest::Client;
use tokio::runtime::Handle;

use self::{
    download::Sharing,
    mirrors::Mirrors,
    request::{Ended, Request},
};
use super::{
    channel::Channel,
    events::Events,
    outputs::{self, Outputs},
    process::blocking,
    programs::Programs,
};
use crate::twins::table::Table;

pub(crate) use self::{
    deb::field as control_field,
    format::Format,
    image::{DPKG_STATUS, format as format_of, query_rpm},
    installed::DPKG_LISTS,
    root::{Root, by_fd},
};

mod apt;
mod archive;
pub mod call;
mod choice;
mod compare;
pub mod counts;
mod deb;
mod download;
mod elf;
pub mod examine;
mod facts;
mod format;
mod gather;
pub mod given_up;
mod image;
mod index;
mod installed;
pub mod join;
mod kept;
pub mod key;
pub mod layout;
mod ledger;
mod long_double;
mod mirrors;
mod modes;
mod mount;
mod packages;
mod pairs;
mod primary;
pub mod probe;
mod request;
mod root;
mod rpm;
mod rpm_md;
mod shelf;
mod side_by_side;
mod source;
pub mod stand_in;
mod sync;
pub mod table;
pub mod truth;
mod unchanged;
mod version;
pub mod world;

/// The path in the sandbox of the library that answers for the target.
const ANSWERS: &str = "/run/answers.so";

/// The origin of a root's packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// kiwi is installing them, from the repositories of a recipe. Processes that enter the root wait for twins of
    /// packages that are being installed.
    Recipe,
    /// They are installed, and the image names its repositories. Processes do not wait: they may be done before all
    /// twins are there.
    Image,
    /// They are installed and further ones are being installed, and the root names its repositories: a working container. Processes wait
    /// for the twins of what is there when they start.
    Container,
}

/// The settings for making twins.
#[derive(Debug, Clone)]
struct Settings {
    /// The root that is built or changed.
    root: PathBuf,
    origin: Origin,
    /// The root's architecture.
    target: Arch,
    /// The architecture that programs run on.
    host: Arch,
    /// The level that decides which programs may have twins.
    level: TwinLevel,
    /// A directory for packages and twins, emptied first and removed at the end.
    dir: PathBuf,
    /// The emulator that runs the target's programs.
    emulator: PathBuf,
    /// The library that answers for the target.
    answers: PathBuf,
    /// The file with the commands whose twins gave up, which those of this root are added to.
    given_up: PathBuf,
    /// The place for the record of writers at the end, if one is wanted.
    writers: Option<PathBuf>,
    /// Pairs that failed in earlier jobs.
    failed: Vec<FailedTwin>,
    /// The way to lists of mirrors.
    mirrors: Mirrors,
}

impl Settings {
    /// The root's architecture, and the host's.
    const fn archs(&self) -> (Arch, Arch) {
        (self.target, self.host)
    }
}

/// The place of the host's unpacked packages in the directory of twins.
fn host_packages(dir: &Path) -> PathBuf {
    dir.join("host")
}

/// Whether the CPU of this host raises a signal for a result that differs between CPUs. Where it does not, such a result
/// of a twin is seen by its [watcher](super::watch), at the twin's end.
pub const TRAPS: bool = cfg!(target_arch = "x86_64");

/// Fails where nothing has shown that the results of twins were those of the emulated programs.
fn watched(programs: &Programs) -> Result<(), Failure> {
    if TRAPS || !programs.are_unwatched() {
        return Ok(());
    }
    let detail = "nothing could watch the results of native twins on this host's kernel";
    Err(Failure::new(Code::EmulatorFault, detail)
        .hint("allow processes of the sandbox to trace each other, or use `--twins off`"))
}

/// How often programs of the root were started as twins and under the emulator, if the root was ever entered.
type Counted = Option<(u64, u64)>;

/// What the twins of an earlier root of the same job were: how each program was run, and how often.
#[derive(Debug, Default)]
pub struct Earlier {
    account: Option<Account>,
    counted: Counted,
}

impl Earlier {
    /// Adds what the twins of a later root were.
    #[must_use]
    pub fn and(self, Self { account, counted }: Self) -> Self {
        let add = |(twins, emulated): (u64, u64), (more, others): (u64, u64)| (twins + more, emulated + others);
        Self {
            account: match (self.account, account) {
                (Some(one), Some(other)) => Some(one.and(other)),
                (one, other) => other.or(one),
            },
            counted: match (self.counted, counted) {
                (Some(one), Some(other)) => Some(add(one, other)),
                (one, other) => one.or(other),
            },
        }
    }
}

/// Twins that are being made.
#[derive(Debug)]
pub struct Twins {
    requests: Sender<Request>,
    dir: PathBuf,
    target: Arch,
    given_up: PathBuf,
    events: Events,
    channel: Channel,
}

impl Twins {
    /// Starts the twins of a job, if it may have some. A job that cannot have them continues without, and its log has
    /// the reason.
    ///
    /// `channel` and `http` are for packages that jobs share, and `web` is for what the recipe names. `writers` is the place for
    /// the record of the files that twins change, if one is wanted.
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
        web: &Client,
        writers: Option<PathBuf>,
    ) -> Option<Self> {
        let emulator = job.emulator.as_ref().filter(|_| job.twins != TwinLevel::Off)?;
        let host = Arch::host();
        if no_twins_between(job.arch, host).is_some() {
            return None;
        }
        let settings = Settings {
            root: outputs.root(),
            origin: match &job.work {
                Work::Create(work) => match work.recipe_type {
                    RecipeType::KiwiNg => Origin::Recipe,
                    RecipeType::Containerfile => Origin::Container,
                },
                Work::Customize(_) => Origin::Image,
            },
            target: job.arch,
            host,
            level: job.twins,
            dir: outputs.twins(),
            emulator: PathBuf::from(&emulator.binfmt.interpreter),
            answers: PathBuf::from(ANSWERS),
            given_up: outputs.given_up(),
            writers,
            failed: job.failed_twins.clone(),
            mirrors: Mirrors::new(web.clone(), Handle::current()),
        };
        let sharing = Sharing {
            channel: channel.clone(),
            http: http.clone(),
            runtime: Handle::current(),
        };
        let started = Self::start(settings, events.clone(), sharing, channel.clone());
        let say = |failure: &Failure| events.say_soon(&format!("no native twins: {}", failure.detail));
        started.inspect_err(say).ok()
    }

    /// Starts to make twins for a root, which need not exist yet.
    ///
    /// # Errors
    ///
    /// The sandbox does not allow it. The root can then be built or changed without twins.
    fn start(settings: Settings, events: Events, sharing: Sharing, channel: Channel) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::io("cannot make native twins", &error);
        if settings.dir.exists() {
            fs_err::remove_dir_all(&settings.dir).map_err(failed)?;
        }
        fs_err::create_dir_all(&settings.dir).map_err(failed)?;
        if settings.origin == Origin::Recipe {
            apt::forget().map_err(failed)?;
        }
        let (dir, target, given_up) = (settings.dir.clone(), settings.target, settings.given_up.clone());
        let keeper = sync::Keeper::new(settings, Table::built_in()?, events.clone(), sharing);
        let (requests, queue) = mpsc::channel();
        stand_in::listen(requests.clone()).map_err(failed)?;
        thread::spawn(move || keeper.run(&queue));
        Ok(Self {
            requests,
            dir,
            target,
            given_up,
            events,
            channel,
        })
    }

    /// The directory of the host's packages, into which those that were [kept](Self::keep) go before a root is
    /// [restored](Self::restored).
    pub fn host_packages(&self) -> PathBuf {
        host_packages(&self.dir)
    }

    /// Makes all twins of a root in which the packages are installed. Returns the directory with what another root with the
    /// same packages can begin with; `None` if some of it is missing.
    ///
    /// # Errors
    ///
    /// The thread that waits for it has crashed.
    pub async fn keep(&self) -> Result<Option<PathBuf>, Failure> {
        let requests = self.requests.clone();
        blocking(move || {
            let (reply, kept) = mpsc::channel();
            // A crashed thread drops both ends.
            let _ = requests.send(Request::Keep { reply });
            Ok(kept.recv().ok().flatten())
        })
        .await
    }

    /// Tells that the root was replaced by one in which all packages are installed.
    pub fn restored(&self) {
        // A crashed thread makes no twins.
        let _ = self.requests.send(Request::Restored);
    }

    /// Takes the mount point out of the root, for as long as nothing runs there. The next process that enters it has one again.
    ///
    /// # Errors
    ///
    /// Something is in it.
    pub async fn leave(&self) -> Result<(), Failure> {
        let requests = self.requests.clone();
        blocking(move || {
            let (reply, left) = mpsc::channel();
            let _ = requests.send(Request::Leave { reply });
            left.recv()
                .unwrap_or(Ok(()))
                .map_err(|error| Failure::io("cannot remove the native twins from the root", &error))
        })
        .await
    }

    /// Ends the twins of a root that is not the job's last one.
    pub async fn end_of_stage(self) -> Result<Earlier, Failure> {
        let (account, counted) = blocking(move || Ok(self.finish())).await?;
        Ok(Earlier {
            account,
            counted: counted?,
        })
    }

    /// Ends the twins, if there are any, removes them from the root, and tells the server how each program was run, in `earlier` roots
    /// of the job, too. Returns how often programs ran as twins or emulated, if the machine cannot run them itself, where `programs` ran
    /// under the `emulator`; and the `outcome` of the work, or a failure when twins could not be removed from the root.
    /// Where a twin's death is the failure, that names the twin.
    pub async fn end(
        twins: Option<Self>,
        earlier: Earlier,
        programs: Programs,
        emulator: Option<&Emulator>,
        outcome: Result<(), Failure>,
    ) -> (Option<Execs>, Result<(), Failure>) {
        let Some(twins) = twins else {
            return (emulator.map(|_| programs.execs(earlier.counted)), outcome);
        };
        let (target, events, channel) = (twins.target, twins.events.clone(), twins.channel.clone());
        let list = twins.given_up.clone();
        let (account, counted) = match blocking(move || Ok(twins.finish())).await {
            Ok(ended) => ended,
            Err(failure) => (None, Err(failure)),
        };
        let (account, counted) = match counted {
            Ok(counted) => {
                let Earlier { account, counted } = earlier.and(Earlier { account, counted });
                (account, Ok(counted))
            }
            Err(failure) => (account, Err(failure)),
        };
        let counted = counted.and_then(|counted| {
            let noted = given_up::add(programs.given_up(), &list);
            noted.map_err(|error| Failure::io("cannot note at which commands native twins gave up", &error))?;
            Ok(counted)
        });
        let dead = programs.dead_twin().zip(account.as_ref());
        let pair = dead.and_then(|(path, account)| account.pair_of(path, target));
        if let Some(account) = account.map(|account| Account {
            given_up: given_up::all(&list),
            ..account
        }) && let Err(failure) = channel.keep_account(&account).await
        {
            let text = format!("why each program was run as it was is not recorded: {failure}");
            events.warn(Warning::new(Code::ProgramsUnrecorded, text)).await;
        }
        let watched = watched(&programs);
        let execs = emulator.map(|_| programs.execs(counted.as_ref().ok().copied().flatten()));
        let outcome = outcome.map_err(|failure| match failure.code {
            Code::EmulatorFault => Failure {
                twin: pair.map(Box::new),
                ..failure
            },
            _ => failure,
        });
        let counted = counted.map(drop);
        let outcome = match outcome {
            // With the twins in it, the root is not what its user left.
            Err(failure) if outputs::is_verdict(&failure) => counted.and(Err(failure)),
            outcome => outcome.and(counted),
        };
        (execs, outcome.and(watched))
    }

    /// Returns how each program was run, and how often.
    fn finish(self) -> (Option<Account>, Result<Counted, Failure>) {
        let failed = |error: io::Error| Failure::io("cannot remove the native twins from the root", &error);
        let (reply, ended) = mpsc::channel();
        // A crashed thread drops both ends, and may have left the mount point behind.
        let _ = self.requests.send(Request::End { reply });
        let (account, counted) = match ended.recv() {
            Ok(Ended { account, counted }) => (Some(account), counted),
            Err(_) => (None, Err(io::Error::other("their maker has crashed"))),
        };
        let removed = counted.and_then(|counts| fs_err::remove_dir_all(&self.dir).map(|()| counts));
        (account, removed.map_err(failed))
    }
}
