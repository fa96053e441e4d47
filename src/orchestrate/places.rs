//! Keeps the places that jobs may run at: their drivers, and what they were last seen to offer. It asks places through
//! their drivers; it touches neither the store nor S3.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    answers::silent,
    equipment::{Equipment, Lack},
    place::{Candidate, Offers, Placement, Wish, away, place},
};
use kiln_records::{
    Code, Failure, Run, ServerId,
    arch::Arch,
    run::{DriverKind, How, Kernel, LOCAL, Plan},
};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::{
    config::IsolationSettings,
    host,
    metrics::{Answer, gauges},
    sandbox::{Capacity, Driver},
};

/// Makes the driver of a remote build node, given its name. This does not contact the node yet.
pub type NodeDriver = Box<dyn Fn(&str) -> Arc<dyn Driver> + Send + Sync>;

/// The resources of this host are looked at again for a page, but not more often than this.
const FRESH: Duration = Duration::from_secs(2);

/// A measurement of resources takes no longer. One that nobody has asked after in this time is out of date.
const MEASURING: Duration = Duration::from_mins(2);
const OUT_OF_DATE: Duration = Duration::from_secs(20);

/// All places of a server.
pub struct Places {
    /// The server.
    own: ServerId,
    local: Arc<Place>,
    /// The other places, those of the configuration before those of the records.
    others: Mutex<Vec<Arc<Place>>>,
    node_driver: NodeDriver,
    equipment: Arc<Equipment>,
    /// The other servers, each with the places of its own host.
    elsewhere: Mutex<Vec<Elsewhere>>,
    /// Set once a job needs a virtual machine: the check takes seconds, and most servers never need it.
    machines_wanted: AtomicBool,
}

/// One place.
#[derive(Debug)]
struct Place {
    name: String,
    driver: Arc<dyn Driver>,
    /// Whether it comes from the record of a remote build node.
    is_node: bool,
    seen: Mutex<Seen>,
    /// Its resources as of the last look, with its time; none if it did not say then.
    capacity: Mutex<Option<(Instant, Capacity)>>,
    measuring: Measuring,
    /// Whether a look at it is under way.
    looking: AtomicBool,
}

/// The measurement of a place's resources that is under way, or whose result nobody has had yet. Engines measure by a
/// container, which takes a slow node longer than an answer may take.
#[derive(Debug, Default)]
struct Measuring(tokio::sync::Mutex<Option<JoinHandle<Measured>>>);

/// What a measurement found, and when.
type Measured = (Instant, Result<Capacity, Failure>);

/// The knowledge of a place as of the last look.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Seen {
    offers: Offers,
    cpus: Option<u32>,
    /// The part being made for it, without which it cannot be used yet.
    awaits: Option<String>,
    /// Whether its offer has been checked: `kernels` for anything at all, `machines` for virtual machines too.
    kernels: bool,
    machines: bool,
    /// Whether any look found sandboxes on its own kernel, and virtual machines.
    #[serde(default)]
    worked: (bool, bool),
}

impl Seen {
    /// Notes that what it found has worked.
    fn remember(&mut self) {
        self.worked.0 |= self.offers.shared_kernel.is_ok();
        self.worked.1 |= self.offers.own_kernel.is_ok();
    }
}

/// Another server.
#[derive(Debug, Clone, PartialEq)]
struct Elsewhere {
    server: ServerId,
    /// What it says; none before it knows, or when it says it in words of another version.
    says: Option<OwnHost>,
}

/// What a server tells the others of its host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct OwnHost {
    name: String,
    /// Where other servers reach that one alone.
    #[serde(default)]
    url: Option<String>,
    places: Vec<OwnPlace>,
}

/// A place that only its own server reaches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct OwnPlace {
    name: String,
    drivers: (DriverKind, DriverKind),
    has_machines: bool,
    #[serde(flatten)]
    seen: Seen,
}

/// What the last look at a place found.
#[derive(Debug, Clone)]
pub struct SeenPlace {
    /// Its name.
    pub name: String,
    /// The host of the other server that tells of it; none for this server's own.
    pub host: Option<String>,
    /// The architecture of its CPUs.
    pub arch: Arch,
    /// Its CPUs, if it ever said.
    pub cpus: Option<u32>,
    /// Whether it was looked at.
    pub is_known: bool,
    /// The kinds of sandboxes that it can make.
    pub makes: Vec<DriverKind>,
    /// Why it makes no sandbox of any kind.
    pub lacks: Option<String>,
    /// The part being made for it, without which it cannot be used yet.
    pub awaits: Option<String>,
    /// Its resources, if it said.
    pub capacity: Option<Capacity>,
    /// The time since it said so.
    pub age: Duration,
}

