//! Tests the life of the objects that records refer to.

use kiln::store::{SharedStore, Side, StoreError};
use kiln_records::{Image, ImageId, Moment};

use crate::store::place::{Place, image, images, public_key, public_keys, recipe, recipes};

on_both!(
    what_nobody_names_is_doomed,
    what_somebody_names_is_kept,
    a_whole_side_is_forgotten_at_once,
    nothing_may_name_a_doomed_object,
    objects_can_be_kept,
    references_add_up,
    some_references_can_be_forgotten,
    many_objects_at_once,
    only_keys_of_the_record_itself_are_its_own,
    the_object_of_a_purged_record_is_inherited_by_who_still_names_it,
);

/// What is doomed, whosever it was.
async fn doomed(store: &SharedStore, limit: u32) -> Vec<String> {
    let doomed = store.doomed(limit).await.unwrap();
    doomed.into_iter().map(|object| object.path).collect()
}

/// The names of what is doomed, and whether each was an object of its record.
async fn own(store: &SharedStore) -> Vec<(String, bool)> {
    let doomed = store.doomed(100).await.unwrap();
    doomed.into_iter().map(|object| (object.path, object.own)).collect()
}

fn paths<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.iter().map(|name| format!("s3://boot-images/{name}")).collect()
}

async fn what_nobody_names_is_doomed(place: &Place) {
    let store = place.open().await;
    let record = image("i");
    images(&store).insert(&record, &paths(["b", "a", "a"])).await.unwrap();
    images(&store).delete(Some(record.id), Moment::now()).await.unwrap();
    assert_eq!(doomed(&store, 10).await, paths([]));
    images(&store).undelete(record.id).await.unwrap();
    assert_eq!(images(&store).purge(Side::Deleted, None, false).await.unwrap(), 0);
    assert_eq!(doomed(&store, 10).await, paths([]));
    images(&store).purge(Side::Live, Some(record.id), false).await.unwrap();
    assert_eq!(doomed(&store, 10).await, paths(["a", "b"]));

    // The oldest first, and at most so many.
    let record = image("j");
    images(&store).insert(&record, &paths(["0"])).await.unwrap();
    images(&store).purge(Side::Live, None, false).await.unwrap();
    assert_eq!(doomed(&store, 10).await, paths(["a", "b", "0"]));
    assert_eq!(doomed(&store, 2).await, paths(["a", "b"]));
    store.forget_doomed(&paths(["a", "0", "unknown"])).await.unwrap();
    assert_eq!(doomed(&store, 10).await, paths(["b"]));
    store.forget_doomed(&[]).await.unwrap();
}

async fn what_somebody_names_is_kept(place: &Place) {
    let store = place.open().await;
    let (one, two, recipe) = (image("one"), image("two"), recipe("r"));
    images(&store)
        .insert(&one, &paths(["kernel", "rootfs", "own"]))
        .await
        .unwrap();
    images(&store).insert(&two, &paths(["kernel"])).await.unwrap();
    recipes(&store).insert(&recipe, &paths(["rootfs"])).await.unwrap();
    images(&store).delete(Some(two.id), Moment::now()).await.unwrap();
    images(&store).purge(Side::Live, Some(one.id), false).await.unwrap();
    assert_eq!(doomed(&store, 10).await, paths(["own"]));
    recipes(&store).purge(Side::Live, None, false).await.unwrap();
    assert_eq!(doomed(&store, 10).await, paths(["own", "rootfs"]));
    images(&store).purge(Side::Deleted, Some(two.id), false).await.unwrap();
    assert_eq!(doomed(&store, 10).await, paths(["own", "rootfs", "kernel"]));

    // A record of another kind with the same identity is another record.
    let id = ImageId::new();
    let recipe = kiln_records::Recipe {
        id: kiln_records::RecipeId(id.0),
        ..recipe
    };
    recipes(&store).insert(&recipe, &paths(["both"])).await.unwrap();
    images(&store)
        .insert(&Image { id, ..image("i") }, &paths(["both"]))
        .await
        .unwrap();
    images(&store).purge(Side::Live, None, false).await.unwrap();
    assert!(!doomed(&store, 10).await.contains(&paths(["both"])[0]));
}

