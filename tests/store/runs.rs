//! How jobs are carried out.

use kiln::store::{JobFilter, StoreError, StoredRun};
use kiln_records::{
    Code, Failure, Job, JobId, JobStatus, Moment, Run, ServerId, Step, TwinLevel,
    protocol::{BootFiles, Compressor, SquashfsOptions, TemplateMode},
    run::{How, Needs, Plan, ResumeFrom, StepTime, Used},
};
use uuid::Uuid;

use crate::store::place::{Place, job};

on_both!(
    both_halves_come_back,
    a_run_is_changed_once,
    only_what_is_open_is_looked_at,
    the_last_runs_of_a_recipe,
    what_a_deleted_job_left_is_not_forgotten,
    servers_are_known_by_when_they_were_alive
);

fn run() -> Run {
    Run::new(Plan {
        place: Some("local".to_owned()),
        driver: kiln_records::run::DriverKind::Namespace,
        own_kernel: false,
        how: How::Emulated,
        why: "because".to_owned(),
        passed_over: Vec::new(),
        needs: Needs {
            memory: 1,
            memory_limit: 2,
            disk: 3,
            disk_limit: u64::MAX,
        },
        recipe: "s3://ims/r".to_owned(),
        values: vec![("a".to_owned(), "nul \0 and \u{1f600}".to_owned())],
        template_mode: TemplateMode::Strict,
        squashfs: SquashfsOptions::default(),
        twins: TwinLevel::Shell,
        verify_twins: false,
        verifies: None,
        boot: BootFiles {
            kernel: "k".to_owned(),
            initrd: "i".to_owned(),
            parameters: "p".to_owned(),
            required: true,
        },
        resume: Some(ResumeFrom {
            job: JobId::new(),
            step: Step::Package,
            server: ServerId::new(),
        }),
        image: None,
        who: None,
        runner: Some(ServerId::new()),
        keep: true,
        repos_timeout_s: 7,
    })
}

/// A run that a server wrote which knew nothing of twins, and of no choice of compressors.
#[test]
fn runs_of_earlier_servers_are_read() {
    let mut row = serde_json::to_value(run()).unwrap();
    row.as_object_mut().unwrap().remove("execs").unwrap();
    row["plan"].as_object_mut().unwrap().remove("twins").unwrap();
    row["plan"].as_object_mut().unwrap().remove("squashfs").unwrap();
    let read: Run = serde_json::from_value(row).unwrap();
    assert_eq!((read.plan.twins, read.execs), (TwinLevel::Off, None));
    let squashfs = (read.plan.squashfs.compressor, read.plan.squashfs.level);
    assert_eq!(squashfs, (Compressor::Zstd, None));
}

fn now() -> Moment {
    Moment::from_micros(1_700_000_000_000_000)
}

fn ids(runs: &[StoredRun]) -> Vec<JobId> {
    runs.iter().map(|stored| stored.job.id).collect()
}

async fn both_halves_come_back(place: &Place) {
    let store = place.open().await;
    let (job, mut run) = (job("a"), run());
    assert_eq!(store.get_run(job.id).await.unwrap(), None);
    store.insert_run(&job, &run).await.unwrap();
    let again = store.insert_run(&job, &run).await;
    assert!(matches!(again, Err(StoreError::Exists)), "{again:?}");
    let stored = store.get_run(job.id).await.unwrap().unwrap();
    assert_eq!((&stored.job, &stored.run, stored.revision), (&job, &run, 1));
    // Clients of IMS see the same job.
    assert_eq!(store.get_job(job.id).await.unwrap().unwrap().record, job);

    run.launch(ServerId::new(), now()).unwrap();
    run.start().unwrap();
    run.begin_step(Step::Build);
    run.end_step(StepTime {
        step: Step::Fetch,
        wall_ms: 1,
        cpu_ms: 2,
    });
    run.note_use(Used {
        memory: 1,
        disk: 2,
        cpu_ms: 3,
    });
    let changed = Job {
        status: run.status(job.status),
        ..job.clone()
    };
    store.replace_run(&changed, &run, 1).await.unwrap();
    let stored = store.get_run(job.id).await.unwrap().unwrap();
    assert_eq!((&stored.job, &stored.run, stored.revision), (&changed, &run, 2));

    // A job of another server has no such half.
    let other = crate::store::place::job("other");
    store.insert_job(&other).await.unwrap();
    assert_eq!(store.get_run(other.id).await.unwrap(), None);
}

async fn a_run_is_changed_once(place: &Place) {
    let stores = [place.open().await, place.open().await];
    let (job, first) = (job("a"), run());
    stores[0].insert_run(&job, &first).await.unwrap();
    let mut launched = Vec::new();
    for store in &stores {
        let mut run = first.clone();
        run.launch(ServerId::new(), now()).unwrap();
        launched.push(store.replace_run(&job, &run, 1).await);
    }
    assert!(matches!(launched[..], [Ok(()), Err(StoreError::Stale)]), "{launched:?}");
    stores[0].delete_job(job.id).await.unwrap();
    let gone = stores[1].replace_run(&job, &first, 2).await;
    assert!(matches!(gone, Err(StoreError::Stale)), "{gone:?}");
}

