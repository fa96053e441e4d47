//! Tests that the records of an earlier version are still there after an upgrade.
//!
//! `tests/fixtures/records-7.sql` has the rows of a server whose newest tables were those of `0007_failed_twins.sql`. It had made
//! an image, and its second job had failed.

use kiln::store::{Known, Query, Side};
use kiln_records::{JobStatus, run::State};
use sqlx::{Connection as _, Executor, PgConnection, SqliteConnection, sqlite::SqliteConnectOptions};

use crate::store::place::{Place, all, images, public_keys, recipes};

on_both!(the_records_of_an_earlier_version_are_all_there);

/// The version of the tables that the rows are for.
const VERSION: i64 = 7;

const ROWS: &str = include_str!("../fixtures/records-7.sql");

/// Makes the tables of that version, and fills them.
async fn fill(place: &Place) {
    match place {
        Place::Sqlite(_) => {
            let options = SqliteConnectOptions::new()
                .filename(place.file())
                .create_if_missing(true);
            let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
            let tables = sqlx::migrate!("migrations/records-sqlite").run_to(VERSION, &mut connection);
            tables.await.unwrap();
            connection.execute(ROWS).await.unwrap();
            connection.close().await.unwrap();
        }
        Place::Postgres(url) => {
            let mut connection = PgConnection::connect(url).await.unwrap();
            let tables = sqlx::migrate!("migrations/records-postgres").run_to(VERSION, &mut connection);
            tables.await.unwrap();
            connection.execute(ROWS).await.unwrap();
            connection.close().await.unwrap();
        }
    }
}

fn query() -> Query {
    Query {
        limit: 100,
        ..Query::default()
    }
}

async fn the_records_of_an_earlier_version_are_all_there(place: &Place) {
    fill(place).await;
    let store = place.open().await;
    assert_eq!(all(recipes(&store), Side::Live).await.len(), 2);
    assert_eq!(all(images(&store), Side::Live).await.len(), 1);
    assert_eq!(all(public_keys(&store), Side::Live).await.len(), 1);
    assert_eq!(all(public_keys(&store), Side::Deleted).await.len(), 1);
    let jobs = store.page_jobs(&query()).await.unwrap();
    let statuses: Vec<JobStatus> = jobs.iter().map(|stored| stored.record.status).collect();
    assert_eq!(statuses, [JobStatus::Success, JobStatus::Error]);
    for stored in &jobs {
        let run = store.get_run(stored.record.id).await.unwrap().unwrap().run;
        assert_eq!(run.state == State::Success, stored.record.status == JobStatus::Success);
        // The servers of that version did not note whose place it was.
        assert_eq!((run.plan.place.as_deref(), run.plan.host), (Some("local"), None));
        assert!(run.settled && run.log.is_some());
        assert!(store.log_length(stored.record.id).await.unwrap() > 10);
        assert!(store.pulse(stored.record.id).await.unwrap().is_some());
    }
    assert_eq!(store.nodes().await.unwrap().len(), 1);
    assert_eq!(store.tokens().await.unwrap().len(), 1);
    assert_eq!(store.servers().await.unwrap().len(), 1);
    let schedules = store.page_text_of_schedules(&query()).await.unwrap();
    assert_eq!(schedules.count, 1);
    // Nobody has looked for packages in its images yet.
    let indexed = store.images_with("bash", None, 10).await.unwrap();
    assert_eq!(indexed.len(), 1);
    assert_eq!(indexed[0].known, Known::Unseen);
    // They can be changed.
    let failed = jobs.last().unwrap();
    let mut stored = store.get_run(failed.record.id).await.unwrap().unwrap();
    stored.run.kept = false;
    store
        .replace_run(&stored.job, &stored.run, stored.revision)
        .await
        .unwrap();
    assert!(store.delete_job(failed.record.id).await.unwrap());
    assert_eq!(store.deleted_runs().await.unwrap().len(), 1);
}
