//! Keeps the twins in step with the root while it is built or changed. Runs in its own thread, and touches the
//! directory of twins.
//!
//! The thread checks the packages that the package manager has fetched and unpacked, several times a second, and
//! before a process enters the root. Packages are fetched for the host as soon as the target's are there, mostly while
//! kiwi's package manager is still busy with those; they become twins when their files are in the root, unchanged. The
//! packages of an image are there from the beginning; their counterparts are fetched a few at a time, so that a
//! process that enters the root does not wait for all of them.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Child,
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use super::{
    Origin, Settings,
    compare::compare,
    download::{Downloads, Sharing},
    given_up, host_packages, image,
    index::{Id, Index, Lack},
    kept::{self, Kept},
    mount::{self, MountPoint},
    packages::Packages,
    probe::{ASKERS, Place},
    request::{Ended, Request},
    source::Source,
};
use kiln_records::{Account, Failure};

use crate::{
    events::Events,
    twins::{
        counts, layout,
        table::Table,
        world::{self, Census, Trial, World},
    },
};

/// Pause between checks.
const PAUSE: Duration = Duration::from_millis(300);

/// The number of an image's packages fetched at a time.
const BATCH: usize = 16;

/// How far the lists of packages for the host are.
#[derive(Debug)]
enum Lists {
    /// kiwi has not set up its sources yet.
    Waiting,
    Coming(Source, Child),
    Here(Box<Ready>),
    /// There will be none; the log has the reason.
    Never,
}

/// Everything needed to find packages for the host.
#[derive(Debug)]
struct Ready {
    source: Source,
    index: Index,
    downloads: Downloads,
}

/// The state of the thread.
pub(super) struct Keeper {
    settings: Settings,
    events: Events,
    sharing: Sharing,
    lists: Lists,
    /// The packages, once their format is known.
    packages: Option<Packages>,
    /// What trials showed, here or in the job that kept the root's packages, by the keys of programs.
    verdicts: BTreeMap<String, bool>,
    table: Table,
    /// Set when the root is first entered.
    open: Option<Open>,
    tally: Tally,
    /// Whether the root came from a layer, with its packages installed.
    restored: bool,
}

/// The state once the root exists.
#[derive(Debug)]
struct Open {
    world: World,
    /// None while nothing runs in the root.
    mount_point: Option<MountPoint>,
    has_cpuinfo: bool,
    /// How often the root was compared with its packages.
    looks: u64,
    /// Programs whose trial is due. Trials take long under the emulator, and more packages arrive meanwhile.
    trials: Vec<Trial>,
}

/// Figures for the log.
#[derive(Debug, Default)]
struct Tally {
    packages: usize,
    /// Number of these that other jobs had fetched, or that came with the root.
    shared: usize,
    /// Packages without twins, by the reason.
    without: BTreeMap<Lack, Vec<String>>,
    /// Programs without a twin, with the reason.
    refused: Vec<String>,
    /// Why no more twins are made, if that is so.
    ended: Option<String>,
    busy: Duration,
}

impl Tally {
    /// Notes this many packages, and those `without` a counterpart.
    fn note(&mut self, count: usize, without: Vec<(Id, Lack)>) {
        self.packages += count;
        for ((name, version), lack) in without {
            let all = self.without.entry(lack).or_default();
            all.push(format!("{name} {version}"));
        }
    }
}

/// Learns the packages that are installed in the root.
fn know_installed(settings: &Settings, packages: &mut Packages, table: &Table) -> io::Result<()> {
    for facts in image::packages(&settings.root, packages.format(), &settings.dir)? {
        packages.know(facts, None, table);
    }
    Ok(())
}

impl Keeper {
    pub(super) fn new(settings: Settings, table: Table, events: Events, sharing: Sharing) -> Self {
        Self {
            settings,
            events,
            sharing,
            lists: Lists::Waiting,
            packages: None,
            verdicts: BTreeMap::new(),
            table,
            open: None,
            tally: Tally::default(),
            restored: false,
        }
    }