impl SeenPlace {
    /// Whether it can make sandboxes of some kind.
    pub fn is_usable(&self) -> bool {
        !self.makes.is_empty()
    }
}

/// The decision on a job that needs a place.
#[derive(Debug)]
pub enum Decision {
    /// It has a place.
    Placed(Placement),
    /// No place will do.
    Refused(Failure),
    /// It must ask again later, for this reason.
    Later(String),
}

impl Places {
    /// The host of this server, which is of this architecture, and the other places of the configuration by their names.
    pub fn new(
        own: ServerId,
        local: Arc<dyn Driver>,
        arch: Arch,
        others: Vec<(String, Arc<dyn Driver>)>,
        node_driver: NodeDriver,
        equipment: Arc<Equipment>,
    ) -> Self {
        let others = others
            .into_iter()
            .map(|(name, driver)| Place::unseen(name, driver, false));
        let local = Place::unseen(LOCAL.to_owned(), local, false);
        {
            // A server without sandboxes of its own does not start, so those need no check.
            let mut seen = local.seen();
            seen.offers.arch = arch;
            seen.offers.shared_kernel = Ok(());
            seen.kernels = true;
        }
        Self {
            own,
            local: Arc::new(local),
            others: Mutex::new(others.map(Arc::new).collect()),
            node_driver,
            equipment,
            elsewhere: Mutex::default(),
            machines_wanted: AtomicBool::new(false),
        }
    }

    fn others(&self) -> MutexGuard<'_, Vec<Arc<Place>>> {
        // Each change is one call.
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Vec<Arc<Place>> {
        std::iter::once(Arc::clone(&self.local))
            .chain(self.others().iter().cloned())
            .collect()
    }

    fn place(&self, name: &str) -> Option<Arc<Place>> {
        self.all().into_iter().find(|place| place.name == name)
    }

    /// The driver of this host.
    pub fn local(&self) -> &Arc<dyn Driver> {
        &self.local.driver
    }

    /// The driver of a place. A job without a place has no sandbox, and the host itself reports that. A node whose
    /// record was deleted may still have sandboxes.
    pub fn driver(&self, name: Option<&str>) -> Arc<dyn Driver> {
        let name = name.unwrap_or(LOCAL);
        self.place(name)
            .map_or_else(|| (self.node_driver)(name), |place| Arc::clone(&place.driver))
    }

    /// Whether the place of a plan is one of this server's, which still makes such sandboxes as far as is known.
    pub fn has(&self, plan: &Plan) -> bool {
        let driver = plan.driver;
        let name = plan.place.as_deref();
        name.and_then(|name| self.place(name)).is_some_and(|place| {
            // Earlier servers did not note whose place it is.
            let is_own = place.is_shared() || plan.host.is_none_or(|host| host == self.own);
            let seen = place.seen();
            let offered = match driver.kernel() {
                Kernel::Shared => seen.offers.shared_kernel.is_ok(),
                Kernel::Own => seen.offers.own_kernel.is_ok(),
            };
            is_own && offered && place.driver.kind(driver.kernel()) == driver
        })
    }

    /// Whether a place is a remote build node.
    pub fn is_node(&self, name: &str) -> bool {
        self.place(name).is_some_and(|place| place.is_node)
    }

    /// The CPUs of a place, if it was asked already.
    pub fn cpus(&self, name: Option<&str>) -> Option<u32> {
        self.place(name.unwrap_or(LOCAL))?.seen().cpus
    }

    /// A sandbox of this kind could not be started at a place: until the next look nothing is known of what it makes.
    pub fn doubt(&self, name: &str, kernel: Kernel) {
        let Some(place) = self.place(name) else { return };
        let why = || {
            Failure::new(
                Code::NotLookedAt,
                "no sandbox could be started, and it is looked at again",
            )
        };
        let mut seen = place.seen();
        match kernel {
            Kernel::Shared => (seen.offers.shared_kernel, seen.kernels) = (Err(why()), false),
            Kernel::Own => (seen.offers.own_kernel, seen.machines) = (Err(why()), false),
        }
    }

    /// Each place's name and driver.
    pub fn drivers(&self) -> Vec<(String, Arc<dyn Driver>)> {
        let all = self.all().into_iter();
        all.map(|place| (place.name.clone(), Arc::clone(&place.driver)))
            .collect()
    }

