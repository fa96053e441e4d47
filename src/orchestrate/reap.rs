//! Cleans up after killed processes: sandboxes, half-uploaded images, records that say `running`. It removes sandboxes
//! through their driver and objects from S3, and writes the records in the directory of jobs.

use std::path::Path;

use super::job_dir;
use crate::{artifacts::ArtifactStore, records::Failure, sandbox::namespace::NamespaceDriver};

/// Makes one pass over everything. Safe to run at any time, by any number of processes; touches nothing that belongs to
/// a live job.
///
/// Returns how many jobs were cleaned up.
pub async fn sweep_once(jobs: &Path, driver: &NamespaceDriver, store: &ArtifactStore) -> Result<usize, Failure> {
    driver.sweep(|job| job_dir::is_live(jobs, job)).await?;
    let dead = job_dir::find_dead(jobs);
    let count = dead.len();
    for record in dead {
        // A crash between the manifest and the record leaves a complete image; its manifest keeps it.
        let finished = store.has_manifest(record.image).await?;
        if !finished {
            store.discard_image(record.image).await?;
        }
        store.discard_recipe(record.id).await?;
        job_dir::bury(jobs, record, finished)?;
    }
    Ok(count)
}
