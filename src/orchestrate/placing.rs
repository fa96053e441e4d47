//! Decides where jobs run: at a place of this server, or at one that another server has for itself. It reads rows of the
//! store.

use std::sync::Arc;

use kiln_records::{Job, Run, ServerId, arch::Arch, run::Plan};

use super::{
    bells::Bells,
    claim::Claim,
    equipment::Equipment,
    place::{Placement, Wish},
    places::{Decision, Places},
    waits::{Wait, WaitsFor},
};
use crate::{
    config::IsolationSettings,
    store::{SharedStore, StoreError, StoredRun},
};

/// Gives jobs their places.
#[derive(Debug)]
pub(super) struct Placing {
    pub(super) store: SharedStore,
    pub(super) claim: Arc<Claim>,
    pub(super) places: Arc<Places>,
    pub(super) equipment: Arc<Equipment>,
    pub(super) bells: Arc<Bells>,
    /// The settings that keep jobs apart.
    pub(super) isolation: IsolationSettings,
    /// Held while a job is given its place: until its row says so, the next job must not count the same room.
    pub(super) turn: tokio::sync::Mutex<()>,
}

impl Placing {
    /// Whether a job keeps the place that it has.
    pub(super) fn keeps(&self, plan: &Plan) -> bool {
        self.places.has(plan) && self.isolation.allows(plan.driver)
    }

    /// The names of all remote build nodes.
    pub(super) async fn nodes(&self) -> Result<Vec<String>, StoreError> {
        let nodes = self.store.nodes().await?;
        Ok(nodes.into_iter().map(|node| node.xname).collect())
    }

    /// Where a job would run now.
    pub(super) async fn decide(&self, job: &Job, plan: &Plan) -> Result<Decision, StoreError> {
        let wish = wish(job, plan);
        let open = self.store.open_runs().await?;
        let jobs_at = |name: &str, host: Option<ServerId>| {
            let there = open.iter().filter(|stored| {
                let plan = &stored.run.plan;
                plan.place.as_deref() == Some(name) && (plan.host == host || plan.host.is_none())
            });
            u32::try_from(there.count()).unwrap_or(u32::MAX)
        };
        let is_command = self.claim.is_command();
        let mut decision = self.places.decide(wish, &self.isolation, is_command, jobs_at);
        if matches!(decision, Decision::Refused(_)) && self.places.misses(&self.nodes().await?) {
            decision =
                Decision::Later("a remote build node was added, and it is being found out what it offers".to_owned());
        }
        if matches!(decision, Decision::Later(_)) {
            self.bells.places.notify_one();
        }
        Ok(decision)
    }

    /// The other living server that has the place of a waiting job for itself.
    pub(super) fn host_elsewhere(&self, plan: &Plan) -> Option<ServerId> {
        plan.host
            .filter(|host| *host != self.claim.id() && !self.claim.leases.is_gone(*host))
    }

    /// A place of this server that is as good for a job as the one at `host` for which it waits: the job then runs where
    /// there is room first.
    pub(super) fn instead_of(&self, host: ServerId, stored: &StoredRun) -> Option<(Placement, Run)> {
        let (plan, wish) = (&stored.run.plan, wish(&stored.job, &stored.run.plan));
        self.equipment.of(Arch::host()).ok()?;
        let placement = self.places.decide_here(wish, &self.isolation)?;
        let is_as_good = placement.how == plan.how && placement.driver.kernel() == plan.driver.kernel();
        let mut run = stored.run.clone();
        placement.note_in(&mut run).ok()?;
        (is_as_good && placement.host != Some(host)).then_some((placement, run))
    }

    /// Why a job waits that another server launches.
    pub(super) fn turn_at(&self, host: ServerId) -> Wait {
        let name = self.places.host_of(host).unwrap_or_else(|| host.to_string());
        WaitsFor::Elsewhere.because(format!(
            "it waits for its turn at {name}, whose server says what it waits for"
        ))
    }
}

fn wish(job: &Job, plan: &Plan) -> Wish {
    Wish {
        arch: job.arch,
        own_kernel: plan.own_kernel,
    }
}