    /// Writes into an answer what the last look at each place found.
    pub fn write_metrics(&self, answer: &mut Answer) {
        for seen in self.look_back().iter().filter(|seen| seen.is_known) {
            answer.add_at(&gauges::PLACE_USABLE, &seen.name, u64::from(seen.is_usable()));
            if let Some(capacity) = seen.capacity {
                answer.add_at(&gauges::PLACE_CPUS, &seen.name, capacity.cpus.into());
                answer.add_at(&gauges::PLACE_MEMORY, &seen.name, capacity.memory);
                answer.add_at(&gauges::PLACE_DISK_FREE, &seen.name, capacity.disk_free);
            }
        }
    }

    /// What the last look at each place found, of those that are there.
    pub fn look_back(&self) -> Vec<SeenPlace> {
        let all = self.all().into_iter().filter(|place| place.driver.is_there());
        all.map(|place| OwnPlace::of(&place).seen_from(None, place.capacity()))
            .collect()
    }

    /// What the other servers say of their places. Their resources are their own affair.
    pub fn told_of(&self) -> Vec<SeenPlace> {
        let hosts = self.elsewhere().into_iter().filter_map(|other| other.says);
        hosts
            .flat_map(|host| {
                let places = host.places.into_iter();
                places.map(move |place| place.seen_from(Some(host.name.clone()), None))
            })
            .collect()
    }

    /// The resources of a place, measured now. Where that takes longer than whoever asks waits for, it goes on, and the next who
    /// asks has the result: it would never come if each of them began anew.
    ///
    /// # Errors
    ///
    /// Those of the driver, and `place_silent`.
    pub async fn measure(&self, name: &str) -> Result<Capacity, Failure> {
        match self.place(name) {
            Some(place) => place.measuring.result(&place.driver, name).await,
            None => (self.node_driver)(name).capacity().await,
        }
    }

    /// Looks at the resources of this host again, if the last look is not new. Other places may take their time.
    pub async fn measure_this_host(&self) {
        if self.local.capacity().is_none_or(|(when, _)| when.elapsed() > FRESH) {
            let capacity = self.local.driver.capacity().await;
            self.local.note_capacity(capacity.ok());
        }
    }

    /// Whether every server reaches the sandboxes of a place.
    pub fn is_shared(&self, name: &str) -> bool {
        self.place(name)
            .map_or_else(|| (self.node_driver)(name).is_shared(), |place| place.is_shared())
    }

    /// What the other servers are told of this one's host, as JSON. A command tells of no place: it has no room for jobs
    /// of others.
    pub fn own_host(&self, is_command: bool, url: Option<String>) -> Option<String> {
        let all = self.all().into_iter();
        let own = all.filter(|place| !is_command && !place.is_shared());
        let host = OwnHost {
            name: host::name(),
            url,
            places: own.map(|place| OwnPlace::of(&place)).collect(),
        };
        serde_json::to_string(&host).ok()
    }

    /// Notes the other servers that are alive, with what each says of its host. Returns whether that is news.
    pub fn note_others(&self, servers: impl Iterator<Item = (ServerId, Option<String>)>) -> bool {
        let others = servers.map(|(server, says)| Elsewhere {
            server,
            says: says.and_then(|says| serde_json::from_str(&says).ok()),
        });
        let others: Vec<_> = others.collect();
        if !others.is_empty() {
            // The others cannot ask this server to find out whether it has virtual machines.
            self.machines_wanted.store(true, Ordering::Relaxed);
        }
        let mut known = self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = *known != others;
        *known = others;
        is_news
    }

