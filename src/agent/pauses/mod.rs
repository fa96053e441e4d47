//! Stops kiwi before packages are installed and after that, for what has to be known or done at that moment. Talks to kiwi over
//! a socket, and to the server; reads the root.
//!
//! ```text
//!  kiwi (kiwi.py)            agent                                       server
//!  ─ before packages ──────▶ a layer may take the place of the root  ◀─▶ FindLayer
//!                            then as after packages
//!  ◀──── restored, or go on
//!  ─ packages are known ───▶ the root of a similar recipe may take its
//!                            place, and lacks some of them
//!                            those of other jobs need no download      ◀─▶ FindPackages
//!  ◀──── brought, or go on
//!    install …
//!  ─ after packages ───────▶ the packages and the files they came in ──▶ KeepInstalled
//!                            a layer may be kept                     ──▶ SettleLayer
//!                            they are compared with the recipe's lock
//!  ◀──── go on
//!    the overlay, config.sh, …
//! ```
//!
//! No script and no file of the recipe can have changed the packages by then, unless it took part in their installation.

mod downloads;
pub(crate) mod warned;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Mutex, PoisonError},
};

use kiln_records::{
    Code, Failure, Installed, RepositoryState, Warning,
    lock::{self, Locked},
    protocol::Purpose,
};
use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    process::Command,
};

use self::downloads::Downloads;
use crate::{
    archives,
    building::Building,
    channel::Channel,
    events::Events,
    inventory,
    kiwi_config::Choice,
    layers::{Before, Layers, repositories},
    outputs::Outputs,
    process::blocking,
    twins::Twins,
    wanted::Wanted,
};

/// The program that runs kiwi.
const PROGRAM: &str = "/run/kiwi-ng";

/// The programs in the sandbox, with their places: that one, what it imports, and what it lets dnf and zypper run.
const PROGRAMS: [(&str, &str); 13] = [
    (PROGRAM, include_str!("kiwi.py")),
    ("/run/kiln_functions.py", include_str!("functions.py")),
    ("/run/kiln_arrivals.py", include_str!("arrivals.py")),
    ("/run/kiln_ended.py", include_str!("ended.py")),
    ("/run/kiln_groups.py", include_str!("groups.py")),
    ("/run/kiln_reading.py", include_str!("reading.py")),
    ("/run/kiln_refusals.py", include_str!("refusals.py")),
    ("/run/kiln_scripts.py", include_str!("scripts.py")),
    ("/run/kiln_warnings.py", include_str!("warnings.py")),
    (TRUST, include_str!("trust.py")),
    ("/run/kiln-dnf/wanted.py", include_str!("dnf_plugin.py")),
    ("/run/kiln-dnf-modules/libcomps.py", include_str!("dnf_comps.py")),
    ("/run/kiln-zypper-list.py", include_str!("zypper_list.py")),
];

/// What has the root trust the site.
const TRUST: &str = "/run/kiln_trust.py";

/// Where kiwi notes what it has understood, if it only reads.
const READING: &str = "/run/kiln-reading.json";

/// The socket that it asks.
const SOCKET: &str = "/run/kiln-pauses.sock";

/// The interpreter of the toolbox's kiwi.
pub(crate) const PYTHON: &str = "/opt/kiwi/bin/python3";

/// The most packages that are said to have no known digest, one by one.
const NAMED: usize = 20;

/// Where the packages of a root come from.
#[derive(Debug, Clone, Copy)]
enum Origin<'a> {
    /// All from files that were fetched.
    Files,
    /// All from a layer, of which these are known.
    Layer(Option<&'a Installed>),
    /// Some from such a layer, the others from files.
    Both(Option<&'a Installed>),
}

/// The pauses of a job.
pub(crate) struct Pauses<'a> {
    building: Building<'a>,
    layers: Option<Layers<'a>>,
    listener: UnixListener,
    /// What the packages must be, if that is demanded.
    locked: Option<Locked>,
    repositories: Vec<RepositoryState>,
    /// Whether the root becomes an image, or is only compared with another.
    is_for_image: bool,
    downloads: Downloads,
    /// What the server knows of the packages. A root that is made once more has the same.
    told: Mutex<Option<Installed>>,
}

