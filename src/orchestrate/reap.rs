//! Putting right what processes left that were killed: sandboxes, half-uploaded images, records that say `running`.

use std::path::Path;

use super::job_dir;
use crate::{artifacts::ArtifactStore, records::Failure, sandbox::namespace::NamespaceDriver};

/// One look at everything. Safe to run at any time, by any number of processes; touches nothing that lives.
///
/// Returns how many jobs were put right.
pub async fn sweep_once(jobs: &Path, driver: &NamespaceDriver, store: &ArtifactStore) -> Result<usize, Failure> {
    driver.sweep(|job| job_dir::is_live(jobs, job)).await?;
    let dead = job_dir::find_dead(jobs);
    let count = dead.len();
    for record in dead {
        // A crash between the manifest and the record leaves an image that is whole; it is kept by its manifest.
        let finished = store.has_manifest(record.image).await?;
        if !finished {
            store.discard_image(record.image).await?;
        }
        store.discard_recipe(record.id).await?;
        job_dir::bury(jobs, record, finished)?;
    }
    Ok(count)
}