async fn a_whole_side_is_forgotten_at_once(place: &Place) {
    let store = place.open().await;
    let records: Vec<_> = (0..5).map(|n| image(&n.to_string())).collect();
    for (n, record) in records.iter().enumerate() {
        images(&store)
            .insert(
                record,
                &paths([&format!("own{n}"), "all", if n < 3 { "deleted" } else { "live" }]),
            )
            .await
            .unwrap();
    }
    for record in &records[..3] {
        images(&store).delete(Some(record.id), Moment::now()).await.unwrap();
    }
    assert_eq!(images(&store).purge(Side::Deleted, None, false).await.unwrap(), 3);
    assert_eq!(doomed(&store, 10).await, paths(["deleted", "own0", "own1", "own2"]));
    assert_eq!(images(&store).purge(Side::Live, None, false).await.unwrap(), 2);
    assert_eq!(doomed(&store, 10).await.len(), 8);
}

async fn nothing_may_name_a_doomed_object(place: &Place) {
    fn refused(result: &Result<(), StoreError>) {
        assert!(
            matches!(result, Err(StoreError::Doomed(path)) if *path == paths(["x"])[0]),
            "{result:?}"
        );
    }
    let store = place.open().await;
    let (one, two) = (image("one"), image("two"));
    images(&store).insert(&one, &paths(["x"])).await.unwrap();
    images(&store).insert(&two, &[]).await.unwrap();
    images(&store).purge(Side::Live, Some(one.id), false).await.unwrap();
    refused(&images(&store).insert(&one, &paths(["new", "x"])).await);
    assert_eq!(images(&store).get(Side::Live, one.id).await.unwrap(), None);
    let changed = Image {
        name: "changed".to_owned(),
        ..two.clone()
    };
    refused(&images(&store).replace(&changed, 1, &paths(["x"])).await);
    assert_eq!(
        images(&store).get(Side::Live, two.id).await.unwrap().unwrap().record,
        two
    );
    // The refused change left no reference behind.
    images(&store).purge(Side::Live, None, false).await.unwrap();
    assert_eq!(doomed(&store, 10).await, paths(["x"]));
    store.forget_doomed(&paths(["x"])).await.unwrap();
    images(&store).insert(&one, &paths(["x"])).await.unwrap();
}

async fn objects_can_be_kept(place: &Place) {
    let store = place.open().await;
    let (one, two) = (image("one"), image("two"));
    images(&store).insert(&one, &paths(["x"])).await.unwrap();
    images(&store).insert(&two, &paths(["x", "y"])).await.unwrap();
    images(&store).purge(Side::Live, Some(one.id), true).await.unwrap();
    assert_eq!(doomed(&store, 10).await, paths([]));
    images(&store).purge(Side::Live, None, true).await.unwrap();
    assert_eq!(doomed(&store, 10).await, paths([]));
    images(&store).insert(&one, &paths(["x", "y"])).await.unwrap();
    images(&store).purge(Side::Live, None, false).await.unwrap();
    assert_eq!(doomed(&store, 10).await, paths(["x", "y"]));
}

async fn references_add_up(place: &Place) {
    let store = place.open().await;
    let record = image("i");
    images(&store).insert(&record, &paths(["x"])).await.unwrap();
    images(&store).replace(&record, 1, &paths(["x", "y"])).await.unwrap();
    images(&store).replace(&record, 2, &[]).await.unwrap();
    images(&store).purge(Side::Live, Some(record.id), false).await.unwrap();
    assert_eq!(doomed(&store, 10).await, paths(["x", "y"]));
    let key = public_key("k");
    public_keys(&store).insert(&key, &[]).await.unwrap();
    assert_eq!(
        public_keys(&store)
            .purge(Side::Live, Some(key.id), false)
            .await
            .unwrap(),
        1
    );
}

async fn many_objects_at_once(place: &Place) {
    let store = place.open().await;
    let many: Vec<_> = (0..25_000).map(|n| format!("s3://boot-images/{n:05}")).collect();
    images(&store).insert(&image("i"), &many).await.unwrap();
    images(&store).purge(Side::Live, None, false).await.unwrap();
    assert_eq!(doomed(&store, u32::MAX).await, many);
    store.forget_doomed(&many).await.unwrap();
    assert_eq!(doomed(&store, 1).await, paths([]));
}

