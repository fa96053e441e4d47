//! Recipes, images and public keys: added, changed, deleted, restored, forgotten.

use std::collections::BTreeMap;

use kiln::store::{Collection, Record, Side, StoreError};
use kiln_records::{Moment, Recipe, arch::Arch};

use crate::store::place::{Place, all, image, images, public_key, public_keys, recipe, recipes};

on_both!(
    comes_back_as_it_went_in,
    a_change_is_made_once,
    deleting_keeps_everything,
    only_what_was_looked_at_is_deleted,
    restoring_goes_to_the_end,
    deleting_all_keeps_the_order,
    only_the_chosen_side_is_forgotten,
    a_live_link_is_taken_once,
    identities_are_taken_once,
    a_deleted_record_can_be_added,
    a_damaged_row_is_reported,
    survives_closing,
);

const NOW: Moment = Moment::from_micros(1_800_000_000_000_000);

async fn comes_back_as_it_went_in(place: &Place) {
    async fn check<R: Record + PartialEq + std::fmt::Debug>(collection: &dyn Collection<R>, record: R) {
        assert_eq!(collection.get(Side::Live, record.id()).await.unwrap(), None);
        collection.insert(&record, &[]).await.unwrap();
        let stored = collection.get(Side::Live, record.id()).await.unwrap().unwrap();
        assert_eq!(stored.record, record);
        assert_eq!(stored.revision, 1);
        assert_eq!(collection.get(Side::Deleted, record.id()).await.unwrap(), None);
        assert!(all(collection, Side::Live).await.contains(&record));
    }
    let store = place.open().await;
    store.ping().await.unwrap();
    check(recipes(&store), recipe("full")).await;
    check(
        recipes(&store),
        Recipe {
            link: None,
            template_dictionary: None,
            arch: Arch::X86_64,
            require_dkms: false,
            ..recipe("")
        },
    )
    .await;
    check(images(&store), image("full")).await;
    let mut bare = image("bare");
    (bare.link, bare.metadata) = (None, BTreeMap::default());
    check(images(&store), bare).await;
    check(public_keys(&store), public_key("key")).await;
}

async fn a_change_is_made_once(place: &Place) {
    let store = place.open().await;
    let before = recipe("r");
    recipes(&store).insert(&before, &[]).await.unwrap();
    let first = recipes(&store).get(Side::Live, before.id).await.unwrap().unwrap();
    let after = Recipe {
        arch: Arch::X86_64,
        require_dkms: false,
        link: None,
        template_dictionary: None,
        ..before.clone()
    };
    recipes(&store).replace(&after, first.revision, &[]).await.unwrap();
    let second = recipes(&store).get(Side::Live, before.id).await.unwrap().unwrap();
    assert_eq!(second.record, after);
    assert_eq!(second.position, first.position);
    assert!(second.revision > first.revision);

    let stale = recipes(&store).replace(&before, first.revision, &[]).await;
    assert!(matches!(stale, Err(StoreError::Stale)), "{stale:?}");
    let unknown = recipes(&store).replace(&recipe("other"), 1, &[]).await;
    assert!(matches!(unknown, Err(StoreError::Stale)), "{unknown:?}");
    recipes(&store).delete(Some(before.id), NOW).await.unwrap();
    let deleted = recipes(&store).get(Side::Deleted, before.id).await.unwrap().unwrap();
    let gone = recipes(&store).replace(&after, deleted.revision, &[]).await;
    assert!(matches!(gone, Err(StoreError::Stale)), "{gone:?}");
}

async fn deleting_keeps_everything(place: &Place) {
    let store = place.open().await;
    let record = image("i");
    images(&store).insert(&record, &[]).await.unwrap();
    assert_eq!(images(&store).delete(Some(record.id), NOW).await.unwrap(), 1);
    assert_eq!(images(&store).delete(Some(record.id), NOW).await.unwrap(), 0);
    assert_eq!(images(&store).get(Side::Live, record.id).await.unwrap(), None);
    let deleted = images(&store).get(Side::Deleted, record.id).await.unwrap().unwrap();
    assert_eq!(deleted.record.deleted, Some(NOW));
    assert_eq!(deleted.revision, 2);
    assert!(images(&store).undelete(record.id).await.unwrap());
    assert!(!images(&store).undelete(record.id).await.unwrap());
    let restored = images(&store).get(Side::Live, record.id).await.unwrap().unwrap();
    assert_eq!(restored.record, record);
    assert_eq!(restored.revision, 3);
}