async fn only_what_is_open_is_looked_at(place: &Place) {
    let store = place.open().await;
    let jobs: Vec<Job> = (0..4).map(|n| job(&n.to_string())).collect();
    for job in &jobs {
        store.insert_run(job, &run()).await.unwrap();
    }
    store.insert_job(&job("somebody else's")).await.unwrap();
    let open = store.open_runs().await.unwrap();
    assert_eq!(ids(&open), jobs.iter().map(|job| job.id).collect::<Vec<_>>());

    let mut ended = run();
    ended.fail(Failure::new(Code::Cancelled, "by me"), now()).unwrap();
    store.replace_run(&jobs[1], &ended, 1).await.unwrap();
    // It has ended, but something may be left of it.
    assert_eq!(store.open_runs().await.unwrap().len(), 4);
    ended.settled = true;
    store.replace_run(&jobs[1], &ended, 2).await.unwrap();
    assert_eq!(
        ids(&store.open_runs().await.unwrap()),
        [jobs[0].id, jobs[2].id, jobs[3].id]
    );
}

async fn the_last_runs_of_a_recipe(place: &Place) {
    let store = place.open().await;
    let recipe = Uuid::new_v4();
    let of = |recipe| Job {
        artifact_id: recipe,
        ..job("a")
    };
    let jobs: Vec<Job> = (0..4).map(|_| of(recipe)).collect();
    for job in &jobs {
        store.insert_run(job, &run()).await.unwrap();
    }
    store.insert_run(&of(Uuid::new_v4()), &run()).await.unwrap();
    store.insert_job(&of(recipe)).await.unwrap();
    let past = store.past_runs(recipe, 3).await.unwrap();
    assert_eq!(ids(&past), [jobs[3].id, jobs[2].id, jobs[1].id]);
    assert_eq!(store.past_runs(Uuid::new_v4(), 3).await.unwrap(), []);
}

async fn what_a_deleted_job_left_is_not_forgotten(place: &Place) {
    let store = place.open().await;
    let jobs: Vec<Job> = (0..3).map(|n| job(&n.to_string())).collect();
    for job in &jobs {
        store.insert_run(job, &run()).await.unwrap();
    }
    let records_only = job("record");
    store.insert_job(&records_only).await.unwrap();
    assert!(store.delete_job(jobs[1].id).await.unwrap());
    assert!(!store.delete_job(jobs[1].id).await.unwrap());
    assert_eq!(ids(&store.deleted_runs().await.unwrap()), [jobs[1].id]);
    assert_eq!(store.get_run(jobs[1].id).await.unwrap(), None);

    let mut deleted = store.delete_jobs(&JobFilter::default()).await.unwrap();
    deleted.sort();
    let mut expected = vec![jobs[0].id, jobs[2].id, records_only.id];
    expected.sort();
    assert_eq!(deleted, expected);
    assert_eq!(store.open_runs().await.unwrap(), []);
    // In the order in which they were asked for, and with all that was known.
    let left = store.deleted_runs().await.unwrap();
    assert_eq!(ids(&left), jobs.iter().map(|job| job.id).collect::<Vec<_>>());
    assert!(left.iter().zip(&jobs).all(|(left, job)| left.job == *job));
    for job in &jobs {
        store.forget_deleted_run(job.id).await.unwrap();
    }
    assert_eq!(store.deleted_runs().await.unwrap(), []);

    // More than one statement takes.
    for n in 0..1500 {
        let status = JobStatus::Creating;
        let job = Job {
            status,
            ..job(&n.to_string())
        };
        store.insert_run(&job, &run()).await.unwrap();
    }
    assert_eq!(store.delete_jobs(&JobFilter::default()).await.unwrap().len(), 1500);
    assert_eq!(store.deleted_runs().await.unwrap().len(), 1500);
}

async fn servers_are_known_by_when_they_were_alive(place: &Place) {
    let store = place.open().await;
    let (one, two) = (ServerId::new(), ServerId::new());
    let at = |second: i64| Moment::from_micros(second * 1_000_000);
    store.note_server(one, at(1)).await.unwrap();
    store.note_server(two, at(2)).await.unwrap();
    assert_eq!(store.servers_since(at(2)).await.unwrap(), [two]);
    store.note_server(one, at(3)).await.unwrap();
    assert_eq!(store.servers_since(at(3)).await.unwrap(), [one]);
    assert_eq!(store.servers_since(at(4)).await.unwrap(), []);
    assert_eq!(store.servers_since(at(1)).await.unwrap().len(), 2);
    store.forget_server(one).await.unwrap();
    store.forget_server(one).await.unwrap();
    assert_eq!(store.servers_since(at(1)).await.unwrap(), [two]);
}
