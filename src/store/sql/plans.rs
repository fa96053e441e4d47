//! The statements that must stay fast with many records, listed for a test of their query plans. Pure: no I/O.

#![allow(
    dead_code,
    reason = "only SQLite is asked: PostgreSQL's answer depends on what is in the tables"
)]

use kiln_records::{Image, Job, JobStatus, JobType, Moment, SetId, arch::Arch, webhook::DeliveryState};
use uuid::Uuid;

use super::{
    Statement, audit,
    conditions::Conditions,
    deliveries, logs,
    objects::{bequeath, doom, doomed_among, forget_refs, oldest_doomed},
    overview, packages, page, sets,
    statements::{Chosen, insert, select_stored, update},
};
use crate::store::{After, AuditQuery, DeliveryQuery, JobFilter, Query, Side, Sort, table::Table};

/// A statement, its description, and whether it must return its rows in order without sorting them.
pub(in crate::store) struct Planned {
    pub(in crate::store) what: String,
    pub(in crate::store) sql: String,
    pub(in crate::store) in_order: bool,
}

/// All such statements.
pub(in crate::store) fn all(image: &Image, job: &Job) -> Vec<Planned> {
    let mut planned = Vec::new();
    let mut add = |what: &str, statement: &Statement, in_order| {
        planned.push(Planned {
            what: what.to_owned(),
            sql: statement.sql().as_str().to_owned(),
            in_order,
        });
    };
    for side in [Side::Live, Side::Deleted] {
        let one = Chosen {
            table: Image::NAME,
            side,
            id: Some(Uuid::nil()),
        };
        let mut get = select_stored::<Image>();
        one.push(&mut get);
        add("get", &get, false);
        for (what, query, in_order) in queries() {
            if let Some(statement) = page::finish(select_stored::<Image>(), Some(side), &query) {
                add(&format!("{side:?} {what}"), &statement, in_order);
            }
            if let Some(mut statement) = page::finish(page::select_text::<Image>(), Some(side), &query) {
                statement.push(") AS page");
                add(&format!("{side:?} text of {what}"), &statement, in_order);
            }
        }
        add("insert", &insert(image, Some(side), Vec::new()), false);
        add("doom", &doom(one), false);
        add("bequeath", &bequeath(one), false);
        add("forget references", &forget_refs(one), false);
    }
    add("replace", &update(image, Vec::new(), 1), false);
    for (what, query, in_order) in queries() {
        if let Some(statement) = page::finish(select_stored::<Job>(), None, &query) {
            add(&format!("jobs {what}"), &statement, in_order);
        }
    }
    for filter in filters() {
        let query = Query {
            jobs: filter.clone(),
            limit: 1000,
            ..Query::default()
        };
        if let Some(statement) = page::finish(select_stored::<Job>(), None, &query) {
            // Old jobs come first in the list, so a scan of the list is as good as any index.
            let only_age = filter.statuses.is_empty() && filter.job_type.is_none();
            add(&format!("{filter:?}"), &statement, only_age);
        }
        let mut delete = Statement::new("DELETE FROM jobs");
        Conditions::of(&mut delete).and_job(&filter);
        add(&format!("delete {filter:?}"), &delete, false);
    }
    let status = JobStatus::Error;
    add("first open runs", &overview::first_open(10), true);
    add("latest runs", &overview::latest_run(status, 10), true);
    add(
        "latest jobs",
        &overview::latest_ids(status, Moment::from_micros(1), 10),
        true,
    );
    add("latest successes", &overview::successes(Uuid::nil(), 10), true);
    add("count jobs", &overview::count(status, 10), false);
    add("insert job", &insert(job, None, Vec::new()), false);
    add("doomed among", &doomed_among(&["a".to_owned(), "b".to_owned()]), false);
    add("oldest doomed", &oldest_doomed(10), true);
    for after in [None, Some(5)] {
        if let Some(statement) = logs::page(job.id, after, 1000) {
            add(&format!("log after {after:?}"), &statement, true);
        }
    }
    add("hear", &logs::hear(job.id, 1), false);
    add(
        "advance",
        &logs::advance(
            job.id,
            1,
            2,
            &logs::Room {
                bytes: 0,
                end: 0,
                refused: 0,
            },
            true,
        ),
        false,
    );
    add("make room", &logs::make_room(job.id, 1), false);
    add("remove lines", &logs::remove(job.id, 1000), false);
    add("set of version", &sets::of_version("n", "1"), false);
    for before in [None, Some(5)] {
        add("newest complete set", &sets::newest_complete("n", before, 1), true);
    }
    add("sets to look at", &sets::to_look_at(Moment::from_micros(1), 10), true);
    add("channel", &sets::latest_promotions("n", "stable", 1), true);
    for (what, query) in audit_queries() {
        add(&format!("audit entries {what}"), &audit::listed(&query), true);
    }
    add("count audit entries", &audit::counts(), true);
    for (caller, refused) in [(Some("a"), None), (Some("a"), Some(1)), (None, Some(1))] {
        add("forget audit entries", &audit::oldest(caller, refused, 2), true);
    }
    add(
        "remove audit entries",
        &audit::remove(Moment::from_micros(1), 10),
        false,
    );
    for (what, query) in delivery_queries() {
        add(&format!("deliveries {what}"), &deliveries::listed(&query), true);
    }
    add(
        "deliveries due",
        &deliveries::due("r", Moment::from_micros(1), 10),
        true,
    );
    add(
        "forget deliveries that wait",
        &deliveries::oldest_waiting("r", Some("a"), 2),
        false,
    );
    add("forget deliveries", &deliveries::oldest_done("r", 2), false);
    for after in [
        None,
        Some(After {
            key: "1".to_owned(),
            id: String::new(),
        }),
    ] {
        if let Some(statement) = packages::page(after.as_ref(), 1000) {
            add(&format!("images to look through after {after:?}"), &statement, true);
        }
    }
    add(
        "packages of a name",
        &packages::named("n", &["a".to_owned(), "b".to_owned()]),
        false,
    );
    add("channel of set", &sets::leading_to(SetId(Uuid::nil())), false);
    planned
}