    fn elsewhere(&self) -> Vec<Elsewhere> {
        self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The name of another server's host.
    pub fn host_of(&self, server: ServerId) -> Option<String> {
        Some(self.says(server)?.name)
    }

    /// Where another server can be reached, if it says so.
    pub fn url_of(&self, server: ServerId) -> Option<String> {
        self.says(server)?.url
    }

    fn says(&self, server: ServerId) -> Option<OwnHost> {
        let of = self.elsewhere().into_iter().find(|other| other.server == server)?;
        of.says
    }

    /// Decides for a job, given how many jobs each place already has. Servers know the places of each other; a command
    /// decides among its own.
    pub fn decide(
        &self,
        wish: Wish,
        rule: &IsolationSettings,
        is_command: bool,
        jobs_at: impl Fn(&str, Option<ServerId>) -> u32,
    ) -> Decision {
        let mut all = self.all();
        all.retain(|place| place.driver.is_there());
        let own: Vec<OwnPlace> = all.iter().map(|place| OwnPlace::of(place)).collect();
        let others = if is_command { Vec::new() } else { self.elsewhere() };
        let mut candidates: Vec<_> = all
            .iter()
            .zip(&own)
            .map(|(place, own)| own.candidate((!place.is_shared()).then_some((self.own, "")), &jobs_at))
            .collect();
        for other in &others {
            let Some(host) = &other.says else { continue };
            let places = host.places.iter();
            candidates.extend(places.map(|place| place.candidate(Some((other.server, &host.name)), &jobs_at)));
        }
        let seen: Vec<&Seen> = own
            .iter()
            .chain(
                others
                    .iter()
                    .flat_map(|other| other.says.iter().flat_map(|host| &host.places)),
            )
            .map(|place| &place.seen)
            .collect();
        let decision = place(wish, rule, &candidates);
        let is_better_unseen = matches!(&decision, Ok(Placement { passed_over, .. })
            if passed_over.iter().any(|passed| passed.code == Code::NotLookedAt));
        let native = matches!(&decision, Ok(placement) if placement.how == How::Native);
        if native && !is_better_unseen {
            return decided(decision);
        }
        // A place that is not known yet can be better than an emulated build, and better than none. A place that waits
        // for its toolbox is itself waited for only if it would build natively or there is no other.
        let worth_waiting = |seen: &&&Seen| seen.awaits.is_none() || seen.offers.arch == wish.arch || decision.is_err();
        let unseen = seen.iter().filter(|seen| !seen.kernels).find(worth_waiting);
        // Nothing boots a machine of a kind that the site does not want.
        let mut kinds = rule.drivers.iter().map(|driver| driver.kernel());
        let machines = rule.drivers.is_empty() || kinds.any(|kernel| kernel == Kernel::Own);
        let is_known = decision.is_ok() || !machines || seen.iter().all(|seen| seen.machines);
        if unseen.is_none() && is_known && !is_better_unseen {
            return match others.iter().find(|other| other.says.is_none()) {
                Some(other) if decision.is_err() => {
                    Decision::Later(format!("the server {} does not say yet what it offers", other.server))
                }
                _ => {
                    // Somebody sits before a command, and can do something about it.
                    let can_wait = decision.is_err() && !is_command;
                    let away = can_wait.then(|| away(wish, rule, &candidates)).flatten();
                    away.map_or_else(|| decided(decision), Decision::Later)
                }
            };
        }
        if machines {
            self.machines_wanted.store(true, Ordering::Relaxed);
        }
        let reason = unseen.copied().and_then(|seen| seen.awaits.clone());
        Decision::Later(reason.unwrap_or_else(|| "it is being found out what the places offer".to_owned()))
    }

    /// The best place of this server's own host, if one will do.
    pub fn decide_here(&self, wish: Wish, rule: &IsolationSettings) -> Option<Placement> {
        let all = self.all();
        let own = all.iter().filter(|place| !place.is_shared());
        let own: Vec<OwnPlace> = own.map(|place| OwnPlace::of(place)).collect();
        let candidates: Vec<_> = own
            .iter()
            .map(|own| own.candidate(Some((self.own, "")), |_, _| 0))
            .collect();
        place(wish, rule, &candidates).ok()
    }

    /// Whether one of these remote build nodes is not among the places yet.
    pub fn misses(&self, nodes: &[String]) -> bool {
        let others = self.others();
        nodes.iter().any(|name| others.iter().all(|place| place.name != *name))
    }

    /// Looks at all places again; `nodes` are the current remote build nodes. Each look is a separate future, since a
    /// host that does not answer takes its time; a place with a look still under way is skipped. Each look returns
    /// whether it found any news.
    pub fn looks(&self, nodes: &[String]) -> Vec<impl Future<Output = bool> + Send + use<>> {
        {
            let mut others = self.others();
            others.retain(|place| !place.is_node || nodes.contains(&place.name));
            for name in nodes {
                if !others.iter().any(|place| place.name == *name) {
                    let driver = (self.node_driver)(name);
                    others.push(Arc::new(Place::unseen(name.clone(), driver, true)));
                }
            }
        }
        let machines = self.machines_wanted.load(Ordering::Relaxed);
        let looks = self.all().into_iter().filter_map(|place| Look::begin(&place));
        let looks = looks.map(|look| {
            let equipment = Arc::clone(&self.equipment);
            async move { look.0.look(machines, &equipment).await }
        });
        looks.collect()
    }
}

/// The name of the place of a job.
pub(super) fn place_name(run: &Run) -> &str {
    run.plan.place.as_deref().unwrap_or(LOCAL)
}

fn decided(decision: Result<Placement, Failure>) -> Decision {
    match decision {
        Ok(placement) => Decision::Placed(placement),
        Err(failure) => Decision::Refused(failure),
    }
}

impl Measuring {
    async fn result(&self, driver: &Arc<dyn Driver>, place: &str) -> Result<Capacity, Failure> {
        let mut under_way = self.0.lock().await;
        loop {
            let task = under_way.get_or_insert_with(|| {
                let (driver, place) = (Arc::clone(driver), place.to_owned());
                tokio::spawn(async move {
                    let found = tokio::time::timeout(MEASURING, driver.capacity()).await;
                    (Instant::now(), found.unwrap_or_else(|_| Err(silent(&place, MEASURING))))
                })
            });
            let ended = task.await;
            *under_way = None;
            match ended {
                Ok((when, _)) if when.elapsed() > OUT_OF_DATE => {}
                Ok((_, found)) => return found,
                Err(error) => return Err(Failure::new(Code::PlaceSilent, error)),
            }
        }
    }
}

/// The only look at a place that is under way now.
struct Look(Arc<Place>);

impl Look {
    /// `None` when a look is already under way.
    fn begin(place: &Arc<Place>) -> Option<Self> {
        let was_looking = place.looking.swap(true, Ordering::AcqRel);
        (!was_looking).then(|| Self(Arc::clone(place)))
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        self.0.looking.store(false, Ordering::Release);
    }
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all()).finish()
    }
}

