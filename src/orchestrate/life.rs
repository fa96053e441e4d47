//! The life loop keeps this process's lease on its jobs, and watches those of the others. It reads and writes rows of the
//! store, and the file by which the sandboxes on this host know that their server holds its lease.

use std::{
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::Duration,
};

use kiln_records::{Failure, run::LOCAL};

use super::orchestrator::Orchestrator;
use crate::{
    sandbox::lease::{Lease, since_boot},
    store::ServerRow,
};

/// The interval between two signs of life.
pub(super) const SHOW_EVERY: Duration = Duration::from_secs(3);

impl Orchestrator {
    /// Shows life, and looks for it in the other processes.
    ///
    /// # Errors
    ///
    /// When the store does not answer. Without an answer for some time, the lease is lost.
    pub async fn live_once(&self) -> Result<(), Failure> {
        if !self.holds_lease() {
            // Other servers may have taken jobs meanwhile, whose sandboxes stand still here. They must not move again.
            self.show_life().await?;
            self.sweep_own_host().await?;
        }
        let begun = since_boot();
        self.show_life().await?;
        if let Some(file) = &self.lease_file {
            write(file, begun)?;
        }
        let rows = self.store.servers().await?;
        let lost = self.leases.note(begun, &rows);
        // A command decides among its own places.
        if self.runner.is_none() {
            self.note_others(rows);
        }
        if lost {
            self.wake.settle.notify_one();
        }
        Ok(())
    }

    /// Notes which other servers are alive, and what they offer.
    fn note_others(&self, rows: Vec<ServerRow>) {
        let own = self.runner.unwrap_or(self.id);
        let others = rows
            .into_iter()
            .filter(|row| row.id != own && !self.leases.is_gone(row.id));
        if self.places.note_others(others.map(|row| (row.id, row.offers))) {
            self.wake.places.notify_one();
            self.wake.launch.notify_one();
        }
    }

    /// What the others are told of this process's host.
    pub(super) fn own_offers(&self) -> Option<String> {
        let url = self.peers.as_ref().map(|peers| peers.own_url().to_owned());
        self.places.own_host(self.runner.is_some(), url)
    }

    /// Whether this process may act on its jobs: no other one has taken them. The only process of a database always may.
    pub(super) fn holds_lease(&self) -> bool {
        !self.store.is_shared() || self.leases.is_held()
    }

    /// Removes the sandboxes on this host whose jobs other servers have taken.
    async fn sweep_own_host(&self) -> Result<(), Failure> {
        self.sweep_place(LOCAL, self.places.local().as_ref()).await.map(drop)
    }

    /// The lease of the sandboxes on this host, if other servers may take their jobs.
    pub(super) fn lease(&self) -> Option<Lease> {
        self.lease_file.clone().map(Lease)
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
