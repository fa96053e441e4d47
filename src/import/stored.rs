//! Reads all records of the store, for an export. Touches the store only.

use super::Records;
use crate::store::{After, Collection, Query, Record, Result, SharedStore, Side, Stored};

/// Records per page.
const PAGE: u32 = 1000;

/// All records that IMS would store, in list order. Records that change meanwhile may be read before or after the
/// change.
///
/// # Errors
///
/// [`StoreError::Unavailable`](crate::store::StoreError::Unavailable) and
/// [`StoreError::Damaged`](crate::store::StoreError::Damaged).
pub async fn records_of(store: &SharedStore) -> Result<Records> {
    Ok(Records {
        public_keys: all(&**store, Side::Live).await?,
        deleted_public_keys: all(&**store, Side::Deleted).await?,
        recipes: all(&**store, Side::Live).await?,
        deleted_recipes: all(&**store, Side::Deleted).await?,
        images: all(&**store, Side::Live).await?,
        deleted_images: all(&**store, Side::Deleted).await?,
        jobs: jobs(store).await?,
        remote_build_nodes: store.nodes().await?,
    })
}

async fn all<R: Record>(collection: &(impl Collection<R> + ?Sized), side: Side) -> Result<Vec<R>> {
    let mut records = Vec::new();
    let mut query = first_page();
    loop {
        let page = collection.page(side, &query).await?;
        let Some(last) = page.last() else {
            return Ok(records);
        };
        query.after = Some(place(last, last.record.id()));
        records.extend(page.into_iter().map(|stored| stored.record));
    }
}

async fn jobs(store: &SharedStore) -> Result<Vec<kiln_records::Job>> {
    let mut jobs = Vec::new();
    let mut query = first_page();
    loop {
        let page = store.page_jobs(&query).await?;
        let Some(last) = page.last() else {
            return Ok(jobs);
        };
        query.after = Some(place(last, last.record.id));
        jobs.extend(page.into_iter().map(|stored| stored.record));
    }
}

fn first_page() -> Query {
    Query {
        limit: PAGE,
        ..Query::default()
    }
}

fn place<R>(last: &Stored<R>, id: impl std::fmt::Display) -> After {
    After {
        key: last.position.to_string(),
        id: id.to_string(),
    }
}
