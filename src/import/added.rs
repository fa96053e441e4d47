//! Adds imported records to the store. Touches the store only; the caller reads S3.

use std::fmt;

use futures::stream::{self, StreamExt};
use kiln_records::{Failure, Image, Job, JobStatus, Link};

use super::{Note, Records};
use crate::store::{Collection, Record, Result, SharedStore, StoreError};

/// The number of manifests read at a time.
const READS: usize = 16;

/// The result of an import.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Imported {
    /// Records that are now in the store and were not before.
    pub added: usize,
    /// Records that were not added, or only with a change.
    pub notes: Vec<Note>,
}

/// Adds records that the store does not have yet, in order. A record that exists already, by identity or by link, is
/// left unchanged and noted, so an import can be repeated.
///
/// An unfinished job becomes a failed one, because the program that worked on it does not report to Kiln.
///
/// `objects_of` returns the S3 paths of the artifacts in an image's manifest, or why it cannot; it is called for
/// images without a link too. An image whose artifacts are unknown is added all the same: purging it then removes its
/// manifest only, and nothing protects an artifact that it shares with another image. So such an error should mean a
/// damaged or missing manifest; the caller checks beforehand that S3 answers at all.
///
/// # Errors
///
/// [`StoreError::Unavailable`] and [`StoreError::Damaged`]; the import can be repeated afterwards.
pub async fn import_into<F>(store: &SharedStore, records: &Records, objects_of: impl Fn(Image) -> F) -> Result<Imported>
where
    F: Future<Output = std::result::Result<Vec<String>, Failure>>,
{
    let mut import = Import {
        outcome: Imported::default(),
    };
    for (name, keys) in [
        ("public-keys", &records.public_keys),
        ("deleted/public-keys", &records.deleted_public_keys),
    ] {
        for (index, key) in keys.iter().enumerate() {
            import.add(&**store, (name, index), key, &[]).await?;
        }
    }
    for (name, recipes) in [
        ("recipes", &records.recipes),
        ("deleted/recipes", &records.deleted_recipes),
    ] {
        for (index, recipe) in recipes.iter().enumerate() {
            let objects = path(recipe.link.as_ref());
            import.add(&**store, (name, index), recipe, &objects).await?;
        }
    }
    for (name, images) in [("images", &records.images), ("deleted/images", &records.deleted_images)] {
        let mut artifacts = stream::iter(images.iter().cloned().map(&objects_of)).buffered(READS);
        for (index, image) in images.iter().enumerate() {
            let place = (name, index);
            let artifacts = artifacts.next().await.unwrap_or_else(|| Ok(Vec::new()));
            let mut objects = path(image.link.as_ref());
            objects.extend(artifacts.iter().flatten().cloned());
            let added = import.add(&**store, place, image, &objects).await?;
            if let (true, Some(_), Err(failure)) = (added, &image.link, artifacts) {
                let reason = format!("its artifacts are unknown: {failure}");
                import.note(place, image.id, false, reason);
            }
        }
    }
    for (index, job) in records.jobs.iter().enumerate() {
        import.add_job(store, index, job).await?;
    }
    for (index, node) in records.remote_build_nodes.iter().enumerate() {
        if store.node(&node.xname).await?.is_some() {
            import.note(("remote-build-nodes", index), &node.xname, true, "it is there already");
        } else {
            store.put_node(node).await?;
            import.outcome.added += 1;
        }
    }
    Ok(import.outcome)
}

struct Import {
    outcome: Imported,
}

/// The kind of a record, and its index among its kind.
type Place = (&'static str, usize);

impl Import {
    /// Adds one record, or notes why not. Returns whether it was added.
    async fn add<R: Record>(
        &mut self,
        collection: &(impl Collection<R> + ?Sized),
        place: Place,
        record: &R,
        objects: &[String],
    ) -> Result<bool> {
        let done = collection.insert(record, objects).await;
        self.count(place, record.id(), done)
    }

    async fn add_job(&mut self, store: &SharedStore, index: usize, job: &Job) -> Result<()> {
        let place = ("jobs", index);
        let mut ended = job.clone();
        if !job.status.is_final() {
            ended.status = JobStatus::Error;
        }
        let done = store.insert_job(&ended).await;
        if self.count(place, job.id, done)? && ended.status != job.status {
            let reason = format!(
                "it was {} in IMS and is an error here: nothing works on it",
                job.status.name()
            );
            self.note(place, job.id, false, reason);
        }
        Ok(())
    }

    fn count(&mut self, place: Place, id: impl fmt::Display, done: Result<()>) -> Result<bool> {
        match done {
            Ok(()) => {
                self.outcome.added += 1;
                Ok(true)
            }
            Err(StoreError::Exists) => {
                self.note(place, id, true, "it is there already");
                Ok(false)
            }
            Err(error @ (StoreError::LinkInUse(_) | StoreError::Doomed(_))) => {
                self.note(place, id, true, error);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn note(&mut self, (file, index): Place, id: impl fmt::Display, left_out: bool, reason: impl fmt::Display) {
        self.outcome.notes.push(Note {
            file: file.to_owned(),
            index: Some(index),
            id: Some(id.to_string()),
            left_out,
            reason: reason.to_string(),
        });
    }
}

fn path(link: Option<&Link>) -> Vec<String> {
    link.map(|link| link.path.clone()).into_iter().collect()
}
