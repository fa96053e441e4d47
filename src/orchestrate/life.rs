//! The life loop keeps this process's lease on its jobs, and watches those of the others. It reads and writes rows of the
//! store, and the file by which the sandboxes on this host know that their server holds its lease.

use std::{
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use kiln_records::{Failure, run::LOCAL};

use super::{bells::Bells, claim::Claim, places::Places, sweep::Sweep};
use crate::{
    sandbox::lease::{Lease, since_boot},
    store::{ServerRow, SharedStore, StoreError},
};

/// The interval between two signs of life.
pub(super) const SHOW_EVERY: Duration = Duration::from_secs(3);

/// Keeps this process's lease.
#[derive(Debug)]
pub struct Life {
    pub(super) store: SharedStore,
    pub(super) claim: Arc<Claim>,
    pub(super) places: Arc<Places>,
    pub(super) bells: Arc<Bells>,
    pub(super) sweep: Arc<Sweep>,
    /// The address by which the other servers reach this one, if they can.
    pub(super) own_url: Option<String>,
    /// The file by which the sandboxes of a server on this host know that it holds its lease; `None` if no other server
    /// can take their jobs.
    pub(super) file: Option<PathBuf>,
}

impl Life {
    /// Shows life, and looks for it in the other processes.
    ///
    /// # Errors
    ///
    /// When the store does not answer. Without an answer for some time, the lease is lost.
    pub async fn pass(&self) -> Result<(), Failure> {
        if !self.claim.holds_lease() {
            // Other servers may have taken jobs meanwhile, whose sandboxes stand still here. They must not move again.
            self.show().await?;
            self.sweep_own_host().await?;
        }
        let begun = since_boot();
        self.show().await?;
        if let Some(file) = &self.file {
            write(file, begun)?;
        }
        let rows = self.store.servers().await?;
        let lost = self.claim.leases.note(begun, &rows);
        // A command decides among its own places.
        if !self.claim.is_command() {
            self.note_others(rows);
        }
        if lost {
            self.bells.settle.notify_one();
        }
        Ok(())
    }

    /// Notes which other servers are alive, and what they offer.
    fn note_others(&self, rows: Vec<ServerRow>) {
        let own = self.claim.process();
        let others = rows
            .into_iter()
            .filter(|row| row.id != own && !self.claim.leases.is_gone(row.id));
        if self.places.note_others(others.map(|row| (row.id, row.offers))) {
            self.bells.places.notify_one();
            self.bells.launch.notify_one();
        }
    }

    /// Shows other processes that this one is alive, so that they leave its jobs alone.
    pub(super) async fn show(&self) -> Result<(), StoreError> {
        let id = self.claim.process();
        self.store.show_life(id, self.own_offers().as_deref()).await
    }

    /// What the others are told of this process's host.
    fn own_offers(&self) -> Option<String> {
        self.places.own_host(self.claim.is_command(), self.own_url.clone())
    }

    /// Removes the sandboxes on this host whose jobs other servers have taken.
    async fn sweep_own_host(&self) -> Result<(), Failure> {
        self.sweep.place(LOCAL, self.places.local().as_ref()).await.map(drop)
    }
}

/// Writes the time of the last sign of life. The file always has the same size, so that a full disk does not stop it.
fn write(file: &Path, begun: Duration) -> Result<(), Failure> {
    let written = || -> std::io::Result<()> {
        let file = fs_err::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(file)?;
        file.file().write_all_at(Lease::text(begun).as_bytes(), 0)
    };
    written().map_err(|error| Failure::io("cannot keep the lease of this server's sandboxes", &error))
}

/// The file of the lease, in a data directory.
pub fn lease_file(data_dir: &Path) -> PathBuf {
    data_dir.join("lease")
}
