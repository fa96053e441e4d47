//! Lists: their order, their pages, their filters.

use std::collections::HashSet;

use kiln::store::{After, Collection, Query, Side, Sort, Stored};
use kiln_records::{Image, ImageId, arch::Arch};

use crate::store::place::{Place, image, images};

on_both!(
    pages_hold_every_record_once,
    names_are_sorted_by_bytes,
    filters_choose,
    what_no_text_can_be_is_not_found,
    one_that_appears_meanwhile_disturbs_no_page,
);

/// All pages of a list, each asked for with the last record of the one before.
async fn pages(collection: &dyn Collection<Image>, query: &Query) -> Vec<Stored<Image>> {
    let mut query = query.clone();
    let mut found: Vec<Stored<Image>> = Vec::new();
    loop {
        let page = collection.page(Side::Live, &query).await.unwrap();
        assert!(page.len() <= query.limit as usize);
        same_as_text(collection, &query, &page).await;
        let Some(last) = page.last() else {
            return found;
        };
        query.after = Some(After {
            key: match query.sort {
                Sort::Position => last.position.to_string(),
                Sort::Name => last.record.name.clone(),
            },
            id: last.record.id.to_string(),
        });
        found.extend(page);
    }
}

/// The same page as JSON says the same.
async fn same_as_text(collection: &dyn Collection<Image>, query: &Query, page: &[Stored<Image>]) {
    let text = collection.page_text(query).await.unwrap();
    let records: Vec<Image> = serde_json::from_str(&format!("[{}]", text.text)).unwrap();
    assert!(records.iter().eq(page.iter().map(|stored| &stored.record)));
    assert_eq!(text.count, page.len());
    let last = page.last().map(|stored| (stored.record.clone(), stored.position));
    assert_eq!(text.last, last);
    let rest = last.map(|(record, position)| Query {
        after: Some(After {
            key: match query.sort {
                Sort::Position => position.to_string(),
                Sort::Name => record.name,
            },
            id: record.id.to_string(),
        }),
        ..query.clone()
    });
    let more = match rest {
        Some(rest) => !collection.page(Side::Live, &rest).await.unwrap().is_empty(),
        None => false,
    };
    assert_eq!(text.more, more);
}

async fn pages_hold_every_record_once(place: &Place) {
    let store = place.open().await;
    // Names that repeat, and that no language would sort by bytes.
    let names = ["b", "B", "a", "ä", "z", "Z", "", "a b", "a-b", "10", "9"];
    let mut ids = Vec::new();
    for n in 0..55 {
        let record = image(names[n % names.len()]);
        ids.push(record.id);
        images(&store).insert(&record, &[]).await.unwrap();
        let other = Image {
            deleted: Some(record.created),
            id: ImageId::new(),
            ..record
        };
        images(&store).insert(&other, &[]).await.unwrap();
    }
    // Equal positions, as several servers may give.
    place
        .execute("UPDATE images SET position = position - position % 2000")
        .await;
    for sort in [Sort::Position, Sort::Name] {
        for limit in [1, 7, 55, 100] {
            let query = Query {
                sort,
                limit,
                ..Query::default()
            };
            let up = pages(images(&store), &query).await;
            let keys: Vec<_> = up
                .iter()
                .map(|stored| match sort {
                    Sort::Position => (stored.position, String::new(), stored.record.id.to_string()),
                    Sort::Name => (0, stored.record.name.clone(), stored.record.id.to_string()),
                })
                .collect();
            assert!(keys.is_sorted(), "{keys:#?}");
            assert_eq!(keys.len(), 55);
            assert_eq!(
                up.iter().map(|stored| stored.record.id).collect::<HashSet<_>>(),
                ids.iter().copied().collect()
            );
            let mut down = pages(
                images(&store),
                &Query {
                    descending: true,
                    ..query
                },
            )
            .await;
            down.reverse();
            assert_eq!(up, down);
        }
    }
}

async fn names_are_sorted_by_bytes(place: &Place) {
    let store = place.open().await;
    for name in ["b", "a", "Ä", "B", "_", "a b", "ab"] {
        images(&store).insert(&image(name), &[]).await.unwrap();
    }
    let query = Query {
        sort: Sort::Name,
        limit: 100,
        ..Query::default()
    };
    let list = images(&store).page(Side::Live, &query).await.unwrap();
    let names: Vec<_> = list.iter().map(|stored| stored.record.name.as_str()).collect();
    assert_eq!(names, ["B", "_", "a", "a b", "ab", "b", "Ä"]);
}