fn queries() -> Vec<(String, Query, bool)> {
    let mut queries = Vec::new();
    for sort in [Sort::Position, Sort::Name] {
        for descending in [false, true] {
            let plain = Query {
                sort,
                descending,
                limit: 1000,
                ..Query::default()
            };
            let after = Some(After {
                key: "1".to_owned(),
                id: String::new(),
            });
            let order = format!("by {sort:?}, descending {descending}");
            for (what, after) in [("first", None), ("after", after)] {
                let plain = Query { after, ..plain.clone() };
                let name = Query {
                    name: Some("n".to_owned()),
                    ..plain.clone()
                };
                let prefix = Query {
                    id_prefix: Some("ab".to_owned()),
                    ..plain.clone()
                };
                let arch = Query {
                    arch: Some(Arch::Aarch64),
                    ..plain.clone()
                };
                queries.push((format!("{what} {order}"), plain, true));
                queries.push((format!("{what} name {order}"), name, false));
                queries.push((format!("{what} prefix {order}"), prefix, false));
                queries.push((format!("{what} arch {order}"), arch, true));
            }
        }
    }
    queries
}

fn delivery_queries() -> Vec<(&'static str, DeliveryQuery)> {
    let plain = DeliveryQuery {
        limit: 10,
        ..DeliveryQuery::default()
    };
    let to = DeliveryQuery {
        receiver: Some("r".to_owned()),
        ..plain.clone()
    };
    let dead = DeliveryQuery {
        state: Some(DeliveryState::Dead),
        ..plain.clone()
    };
    // All of them come by their numbers, which are the rows themselves.
    vec![("to a receiver", to), ("in a state", dead)]
}

fn audit_queries() -> Vec<(&'static str, AuditQuery)> {
    let all = AuditQuery {
        limit: 100,
        ..AuditQuery::default()
    };
    let some = AuditQuery {
        since: Some(Moment::from_micros(1)),
        until: Some(Moment::from_micros(2)),
        ..all.clone()
    };
    let who = AuditQuery {
        who: Some("w".to_owned()),
        ..some.clone()
    };
    let record = AuditQuery {
        record_id: Some(Uuid::nil()),
        ..some.clone()
    };
    vec![
        ("of all", all),
        ("of a time", some),
        ("of a caller", who),
        ("of a record", record),
    ]
}

fn filters() -> Vec<JobFilter> {
    let statuses = vec![JobStatus::Creating, JobStatus::BuildingImage];
    let job_type = Some(JobType::Create);
    let created_before = Some(Moment::from_micros(1));
    vec![
        JobFilter {
            statuses: vec![JobStatus::Creating],
            ..JobFilter::default()
        },
        JobFilter {
            statuses: statuses.clone(),
            ..JobFilter::default()
        },
        JobFilter {
            job_type,
            ..JobFilter::default()
        },
        JobFilter {
            created_before,
            ..JobFilter::default()
        },
        JobFilter {
            statuses,
            job_type,
            created_before,
        },
    ]
}
