//! Removing objects that no record names any more.
//!
//! The store writes them down in the transaction that forgets the last name, so nothing is lost when this fails: the
//! next request that purges, or the next pass of the timer, tries again.

use futures::{StreamExt, stream};

use super::Api;
use crate::records::link::bucket_and_key;

/// Objects per round.
const ROUND: u32 = 500;

/// Removals at the same time.
const PARALLEL: usize = 8;

/// Removes what it can.
pub async fn remove(api: &Api) {
    loop {
        let doomed = match api.store.doomed(ROUND).await {
            Ok(doomed) => doomed,
            Err(error) => return tracing::warn!("cannot look for objects to remove: {error}"),
        };
        if doomed.is_empty() {
            return;
        }
        let removed: Vec<String> = stream::iter(doomed.clone())
            .map(|path| async move {
                let Some((bucket, key)) = bucket_and_key(&path) else {
                    return Some(path);
                };
                match api.artifacts.delete(bucket, key).await {
                    Ok(()) => Some(path),
                    Err(failure) => {
                        tracing::warn!("{path} stays for now: {failure}");
                        None
                    }
                }
            })
            .buffer_unordered(PARALLEL)
            .filter_map(|path| async { path })
            .collect()
            .await;
        let all = removed.len() == doomed.len();
        if let Err(error) = api.store.forget_doomed(&removed).await {
            return tracing::warn!("objects were removed, but this could not be noted: {error}");
        }
        if !all {
            return;
        }
    }
}
