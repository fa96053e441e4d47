//! Every place that jobs may get, with what it has and the limits that the settings set for it: for pages, without asking a
//! place over the network.

use kiln_records::run::LOCAL;

use super::{admit::Limits, orchestrator::Orchestrator, places::SeenPlace};

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

impl Orchestrator {
    /// The places of this server, then those that the other servers tell of.
    pub async fn rooms(&self) -> Vec<PlaceRoom> {
        self.places.measure_this_host().await;
        let room = |place: SeenPlace| {
            let mut settings = self.capacity.clone();
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
}
