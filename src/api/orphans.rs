//! Removes objects that no record names any more. Touches the database and S3.
//!
//! The store notes them in the transaction that removes the last reference, so nothing is lost when this fails: the
//! next request that purges, or the next pass of the timer, tries again.

use futures::{StreamExt, stream};
use kiln_records::link::bucket_and_key;

use super::Api;

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
            .map(|path| async move {
                let outcome = match bucket_and_key(&path) {
                    Some((bucket, key)) => api.artifacts.delete(bucket, key).await,
                    None => Ok(()),
                };
                (path, outcome)
            })
            .buffer_unordered(PARALLEL);
        let mut removed = Vec::with_capacity(count);
        while let Some((path, outcome)) = removals.next().await {
            match outcome {
                Ok(()) => removed.push(path),
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
