//! Jobs.

use std::collections::HashSet;

use kiln::store::{JobFilter, Jobs, Query, StoreError, Stored};
use kiln_records::{ImageId, Job, JobStatus, JobType, Moment, arch::Arch};

use crate::store::place::{Place, job};

on_both!(
    comes_back_as_it_went_in,
    a_change_is_made_once,
    filters_choose,
    filters_delete,
    a_damaged_row_is_reported
);

async fn comes_back_as_it_went_in(place: &Place) {
    let store = place.open().await;
    let full = Job {
        resultant_image_id: Some(ImageId::new()),
        kubernetes_secret: Some("keys".to_owned()),
        remote_build_node: "x1".to_owned(),
        enable_debug: true,
        ..job("full")
    };
    let bare = Job {
        ssh_containers: None,
        require_dkms: false,
        job_type: JobType::Create,
        ..job("")
    };
    let empty = Job {
        ssh_containers: Some(Vec::new()),
        ..job("empty")
    };
    for job in [&full, &bare, &empty] {
        assert_eq!(store.get_job(job.id).await.unwrap(), None);
        store.insert_job(job).await.unwrap();
        let stored = store.get_job(job.id).await.unwrap().unwrap();
        assert_eq!(&stored.record, job);
        assert_eq!(stored.revision, 1);
        let again = store.insert_job(job).await;
        assert!(matches!(again, Err(StoreError::Exists)), "{again:?}");
    }
    for status in JobStatus::ALL {
        store
            .insert_job(&Job {
                status,
                ..job("status")
            })
            .await
            .unwrap();
    }
    let list = store
        .page_jobs(&Query {
            limit: 100,
            ..Query::default()
        })
        .await
        .unwrap();
    let list: Vec<_> = list.into_iter().map(|stored| stored.record).collect();
    assert_eq!(list[..3], [full, bare, empty]);
    assert_eq!(
        list[3..].iter().map(|job| job.status).collect::<Vec<_>>(),
        JobStatus::ALL
    );
}

async fn a_change_is_made_once(place: &Place) {
    let store = place.open().await;
    let before = job("j");
    store.insert_job(&before).await.unwrap();
    let after = Job {
        status: JobStatus::Error,
        resultant_image_id: Some(ImageId::new()),
        ..before.clone()
    };
    store.replace_job(&after, 1).await.unwrap();
    assert_eq!(store.get_job(before.id).await.unwrap().unwrap().record, after);
    let stale = store.replace_job(&before, 1).await;
    assert!(matches!(stale, Err(StoreError::Stale)), "{stale:?}");
    assert!(store.delete_job(before.id).await.unwrap());
    assert!(!store.delete_job(before.id).await.unwrap());
    let gone = store.replace_job(&before, 2).await;
    assert!(matches!(gone, Err(StoreError::Stale)), "{gone:?}");
}

/// Jobs that differ in everything that a filter looks at.
async fn some_jobs(store: &dyn Jobs) -> Vec<Job> {
    let statuses = [JobStatus::Creating, JobStatus::Success, JobStatus::Error];
    let jobs: Vec<_> = (0..24)
        .map(|n| Job {
            status: statuses[n % 3],
            job_type: JobType::ALL[n % 2],
            arch: Arch::ALL[n % 4 / 2],
            created: Moment::from_micros(1000 * i64::try_from(n).unwrap()),
            ..job(&format!("job {}", n % 5))
        })
        .collect();
    for job in &jobs {
        store.insert_job(job).await.unwrap();
    }
    jobs
}

type Takes = fn(&Job) -> bool;

