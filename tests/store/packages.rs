//! The index of the packages of images.

use kiln::store::{After, IndexedPackage, Known, SharedStore, Side};
use kiln_records::{
    ImageId, Moment,
    sbom::{Listed, ListedPackage, PackageFormat},
};

use crate::store::place::{Place, image, images};

on_both!(
    packages_are_found_by_name,
    pages_of_images_follow_each_other,
    an_index_that_fails_half_way_leaves_nothing,
    a_fault_is_noted_until_the_packages_are_known,
    what_is_known_goes_with_the_image,
);

fn listed(packages: &[(&str, &str)]) -> Listed {
    Listed {
        format: Some(PackageFormat::Deb),
        packages: packages
            .iter()
            .map(|(name, version)| ListedPackage {
                name: (*name).to_owned(),
                version: (*version).to_owned(),
                arch: "arm64".to_owned(),
                licences: None,
            })
            .collect(),
    }
}

fn known(versions: &[&str]) -> Known {
    let found = versions.iter().map(|version| IndexedPackage {
        version: (*version).to_owned(),
        arch: "arm64".to_owned(),
    });
    Known::Packages {
        format: Some(PackageFormat::Deb),
        found: found.collect(),
    }
}

async fn add(store: &SharedStore) -> ImageId {
    let image = image("i");
    images(store).insert(&image, &[]).await.unwrap();
    image.id
}

/// What is known of each live image about a package.
async fn asked(store: &SharedStore, package: &str) -> Vec<(ImageId, Known)> {
    let found = store.images_with(package, None, 100).await.unwrap();
    found.into_iter().map(|image| (image.id, image.known)).collect()
}

async fn packages_are_found_by_name(place: &Place) {
    let store = place.open().await;
    let [one, other, unseen] = [add(&store).await, add(&store).await, add(&store).await];
    let now = Moment::now();
    // More than one statement takes, and one of them twice.
    let many: Vec<String> = (0..2500).map(|number| format!("p{number}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), "1")).collect();
    let both = [&many[..], &[("p7", "1"), ("ssl", "3.0.9"), ("ssl", "3.0.15")]].concat();
    store.put_packages(one, &listed(&both), now).await.unwrap();
    let nothing = Listed {
        format: None,
        packages: Vec::new(),
    };
    store.put_packages(other, &nothing, now).await.unwrap();
    let empty = Known::Packages {
        format: None,
        found: Vec::new(),
    };
    for (package, expected) in [
        ("ssl", known(&["3.0.15", "3.0.9"])),
        ("p7", known(&["1"])),
        ("p2499", known(&["1"])),
        ("ss", known(&[])),
        ("s\0", known(&[])),
    ] {
        let all = [(one, expected), (other, empty.clone()), (unseen, Known::Unseen)];
        assert_eq!(asked(&store, package).await, all, "{package}");
    }
    // The same again, and another list in its place.
    store.put_packages(one, &listed(&both), now).await.unwrap();
    assert_eq!(asked(&store, "p7").await[0].1, known(&["1"]));
    store.put_packages(one, &listed(&[("ssl", "4")]), now).await.unwrap();
    assert_eq!(asked(&store, "ssl").await[0].1, known(&["4"]));
    assert_eq!(asked(&store, "p7").await[0].1, known(&[]));
}

async fn pages_of_images_follow_each_other(place: &Place) {
    let store = place.open().await;
    let mut expected = Vec::new();
    for _ in 0..5 {
        expected.push(add(&store).await);
    }
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = store.images_with("p", after.as_ref(), 2).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(After {
            key: last.position.to_string(),
            id: last.id.to_string(),
        });
        assert!(page.len() <= 2 && page.iter().all(|image| image.has_link && image.name == "i"));
        seen.extend(page.iter().map(|image| image.id));
    }
    assert_eq!(seen, expected);
    for (key, id) in [("x", ""), ("1", "\0")] {
        let nowhere = After {
            key: key.to_owned(),
            id: id.to_owned(),
        };
        assert_eq!(store.images_with("p", Some(&nowhere), 2).await.unwrap(), []);
    }
}

async fn an_index_that_fails_half_way_leaves_nothing(place: &Place) {
    let store = place.open().await;
    let id = add(&store).await;
    // The last package, which comes with a later statement than the first ones, is refused.
    let refuse = match place {
        Place::Sqlite(_) => {
            "CREATE TRIGGER refuse BEFORE INSERT ON image_packages WHEN NEW.name = 'z' BEGIN SELECT RAISE(ABORT, 'no'); END"
        }
        Place::Postgres(_) => "ALTER TABLE image_packages ADD CONSTRAINT refuse CHECK (name <> 'z')",
    };
    place.execute(refuse).await;
    let many: Vec<String> = (0..1500).map(|number| format!("p{number}")).collect();
    let mut many: Vec<_> = many.iter().map(|name| (name.as_str(), "1")).collect();
    many.push(("z", "1"));
    store.put_packages(id, &listed(&many), Moment::now()).await.unwrap_err();
    assert_eq!(asked(&store, "p1").await, [(id, Known::Unseen)]);
    // And one that was known stays as it was.
    let before = listed(&[("p1", "0")]);
    store.put_packages(id, &before, Moment::now()).await.unwrap();
    store.put_packages(id, &listed(&many), Moment::now()).await.unwrap_err();
    assert_eq!(asked(&store, "p1").await, [(id, known(&["0"]))]);
}

async fn a_fault_is_noted_until_the_packages_are_known(place: &Place) {
    let store = place.open().await;
    let id = add(&store).await;
    for (fault, micros) in [("no list\0", 1), ("damaged", 2)] {
        let looked = Moment::from_micros(micros);
        store.put_package_fault(id, fault, looked).await.unwrap();
        let why = fault.replace('\0', " ");
        assert_eq!(asked(&store, "p").await, [(id, Known::Fault { why, looked })]);
    }
    store
        .put_packages(id, &listed(&[("p", "1")]), Moment::now())
        .await
        .unwrap();
    assert_eq!(asked(&store, "p").await, [(id, known(&["1"]))]);
    // Whoever could not read it is late.
    store.put_package_fault(id, "away", Moment::now()).await.unwrap();
    assert_eq!(asked(&store, "p").await, [(id, known(&["1"]))]);
}

async fn what_is_known_goes_with_the_image(place: &Place) {
    let store = place.open().await;
    let record = image("i");
    let list = listed(&[("p", "1")]);
    // There is no such image yet.
    store.put_packages(record.id, &list, Moment::now()).await.unwrap();
    store.put_package_fault(record.id, "f", Moment::now()).await.unwrap();
    images(&store).insert(&record, &[]).await.unwrap();
    assert_eq!(asked(&store, "p").await, [(record.id, Known::Unseen)]);

    store.put_packages(record.id, &list, Moment::now()).await.unwrap();
    images(&store).delete(Some(record.id), Moment::now()).await.unwrap();
    assert_eq!(asked(&store, "p").await, []);
    assert!(images(&store).undelete(record.id).await.unwrap());
    assert_eq!(asked(&store, "p").await, [(record.id, known(&["1"]))]);

    images(&store).delete(None, Moment::now()).await.unwrap();
    assert_eq!(images(&store).purge(Side::Deleted, None, false).await.unwrap(), 1);
    images(&store).insert(&record, &[]).await.unwrap();
    assert_eq!(asked(&store, "p").await, [(record.id, Known::Unseen)]);
}