impl<'a> Pauses<'a> {
    /// Prepares the pauses of a job.
    ///
    /// # Errors
    ///
    /// The recipe has not the lock that is demanded; the server does not take what it is told.
    pub(crate) async fn of_job(building: Building<'a>, is_for_image: bool) -> Result<Self, Failure> {
        let recipe = &building.outputs.facts.recipe;
        let is_for_image = is_for_image && building.job.purpose != Purpose::Verification;
        let locked = if is_for_image {
            crate::lock::of_job(building.job, recipe)?
        } else {
            None
        };
        let layers = Box::pin(Layers::of_job(building)).await?;
        let repositories = match &layers {
            Some(layers) => layers.repositories().to_vec(),
            None if is_for_image => repositories(recipe, Choice::of(building.job), building.web).await,
            None => Vec::new(),
        };
        let _ = fs_err::remove_file(SOCKET);
        let listener = write_programs().and_then(|()| UnixListener::bind(SOCKET));
        let listener = listener.map_err(|error| Failure::io("cannot prepare the pauses of kiwi", &error))?;
        Ok(Self {
            building,
            layers,
            listener,
            locked,
            repositories,
            is_for_image,
            downloads: Downloads::default(),
            told: Mutex::new(None),
        })
    }

    /// kiwi, run so that it asks. Nothing but pauses answers it.
    pub(crate) fn kiwi() -> Command {
        kiwi(SOCKET)
    }

    /// Whether a layer has broken the root.
    pub(crate) fn is_broken(&self) -> bool {
        self.layers.as_ref().is_some_and(Layers::is_broken)
    }

    /// Ends the pauses of a root that a layer has broken. The next one may still be kept as a layer: none of the recipe's own files
    /// has been used.
    pub(crate) async fn begin_again(&self) {
        self.downloads.end().await;
        if let Some(layers) = &self.layers {
            layers.begin_again();
        }
    }

    /// Ends the pauses of a root.
    ///
    /// # Errors
    ///
    /// The server does not take what it is told.
    pub(crate) async fn close(&self) -> Result<(), Failure> {
        self.downloads.end().await;
        match &self.layers {
            Some(layers) => layers.close().await,
            None => Ok(()),
        }
    }

    /// Answers kiwi while it makes a root that has these `twins`, and never returns but with a failure.
    pub(crate) async fn serve(&self, twins: Option<&Twins>) -> Failure {
        loop {
            let answered = match self.listener.accept().await {
                Ok((stream, _)) => Box::pin(self.answer(stream, twins)).await,
                Err(error) => Err(Failure::io("cannot hear kiwi", &error)),
            };
            if let Err(failure) = answered {
                return failure;
            }
        }
    }

    async fn answer(&self, mut stream: UnixStream, twins: Option<&Twins>) -> Result<(), Failure> {
        let mut question = String::new();
        let asked = BufReader::new((&mut stream).take(100)).read_line(&mut question).await;
        let answer = match (question.trim(), &self.layers) {
            ("before", None) => ALONE,
            ("before", Some(layers)) => {
                let before = layers.before(twins).await?;
                if before == Before::Restored {
                    let listed = self.list(Origin::Layer(layers.installed())).await?;
                    let installed = self.tell(listed).await?;
                    self.compare(installed.as_ref()).await?;
                }
                word(before)
            }
            ("lists", layers) => {
                let wanted = Wanted::take().await;
                let (mut answer, mut there) = (ALONE, None);
                if let Some(layers) = layers {
                    let before = layers.extend(&wanted, twins).await?;
                    there = layers.installed().filter(|_| before == Before::Brought);
                    answer = word(before);
                }
                self.downloads.get(self.building, &wanted, there).await;
                answer
            }
            ("after", layers) => {
                self.downloads.share(self.building);
                if self.after(layers.as_ref(), twins).await? {
                    "go on"
                } else {
                    "broken"
                }
            }
            // What the root of a similar recipe lacks cannot be installed.
            ("failed", Some(layers)) if layers.extends() => {
                layers.give_up("what it lacks cannot be installed").await?;
                "go on"
            }
            _ => return Ok(()),
        };
        // Who hangs up does not want the answer.
        if asked.is_ok() {
            let _ = stream.write_all(format!("{answer}\n").as_bytes()).await;
        }
        Ok(())
    }

    /// Looks at the root after all packages. Whether kiwi may go on.
    async fn after(&self, layers: Option<&Layers<'_>>, twins: Option<&Twins>) -> Result<bool, Failure> {
        // Whatever it has become: a program in it may ask, too.
        if self.is_broken() {
            return Ok(false);
        }
        let extends = layers.filter(|layers| layers.extends());
        let origin = match extends {
            Some(layers) => Origin::Both(layers.installed()),
            None => Origin::Files,
        };
        let listed = self.list(origin).await?;
        if let Some(layers) = extends {
            // What cannot be listed has none.
            let installed = listed.clone().unwrap_or_default();
            if !layers.extended(&installed).await? {
                return Ok(false);
            }
        }
        let installed = self.tell(listed).await?;
        // First, so that a build after an update of the lock need not install the packages again.
        if let Some(layers) = layers {
            layers.after(twins).await?;
        }
        self.compare(installed.as_ref()).await?;
        Ok(true)
    }