    /// Works until it is told to end.
    pub(super) fn run(mut self, requests: &Receiver<Request>) {
        loop {
            match requests.recv_timeout(if self.is_behind() { Duration::ZERO } else { PAUSE }) {
                Ok(Request::Enter { root, wait, reply }) => {
                    // A caller that has gone needs no answer.
                    let _ = reply.send(self.enter(&root, wait));
                }
                Ok(Request::Keep { reply }) => {
                    let _ = reply.send(self.keep());
                }
                Ok(Request::Restored) => {
                    if let Err(error) = self.begin_restored() {
                        self.give_up(&error.to_string());
                    }
                }
                Ok(Request::Leave { reply }) => {
                    let _ = reply.send(self.leave());
                }
                Ok(Request::End { reply }) => {
                    let _ = reply.send(self.end());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => self.pass(false),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Whether there is more to do at once.
    fn is_behind(&self) -> bool {
        let has_trials = self.open.as_ref().is_some_and(|open| !open.trials.is_empty());
        let is_fetching =
            matches!(self.lists, Lists::Here(_)) && self.packages.as_ref().is_some_and(Packages::are_wanted);
        has_trials || is_fetching
    }

    /// Makes all twins, and notes beside the host's packages what another root can begin with.
    fn keep(&mut self) -> Option<PathBuf> {
        self.pass(true);
        let packages = self.packages.as_ref()?;
        let Settings {
            host,
            target,
            dir,
            emulator,
            answers,
            ..
        } = &self.settings;
        let dir = host_packages(dir);
        let kept = Kept {
            host: *host,
            target: *target,
            format: packages.format(),
            counterparts: packages.counterparts()?,
            conditions: kept::conditions(emulator, answers).ok()?,
            trials: self.verdicts.clone(),
        };
        kept.write(&dir).ok().map(|()| dir)
    }

    /// Learns the packages of a root from a layer, with the counterparts that came with it.
    fn begin_restored(&mut self) -> io::Result<()> {
        let begun = Instant::now();
        self.restored = true;
        let Settings {
            root,
            dir,
            host,
            target,
            emulator,
            answers,
            ..
        } = &self.settings;
        let unpacked = host_packages(dir);
        match Kept::read(&unpacked, *host, *target) {
            Some(kept) if !matches!(self.lists, Lists::Never) => {
                let mut packages = Packages::new(root, *target, *host, kept.format, unpacked);
                know_installed(&self.settings, &mut packages, &self.table)?;
                let (count, without) = packages.take_over(kept.counterparts);
                self.packages = Some(packages);
                self.events.say_blocking(&format!(
                    "native twins begin with {count} packages that came with the root"
                ));
                self.tally.shared = count;
                self.tally.note(count, without);
                if kept::conditions(emulator, answers).is_ok_and(|now| now == kept.conditions) {
                    self.verdicts.extend(kept.trials);
                }
            }
            _ => {
                if let Some(packages) = &mut self.packages {
                    know_installed(&self.settings, packages, &self.table)?;
                }
            }
        }
        self.tally.busy += begun.elapsed();
        Ok(())
    }

    /// The directory of twins for a root that is about to be entered.
    fn enter(&mut self, root: &Path, wait: bool) -> Option<PathBuf> {
        if !is_same(root, &self.settings.root) {
            return None;
        }
        let wait = wait && self.settings.origin != Origin::Image;
        if self.open.is_none() && !matches!(self.lists, Lists::Never) {
            match self.open_root() {
                Ok(open) => self.open = Some(open),
                Err(error) => self.give_up(&error.to_string()),
            }
        }
        if let Some(open) = &mut self.open
            && open.mount_point.is_none()
        {
            match MountPoint::make(&self.settings.root) {
                Ok(mount_point) => open.mount_point = Some(mount_point),
                Err(error) => {
                    self.give_up(&format!("cannot prepare the root for them: {error}"));
                    return None;
                }
            }
        }
        self.pass(wait);
        self.open.as_ref().map(|open| open.world.mounted().to_owned())
    }

    /// Removes the mount point, until the root is entered again.
    fn leave(&mut self) -> io::Result<()> {
        let mount_point = self.open.as_mut().and_then(|open| open.mount_point.take());
        mount_point.map_or(Ok(()), MountPoint::remove)
    }

    fn open_root(&self) -> Result<Open, Failure> {
        let Settings {
            root,
            target,
            host,
            level,
            dir,
            answers,
            ..
        } = &self.settings;
        let dir = dir.join("world");
        let failed = |error: io::Error| Failure::io("cannot prepare the root for them", &error);
        fs_err::create_dir(&dir).map_err(failed)?;
        let mut world = World::open(&dir, root, answers, *host, *target, self.table.clone(), *level)?;
        world.distrust(self.settings.failed.clone());
        world.emulate(&given_up::for_programs(&self.settings.given_up, &self.table).map_err(failed)?)?;
        if self.settings.writers.is_some() {
            world.record_writers()?;
        }
        let mount_point = MountPoint::make(root).map_err(failed)?;
        Ok(Open {
            world,
            mount_point: Some(mount_point),
            has_cpuinfo: false,
            looks: 0,
            trials: Vec::new(),
        })
    }

    /// Brings everything up to date. With `wait`, waits for packages that are on their way.
    fn pass(&mut self, wait: bool) {
        let begun = Instant::now();
        if let Err(error) = self.try_pass(wait) {
            self.give_up(&error.to_string());
        }
        self.tally.busy += begun.elapsed();
    }

    fn try_pass(&mut self, wait: bool) -> io::Result<()> {
        // Packages that came with their counterparts need none.
        let is_complete = |packages: &Packages| !packages.are_wanted() && !packages.are_arriving();
        if !self.packages.as_ref().is_some_and(is_complete) {
            self.bring_lists(wait)?;
        }
        let Some(packages) = &mut self.packages else {
            return Ok(());
        };
        if let Lists::Here(ready) = &mut self.lists {
            let Ready {
                source,
                index,
                downloads,
            } = &mut **ready;
            packages.look(index, &self.table);
            let most = match self.settings.origin {
                Origin::Recipe | Origin::Container => usize::MAX,
                Origin::Image => BATCH,
            };
            let before = downloads.shared;
            let (count, without) = packages.fetch(source, index, downloads, most)?;
            self.tally.shared += downloads.shared - before;
            self.tally.note(count, without);
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        if !wait {
            for (package, keys) in packages.announce(&self.table) {
                open.world.expect(&package, keys).map_err(io::Error::other)?;
            }
        }
        let offers = compare(&self.settings, packages, &mut open.world, wait)?;
        if !offers.is_empty() {
            self.offer(&offers)?;
        }
        self.note_look()?;
        self.try_programs(wait)
    }

    fn bring_lists(&mut self, wait: bool) -> io::Result<()> {
        if matches!(self.lists, Lists::Waiting)
            && let Some(source) = Source::find(&self.settings, &self.settings.dir, self.restored)?
        {
            let update = source.start_update()?;
            self.lists = Lists::Coming(source, update);
        }
        let Lists::Coming(_, update) = &mut self.lists else {
            return Ok(());
        };
        let status = if wait { Some(update.wait()?) } else { update.try_wait()? };
        let Some(status) = status else { return Ok(()) };
        let mut errors = String::new();
        if let Some(mut said) = update.stderr.take() {
            said.read_to_string(&mut errors)?;
        }
        if let Lists::Coming(source, _) = std::mem::replace(&mut self.lists, Lists::Never) {
            let index = source.index((!status.success()).then_some(&*errors))?;
            let Settings {
                root,
                target,
                host,
                dir,
                ..
            } = &self.settings;
            if self.packages.is_none() {
                let mut packages = Packages::new(root, *target, *host, source.format(), host_packages(dir));
                if self.settings.origin != Origin::Recipe || self.restored {
                    know_installed(&self.settings, &mut packages, &self.table)?;
                }
                self.packages = Some(packages);
            }
            self.lists = Lists::Here(Box::new(Ready {
                downloads: Downloads::new(dir.join("archives"), self.sharing.clone())?,
                source,
                index,
            }));
        }
        Ok(())
    }

    /// Lets go on the twins that wait for this look.
    fn note_look(&mut self) -> io::Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        open.looks += 1;
        open.world.put_looks(open.looks).map_err(io::Error::other)
    }

    fn offer(&mut self, offers: &[world::Package]) -> io::Result<()> {
        let Some(Open {
            world,
            has_cpuinfo,
            trials,
            ..
        }) = &mut self.open
        else {
            return Ok(());
        };
        let added = world.add(offers).map_err(io::Error::other)?;
        trials.extend(added.trials);
        let place = Place {
            root: &self.settings.root,
            world: world.mounted(),
        };
        if !*has_cpuinfo && let Some(text) = place.cpuinfo() {
            world.put_cpuinfo(&text).map_err(io::Error::other)?;
            *has_cpuinfo = true;
        }
        for (key, path) in world.loaders(offers) {
            if let Some(version) = place.loader_version(&path) {
                world.put_loader(&key, &version).map_err(io::Error::other)?;
            }
        }
        self.tally.refused.extend(
            added
                .refused
                .into_iter()
                .map(|refused| format!("{} ({})", refused.path, refused.why)),
        );
        Ok(())
    }

    /// Tries programs that contain answers about their architecture: the next ones, or `all`.
    fn try_programs(&mut self, all: bool) -> io::Result<()> {
        let Some(Open { world, trials, .. }) = &mut self.open else {
            return Ok(());
        };
        let of_known = trials.extract_if(.., |trial| self.verdicts.contains_key(&trial.key));
        let mut due: Vec<Trial> = of_known.collect();
        let place = Place {
            root: &self.settings.root,
            world: world.mounted(),
        };
        let count = if all { trials.len() } else { ASKERS.min(trials.len()) };
        for (trial, judged) in place.try_all(&self.table, trials.drain(..count).collect()) {
            // Another root may try it again.
            if let Ok(is_equal) = judged {
                self.verdicts.insert(trial.key.clone(), is_equal);
            }
            due.push(trial);
        }
        for Trial { key, path, .. } in due {
            if self.verdicts.get(&key) == Some(&true) {
                world.accept(&key).map_err(io::Error::other)?;
            } else {
                world.refuse(&key).map_err(io::Error::other)?;
                self.tally.refused.push(format!("{path} (it answers otherwise)"));
            }
        }
        Ok(())
    }

    fn give_up(&mut self, why: &str) {
        self.lists = Lists::Never;
        self.packages = None;
        if let Some(open) = &mut self.open {
            open.trials.clear();
            // Processes that wait for them then run under the emulator.
            let settled = open
                .world
                .put_looks(layout::NO_LOOKS)
                .and_then(|()| open.world.settle_all());
            if let Err(failure) = settled {
                self.events.say_blocking(&failure.detail);
            }
        }
        self.events
            .say_blocking(&format!("no native twins from here on: {why}"));
        self.tally.ended.get_or_insert_with(|| why.to_owned());
    }

    /// Removes the twins from the root. Returns what they were, even if that fails.
    fn end(self) -> Ended {
        let account = self.account();
        let counts = account.counts();
        self.events.say_blocking(&format!(
            "programs and modules of packages: {counts}; `kiln jobs explain` has the reasons"
        ));
        Ended {
            account,
            counted: self.close(),
        }
    }

    fn account(&self) -> Account {
        let Tally { without, ended, .. } = &self.tally;
        let host = self.settings.host;
        let lacks: HashMap<&str, Lack> = without
            .iter()
            .flat_map(|(lack, packages)| packages.iter().map(|package| (package.as_str(), *lack)))
            .collect();
        let lack = |name: &str, version: &str| {
            let lack = lacks.get(format!("{name} {version}").as_str())?;
            Some(lack.why_of_one(host))
        };
        match &self.open {
            Some(open) => open.world.account(lack, ended.clone()),
            None => Account::of(host, Vec::new(), ended.clone()),
        }
    }

    fn close(self) -> io::Result<Option<(u64, u64)>> {
        match self.lists {
            Lists::Coming(_, mut update) => {
                let _ = update.kill();
                let _ = update.wait();
            }
            Lists::Here(ready) => ready.downloads.end(),
            Lists::Waiting | Lists::Never => {}
        }
        let Some(Open { world, mount_point, .. }) = self.open else {
            return Ok(None);
        };
        let Census {
            programs,
            modules,
            libraries,
            ..
        } = world.census();
        let Tally {
            packages,
            shared,
            without,
            refused,
            busy,
            ..
        } = &self.tally;
        let host = self.settings.host;
        self.events.say_blocking(&format!(
            "native twins: {programs} programs, {modules} modules and {libraries} libraries of {packages} packages, {shared} of them from other jobs, made in {:.1} s",
            busy.as_secs_f64()
        ));
        let doubtful = world.doubtful().map(|(program, why)| format!("{program} ({why})"));
        let without = without.iter().map(|(lack, names)| (lack.why(host), names.clone()));
        for (what, names) in without.chain([
            ("emulated, since their twins are refused".to_owned(), refused.clone()),
            (
                "emulated, since a library of theirs depends on the CPU".to_owned(),
                doubtful.collect(),
            ),
            (
                format!("emulated, since they need these libraries, which {host} lacks or which are refused"),
                world.missing().map(str::to_owned).collect(),
            ),
        ]) {
            if !names.is_empty() {
                self.events.say_blocking(&format!("{what}: {}", names.join(", ")));
            }
        }
        if let Some(mount_point) = mount_point {
            mount_point.remove()?;
        }
        if let Some(to) = &self.settings.writers {
            fs_err::rename(world.mounted().join(mount::writers()), to)?;
        }
        given_up::add_noted(&world.mounted().join(mount::given_up()), &self.settings.given_up)?;
        counts::read(&world.mounted().join(mount::counts())).map(Some)
    }
}

/// Whether two paths refer to the same directory, even through different mounts.
fn is_same(one: &Path, other: &Path) -> bool {
    let found = |path| fs_err::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    found(one).is_some_and(|one| found(other) == Some(one))
}
