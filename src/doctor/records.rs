//! What the records say of themselves: whether anything was dropped before its promised age, and what is near the end of its
//! budget. Reads the database, if there is one.

use super::Finding;
use crate::{config::Config, site::open_store, store::Count};

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
    let asked = match store.dropped().await {
        Ok(dropped) => store.counts().await.map(|counts| (dropped, counts)),
        Err(error) => Err(error),
    };
    store.close().await;
    let (dropped, counts) = match asked {
        Ok(asked) => asked,
        Err(error) => return Some(unknown(&error)),
    };
    let limits = &config.limits;
    let near = |count| near_end(count, limits.records, limits.records_of_caller);
    let near: Vec<_> = counts.iter().flat_map(near).collect();
    let gone = dropped.iter().map(|one| {
        let (number, kind, last) = (one.number, one.kind.name(), one.last.to_the_second());
        format!("{number} {kind} (the last at {last})")
    });
    let gone: Vec<_> = gone.collect();
    let listed = |what: &str, all: &[String]| (!all.is_empty()).then(|| format!("{what}: {}", all.join(", ")));
    let said = [
        listed("dropped before their promised age", &gone),
        listed("near the end of their budgets", &near),
    ];
    let said: Vec<_> = said.into_iter().flatten().collect();
    if said.is_empty() {
        let detail = "nothing was dropped before its promised age, and nothing is near the end of its budget";
        return Some(Finding::ok(AREA, WHAT, detail));
    }
    let next = if gone.is_empty() {
        "delete what is not needed, or raise `records_of_caller` and `records` in [limits]"
    } else {
        "see who sent so much: `kiln audit`, and the warnings in the server's log (docs/security.md#budgets)"
    };
    Some(Finding::broken(AREA, WHAT, said.join("; "), next))
}

/// What has used up four fifths of its budget.
fn near_end(count: &Count, of_all: u32, of_caller: u32) -> Vec<String> {
    let is_near = |number: u64, most: u32| most > 0 && number * 5 >= u64::from(most) * 4;
    let (kind, mut near) = (count.kind.replace('_', " "), Vec::new());
    if is_near(count.all, of_all) {
        near.push(format!("{} of {of_all} {kind}", count.all));
    }
    if let Some((caller, number)) = count.most.as_ref().filter(|(_, number)| is_near(*number, of_caller)) {
        near.push(format!("{number} of {of_caller} {kind} of {}", caller.escape_debug()));
    }
    near
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_fifths_of_a_budget_are_near_its_end() {
        let count = |all, own| Count {
            kind: "images",
            all,
            most: Some(("a".to_owned(), own)),
        };
        assert_eq!(near_end(&count(79, 7), 100, 10), Vec::<String>::new());
        assert_eq!(
            near_end(&count(80, 8), 100, 10),
            ["80 of 100 images", "8 of 10 images of a"]
        );
        assert_eq!(near_end(&count(u64::from(u32::MAX), 0), 0, 10), Vec::<String>::new());
    }
}