async fn only_what_was_looked_at_is_deleted(place: &Place) {
    let store = place.open().await;
    let record = image("i");
    images(&store).insert(&record, &[]).await.unwrap();
    let first = images(&store).get(Side::Live, record.id).await.unwrap().unwrap();
    images(&store).replace(&record, first.revision, &[]).await.unwrap();
    let delete = async |revision| images(&store).delete_unchanged(record.id, revision, NOW).await.unwrap();
    assert!(!delete(first.revision).await);
    assert!(images(&store).get(Side::Live, record.id).await.unwrap().is_some());
    assert!(delete(first.revision + 1).await);
    let deleted = images(&store).get(Side::Deleted, record.id).await.unwrap().unwrap();
    assert_eq!(deleted.record.deleted, Some(NOW));
    assert!(!delete(deleted.revision).await, "it is deleted already");
}

async fn restoring_goes_to_the_end(place: &Place) {
    let store = place.open().await;
    let records = ["a", "b", "c"].map(public_key);
    for record in &records {
        public_keys(&store).insert(record, &[]).await.unwrap();
    }
    let names = async |side| -> Vec<String> {
        all(public_keys(&store), side)
            .await
            .into_iter()
            .map(|key| key.name)
            .collect()
    };
    public_keys(&store).delete(Some(records[1].id), NOW).await.unwrap();
    public_keys(&store).delete(Some(records[0].id), NOW).await.unwrap();
    assert_eq!(names(Side::Live).await, ["c"]);
    assert_eq!(names(Side::Deleted).await, ["b", "a"]);
    public_keys(&store).undelete(records[0].id).await.unwrap();
    assert_eq!(names(Side::Live).await, ["c", "a"]);
    public_keys(&store).undelete(records[1].id).await.unwrap();
    assert_eq!(names(Side::Live).await, ["c", "a", "b"]);
}

async fn deleting_all_keeps_the_order(place: &Place) {
    let store = place.open().await;
    let records: Vec<_> = (0..20).map(|n| image(&format!("image {n}"))).collect();
    for record in &records {
        images(&store).insert(record, &[]).await.unwrap();
    }
    images(&store).delete(Some(records[7].id), NOW).await.unwrap();
    assert_eq!(images(&store).delete(None, NOW).await.unwrap(), 19);
    assert_eq!(images(&store).delete(None, NOW).await.unwrap(), 0);
    let deleted = all(images(&store), Side::Deleted).await;
    let first = std::iter::once(7).chain((0..20).filter(|n| *n != 7));
    let expected: Vec<_> = first.map(|n| records[n].id).collect();
    assert_eq!(deleted.iter().map(|image| image.id).collect::<Vec<_>>(), expected);
    assert!(deleted.iter().all(|image| image.deleted == Some(NOW)));
    // One that comes after them stands after them.
    let last = image("last");
    images(&store).insert(&last, &[]).await.unwrap();
    images(&store).delete(Some(last.id), NOW).await.unwrap();
    assert_eq!(all(images(&store), Side::Deleted).await.last().unwrap().id, last.id);
}

async fn only_the_chosen_side_is_forgotten(place: &Place) {
    let store = place.open().await;
    let records: Vec<_> = (0..6).map(|n| recipe(&format!("{n}"))).collect();
    for record in &records {
        recipes(&store).insert(record, &[]).await.unwrap();
    }
    for record in &records[..3] {
        recipes(&store).delete(Some(record.id), NOW).await.unwrap();
    }
    assert_eq!(
        recipes(&store)
            .purge(Side::Live, Some(records[0].id), false)
            .await
            .unwrap(),
        0
    );
    assert_eq!(
        recipes(&store)
            .purge(Side::Deleted, Some(records[0].id), false)
            .await
            .unwrap(),
        1
    );
    assert_eq!(
        recipes(&store)
            .purge(Side::Deleted, Some(records[0].id), false)
            .await
            .unwrap(),
        0
    );
    assert_eq!(
        recipes(&store)
            .purge(Side::Live, Some(records[5].id), false)
            .await
            .unwrap(),
        1
    );
    assert_eq!(recipes(&store).purge(Side::Deleted, None, false).await.unwrap(), 2);
    assert_eq!(all(recipes(&store), Side::Live).await, records[3..5]);
    assert_eq!(recipes(&store).purge(Side::Live, None, false).await.unwrap(), 2);
    assert_eq!(all(recipes(&store), Side::Live).await, []);
}

