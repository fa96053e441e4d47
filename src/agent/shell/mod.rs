//! The job's shell: opened, served, and ended by its user, by the API, or by the clock. Mounts in the sandbox, and
//! runs sshd.
//!
//! The user ends it with a file, as in IMS: `complete` or `failed`. The file is in `/tmp` of the image if the user
//! sees only the image, and otherwise in `/mnt/image`, which has the image's root as `image-root`. If both exist,
//! `failed` counts. Who is logged in then may finish: Ansible, whose last task makes the file, removes its own files
//! after that. An IMS looks for the files every five seconds, so it allows about as much.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use kiln_records::{
    Code, Failure, Verdict, Warning,
    protocol::{JobDescription, ShellNews, ShellPlan, What},
};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use tokio::task::JoinSet;

use self::{line::Use, sshd::announce};
use super::{channel::Channel, events::Events, outputs::remove, processes, twins};

mod line;
mod sshd;

pub use self::sshd::{LocalLogin, Sshd};

/// The directory of the image for users who see the whole sandbox.
const MNT: &str = "/mnt/image";

/// The image's root in that directory.
const VIEW: &str = "image-root";

/// The verdicts whose files are looked for. The first one that is there counts.
const VERDICTS: [Verdict; 2] = [Verdict::Failed, Verdict::Complete];

/// How often the user's files are checked.
const LOOK: Duration = Duration::from_millis(500);

/// After a user's file the shell ends when it was not used for this long while somebody is logged in.
const QUIET: Duration = Duration::from_secs(5);

/// The same while nobody is logged in: tools may log in anew for each of their steps.
const LEFT: Duration = Duration::from_secs(2);

/// How long after a user's file the shell ends at the latest.
const FINISHING: Duration = Duration::from_mins(1);

/// The server is told a new end when the last one told is off by more than this.
const TOLD: Duration = Duration::from_secs(30);

/// How long before the end logged-in users are warned.
const WARNINGS: [Duration; 2] = [Duration::from_mins(10), Duration::from_mins(1)];

/// A shell that is about to open.
#[derive(Debug, Clone, Copy)]
pub struct Opening<'a> {
    /// The job.
    pub job: &'a JobDescription,
    /// Its shell.
    pub plan: &'a ShellPlan,
    /// The image's root.
    pub root: &'a Path,
    /// Whether native twins are made for it.
    pub has_twins: bool,
    /// One line for users who log in: what this shell is for.
    pub what: &'a str,
}

/// How a shell ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// A verdict on the work was given.
    Said(Verdict),
    /// The shell was unused for that long.
    Unused(Duration),
    /// The shell was open for the longest time allowed.
    TooLong(Duration),
}

/// Opens the shell and returns when it has ended.
///
/// # Errors
///
/// `bad_public_key`, and failures of the sandbox to open the shell.
pub async fn hold(opening: Opening<'_>, channel: &Channel, events: &Events) -> Result<End, Failure> {
    let Opening { job, plan, root, .. } = opening;
    let failed = |error: std::io::Error| Failure::io("cannot open the shell", &error);
    let signals = Signals::prepare(root, plan.wish.jail).map_err(failed)?;
    let mut environment = job.environment.clone();
    if opening.has_twins && !twins::TRAPS {
        // Nothing watches the results of what users start.
        environment.push((twins::layout::SWITCH.to_owned(), "off".to_owned()));
    }
    let sshd = Sshd::prepare(&plan.wish, root, &environment, opening.has_twins).await?;
    let used = Arc::new(Use::new());
    let clock = Clock::new(plan, &used);
    let until = clock.until();
    let host_key = sshd.host_key().to_owned();
    events.send(What::Shell(ShellNews::Opened { host_key, until })).await;
    events
        .say(format!(
            "the shell is open until {until:.0}, and longer if it is used: kiln shell {}",
            job.id
        ))
        .await;
    let greeting = || clock.greeting(&opening, &signals);
    let mut connections = JoinSet::new();
    let end = tokio::select! {
        end = wait(&clock, &signals, channel, events) => end,
        never = line::serve(&sshd, channel, &used, &mut connections, events, &greeting) => match never {},
    };
    events.send(What::Shell(ShellNews::Closed)).await;
    events.say(format!("the shell is closed: {}", end.why())).await;
    // Before anything else is started: they may have used up what the sandbox may have.
    let ended = processes::end_strays(used.processes()).await;
    connections.shutdown().await;
    let closed = signals
        .close()
        .map_err(|error| Failure::io("cannot clear up after the shell", &error));
    for failure in [ended, closed].into_iter().filter_map(Result::err) {
        events.warn(Warning::of(&failure, &failure)).await;
    }
    Ok(end)
}

/// Removes the files of verdicts that the user of a jail may have left in a root.
pub fn clear(root: &Path) -> std::io::Result<()> {
    let signals = Signals {
        dir: root.join("tmp"),
        seen: "/tmp",
    };
    signals.close()
}