impl OwnPlace {
    fn of(place: &Place) -> Self {
        Self {
            name: place.name.clone(),
            drivers: (place.driver.kind(Kernel::Shared), place.driver.kind(Kernel::Own)),
            has_machines: place.driver.is_meant_for(Kernel::Own),
            seen: place.seen().clone(),
        }
    }

    /// What a person is told of it.
    fn seen_from(self, host: Option<String>, capacity: Option<(Instant, Capacity)>) -> SeenPlace {
        let Seen {
            offers,
            cpus,
            awaits,
            kernels,
            ..
        } = self.seen;
        let kinds = [
            (offers.shared_kernel.is_ok(), self.drivers.0),
            (offers.own_kernel.is_ok(), self.drivers.1),
        ];
        let makes = kinds
            .iter()
            .filter(|(is_offered, _)| *is_offered)
            .map(|(_, kind)| *kind);
        let makes: Vec<_> = makes.collect();
        let lacks = offers.shared_kernel.as_ref().err();
        SeenPlace {
            lacks: lacks.filter(|_| makes.is_empty()).map(ToString::to_string),
            name: self.name,
            host,
            arch: offers.arch,
            cpus,
            is_known: kernels,
            makes,
            awaits,
            capacity: capacity.map(|(_, capacity)| capacity),
            age: capacity.map(|(when, _)| when.elapsed()).unwrap_or_default(),
        }
    }

    fn candidate<'a>(
        &'a self,
        host: Option<(ServerId, &'a str)>,
        jobs_at: impl Fn(&str, Option<ServerId>) -> u32,
    ) -> Candidate<'a> {
        Candidate {
            name: &self.name,
            host,
            drivers: self.drivers,
            has_machines: self.has_machines,
            offers: &self.seen.offers,
            worked: self.seen.worked,
            load: (
                jobs_at(&self.name, host.map(|(server, _)| server)),
                self.seen.cpus.unwrap_or(1),
            ),
        }
    }
}

impl Place {
    fn is_shared(&self) -> bool {
        self.driver.is_shared()
    }

