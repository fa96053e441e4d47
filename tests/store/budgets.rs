//! One caller pushes out nothing that is another's, and has no more than its part.

use kiln::store::{Allowance, AuditQuery, Count, DeliveryQuery, DroppedKind, Maker, Most, SharedStore, StoreError};
use kiln_records::{
    Moment, RemoteBuildNode,
    audit::{AuditEntry, KnownBy},
    set::promotion::{Promotion, PromotionKind},
    webhook::{Delivery, Event},
};
use sqlx::{Connection as _, SqliteConnection};

use crate::store::{
    place::{self, Place},
    runs::run,
    sets::{promotion, set},
};

on_both!(
    refused_requests_push_out_no_entry_of_what_was_done,
    webhooks_of_one_caller_push_out_no_others,
    a_caller_adds_no_more_than_it_may,
);

fn allowance(caller: &str, of_caller: u32, of_all: u32) -> Allowance {
    Allowance {
        caller: caller.to_owned(),
        most: Some(Most { of_caller, of_all }),
    }
}

async fn noted(store: &SharedStore, caller: &str, status: u16) {
    let entry = AuditEntry {
        number: 0,
        at: Moment::from_micros(1),
        who: caller.to_owned(),
        known_by: KnownBy::Token,
        identity: None,
        from: None,
        method: "POST".to_owned(),
        path: "/v3/images".to_owned(),
        record_id: None,
        request_id: None,
        status: None,
    };
    let adding = store.add_audit_entry(&entry, false);
    let number = allowance(caller, 0, 0).scope(adding).await.unwrap();
    store.end_audit_entry(number, status, None).await.unwrap();
}

/// The counts of a kind.
async fn count(store: &SharedStore, kind: &str) -> Count {
    let counts = store.counts().await.unwrap();
    assert_eq!(counts.len(), 8, "{counts:?}");
    counts.into_iter().find(|count| count.kind == kind).unwrap()
}

async fn refused_requests_push_out_no_entry_of_what_was_done(place: &Place) {
    let store = place.open().await;
    noted(&store, "noisy", 200).await;
    noted(&store, "other", 404).await;
    noted(&store, "other", 201).await;
    place
        .execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 11260) \
             INSERT INTO audit (at, who, known_by, method, path, status, refused, caller) \
             SELECT 2, 'noisy', 'token', 'DELETE', '/', 404, 1, 'noisy' FROM n",
        )
        .await;
    // With this one, whose number is 11264, they are counted.
    noted(&store, "third", 200).await;
    let of = async |who: &str| {
        let query = AuditQuery {
            who: Some(who.to_owned()),
            limit: 100_000,
            ..AuditQuery::default()
        };
        let entries = store.audit_entries(&query).await.unwrap();
        entries.iter().filter_map(|entry| entry.status).collect::<Vec<_>>()
    };
    assert_eq!(of("other").await, [201, 404]);
    assert_eq!(of("third").await, [200]);
    let noisy = of("noisy").await;
    assert_eq!((noisy.len(), noisy.last()), (10_001, Some(&200)));
    let dropped = store.dropped().await.unwrap();
    let dropped: Vec<_> = dropped.iter().map(|one| (one.kind, one.number)).collect();
    assert_eq!(dropped, [(DroppedKind::RefusedEntry, 1260)]);
}

async fn webhooks_of_one_caller_push_out_no_others(place: &Place) {
    let store = place.open().await;
    let tell = async |caller: &str, receiver: &str| {
        let job = place::job("j");
        let making = store.insert_job(&job);
        allowance(caller, 0, 0).scope(making).await.unwrap();
        let about = format!("job {}", job.id);
        let now = Moment::from_micros(1);
        let delivery = Delivery::new(receiver.to_owned(), Event::JobFailed, about, "{}".to_owned(), now);
        store
            .add_delivery(&delivery, Some(Maker::Job(job.id)))
            .await
            .unwrap()
            .unwrap()
    };
    let kept = [tell("other", "away").await, tell("noisy", "elsewhere").await];
    let first = tell("noisy", "away").await;
    place
        .execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 19998) \
             INSERT INTO deliveries (id, receiver, event, about, body, created, state, attempts, next_try, caller) \
             SELECT '00000000-0000-4000-8000-000000000000', 'away', 'job.failed', 'job ' || CAST(i AS TEXT), '{}', 1, \
             CASE WHEN i <= 4999 THEN 'waiting' ELSE 'delivered' END, 0, CASE WHEN i <= 4999 THEN 1 ELSE NULL END, \
             'noisy' FROM n",
        )
        .await;
    let last = tell("noisy", "away").await;
    let there = async |receiver: &str| {
        let query = DeliveryQuery {
            receiver: Some(receiver.to_owned()),
            limit: 100_000,
            ..DeliveryQuery::default()
        };
        let found = store.deliveries(&query).await.unwrap();
        found.iter().map(|one| one.number).collect::<Vec<_>>()
    };
    let away = there("away").await;
    assert_eq!(away.len(), 20_000);
    assert!(away.contains(&kept[0]) && !away.contains(&first) && away.contains(&last));
    assert_eq!(there("elsewhere").await, [kept[1]]);
    let dropped = store.dropped().await.unwrap();
    assert_eq!((dropped[0].kind, dropped[0].number), (DroppedKind::Webhook, 1));
    // What does not wait any more goes first.
    tell("third", "away").await;
    let away = there("away").await;
    assert_eq!(away.len(), 20_000);
    assert!(away.contains(&kept[0]));
    assert_eq!(store.dropped().await.unwrap()[0].number, 1);
}

