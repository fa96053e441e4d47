//! Image sets, and the channels that lead to them.

use futures::future::join_all;
use kiln::store::{Query, SetDeleted, SharedStore, StoreError};
use kiln_records::{
    ImageSet, Moment, SetId,
    arch::Arch,
    job::JobOptions,
    set::{
        Member, Requirement,
        promotion::{Promotion, PromotionKind, SetChange},
    },
};

use crate::store::place::Place;

on_both!(
    a_set_comes_back_as_it_went_in,
    a_version_exists_once,
    the_newest_complete_set_is_found,
    one_of_many_promotions_wins,
    a_channel_tells_of_changes_of_its_set,
    a_set_in_a_channel_stays,
);

pub(super) fn set(name: &str, version: &str) -> ImageSet {
    ImageSet {
        id: SetId::new(),
        created: Moment::from_micros(1_700_000_000_123_456),
        name: name.to_owned(),
        version: version.to_owned(),
        public_key_id: None,
        options: JobOptions::default(),
        by: Some("ü".to_owned()),
        members: vec![Member {
            arch: Arch::Riscv64,
            required: true,
            recipe_id: None,
            time_limit_s: Some(3),
            attempts: Vec::new(),
            image: None,
        }],
        requires: vec![Requirement::Boot],
        was_complete: false,
        complete_since: None,
        told: None,
        next_look: Moment::from_micros(7),
    }
}

pub(super) fn promotion(set: &ImageSet, number: u32) -> Promotion {
    Promotion {
        name: set.name.clone(),
        channel: "stable".to_owned(),
        number,
        kind: PromotionKind::Promote,
        set_id: Some(set.id),
        version: Some(set.version.clone()),
        at: Moment::from_micros(number.into()),
        by: None,
        images: None,
        before: number.checked_sub(1).filter(|before| *before > 0),
    }
}

async fn add(store: &SharedStore, set: &ImageSet) {
    store.insert_set(set).await.unwrap();
}

async fn a_set_comes_back_as_it_went_in(place: &Place) {
    let store = place.open().await;
    let mut one = set("compute", "24.11");
    assert_eq!(store.get_set(one.id).await.unwrap(), None);
    add(&store, &one).await;
    let stored = store.get_set(one.id).await.unwrap().unwrap();
    assert_eq!((&stored.record, stored.revision), (&one, 1));
    let named = store.set_of_version("compute", "24.11").await.unwrap();
    assert_eq!(named.unwrap().record, one);
    assert_eq!(store.set_of_version("compute", "24").await.unwrap(), None);
    let at = Moment::from_micros;
    assert_eq!(store.sets_to_look_at(at(6), 9).await.unwrap(), []);
    assert_eq!(store.sets_to_look_at(at(7), 9).await.unwrap().len(), 1);
    one.next_look = at(9);
    store.replace_set(&one, 1, None).await.unwrap();
    let stale = store.replace_set(&one, 1, None).await;
    assert!(matches!(stale, Err(StoreError::Stale)), "{stale:?}");
    assert_eq!(store.sets_to_look_at(at(8), 9).await.unwrap(), []);
    let query = Query {
        name: Some("compute".to_owned()),
        limit: 9,
        ..Query::default()
    };
    assert_eq!(store.page_sets(&query).await.unwrap().len(), 1);
    assert_eq!(store.delete_set(one.id).await.unwrap(), SetDeleted::Done);
    assert_eq!(store.delete_set(one.id).await.unwrap(), SetDeleted::Unknown);
}

async fn a_version_exists_once(place: &Place) {
    let store = place.open().await;
    let made = join_all((0..8).map(|_| {
        let store = store.clone();
        async move { store.insert_set(&set("n", "1")).await }
    }))
    .await;
    let taken = |done: &&Result<(), StoreError>| matches!(done, Err(StoreError::Exists));
    assert_eq!(made.iter().filter(taken).count(), 7, "{made:?}");
    add(&store, &set("n", "2")).await;
    add(&store, &set("m", "1")).await;
}