async fn some_references_can_be_forgotten(place: &Place) {
    let store = place.open().await;
    let (mut one, two) = (image("one"), image("two"));
    images(&store).insert(&one, &paths(["old", "shared"])).await.unwrap();
    images(&store).insert(&two, &paths(["shared"])).await.unwrap();
    images(&store).delete(Some(one.id), Moment::now()).await.unwrap();

    // A deleted record can be changed too, as long as it stays deleted.
    let stored = images(&store).get(Side::Deleted, one.id).await.unwrap().unwrap();
    one.deleted = stored.record.deleted;
    images(&store)
        .replace(&one, stored.revision, &paths(["new"]))
        .await
        .unwrap();
    let live = Image {
        deleted: None,
        ..one.clone()
    };
    let refused = images(&store).replace(&live, stored.revision + 1, &[]).await;
    assert!(matches!(refused, Err(StoreError::Stale)), "{refused:?}");

    images(&store)
        .forget_objects(one.id, &paths(["old", "shared", "unknown"]))
        .await
        .unwrap();
    assert_eq!(doomed(&store, 10).await, paths(["old"]));
    store.forget_doomed(&paths(["old"])).await.unwrap();
    images(&store).purge(Side::Deleted, Some(one.id), false).await.unwrap();
    assert_eq!(doomed(&store, 10).await, paths(["new"]));
}

async fn only_keys_of_the_record_itself_are_its_own(place: &Place) {
    let store = place.open().await;
    let (one, other) = (image("one"), image("other"));
    let path = |key: String| format!("s3://boot-images/{key}");
    let named = [
        (path(format!("deleted/{}/rootfs", one.id)), true),
        (path(format!("{}/rootfs", one.id)), true),
        (path(format!("{}/../{}/rootfs", one.id, other.id)), false),
        (path(format!("{}/rootfs", other.id)), false),
        (path(format!("recipes/{}/recipe.tar.gz", one.id)), false),
        ("s3://elsewhere/backup".to_owned(), false),
    ];
    let objects: Vec<_> = named.iter().map(|(path, _)| path.clone()).collect();
    images(&store).insert(&one, &objects).await.unwrap();
    images(&store).purge(Side::Live, Some(one.id), false).await.unwrap();
    let mut expected = named.to_vec();
    expected.sort();
    let mut found = own(&store).await;
    found.sort();
    assert_eq!(found, expected);
    store.forget_doomed(&objects).await.unwrap();

    let recipe = recipe("r");
    let key = |key: String| format!("s3://ims/{key}");
    let objects = [
        key(format!("recipes/{}/r.tgz", recipe.id)),
        key(format!("{}/r.tgz", recipe.id)),
    ];
    recipes(&store).insert(&recipe, &objects).await.unwrap();
    recipes(&store).purge(Side::Live, None, false).await.unwrap();
    let own: Vec<_> = own(&store).await.into_iter().filter(|(_, own)| *own).collect();
    assert_eq!(own, [(objects[0].clone(), true)]);
}

async fn the_object_of_a_purged_record_is_inherited_by_who_still_names_it(place: &Place) {
    let store = place.open().await;
    for keep in [false, true] {
        let (one, two) = (image("one"), image("two"));
        let rootfs = format!("s3://boot-images/{}/rootfs", one.id);
        images(&store)
            .insert(&two, std::slice::from_ref(&rootfs))
            .await
            .unwrap();
        images(&store)
            .insert(&one, std::slice::from_ref(&rootfs))
            .await
            .unwrap();
        images(&store).purge(Side::Live, Some(one.id), keep).await.unwrap();
        assert_eq!(own(&store).await, []);
        images(&store).purge(Side::Live, None, false).await.unwrap();
        assert_eq!(own(&store).await, [(rootfs.clone(), !keep)]);
        store.forget_doomed(&[rootfs]).await.unwrap();

        let (one, two) = (image("one"), image("two"));
        let rootfs = format!("s3://boot-images/{}/rootfs", one.id);
        images(&store)
            .insert(&one, std::slice::from_ref(&rootfs))
            .await
            .unwrap();
        images(&store)
            .insert(&two, std::slice::from_ref(&rootfs))
            .await
            .unwrap();
        images(&store)
            .forget_objects(one.id, std::slice::from_ref(&rootfs))
            .await
            .unwrap();
        images(&store).purge(Side::Live, None, false).await.unwrap();
        assert_eq!(own(&store).await, [(rootfs.clone(), true)]);
        store.forget_doomed(&[rootfs]).await.unwrap();
    }
}
