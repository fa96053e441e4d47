//! The room of places: what jobs hold of each, and which jobs that wait have room beside them. It reads rows of the store,
//! takes locks that processes share, and asks places for their capacity.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use kiln_records::{
    Failure, JobId,
    run::{LOCAL, Needs, Used},
};

use super::{
    admit::{Limits, Room, Verdict, admit},
    answers::in_time,
    bells::Bells,
    claim::Claim,
    places::{Places, SeenPlace},
    usage::Usage,
    waits::Starved,
};
use crate::{
    config::CapacitySettings,
    store::{PlaceLock, SharedStore, StoredRun},
};

/// The longest time for which other servers wait for this one to give its jobs room at a shared place.
const LONGEST_ADMISSION: Duration = Duration::from_mins(1);

/// A place with its limits.
#[derive(Debug, Clone)]
pub struct PlaceRoom {
    /// The place.
    pub place: SeenPlace,
    /// The most jobs at once, and the most bytes of memory for them together. None while its resources are unknown.
    pub most: Option<(u32, u64)>,
    /// Bytes of disk to keep free.
    pub disk_floor: u64,
    /// Inodes to keep free.
    pub inode_floor: u64,
}

/// The room of all places.
#[derive(Debug)]
pub struct Rooms {
    pub(super) store: SharedStore,
    pub(super) claim: Arc<Claim>,
    pub(super) places: Arc<Places>,
    pub(super) usage: Arc<Usage>,
    pub(super) bells: Arc<Bells>,
    pub(super) settings: CapacitySettings,
    pub(super) taken: Mutex<Taken>,
}

/// What takes room without being a job, and what lacks it.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// The room that a boot check takes on this host.
    boot: Option<Needs>,
    /// Places without room although no job is there.
    starved: Starved,
}

impl Rooms {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        // Each change is complete before anything can panic.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The places of this server, then those that the other servers tell of.
    pub async fn all(&self) -> Vec<PlaceRoom> {
        self.places.measure_this_host().await;
        let room = |place: SeenPlace| {
            let mut settings = self.settings.clone();
            if place.name != LOCAL || place.host.is_some() {
                // These settings are for this host only.
                (settings.jobs, settings.memory) = (None, None);
            }
            let limits = place.capacity.map(|capacity| Limits::of(&capacity, &settings));
            PlaceRoom {
                most: limits.map(|limits| (limits.jobs, limits.memory)),
                disk_floor: settings.disk_floor.0,
                inode_floor: settings.inode_floor.into(),
                place,
            }
        };
        let own = self.places.look_back().into_iter();
        own.chain(self.places.told_of()).map(room).collect()
    }

    /// Excludes the other processes from giving jobs room at a place, until the returned value is dropped. `None` when another
    /// one does not let go in time.
    pub(super) async fn room_at(&self, place: &str, is_shared: bool) -> Result<Option<RoomGuard>, Failure> {
        if is_shared {
            return Ok(self
                .store
                .lock_place(place, LONGEST_ADMISSION)
                .await?
                .map(|lock| RoomGuard::Shared { _lock: lock }));
        }
        if place == LOCAL {
            return Ok(self
                .claim
                .runners
                .room()
                .await?
                .map(|lock| RoomGuard::OfHost { _lock: lock }));
        }
        // An engine of this host, where a command seldom takes room.
        Ok(Some(RoomGuard::None))
    }

    /// What is held of a place.
    pub(super) fn held_at(&self, place: &str, is_shared: bool, open: &[StoredRun]) -> Vec<(Needs, Used)> {
        let mut held: Vec<_> = open
            .iter()
            // Other processes of this data directory use the same places, and other servers those that are shared.
            .filter(|stored| is_shared || stored.run.owner == Some(self.claim.id()))
            .filter(|stored| stored.run.holds_place() && stored.run.plan.place.as_deref() == Some(place))
            .map(|stored| (self.usage.sandboxes.takes(&stored.run), self.usage.known(stored)))
            .collect();
        if place == LOCAL {
            held.extend(self.taken().boot.map(|needs| (needs, Used::default())));
        }
        held
    }