async fn a_live_link_is_taken_once(place: &Place) {
    fn taken(result: &Result<(), StoreError>, record: &Recipe) {
        let path = &record.link.as_ref().unwrap().path;
        assert!(
            matches!(result, Err(StoreError::LinkInUse(link)) if link == path),
            "{result:?}"
        );
    }
    let store = place.open().await;
    let first = recipe("first");
    recipes(&store).insert(&first, &[]).await.unwrap();

    let mut second = recipe("second");
    second.link.clone_from(&first.link);
    taken(&recipes(&store).insert(&second, &[]).await, &second);
    second.link = None;
    recipes(&store).insert(&second, &[]).await.unwrap();
    second.link.clone_from(&first.link);
    taken(&recipes(&store).replace(&second, 1, &[]).await, &second);

    // Of a deleted record it is free, until that wants to come back.
    recipes(&store).delete(Some(first.id), NOW).await.unwrap();
    recipes(&store).replace(&second, 1, &[]).await.unwrap();
    taken(&recipes(&store).undelete(first.id).await.map(|_| ()), &first);
    assert!(recipes(&store).get(Side::Deleted, first.id).await.unwrap().is_some());
    recipes(&store).purge(Side::Live, Some(second.id), false).await.unwrap();
    assert!(recipes(&store).undelete(first.id).await.unwrap());

    // Other kinds have links of their own.
    let mut image = image("i");
    image.link.clone_from(&first.link);
    images(&store).insert(&image, &[]).await.unwrap();
}

async fn identities_are_taken_once(place: &Place) {
    let store = place.open().await;
    let record = public_key("k");
    public_keys(&store).insert(&record, &[]).await.unwrap();
    let again = public_keys(&store).insert(&record, &[]).await;
    assert!(matches!(again, Err(StoreError::Exists)), "{again:?}");
    // Also by a deleted record, and by a record with another link.
    let first = recipe("r");
    recipes(&store).insert(&first, &[]).await.unwrap();
    let again = recipes(&store).insert(&first, &[]).await;
    assert!(matches!(again, Err(StoreError::Exists)), "{again:?}");
    recipes(&store).delete(None, NOW).await.unwrap();
    let again = recipes(&store)
        .insert(
            &Recipe {
                id: first.id,
                ..recipe("s")
            },
            &[],
        )
        .await;
    assert!(matches!(again, Err(StoreError::Exists)), "{again:?}");
}

async fn a_deleted_record_can_be_added(place: &Place) {
    let store = place.open().await;
    let live = image("live");
    images(&store).insert(&live, &[]).await.unwrap();
    let deleted = kiln_records::Image {
        id: kiln_records::ImageId::new(),
        deleted: Some(NOW),
        ..live.clone()
    };
    images(&store).insert(&deleted, &[]).await.unwrap();
    assert_eq!(all(images(&store), Side::Live).await, [live]);
    assert_eq!(all(images(&store), Side::Deleted).await, [deleted]);
}

async fn a_damaged_row_is_reported(place: &Place) {
    let store = place.open().await;
    let nine = kiln::store::Query {
        limit: 9,
        ..Default::default()
    };
    let (one, two) = (image("one"), image("two"));
    images(&store).insert(&one, &[]).await.unwrap();
    images(&store).insert(&two, &[]).await.unwrap();
    recipes(&store).insert(&recipe("r"), &[]).await.unwrap();
    public_keys(&store).insert(&public_key("k"), &[]).await.unwrap();
    place
        .execute("UPDATE images SET record = substr(record, 1, 60) WHERE name = 'one'")
        .await;
    let damaged = images(&store).get(Side::Live, one.id).await;
    let Err(StoreError::Damaged(text)) = damaged else {
        panic!("{damaged:?}");
    };
    assert!(text.contains(&one.id.to_string()), "{text}");
    assert!(images(&store).get(Side::Live, two.id).await.unwrap().is_some());
    let list = images(&store).page(Side::Live, &nine).await;
    assert!(matches!(list, Err(StoreError::Damaged(_))), "{list:?}");

    place
        .execute("UPDATE recipes SET record = replace(record, '\"arch\":\"', '\"arch\":\"vax-')")
        .await;
    let list = recipes(&store).page(Side::Live, &nine).await;
    assert!(
        matches!(&list, Err(StoreError::Damaged(text)) if text.contains("arch")),
        "{list:?}"
    );
    place
        .execute("UPDATE public_keys SET record = replace(record, '\"id\":\"', '\"id\":\"no-id')")
        .await;
    let list = public_keys(&store).page(Side::Live, &nine).await;
    assert!(
        matches!(&list, Err(StoreError::Damaged(text)) if text.contains("no-id")),
        "{list:?}"
    );
    // It can still be forgotten.
    images(&store).purge(Side::Live, Some(one.id), false).await.unwrap();
    assert_eq!(all(images(&store), Side::Live).await, [two]);
}

async fn survives_closing(place: &Place) {
    let record = recipe("r");
    let store = place.open().await;
    recipes(&store)
        .insert(&record, &["s3://ims/x".to_owned()])
        .await
        .unwrap();
    store.close().await;
    let closed = recipes(&store).get(Side::Live, record.id).await;
    assert!(matches!(closed, Err(StoreError::Unavailable(_))), "{closed:?}");
    let store = place.open().await;
    assert_eq!(all(recipes(&store), Side::Live).await, [record]);
    recipes(&store).purge(Side::Live, None, false).await.unwrap();
    assert_eq!(store.doomed(9).await.unwrap()[0].path, "s3://ims/x");
}