/// Tables whose rows count for no caller, and what bounds them.
const OF_KILN: [(&str, &str); 14] = [
    ("doomed_objects", "the objects of records"),
    ("dropped", "one row for each kind"),
    ("failed_twins", "the oldest go"),
    ("image_packages", "the packages of images"),
    ("job_log", "the size of a job's log"),
    ("job_pulses", "one row for each job"),
    ("job_usage", "one row for each job"),
    ("object_refs", "the objects of records"),
    ("package_lists", "one row for each image"),
    ("schedule_ticks", "1000 of each schedule"),
    ("servers", "the operator"),
    ("site", "one row"),
    ("tokens", "the operator"),
    ("_sqlx_migrations", "the versions of Kiln"),
];

#[test]
async fn every_table_counts_for_callers_or_is_bounded_otherwise() {
    let place = Place::sqlite();
    let store = place.open().await;
    let url = format!("sqlite://{}", place.file().display());
    let mut records = SqliteConnection::connect(&url).await.unwrap();
    let tables = "SELECT name, EXISTS (SELECT 1 FROM pragma_table_info(tables.name) WHERE name = 'caller') \
                  FROM sqlite_schema AS tables WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
    let tables: Vec<(String, bool)> = sqlx::query_as(tables).fetch_all(&mut records).await.unwrap();
    let counted: Vec<_> = store.counts().await.unwrap().iter().map(|count| count.kind).collect();
    for (table, has_caller) in &tables {
        let otherwise = OF_KILN.iter().any(|(name, _)| name == table);
        assert!(*has_caller != otherwise, "{table} has no budget");
        // Those that are left have budgets of their own, or are only to be cleared away.
        let own = ["audit", "deliveries", "deleted_jobs"].contains(&table.as_str());
        assert_eq!(counted.contains(&table.as_str()), *has_caller && !own, "{table}");
    }
    assert!(tables.len() > 20, "{tables:?}");
    records.close().await.unwrap();
}

async fn a_caller_adds_no_more_than_it_may(place: &Place) {
    let store = place.open().await;
    let add = async |caller: &str, of_caller, of_all| {
        let image = place::image("i");
        let adding = place::images(&store).insert(&image, &[]);
        allowance(caller, of_caller, of_all).scope(adding).await.map(|()| image)
    };
    add("a", 2, 0).await.unwrap();
    let second = add("a", 2, 0).await.unwrap();
    let refused = add("a", 2, 0).await.unwrap_err();
    assert!(
        matches!(
            refused,
            StoreError::TooMany {
                most: 2,
                is_own: true,
                ..
            }
        ),
        "{refused}"
    );
    assert_eq!(
        refused.to_string(),
        "there are as many images as one caller may have made: 2 ([limits] records_of_caller); delete some, or have the \
         site allow more"
    );
    add("b", 2, 0).await.unwrap();
    let refused = add("b", 2, 3).await.unwrap_err();
    assert!(
        matches!(
            refused,
            StoreError::TooMany {
                most: 3,
                is_own: false,
                ..
            }
        ),
        "{refused}"
    );
    let expected = Count {
        kind: "images",
        all: 3,
        most: Some(("a".to_owned(), 2)),
    };
    assert_eq!(count(&store, "images").await, expected);
    // Kiln itself adds what jobs have made.
    place::images(&store).insert(&place::image("i"), &[]).await.unwrap();
    // What was deleted counts until it is gone for good.
    place::images(&store)
        .delete(Some(second.id), Moment::now())
        .await
        .unwrap();
    assert!(add("a", 2, 0).await.is_err());
    place::images(&store)
        .purge(kiln::store::Side::Deleted, Some(second.id), true)
        .await
        .unwrap();
    add("a", 2, 0).await.unwrap();
    // A job that builds asks for the room of its image.
    let job = place::job("j");
    let run = run();
    let asking = store.insert_run(&job, &run);
    let refused = allowance("a", 2, 0).scope(asking).await.unwrap_err();
    assert!(refused.to_string().contains("as many images"), "{refused}");
    let asking = store.insert_run(&job, &run);
    allowance("b", 2, 0).scope(asking).await.unwrap();
    assert_eq!(store.caller_of(Maker::Job(job.id)).await.unwrap().as_deref(), Some("b"));
    // Nodes count alike; one that is registered already needs no room.
    let register = async |caller: &str, xname: &str| {
        let node = RemoteBuildNode {
            xname: xname.to_owned(),
        };
        allowance(caller, 1, 0).scope(store.put_node(&node)).await
    };
    register("a", "x1").await.unwrap();
    let refused = register("a", "x2").await.unwrap_err();
    assert!(refused.to_string().contains("as many remote build nodes"), "{refused}");
    register("a", "x1").await.unwrap();
    register("b", "x2").await.unwrap();
    assert_eq!(count(&store, "remote_build_nodes").await.all, 2);
    // So do changes of channels, of which one set may have any number.
    let set = set("n", "1");
    store.insert_set(&set).await.unwrap();
    let change = async |channel: &str, number, kind| {
        let promotion = Promotion {
            channel: channel.to_owned(),
            kind,
            ..promotion(&set, number)
        };
        allowance("a", 1, 0).scope(store.promote(&promotion)).await
    };
    change("one", 1, PromotionKind::Promote).await.unwrap();
    let refused = change("two", 1, PromotionKind::Promote).await.unwrap_err();
    assert!(refused.to_string().contains("as many promotions"), "{refused}");
    // What nodes should not boot is withdrawn whenever that is found.
    change("one", 2, PromotionKind::Withdraw).await.unwrap();
    // Nor is one of them too large.
    let mut large = place::image("i");
    large.metadata.insert("k".to_owned(), "v".repeat(64 << 10));
    let adding = place::images(&store).insert(&large, &[]);
    let refused = allowance("b", 0, 0).scope(adding).await.unwrap_err();
    assert!(matches!(refused, StoreError::TooLarge { .. }), "{refused}");
}
