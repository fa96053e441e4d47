//! What the records say of themselves: whether anything was dropped before its promised age. Reads the database, if there is
//! one.

use super::Finding;
use crate::{config::Config, site::open_store};

const AREA: &str = "records";
const WHAT: &str = "budgets";

pub(super) async fn examine(config: &Config) -> Option<Finding> {
    // Nothing is made here.
    if config.store.url.is_none() && !config.records_file().exists() {
        return None;
    }
    let unknown = |error: &dyn std::fmt::Display| {
        let next = "see that the database runs, then ask again";
        Finding::broken(AREA, WHAT, format_args!("the records cannot be asked: {error}"), next)
    };
    let store = match open_store(config).await {
        Ok(store) => store,
        Err(failure) => return Some(unknown(&failure)),
    };
    let dropped = store.dropped().await;
    store.close().await;
    let dropped = match dropped {
        Ok(dropped) => dropped,
        Err(error) => return Some(unknown(&error)),
    };
    if dropped.is_empty() {
        let detail = "nothing was dropped before its promised age";
        return Some(Finding::ok(AREA, WHAT, detail));
    }
    let each = dropped.iter().map(|one| {
        let (number, kind, last) = (one.number, one.kind.name(), one.last.to_the_second());
        format!("{number} {kind} (the last at {last})")
    });
    let detail = format!(
        "dropped before their promised age: {}",
        each.collect::<Vec<_>>().join(", ")
    );
    let next = "see who sent so much: `kiln audit`, and the warnings in the server's log (docs/security.md#budgets)";
    Some(Finding::broken(AREA, WHAT, detail, next))
}