/// Returns when the shell has to end.
async fn wait(clock: &Clock<'_>, signals: &Signals, channel: &Channel, events: &Events) -> End {
    let mut told = clock.until();
    let mut warned = Duration::MAX;
    let mut finishing = None;
    loop {
        if let Some(verdict) = channel.verdict() {
            return End::Said(verdict);
        }
        if let Some(verdict) = signals.look() {
            let since = *finishing.get_or_insert_with(|| {
                announce(&format!(
                    "This shell ends, {}, as soon as it is not used for {} s.",
                    verdict.name(),
                    QUIET.as_secs()
                ));
                Instant::now()
            });
            if clock.is_finished(since) || clock.left().is_err() {
                return End::Said(verdict);
            }
        } else {
            finishing = None;
        }
        let left = match clock.left() {
            Ok(left) => left,
            Err(end) => {
                announce("This shell ends now.");
                return end;
            }
        };
        let until = clock.until();
        if until.duration_since(told).unsigned_abs() > TOLD {
            told = until;
            events.send(What::Shell(ShellNews::Extended { until })).await;
        }
        match WARNINGS.into_iter().rev().find(|warning| left < *warning) {
            Some(warning) if warning < warned => {
                warned = warning;
                announce(&format!("This shell ends in {} s unless it is used.", left.as_secs()));
            }
            Some(_) => {}
            None => warned = Duration::MAX,
        }
        tokio::time::sleep(LOOK).await;
    }
}

impl End {
    fn why(self) -> String {
        match self {
            Self::Said(verdict) => format!("its user said `{}`", verdict.name()),
            Self::Unused(limit) => format!("it was not used for {} s", limit.as_secs()),
            Self::TooLong(limit) => format!("it was open for {} s", limit.as_secs()),
        }
    }

    /// The meaning of this end for work that was to be done in the shell.
    ///
    /// # Errors
    ///
    /// `shell_failed` when the user rejected the work, `shell_timeout` when there was no verdict.
    pub fn result(self) -> Result<(), Failure> {
        match self {
            Self::Said(Verdict::Complete) => Ok(()),
            Self::Said(Verdict::Failed) => Err(Failure::new(
                Code::ShellFailed,
                "the user marked the changes as failed",
            )
            .hint("that was `failed` in the shell, or `kiln jobs fail`; a new job starts from the unchanged image")),
            Self::Unused(_) | Self::TooLong(_) => Err(Failure::new(
                Code::ShellTimeout,
                format!("the shell ended without a decision on its changes: {}", self.why()),
            )
            .hint(
                "`kiln jobs retry --from package` still keeps them, as long as the job's files are there; `touch complete` in \
                 the shell or `kiln jobs complete` would have; `idle` in [shell] allows more time",
            )),
        }
    }
}

/// The two files by which a user ends a shell.
#[derive(Debug)]
struct Signals {
    dir: PathBuf,
    /// Their directory, as the user sees it.
    seen: &'static str,
}

impl Signals {
    /// Prepares their directory. Whatever has their names there is left from earlier.
    fn prepare(root: &Path, jail: bool) -> std::io::Result<Self> {
        let signals = if jail {
            Self {
                dir: root.join("tmp"),
                seen: "/tmp",
            }
        } else {
            let view = Path::new(MNT).join(VIEW);
            fs_err::create_dir_all(&view)?;
            mount(
                Some(root),
                &view,
                None::<&str>,
                MsFlags::MS_BIND | MsFlags::MS_REC,
                None::<&str>,
            )?;
            Self {
                dir: MNT.into(),
                seen: MNT,
            }
        };
        for verdict in VERDICTS {
            remove(&signals.file(verdict))?;
        }
        Ok(signals)
    }

    fn file(&self, verdict: Verdict) -> PathBuf {
        self.dir.join(verdict.name())
    }

    /// The verdict that was given: a file or a link, as `touch` and `ln` make them. A directory is something else, which only
    /// has the name.
    fn look(&self) -> Option<Verdict> {
        VERDICTS.into_iter().find(|verdict| self.is_said(*verdict))
    }

    fn is_said(&self, verdict: Verdict) -> bool {
        let found = fs_err::symlink_metadata(self.file(verdict));
        found.is_ok_and(|found| found.is_file() || found.is_symlink())
    }

    /// Removes them, and the view of the image.
    fn close(self) -> std::io::Result<()> {
        let mut closed = Ok(());
        for verdict in VERDICTS.into_iter().filter(|verdict| self.is_said(*verdict)) {
            closed = closed.and(fs_err::remove_file(self.file(verdict)));
        }
        if self.seen == MNT {
            closed = closed.and(umount2(&self.dir.join(VIEW), MntFlags::MNT_DETACH).map_err(Into::into));
        }
        closed
    }
}