    /// Which of the jobs that wait at a place have room there, beside those that already hold part of it.
    pub(super) async fn admit_at(
        &self,
        place: &str,
        queue: &[(JobId, Needs)],
        held: &[(Needs, Used)],
    ) -> Result<Vec<(JobId, Verdict)>, Failure> {
        let (room, limits) = self.room_beside(place, held).await?;
        Ok(admit(queue, room, limits))
    }

    /// The room at a place beside what is held of it, and the most that there could be.
    async fn room_beside(&self, place: &str, held: &[(Needs, Used)]) -> Result<(Room, Limits), Failure> {
        let capacity = in_time(place, self.places.measure(place)).await?;
        let mut settings = self.settings.clone();
        if place != LOCAL {
            // These settings are for this host only.
            (settings.jobs, settings.memory) = (None, None);
        }
        let limits = Limits::of(&capacity, &settings);
        Ok((Room::beside(held, limits, &capacity, &settings), limits))
    }

    /// Gives up the first job at a place if it has waited too long for what no job holds there: only other programs can
    /// free it, and they may never do so.
    pub(super) fn end_starved(&self, place: &str, verdicts: &mut [(JobId, Verdict)], open: &[StoredRun]) {
        let is_held = open
            .iter()
            .any(|stored| stored.run.holds_place() && stored.run.plan.place.as_deref() == Some(place));
        let mut waiting = verdicts.iter_mut().filter_map(|(job, verdict)| match verdict {
            Verdict::Wait(wait) if wait.waits_for.is_shared_with_others() => Some((*job, wait.why.clone(), verdict)),
            _ => None,
        });
        let first = waiting.next().filter(|_| !is_held);
        let job = first.as_ref().map(|(job, ..)| *job);
        let waited = self.taken().starved.waits(place, job, Instant::now());
        if let Some((_, why, verdict)) = first
            && waited >= self.settings.longest_wait.duration()
        {
            *verdict = Verdict::Never(format!(
                "{why}, and it waited {} s for other programs to free it: no job of Kiln holds any",
                waited.as_secs()
            ));
        }
    }

    /// Takes room of this host for a boot check, until the returned value is dropped. It takes no job's slot, so that a long
    /// queue does not keep it waiting.
    ///
    /// # Errors
    ///
    /// When the records or the host cannot be read.
    pub(super) async fn room_for_boot(self: &Arc<Self>, needs: Needs) -> Result<RoomForBoot, Failure> {
        let Some(_room) = self.room_at(LOCAL, false).await? else {
            return Ok(RoomForBoot::Later);
        };
        let open = self.store.open_runs().await?;
        let held = self.held_at(LOCAL, false, &open);
        let (mut room, limits) = self.room_beside(LOCAL, &held).await?;
        room.jobs = 1;
        match admit(&[(JobId::new(), needs)], room, limits).pop() {
            Some((_, Verdict::Go)) => {
                self.taken().boot = Some(needs);
                Ok(RoomForBoot::Here(BootRoom(self.clone())))
            }
            Some((_, Verdict::Never(why))) => Ok(RoomForBoot::Never(why)),
            Some((_, Verdict::Wait(_))) | None => Ok(RoomForBoot::Later),
        }
    }
}

/// The answer to a boot check that asks for room.
pub(super) enum RoomForBoot {
    /// There is room, which is taken.
    Here(BootRoom),
    /// There is none yet.
    Later,
    /// There will never be room, for this reason.
    Never(String),
}

/// The room that a boot check has taken.
pub(super) struct BootRoom(Arc<Rooms>);

impl Drop for BootRoom {
    fn drop(&mut self) {
        self.0.taken().boot = None;
        self.0.bells.launch.notify_one();
    }
}

/// Held while jobs are given room at a place.
pub(super) enum RoomGuard {
    OfHost { _lock: fs_err::File },
    Shared { _lock: PlaceLock },
    None,
}
