use std::{collections::BTreeMap, sync::Arc};

use futures::future::join_all;
use kiln_records::{Image, ImageId, Job, JobId, JobStatus, JobType, Moment, PublicKeyId, arch::Arch};
use sqlx::{AssertSqlSafe, Executor as _, Row as _};
use uuid::Uuid;

use super::*;
use crate::store::{Collection, Jobs as _, Query, Side, Store as _, StoreError, Stored};

async fn store(dir: &tempfile::TempDir) -> Arc<SqliteStore> {
    Arc::new(SqliteStore::open(&dir.path().join("records.sqlite")).await.unwrap())
}

async fn count(store: &SqliteStore) -> usize {
    let query = Query {
        limit: u32::MAX,
        ..Query::default()
    };
    Collection::<Image>::page(store, Side::Live, &query)
        .await
        .unwrap()
        .len()
}

#[tokio::test]
async fn every_query_finds_its_rows_by_an_index() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir).await;
    let mut bad = Vec::new();
    for planned in sql::plans::all(&image(), &job()) {
        let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {}", planned.sql));
        let rows = store.readers().fetch_all(sqlx::query(explain)).await.unwrap();
        let steps: Vec<String> = rows.iter().map(|row| row.get("detail")).collect();
        // A list may be read along an index, up to its limit.
        let scans = |step: &String| {
            // These hold the rows found already.
            step.starts_with("SCAN")
                && step != "SCAN page"
                && step != "SCAN counted"
                && !(planned.in_order && step.contains("USING"))
        };
        let sorts = |step: &String| planned.in_order && step.contains("TEMP B-TREE");
        if steps.iter().any(|step| scans(step) || sorts(step)) {
            bad.push(format!("{}: {}: {steps:#?}", planned.what, planned.sql));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[tokio::test]
async fn a_caller_that_rests_keeps_no_connection_from_others() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir).await;
    let read = || store.readers().fetch_all(sqlx::query("SELECT 1"));
    let mut resting: Vec<_> = (0..4).map(|_| Box::pin(read())).collect();
    for caller in &mut resting {
        assert!(futures::poll!(caller).is_pending());
    }
    let found = tokio::time::timeout(Duration::from_secs(20), read()).await;
    assert_eq!(found.expect("resting callers keep all connections").unwrap().len(), 1);
    for caller in resting {
        assert_eq!(caller.await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn what_one_is_refused_touches_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir).await;
    let taken = image();
    store.insert(&taken, &[]).await.unwrap();
    // All wait at once, so that they are committed together.
    let outcomes = join_all((0..100).map(|n| {
        let (store, record) = (store.clone(), if n % 3 == 0 { taken.clone() } else { image() });
        async move { store.insert(&record, &["s3://a/b".to_owned()]).await }
    }));
    for (n, outcome) in outcomes.await.into_iter().enumerate() {
        match outcome {
            Ok(()) => assert_ne!(n % 3, 0),
            Err(StoreError::Exists) => assert_eq!(n % 3, 0),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(count(&store).await, 67);
}

#[tokio::test]
async fn nobody_is_told_of_success_when_the_disk_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir).await;
    store
        .write(Lock::Shared, |db| {
            Box::pin(async move { Ok(db.execute("PRAGMA max_page_count = 60").await?) })
        })
        .await
        .unwrap();
    let records: Vec<_> = (0..200)
        .map(|_| Image {
            name: "long ".repeat(200),
            ..image()
        })
        .collect();
    let outcomes = join_all(records.iter().map(|record| store.insert(record, &[]))).await;
    assert!(
        outcomes
            .iter()
            .any(|outcome| matches!(outcome, Err(StoreError::Unavailable(text)) if text.contains("full")))
    );
    for (record, outcome) in records.iter().zip(&outcomes) {
        let found: Option<Stored<Image>> = store.get(Side::Live, record.id).await.unwrap();
        assert_eq!(found.is_some(), outcome.is_ok());
    }
    // The limit belonged to the connection that failed, so there is space again.
    assert!(outcomes.last().unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_gets_its_turn() {
    let dir = tempfile::tempdir().unwrap();
    let (busy, other) = (store(&dir).await, store(&dir).await);
    let callers: Vec<_> = (0..32)
        .map(|_| {
            let busy = busy.clone();
            tokio::spawn(async move {
                loop {
                    busy.insert_job(&job()).await.unwrap();
                }
            })
        })
        .collect();
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        other.insert(&image(), &[]).await.unwrap();
    }
    callers.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn a_closed_store_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir).await;
    let late = image();
    let insert = store.insert(&late, &[]);
    let (inserted, ()) = futures::join!(insert, store.close());
    inserted.unwrap();
    let error = store.insert(&image(), &[]).await.unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
    store.close().await;
}

fn image() -> Image {
    Image {
        id: ImageId::new(),
        created: Moment::now(),
        link: None,
        name: String::new(),
        arch: Arch::Aarch64,
        metadata: BTreeMap::new(),
        deleted: None,
    }
}

fn job() -> Job {
    Job {
        id: JobId::new(),
        created: Moment::now(),
        job_type: JobType::Create,
        artifact_id: Uuid::nil(),
        public_key_id: PublicKeyId::new(),
        image_root_archive_name: String::new(),
        enable_debug: false,
        build_env_size: 1,
        job_mem_size: 1,
        kernel_file_name: String::new(),
        initrd_file_name: String::new(),
        kernel_parameters_file_name: String::new(),
        ssh_containers: None,
        require_dkms: false,
        status: JobStatus::Creating,
        arch: Arch::Aarch64,
        resultant_image_id: None,
        kubernetes_job: String::new(),
        kubernetes_service: String::new(),
        kubernetes_configmap: String::new(),
        kubernetes_pvc: String::new(),
        kubernetes_secret: None,
        kubernetes_namespace: String::new(),
        remote_build_node: String::new(),
    }
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_its_connection() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir).await;
    for _ in 0..200 {
        store.insert(&image(), &[]).await.unwrap();
    }
    for micros in 0..200 {
        let patience = std::time::Duration::from_micros(micros);
        let _ = tokio::time::timeout(patience, count(&store)).await;
    }
    assert_eq!(count(&store).await, 200);
    store.close().await;
    assert!(store.ping().await.is_err());
}
