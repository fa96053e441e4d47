//! Many callers, and several stores on one database.

use std::{collections::HashSet, sync::Arc};

use futures::future::join_all;
use kiln::store::{SharedStore, Side, StoreError};
use kiln_records::{Moment, PublicKey};

use crate::store::place::{Place, all, image, images, public_key, public_keys, recipe, recipes};

on_both!(
    no_change_is_lost,
    one_of_many_gets_the_link,
    nothing_in_use_is_ever_doomed,
    bulk_changes_meet,
    opening_at_the_same_time,
    a_caller_that_goes_away_spoils_nothing,
);

/// Two stores on one place, as two processes have them.
async fn two(place: &Place) -> [SharedStore; 2] {
    [place.open().await, place.open().await]
}

async fn no_change_is_lost(place: &Place) {
    let stores = two(place).await;
    let mut record = public_key("k");
    "0".clone_into(&mut record.public_key);
    let id = record.id;
    public_keys(&stores[0]).insert(&record, &[]).await.unwrap();
    // Each task adds one, eight times, and starts again after a concurrent change.
    let add = async |store: SharedStore| {
        let mut left = 8;
        while left > 0 {
            let seen = public_keys(&store).get(Side::Live, id).await.unwrap().unwrap();
            let count: u32 = seen.record.public_key.parse().unwrap();
            let next = PublicKey {
                public_key: (count + 1).to_string(),
                ..seen.record
            };
            match public_keys(&store).replace(&next, seen.revision, &[]).await {
                Ok(()) => left -= 1,
                Err(StoreError::Stale) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    join_all((0..8).map(|n| add(stores[n % 2].clone()))).await;
    let last = public_keys(&stores[0]).get(Side::Live, id).await.unwrap().unwrap();
    assert_eq!((last.record.public_key.as_str(), last.revision), ("64", 65));
}

async fn one_of_many_gets_the_link(place: &Place) {
    let stores = two(place).await;
    let link = recipe("").link;
    let outcomes = join_all((0..16).map(async |n| {
        let mut record = recipe(&n.to_string());
        record.link.clone_from(&link);
        recipes(&stores[n % 2]).insert(&record, &[]).await
    }))
    .await;
    let (won, lost): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
    assert_eq!(won.len(), 1);
    assert!(
        lost.iter()
            .all(|outcome| matches!(outcome, Err(StoreError::LinkInUse(_)))),
        "{lost:?}"
    );
}

async fn nothing_in_use_is_ever_doomed(place: &Place) {
    let stores = Arc::new(two(place).await);
    for round in 0..40 {
        let path = vec![format!("s3://boot-images/{round}")];
        let old = image("old");
        images(&stores[0]).insert(&old, &path).await.unwrap();
        let new = image("new");
        let purge = tokio::spawn({
            let stores = stores.clone();
            async move { images(&stores[0]).purge(Side::Live, Some(old.id), false).await.unwrap() }
        });
        let insert = tokio::spawn({
            let (stores, path, new) = (stores.clone(), path.clone(), new.clone());
            async move { images(&stores[1]).insert(&new, &path).await }
        });
        assert_eq!(purge.await.unwrap(), 1);
        let inserted = insert.await.unwrap();
        let doomed = stores[0].doomed(1000).await.unwrap();
        let doomed = doomed.iter().any(|object| object.path == path[0]);
        let there = images(&stores[0]).get(Side::Live, new.id).await.unwrap().is_some();
        match inserted {
            Ok(()) => assert!(there && !doomed),
            Err(StoreError::Doomed(_)) => assert!(!there && doomed),
            Err(error) => panic!("{error}"),
        }
    }
}

async fn bulk_changes_meet(place: &Place) {
    let stores = Arc::new(two(place).await);
    for n in 0..50 {
        images(&stores[0])
            .insert(&image(&n.to_string()), &[format!("s3://boot-images/{n}")])
            .await
            .unwrap();
    }
    let work = (0..4).flat_map(|n| {
        let store = stores[n % 2].clone();
        let delete = tokio::spawn({
            let store = store.clone();
            async move { images(&store).delete(None, Moment::now()).await.map(|_| 0) }
        });
        let purge = tokio::spawn(async move { images(&store).purge(Side::Deleted, None, false).await });
        [delete, purge]
    });
    let mut purged = 0;
    for done in join_all(work).await {
        purged += done.unwrap().unwrap();
    }
    purged += images(&stores[0]).purge(Side::Deleted, None, false).await.unwrap();
    assert_eq!(purged, 50);
    assert_eq!(stores[0].doomed(100).await.unwrap().len(), 50);
}

async fn opening_at_the_same_time(place: &Place) {
    let stores = join_all((0..6).map(|_| place.open())).await;
    let inserted = join_all(stores.iter().map(async |store| {
        let mut ids = Vec::new();
        for n in 0..10 {
            let record = recipe(&n.to_string());
            recipes(store).insert(&record, &[]).await.unwrap();
            ids.push(record.id);
        }
        ids
    }))
    .await;
    let expected: HashSet<_> = inserted.into_iter().flatten().collect();
    for store in &stores {
        let found: HashSet<_> = all(recipes(store), Side::Live)
            .await
            .iter()
            .map(|recipe| recipe.id)
            .collect();
        assert_eq!(found, expected);
    }
    // Records added through one store appear in the order of their addition.
    let names = all(recipes(&stores[0]), Side::Live).await;
    assert_eq!(names.first().unwrap().name, "0");
    for store in stores {
        store.close().await;
    }
}

async fn a_caller_that_goes_away_spoils_nothing(place: &Place) {
    let store = place.open().await;
    for micros in (0..400).step_by(4) {
        let record = image("i");
        let path = vec![format!("s3://boot-images/{}", record.id)];
        let time = std::time::Duration::from_micros(micros * 10);
        let _ = tokio::time::timeout(time, images(&store).insert(&record, &path)).await;
    }
    let whole = image("whole");
    images(&store).insert(&whole, &[]).await.unwrap();
    // Each is there with its object, or neither is. A server may still finish what its caller gave up on, so what counts
    // is what one purge finds.
    let purged = images(&store).purge(Side::Live, None, false).await.unwrap();
    assert!(purged > 0);
    assert_eq!(store.doomed(1000).await.unwrap().len() as u64, purged - 1);
}