fn filters() -> Vec<(JobFilter, Takes)> {
    let all = JobFilter::default();
    let before = Some(Moment::from_micros(7000));
    vec![
        (all.clone(), |_| true),
        (
            JobFilter {
                statuses: vec![JobStatus::Error],
                ..all.clone()
            },
            |job| job.status == JobStatus::Error,
        ),
        (
            JobFilter {
                statuses: vec![JobStatus::Error, JobStatus::Success],
                ..all.clone()
            },
            |job| job.status.is_final(),
        ),
        (
            JobFilter {
                statuses: vec![JobStatus::FetchingImage],
                ..all.clone()
            },
            |_| false,
        ),
        (
            JobFilter {
                job_type: Some(JobType::Create),
                ..all.clone()
            },
            |job| job.job_type == JobType::Create,
        ),
        (
            JobFilter {
                created_before: before,
                ..all.clone()
            },
            |job| job.created.micros() < 7000,
        ),
        (
            JobFilter {
                statuses: vec![JobStatus::Creating],
                job_type: Some(JobType::Customize),
                created_before: before,
            },
            |job| {
                job.status == JobStatus::Creating && job.job_type == JobType::Customize && job.created.micros() < 7000
            },
        ),
    ]
}

async fn filters_choose(place: &Place) {
    let store = place.open().await;
    let jobs = some_jobs(&*store).await;
    let find = async |query: Query| -> Vec<Job> {
        let found = store.page_jobs(&Query { limit: 50, ..query }).await.unwrap();
        found.into_iter().map(|stored: Stored<Job>| stored.record).collect()
    };
    for (filter, takes) in filters() {
        let query = Query {
            jobs: filter.clone(),
            ..Query::default()
        };
        let expected: Vec<_> = jobs.iter().filter(|job| takes(job)).cloned().collect();
        assert_eq!(find(query.clone()).await, expected, "{filter:?}");
        let backwards: Vec<_> = expected.into_iter().rev().collect();
        assert_eq!(
            find(Query {
                descending: true,
                ..query
            })
            .await,
            backwards,
            "{filter:?}"
        );
    }
    let name = Query {
        name: Some("job 3".to_owned()),
        ..Query::default()
    };
    assert_eq!(find(name).await.len(), 5);
    let arch = Query {
        arch: Some(Arch::Aarch64),
        ..Query::default()
    };
    assert_eq!(find(arch).await.len(), 12);
    let prefix = Query {
        id_prefix: Some(jobs[4].id.to_string()[..10].to_owned()),
        ..Query::default()
    };
    assert_eq!(find(prefix).await, jobs[4..5]);
}

async fn filters_delete(place: &Place) {
    let store = place.open().await;
    for (filter, takes) in filters() {
        let jobs = some_jobs(&*store).await;
        let (gone, kept): (Vec<_>, Vec<_>) = jobs.iter().partition(|job| takes(job));
        let deleted: HashSet<_> = store.delete_jobs(&filter).await.unwrap().into_iter().collect();
        assert_eq!(deleted, gone.iter().map(|job| job.id).collect(), "{filter:?}");
        let left = store
            .page_jobs(&Query {
                limit: 50,
                ..Query::default()
            })
            .await
            .unwrap();
        assert_eq!(
            left.iter().map(|stored| &stored.record).collect::<Vec<_>>(),
            kept,
            "{filter:?}"
        );
        store.delete_jobs(&JobFilter::default()).await.unwrap();
    }
    assert!(store.delete_jobs(&JobFilter::default()).await.unwrap().is_empty());
}

async fn a_damaged_row_is_reported(place: &Place) {
    let store = place.open().await;
    let job = job("j");
    for damage in [
        r#"UPDATE jobs SET record = replace(record, '"status":"', '"status":"un')"#,
        r#"UPDATE jobs SET record = replace(record, '"build_env_size":', '"build_env_size":-')"#,
        r#"UPDATE jobs SET record = replace(record, '"id":"', '"id":"x')"#,
        "UPDATE jobs SET record = ''",
    ] {
        store.insert_job(&job).await.unwrap();
        place.execute(damage).await;
        let found = store.get_job(job.id).await;
        assert!(matches!(found, Err(StoreError::Damaged(_))), "{damage}: {found:?}");
        assert!(store.delete_job(job.id).await.unwrap());
    }
}