    fn unseen(name: String, driver: Arc<dyn Driver>, is_node: bool) -> Self {
        let unknown = || Failure::new(Code::NotLookedAt, "it has not been looked at yet");
        let seen = Seen {
            offers: Offers {
                arch: Arch::host(),
                shared_kernel: Err(unknown()),
                own_kernel: Err(unknown()),
            },
            cpus: None,
            awaits: None,
            kernels: false,
            machines: false,
            worked: (false, false),
        };
        Self {
            name,
            driver,
            is_node,
            seen: Mutex::new(seen),
            capacity: Mutex::default(),
            measuring: Measuring::default(),
            looking: AtomicBool::new(false),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Each change is one assignment.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn look(&self, machines: bool, equipment: &Equipment) -> bool {
        let before = self.seen().clone();
        let mut now = match self.driver.arch().await {
            // Jobs themselves ask for the toolbox of this host's architecture when they need it.
            Ok(arch) if arch == Arch::host() => self.try_out(&before, arch, machines).await,
            Ok(arch) => match equipment.of(arch) {
                Ok(_) => self.try_out(&before, arch, machines).await,
                // The place waits together with its jobs.
                Err(Lack::Toolbox(reason)) => Seen {
                    offers: Offers {
                        arch,
                        ..before.offers.clone()
                    },
                    awaits: Some(reason),
                    kernels: false,
                    ..before.clone()
                },
                Err(Lack::Failed(failure)) => self.nothing(&before, arch, machines, &failure),
            },
            Err(failure) => self.nothing(&before, before.offers.arch, machines, &failure),
        };
        now.remember();
        let was_of_use = before.offers.shared_kernel.is_ok() || before.offers.own_kernel.is_ok();
        // Nobody misses a place that never was.
        if was_of_use || self.driver.is_there() {
            self.note_change(&before, &now);
        }
        let is_news = now != before;
        *self.seen() = now;
        is_news
    }

    /// Finds out what the place offers.
    async fn try_out(&self, before: &Seen, arch: Arch, machines: bool) -> Seen {
        // A trial comes first: it may bring what a measurement is made by.
        let mut shared_kernel = self.driver.shared_kernel().await;
        let mut own_kernel = if machines {
            self.driver.own_kernel().await
        } else {
            before.offers.own_kernel.clone()
        };
        let capacity = self.measuring.result(&self.driver, &self.name).await;
        self.note_capacity(capacity.as_ref().ok().copied());
        if let Err(gone) = &capacity {
            // A trial is believed for minutes, in which the place may have gone.
            shared_kernel = shared_kernel.and_then(|()| Err(gone.clone()));
            own_kernel = own_kernel.and_then(|_| Err(gone.clone()));
        }
        let unknown = matches!(&own_kernel, Err(failure) if failure.code == Code::NotLookedAt);
        Seen {
            offers: Offers {
                arch,
                shared_kernel,
                own_kernel,
            },
            cpus: capacity.map_or(before.cpus, |Capacity { cpus, .. }| Some(cpus)),
            awaits: None,
            kernels: true,
            machines: (machines || before.machines) && !unknown,
            worked: before.worked,
        }
    }

    fn capacity(&self) -> Option<(Instant, Capacity)> {
        *self.capacity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_capacity(&self, capacity: Option<Capacity>) {
        let now = capacity.map(|capacity| (Instant::now(), capacity));
        *self.capacity.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// An offer of nothing, for this reason.
    fn nothing(&self, before: &Seen, arch: Arch, machines: bool, why: &Failure) -> Seen {
        self.note_capacity(None);
        let mut why = why.clone();
        if why.code == Code::NotEquipped {
            why.detail = format!("{} is {arch}, and {}", self.name, why.detail);
        }
        Seen {
            offers: Offers {
                arch,
                shared_kernel: Err(why.clone()),
                own_kernel: Err(why),
            },
            cpus: before.cpus,
            awaits: None,
            kernels: true,
            machines: machines || before.machines,
            worked: before.worked,
        }
    }

    /// Tells operators once that a place can do less, or more, than before.
    fn note_change(&self, before: &Seen, now: &Seen) {
        fn say<T: fmt::Debug>(place: &str, what: &str, before: &Result<T, Failure>, now: &Result<T, Failure>) {
            match (before, now) {
                (Ok(_), Err(failure)) => tracing::warn!(
                    place,
                    code = failure.code.name(),
                    hint = failure.hint,
                    "no {what} any more: {failure}"
                ),
                (Err(before), Err(now)) if before.code != now.code => {
                    tracing::warn!(place, code = now.code.name(), hint = now.hint, "no {what}: {now}");
                }
                (Err(_), Ok(_)) => tracing::info!(place, "{what} can be had"),
                _ => {}
            }
        }
        let (old, new) = (&before.offers, &now.offers);
        say(
            &self.name,
            "sandboxes on its own kernel",
            &old.shared_kernel,
            &new.shared_kernel,
        );
        say(&self.name, "virtual machines", &old.own_kernel, &new.own_kernel);
    }
}