    /// The packages in the root, if it becomes an image and its packages can be listed.
    async fn list(&self, origin: Origin<'_>) -> Result<Option<Installed>, Failure> {
        let Building { outputs, events, .. } = self.building;
        if !self.is_for_image {
            return Ok(None);
        }
        let (of_layer, fetched) = match origin {
            Origin::Files => (None, true),
            Origin::Layer(installed) => (installed, false),
            Origin::Both(installed) => (installed, true),
        };
        // A layer may be older than what the repositories have by now.
        let of_layers = of_layer.filter(|installed| !fetched && !installed.repositories.is_empty());
        let repositories = of_layers
            .map_or(&self.repositories, |installed| &installed.repositories)
            .clone();
        let (root, aside) = (outputs.root(), outputs.scratch().to_owned());
        let of_layer = of_layer.cloned().unwrap_or_default();
        let listed = blocking(move || {
            list(&root, &aside, &of_layer, fetched)
                .map(|installed| Installed {
                    repositories,
                    ..installed
                })
                .map_err(|error| Failure::io("cannot list the packages of the root", &error))
        });
        match listed.await {
            Ok(installed) if installed.is_sound() => Ok(Some(installed)),
            Ok(installed) => {
                let count = installed.packages.len();
                let text = format!("the packages are not recorded: {count} are too many, or their names too long");
                events.warn(Warning::new(Code::PackagesUnrecorded, text)).await;
                Ok(None)
            }
            Err(failure) if failure.code == Code::DiskFull => Err(failure),
            Err(failure) => {
                let text = format!("the packages are not recorded: {failure}");
                events.warn(Warning::new(Code::PackagesUnrecorded, text)).await;
                Ok(None)
            }
        }
    }

    /// Tells the server of the packages in the root. What was told of an earlier root of the job must be the same.
    async fn tell(&self, listed: Option<Installed>) -> Result<Option<Installed>, Failure> {
        let Building {
            outputs,
            channel,
            events,
            ..
        } = self.building;
        let Some(installed) = listed else { return Ok(None) };
        let before = self.told.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match before {
            Some(before) if before.packages == installed.packages => return Ok(Some(installed)),
            Some(_) => {
                let why = "the repositories have changed while the root was made once more, and gave other packages";
                return Err(Failure::new(Code::BuildFailed, why).hint("start the job again"));
            }
            None => {}
        }
        say(&installed, events).await;
        channel.keep_installed(&installed).await?;
        save(&installed, outputs)?;
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(installed.clone());
        Ok(Some(installed))
    }

    /// Compares the packages with the lock, if there is one.
    async fn compare(&self, installed: Option<&Installed>) -> Result<(), Failure> {
        let events = self.building.events;
        let Some(locked) = &self.locked else { return Ok(()) };
        let unknown = || {
            let why = "the packages of the root cannot be listed, so they cannot be compared with the lock";
            Failure::new(Code::LockUnknown, why).hint("the log says why")
        };
        let installed = installed.ok_or_else(unknown)?;
        let mut lines = Vec::new();
        let checked = lock::check_root(locked, installed, |line| lines.push(line));
        for line in lines {
            events.say(line).await;
        }
        checked?;
        let count = installed.packages.len();
        events
            .say(format!("the {count} packages are those of {}", lock::FILE))
            .await;
        Ok(())
    }
}

/// kiwi, run so that it asks nothing.
///
/// # Errors
///
/// It cannot be written.
pub(crate) fn kiwi_alone() -> Result<Command, Failure> {
    write_programs().map_err(|error| Failure::io("cannot write a program", &error))?;
    Ok(kiwi("-"))
}

/// What kiwi has understood of a description.
#[derive(Debug, Deserialize)]
pub(crate) struct KiwiRead {
    /// Packages for the beginning of the root.
    pub(crate) bootstrap: u64,
    /// All other packages.
    pub(crate) image: u64,
    /// Patterns, groups and products.
    pub(crate) collections: u64,
    /// The files with keys of repositories that are not there.
    pub(crate) missing_keys: Vec<String>,
    /// Scripts of the recipe that kiwi runs for other images than a root file system.
    pub(crate) not_run: Vec<String>,
    /// The functions of kiwi that do nothing any more, by the scripts that call them.
    pub(crate) obsolete: BTreeMap<String, Vec<String>>,
}

/// kiwi, run so that it ends before it makes anything.
///
/// # Errors
///
/// It cannot be written.
pub(crate) fn kiwi_that_reads() -> Result<Command, Failure> {
    write_programs().map_err(|error| Failure::io("cannot write a program", &error))?;
    Ok(kiwi("?"))
}