async fn filters_choose(place: &Place) {
    let store = place.open().await;
    let id = |text: &str| ImageId(text.parse().unwrap());
    let records = [
        Image {
            id: id("aa000000-0000-4000-8000-000000000001"),
            name: "x".to_owned(),
            ..image("")
        },
        Image {
            id: id("aaffffff-ffff-4fff-bfff-ffffffffffff"),
            name: "y".to_owned(),
            ..image("")
        },
        Image {
            id: id("ab000000-0000-4000-8000-000000000003"),
            name: "x".to_owned(),
            arch: Arch::Aarch64,
            ..image("")
        },
        Image {
            id: id("a0000000-0000-4000-8000-000000000004"),
            name: "X".to_owned(),
            arch: Arch::Aarch64,
            ..image("")
        },
    ];
    for record in &records {
        images(&store).insert(record, &[]).await.unwrap();
    }
    let find = async |query: Query| -> Vec<usize> {
        let found = images(&store)
            .page(Side::Live, &Query { limit: 10, ..query })
            .await
            .unwrap();
        let index = |stored: &Stored<Image>| records.iter().position(|record| record.id == stored.record.id).unwrap();
        found.iter().map(index).collect()
    };
    let name = |name: &str| Query {
        name: Some(name.to_owned()),
        ..Query::default()
    };
    let prefix = |prefix: &str| Query {
        id_prefix: Some(prefix.to_owned()),
        ..Query::default()
    };
    assert_eq!(find(name("x")).await, [0, 2]);
    assert_eq!(find(name("X")).await, [3]);
    assert_eq!(find(name("x%")).await, [0; 0]);
    assert_eq!(find(prefix("aa")).await, [0, 1]);
    assert_eq!(find(prefix("a")).await, [0, 1, 2, 3]);
    assert_eq!(find(prefix("aa000000-0000-4000-8000-000000000001")).await, [0]);
    assert_eq!(find(prefix("")).await, [0, 1, 2, 3]);
    for none in ["AA", "%", "_", "aa000000-0000-4000-8000-0000000000011", "ac", "~", "ü"] {
        assert_eq!(find(prefix(none)).await, [0; 0], "{none}");
    }
    assert_eq!(
        find(Query {
            arch: Some(Arch::Aarch64),
            ..Query::default()
        })
        .await,
        [2, 3]
    );
    assert_eq!(
        find(Query {
            arch: Some(Arch::S390x),
            ..Query::default()
        })
        .await,
        [0; 0]
    );
    assert_eq!(
        find(Query {
            arch: Some(Arch::Aarch64),
            sort: Sort::Name,
            ..name("x")
        })
        .await,
        [2]
    );
    assert_eq!(
        find(Query {
            sort: Sort::Name,
            descending: true,
            ..prefix("aa")
        })
        .await,
        [1, 0]
    );
    assert!(
        images(&store)
            .page(Side::Live, &Query::default())
            .await
            .unwrap()
            .is_empty()
    );
}

async fn what_no_text_can_be_is_not_found(place: &Place) {
    let store = place.open().await;
    images(&store).insert(&image("x"), &[]).await.unwrap();
    let after = |key: &str, id: &str| {
        Some(After {
            key: key.to_owned(),
            id: id.to_owned(),
        })
    };
    for query in [
        Query {
            name: Some("x\0".to_owned()),
            ..Query::default()
        },
        Query {
            id_prefix: Some("\0".to_owned()),
            ..Query::default()
        },
        Query {
            after: after("0", "\0"),
            ..Query::default()
        },
        Query {
            after: after("soon", ""),
            ..Query::default()
        },
        Query {
            after: after("99999999999999999999", ""),
            ..Query::default()
        },
        Query {
            after: after("a\0", ""),
            sort: Sort::Name,
            ..Query::default()
        },
    ] {
        assert_eq!(
            images(&store)
                .page(
                    Side::Live,
                    &Query {
                        limit: 5,
                        ..query.clone()
                    }
                )
                .await
                .unwrap(),
            [],
            "{query:?}"
        );
    }
}

async fn one_that_appears_meanwhile_disturbs_no_page(place: &Place) {
    let store = place.open().await;
    let records: Vec<_> = (0..10).map(|n| image(&n.to_string())).collect();
    for record in &records {
        images(&store).insert(record, &[]).await.unwrap();
    }
    let first = images(&store)
        .page(
            Side::Live,
            &Query {
                limit: 5,
                ..Query::default()
            },
        )
        .await
        .unwrap();
    let last = first.last().unwrap();
    let after = After {
        key: last.position.to_string(),
        id: last.record.id.to_string(),
    };
    // The record that the next page begins after goes away, and another one comes.
    images(&store)
        .purge(Side::Live, Some(last.record.id), false)
        .await
        .unwrap();
    let new = image("new");
    images(&store).insert(&new, &[]).await.unwrap();
    let query = Query {
        limit: 50,
        after: Some(after),
        ..Query::default()
    };
    let rest = images(&store).page(Side::Live, &query).await.unwrap();
    let ids: Vec<_> = rest.iter().map(|stored| stored.record.id).collect();
    let expected: Vec<_> = records[5..].iter().chain([&new]).map(|record| record.id).collect();
    assert_eq!(ids, expected);
}