/// Decides when a shell ends by itself.
#[derive(Debug)]
struct Clock<'a> {
    opened: Instant,
    idle: Duration,
    longest: Duration,
    used: &'a Use,
}

impl<'a> Clock<'a> {
    fn new(plan: &ShellPlan, used: &'a Use) -> Self {
        Self {
            opened: Instant::now(),
            idle: Duration::from_secs(plan.idle_s),
            longest: Duration::from_secs(plan.longest_s),
            used,
        }
    }

    /// The time left, or the end.
    fn left(&self) -> Result<Duration, End> {
        let unused = self.idle.checked_sub(self.used.last().elapsed());
        let unused = unused.ok_or(End::Unused(self.idle))?;
        let open = self.longest.checked_sub(self.opened.elapsed());
        Ok(unused.min(open.ok_or(End::TooLong(self.longest))?))
    }

    /// Whether users have finished who said so at the time `since`.
    fn is_finished(&self, since: Instant) -> bool {
        let quiet = if self.used.is_connected() { QUIET } else { LEFT };
        self.used.last().max(since).elapsed() >= quiet || since.elapsed() >= FINISHING
    }

    fn until(&self) -> Timestamp {
        let left = self.left().unwrap_or_default();
        Timestamp::now().checked_add(left).unwrap_or(Timestamp::MAX)
    }

    fn greeting(&self, opening: &Opening<'_>, signals: &Signals) -> String {
        let Opening { job, plan, what, .. } = opening;
        let (seen, until) = (signals.seen, self.until());
        let place = if plan.wish.jail {
            "This is the image's root.".to_owned()
        } else {
            format!("The image's root is {MNT}/image-root; `chroot {MNT}/image-root` enters it.")
        };
        format!(
            "Job {} ({}): {what}\n{place}\n`touch {seen}/complete` keeps the result, `touch {seen}/failed` throws it away.\n\
             If it is not used, this shell ends at {until:.0}.\n",
            job.id, job.arch
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_counts_more_than_complete() {
        let root = tempfile::tempdir().unwrap();
        fs_err::create_dir(root.path().join("tmp")).unwrap();
        fs_err::write(root.path().join("tmp/complete"), "stale").unwrap();
        let signals = Signals::prepare(root.path(), true).unwrap();
        assert_eq!(signals.look(), None);
        fs_err::write(signals.file(Verdict::Complete), "").unwrap();
        assert_eq!(signals.look(), Some(Verdict::Complete));
        fs_err::write(signals.file(Verdict::Failed), "").unwrap();
        assert_eq!(signals.look(), Some(Verdict::Failed));
        signals.close().unwrap();
        assert_eq!(fs_err::read_dir(root.path().join("tmp")).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_with_the_name_of_a_verdict_is_none() {
        let root = tempfile::tempdir().unwrap();
        let tmp = root.path().join("tmp");
        for name in ["complete", "failed"] {
            fs_err::create_dir_all(tmp.join(name).join("of the base image")).unwrap();
        }
        let signals = Signals::prepare(root.path(), true).unwrap();
        assert_eq!(
            fs_err::read_dir(&tmp).unwrap().count(),
            0,
            "the user could not say anything"
        );
        fs_err::create_dir(tmp.join("failed")).unwrap();
        assert_eq!(signals.look(), None);
        std::os::unix::fs::symlink("nowhere", tmp.join("complete")).unwrap();
        assert_eq!(signals.look(), Some(Verdict::Complete));
        signals.close().unwrap();
        assert!(tmp.join("failed").is_dir() && fs_err::symlink_metadata(tmp.join("complete")).is_err());
    }

    #[test]
    fn who_has_said_so_may_finish_but_not_for_ever() {
        let used = Use::new();
        let clock = Clock {
            opened: Instant::now(),
            idle: FINISHING,
            longest: FINISHING,
            used: &used,
        };
        let ago = |time| Instant::now().checked_sub(time).unwrap();
        // It was used just now.
        assert!(!clock.is_finished(ago(QUIET)));
        assert!(clock.is_finished(ago(FINISHING)));
    }

    #[test]
    fn each_use_begins_the_time_anew_but_not_for_ever() {
        let used = Use::new();
        let clock = |idle: u64, longest: u64| Clock {
            opened: Instant::now().checked_sub(Duration::from_secs(100)).unwrap(),
            idle: Duration::from_secs(idle),
            longest: Duration::from_secs(longest),
            used: &used,
        };
        assert!(clock(50, 200).left().is_ok_and(|left| left <= Duration::from_secs(50)));
        assert_eq!(clock(50, 99).left(), Err(End::TooLong(Duration::from_secs(99))));
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(clock(0, 200).left(), Err(End::Unused(Duration::ZERO)));
        assert_eq!(
            End::Unused(Duration::from_secs(1)).result().unwrap_err().code,
            Code::ShellTimeout
        );
        assert_eq!(End::Said(Verdict::Failed).result().unwrap_err().code, Code::ShellFailed);
    }
}