/// What that kiwi has understood.
///
/// # Errors
///
/// It noted nothing.
pub(crate) fn read_by_kiwi() -> Result<KiwiRead, Failure> {
    let unknown = |error: std::io::Error| Failure::io("cannot see what kiwi has understood", &error);
    let noted = fs_err::read(READING).map_err(unknown)?;
    serde_json::from_slice(&noted).map_err(|error| unknown(error.into()))
}

/// Has programs in a root trust the site's authorities, which the job's preparation wrote, or no longer.
///
/// # Errors
///
/// The program cannot be run, or fails.
pub(crate) async fn trust_the_site(root: &Path, is_wanted: bool) -> Result<(), Failure> {
    let failed = |error: &std::io::Error| Failure::io("cannot have the root trust the site's authorities", error);
    write_programs().map_err(|error| failed(&error))?;
    let mut command = Command::new(PYTHON);
    command.args([TRUST, if is_wanted { "on" } else { "off" }]).arg(root);
    let done = command
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| failed(&error))?;
    if done.status.success() {
        return Ok(());
    }
    Err(failed(&std::io::Error::other(
        String::from_utf8_lossy(&done.stderr).trim(),
    )))
}

fn kiwi(address: &str) -> Command {
    let mut command = Command::new(PYTHON);
    command.args([PROGRAM, address]);
    command
}

fn write_programs() -> std::io::Result<()> {
    for (path, text) in PROGRAMS {
        let path = Path::new(path);
        if let Some(dir) = path.parent() {
            fs_err::create_dir_all(dir)?;
        }
        fs_err::write(path, text)?;
    }
    Ok(())
}

/// The packages of a root. Their digests are those of the layer, and otherwise those of the files that they came in, if these were
/// `fetched`.
fn list(root: &Path, aside: &Path, of_layer: &Installed, fetched: bool) -> std::io::Result<Installed> {
    let (mut installed, format) = inventory::installed(root, aside)?;
    let known = of_layer.digests();
    for package in &mut installed.packages {
        let key = (&*package.name, &*package.version, &*package.arch);
        package.sha256 = known.get(&key).map(|sha256| (*sha256).to_owned());
    }
    if let Some(format) = format.filter(|_| fetched) {
        installed.packages.sort_by_key(|package| package.sha256.is_none());
        let first = installed.packages.partition_point(|package| package.sha256.is_some());
        archives::add_digests(Path::new("/"), format, &mut installed.packages[first..])?;
        installed.packages.sort();
    }
    Ok(installed)
}

/// The answer where no layer is reused or kept, so that kiwi is left as it is.
const ALONE: &str = "as it is";

/// The answer that kiwi.py knows.
fn word(before: Before) -> &'static str {
    match before {
        Before::Install => "go on",
        Before::Restored => "restored",
        Before::Brought => "brought",
        Before::Broken => "broken",
    }
}

async fn say(installed: &Installed, events: &Events) {
    let (count, without) = (installed.packages.len(), installed.without_digest());
    if without == 0 {
        events
            .say(format!("{count} packages are installed, each with a known digest"))
            .await;
        return;
    }
    let names = installed.packages.iter().filter(|package| package.sha256.is_none());
    let mut names: Vec<_> = names.take(NAMED).map(|package| package.name.as_str()).collect();
    if without > NAMED {
        names.push("…");
    }
    let text = format!(
        "{count} packages are installed, {without} of them without a known digest: {}",
        names.join(", ")
    );
    events.say(text).await;
}

/// Tells the server of the packages in a root, and keeps them for later steps.
///
/// # Errors
///
/// The server does not take it, or it cannot be written.
pub(crate) async fn record(installed: &Installed, building: Building<'_>) -> Result<(), Failure> {
    building.channel.keep_installed(installed).await?;
    save(installed, building.outputs)
}

/// Keeps what was told for later steps, and for another attempt that continues from one of them.
fn save(installed: &Installed, outputs: &Outputs) -> Result<(), Failure> {
    let text = serde_json::to_vec(installed).map_err(|error| Failure::new(Code::Io, error))?;
    fs_err::write(outputs.installed(), text).map_err(|error| Failure::io("cannot note the packages", &error))
}

/// What the root's packages were, as far as an earlier step knew.
pub(crate) fn saved(outputs: &Outputs) -> Option<Installed> {
    let text = fs_err::read(outputs.installed()).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Tells the server of the packages in a root that another attempt made.
///
/// # Errors
///
/// The server does not take it.
pub(crate) async fn tell_again(outputs: &Outputs, channel: &Channel) -> Result<(), Failure> {
    match saved(outputs) {
        Some(installed) => channel.keep_installed(&installed).await,
        None => Ok(()),
    }
}
