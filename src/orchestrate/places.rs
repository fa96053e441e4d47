//! The places that jobs may run at: what makes sandboxes there, and what they were last seen to offer.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::future::join_all;

use super::place::{Candidate, Offers, Placement, Wish, place};
use crate::{
    config::ForeignIsolation,
    records::{
        Failure,
        run::{DriverKind, Kernel, LOCAL},
    },
    sandbox::{Capacity, Driver},
};

/// All places of a server.
#[derive(Debug)]
pub struct Places {
    all: Vec<Place>,
    /// Set once a job needs a virtual machine: finding out takes seconds, and most servers never need to.
    machines_wanted: AtomicBool,
}

/// One place.
#[derive(Debug)]
struct Place {
    name: String,
    driver: Arc<dyn Driver>,
    seen: Mutex<Seen>,
}

/// What is known of a place.
#[derive(Debug, Clone)]
struct Seen {
    offers: Offers,
    cpus: u32,
    /// Whether it is known what it offers besides its own kernel, and at all.
    kernels: bool,
    machines: bool,
}

/// What becomes of a job that looks for a place.
#[derive(Debug)]
pub enum Decision {
    /// It has one.
    Placed(Placement),
    /// No place will do.
    Refused(Failure),
    /// It is not known yet what the places offer.
    Later,
}

impl Places {
    /// The host itself, and others by their names.
    pub fn new(local: Arc<dyn Driver>, arch: crate::arch::Arch, others: Vec<(String, Arc<dyn Driver>)>) -> Self {
        let unknown = || Failure::new("not_looked_at", "it has not been looked at yet");
        let place = |name: String, driver, kernels: bool| Place {
            name,
            driver,
            seen: Mutex::new(Seen {
                offers: Offers {
                    arch,
                    shared_kernel: if kernels { Ok(()) } else { Err(unknown()) },
                    own_kernel: Err(unknown()),
                },
                cpus: 1,
                kernels,
                machines: false,
            }),
        };
        // A server without sandboxes of its own does not start, so those need no look.
        let mut all = vec![place(LOCAL.to_owned(), local, true)];
        all.extend(others.into_iter().map(|(name, driver)| place(name, driver, false)));
        Self {
            all,
            machines_wanted: AtomicBool::new(false),
        }
    }

    /// What makes sandboxes at a place. A job without one has no sandbox, and the host itself says so.
    ///
    /// # Errors
    ///
    /// `place_unknown` when the configuration no longer has it.
    pub fn driver(&self, name: Option<&str>) -> Result<&Arc<dyn Driver>, Failure> {
        let name = name.unwrap_or(LOCAL);
        let found = self.all.iter().find(|place| place.name == name);
        found.map(|place| &place.driver).ok_or_else(|| {
            Failure::new("place_unknown", format!("there is no place {name} any more"))
                .hint("the configuration of this server names its places")
        })
    }

    /// This host.
    pub fn local(&self) -> &Arc<dyn Driver> {
        &self.all[0].driver
    }

    /// Whether a place still makes such sandboxes, as far as is known.
    pub fn has(&self, name: Option<&str>, driver: DriverKind) -> bool {
        let place = self.all.iter().find(|place| Some(place.name.as_str()) == name);
        place.is_some_and(|place| {
            let seen = place.seen();
            match driver.kernel() {
                Kernel::Shared => place.driver.kind(Kernel::Shared) == driver && seen.offers.shared_kernel.is_ok(),
                Kernel::Own => place.driver.kind(Kernel::Own) == driver && seen.offers.own_kernel.is_ok(),
            }
        })
    }

    /// Each place's name and what makes sandboxes there.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<dyn Driver>)> {
        self.all.iter().map(|place| (place.name.as_str(), &place.driver))
    }

    /// Decides for a job, given how many there are at each place already.
    pub fn decide(&self, wish: Wish, foreign: ForeignIsolation, jobs_at: impl Fn(&str) -> u32) -> Decision {
        let seen: Vec<Seen> = self.all.iter().map(|place| place.seen().clone()).collect();
        let candidates: Vec<_> = self
            .all
            .iter()
            .zip(&seen)
            .map(|(place, seen)| Candidate {
                name: &place.name,
                drivers: (place.driver.kind(Kernel::Shared), place.driver.kind(Kernel::Own)),
                offers: &seen.offers,
                load: (jobs_at(&place.name), seen.cpus),
            })
            .collect();
        match place(wish, foreign, &candidates) {
            Ok(placement) => Decision::Placed(placement),
            Err(_) if seen.iter().any(|seen| !seen.kernels || !seen.machines) => {
                self.machines_wanted.store(true, Ordering::Relaxed);
                Decision::Later
            }
            Err(failure) => Decision::Refused(failure),
        }
    }

    /// Looks at all places again.
    pub async fn look(&self) {
        let machines = self.machines_wanted.load(Ordering::Relaxed);
        join_all(self.all.iter().map(|place| place.look(machines))).await;
    }
}

impl Place {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Each change is one assignment.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn look(&self, machines: bool) {
        let before = self.seen().clone();
        let arch = self.driver.arch().await;
        let capacity = self.driver.capacity().await;
        let shared_kernel = match &arch {
            Ok(_) => self.driver.shared_kernel().await,
            Err(failure) => Err(failure.clone()),
        };
        let own_kernel = match (&arch, machines) {
            (Ok(_), true) => self.driver.own_kernel().await,
            (Ok(_), false) => before.offers.own_kernel.clone(),
            (Err(failure), _) => Err(failure.clone()),
        };
        let now = Seen {
            offers: Offers {
                arch: arch.unwrap_or(before.offers.arch),
                shared_kernel,
                own_kernel,
            },
            cpus: capacity.map_or(before.cpus, |Capacity { cpus, .. }| cpus),
            kernels: true,
            machines: machines || before.machines,
        };
        self.note_change(&before, &now);
        *self.seen() = now;
    }

    /// Operators hear once that a place can do less, or more, than before.
    fn note_change(&self, before: &Seen, now: &Seen) {
        fn say<T: fmt::Debug>(place: &str, what: &str, before: &Result<T, Failure>, now: &Result<T, Failure>) {
            match (before, now) {
                (Ok(_), Err(failure)) => tracing::warn!(place, code = failure.code, "no {what} any more: {failure}"),
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