async fn the_newest_complete_set_is_found(place: &Place) {
    let store = place.open().await;
    for (version, was_complete) in [("1", true), ("2", true), ("3", false)] {
        let made = ImageSet {
            was_complete,
            ..set("n", version)
        };
        add(&store, &made).await;
    }
    let newest = store.complete_sets("n", None, 1).await.unwrap();
    assert_eq!(newest[0].record.version, "2");
    let before = store.complete_sets("n", Some(newest[0].position), 9).await.unwrap();
    assert_eq!(before.len(), 1);
    assert_eq!(before[0].record.version, "1");
    assert_eq!(store.complete_sets("m", None, 9).await.unwrap(), []);
}

async fn one_of_many_promotions_wins(place: &Place) {
    let store = place.open().await;
    let sets: Vec<_> = (0..8).map(|n| set("n", &n.to_string())).collect();
    for set in &sets {
        add(&store, set).await;
    }
    let done = join_all(sets.iter().map(|set| {
        let (store, promotion) = (store.clone(), promotion(set, 1));
        async move { store.promote(&promotion).await }
    }))
    .await;
    let lost = |done: &&Result<(), StoreError>| matches!(done, Err(StoreError::Stale));
    assert_eq!(done.iter().filter(lost).count(), 7, "{done:?}");
    let winner = done.iter().position(Result::is_ok).unwrap();
    let now = store.channel("n", "stable").await.unwrap().unwrap();
    assert_eq!(now.set_id, Some(sets[winner].id));
    store.promote(&promotion(&sets[0], 2)).await.unwrap();
    let history = store.promotions("n", "stable", 9).await.unwrap();
    assert_eq!(history.iter().map(|one| one.number).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(store.promotion("n", "stable", 1).await.unwrap().unwrap(), now);
    assert_eq!(store.channels(None, 9).await.unwrap(), [history[0].clone()]);
    assert_eq!(store.channels(Some("m"), 9).await.unwrap(), []);
    let gone = store.promote(&promotion(&set("n", "9"), 3)).await;
    assert!(matches!(gone, Err(StoreError::Stale)), "{gone:?}");
}

async fn a_channel_tells_of_changes_of_its_set(place: &Place) {
    let store = place.open().await;
    let (one, other) = (set("n", "1"), set("n", "2"));
    add(&store, &one).await;
    add(&store, &other).await;
    store.promote(&promotion(&one, 1)).await.unwrap();
    let change = || {
        Some(SetChange {
            images: vec!["a".to_owned(), "b".to_owned()],
            at: Moment::from_micros(5),
            by: Some("u".to_owned()),
        })
    };
    store.replace_set(&one, 1, change()).await.unwrap();
    let stale = store.replace_set(&one, 1, change()).await;
    assert!(matches!(stale, Err(StoreError::Stale)), "{stale:?}");
    store.replace_set(&other, 1, change()).await.unwrap();
    let history = store.promotions("n", "stable", 9).await.unwrap();
    let expected = Promotion {
        number: 2,
        kind: PromotionKind::Change,
        at: Moment::from_micros(5),
        by: Some("u".to_owned()),
        images: Some("a; b".to_owned()),
        ..promotion(&one, 1)
    };
    assert_eq!(history, [expected, promotion(&one, 1)]);
}

async fn a_set_in_a_channel_stays(place: &Place) {
    let store = place.open().await;
    let (one, other) = (set("n", "1"), set("n", "2"));
    add(&store, &one).await;
    add(&store, &other).await;
    store.promote(&promotion(&one, 1)).await.unwrap();
    let refused = store.delete_set(one.id).await.unwrap();
    assert_eq!(refused, SetDeleted::InChannel("stable".to_owned()));
    store.promote(&promotion(&other, 2)).await.unwrap();
    assert_eq!(store.delete_set(one.id).await.unwrap(), SetDeleted::Done);
}
