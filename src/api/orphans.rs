//! Removes objects that no record names any more, if they were Kiln's own. Touches the database and S3.
//!
//! An object is a record's own when its key is laid out as that of one of the record's objects (see
//! [`ArtifactStore::own_place`](crate::artifacts::ArtifactStore::own_place)). Others were only named, and stay.
//!
//! The store notes them in the transaction that removes the last reference, so nothing is lost when this fails: the
//! next request that purges, or the next pass of the timer, tries again.

use futures::{StreamExt, stream};
use kiln_records::Failure;

use super::Api;
use crate::{
    metrics::{self, Swept},
    store::Doomed,
};

/// Objects per round.
const ROUND: u32 = 500;

/// Removals at the same time.
const PARALLEL: usize = 8;

/// Removes as many as possible.
pub async fn remove(api: &Api) {
    loop {
        let doomed = match api.store.doomed(ROUND).await {
            Ok(doomed) => doomed,
            Err(error) => return tracing::warn!("cannot look for objects to remove: {error}"),
        };
        if doomed.is_empty() {
            return;
        }
        let count = doomed.len();
        let mut removals = stream::iter(doomed)
            .map(|object| async move {
                let outcome = remove_own(api, &object).await;
                (object.path, outcome)
            })
            .buffer_unordered(PARALLEL);
        let mut removed = Vec::with_capacity(count);
        while let Some((path, outcome)) = removals.next().await {
            match outcome {
                Ok(()) => {
                    metrics::swept(Swept::Object);
                    removed.push(path);
                }
                Err(failure) => {
                    tracing::warn!(
                        code = failure.code.name(),
                        hint = failure.hint,
                        "{path} is not removed yet: {failure}"
                    );
                    // When S3 does not answer, a waiting caller need not wait for each object.
                    if failure.code.is_passing() {
                        break;
                    }
                }
            }
        }
        drop(removals);
        if let Err(error) = api.store.forget_doomed(&removed).await {
            return tracing::warn!("objects were removed, but their removal cannot be recorded: {error}");
        }
        if removed.len() < count {
            return;
        }
    }
}

/// Removes an object if it was the record's own and lies in a bucket of Kiln's. Any other stays for whoever made it.
async fn remove_own(api: &Api, object: &Doomed) -> Result<(), Failure> {
    if let Some((bucket, key)) = api.artifacts.own_place(&object.path).filter(|_| object.own) {
        return api.artifacts.delete(bucket, key).await;
    }
    tracing::info!(
        "{} stays in S3: it is not an object of the record that named it",
        object.path
    );
    Ok(())
}
