//! The audit log.

use kiln::store::AuditQuery;
use kiln_records::{
    Moment,
    audit::{AuditEntry, KnownBy},
};
use uuid::Uuid;

use crate::store::place::Place;

on_both!(entries_come_back_as_they_went_in_and_are_found, entries_go_by_age,);

fn entry(at: i64, who: &str, record_id: Option<Uuid>) -> AuditEntry {
    AuditEntry {
        number: 0,
        at: Moment::from_micros(at),
        who: who.to_owned(),
        known_by: KnownBy::Issuer,
        identity: Some("sub ü".to_owned()),
        from: Some("::1".to_owned()),
        method: "POST".to_owned(),
        path: "/v3/images".to_owned(),
        record_id,
        request_id: None,
        status: None,
    }
}

async fn entries_come_back_as_they_went_in_and_are_found(place: &Place) {
    let store = place.open().await;
    let record = Uuid::new_v4();
    let mut entries = vec![entry(10, "a", None), entry(20, "b", Some(record)), entry(20, "a", None)];
    for entry in &mut entries {
        entry.number = store.add_audit_entry(entry, entry.who == "b").await.unwrap();
    }
    assert!(entries.is_sorted_by_key(|entry| entry.number));
    let made = Uuid::new_v4();
    store.end_audit_entry(entries[0].number, 201, Some(made)).await.unwrap();
    store.end_audit_entry(entries[1].number, 409, None).await.unwrap();
    (entries[0].status, entries[0].record_id) = (Some(201), Some(made));
    entries[1].status = Some(409);
    // The latest first; the third has no answer.
    entries.reverse();
    let all = AuditQuery {
        limit: 10,
        ..AuditQuery::default()
    };
    let listed = async |query: AuditQuery| store.audit_entries(&query).await.unwrap();
    assert_eq!(listed(all.clone()).await, entries);
    let of = |who: Option<&str>, record_id, since: Option<i64>, until: Option<i64>| AuditQuery {
        who: who.map(str::to_owned),
        record_id,
        since: since.map(Moment::from_micros),
        until: until.map(Moment::from_micros),
        ..all.clone()
    };
    assert_eq!(
        listed(of(Some("a"), None, None, None)).await,
        [entries[0].clone(), entries[2].clone()]
    );
    assert_eq!(listed(of(None, Some(made), None, None)).await, [entries[2].clone()]);
    assert_eq!(listed(of(Some("a"), Some(record), None, None)).await, []);
    assert_eq!(listed(of(None, None, Some(20), None)).await, entries[..2]);
    assert_eq!(listed(of(None, None, Some(10), Some(20))).await, entries[2..]);
    let first = AuditQuery { limit: 1, ..all };
    assert_eq!(listed(first).await, entries[..1]);
}

async fn entries_go_by_age(place: &Place) {
    let store = place.open().await;
    for at in 0..5 {
        store.add_audit_entry(&entry(at, "a", None), false).await.unwrap();
    }
    let before = Moment::from_micros(3);
    assert_eq!(store.count_audit_entries(before).await.unwrap(), 3);
    assert_eq!(store.remove_audit_entries(before, 2).await.unwrap(), 2);
    assert_eq!(store.remove_audit_entries(before, 2).await.unwrap(), 1);
    let all = AuditQuery {
        limit: 10,
        ..AuditQuery::default()
    };
    assert_eq!(store.audit_entries(&all).await.unwrap().len(), 2);
}
