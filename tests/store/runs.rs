//! How jobs are carried out.

use std::time::Duration;

use futures::future::join_all;
use kiln::store::{JobFilter, StoreError, StoredRun};
use kiln_records::{
    Code, Failure, Job, JobId, JobStatus, Moment, Run, ServerId, Step, TwinLevel,
    protocol::{BootFiles, SquashfsOptions, TemplateMode},
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
    jobs_that_a_later_server_has_written_are_left_alone,
    servers_show_life_and_say_what_they_offer,
    a_site_has_one_id,
    servers_give_room_at_a_shared_place_one_after_the_other
);

pub(super) fn run() -> Run {
    Run::new(Plan {
        place: Some("local".to_owned()),
        host: None,
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
        recipe_type: kiln_records::protocol::RecipeType::KiwiNg,
        recipe: "s3://ims/r".to_owned(),
        values: vec![("a".to_owned(), "nul \0 and \u{1f600}".to_owned())],
        template_mode: TemplateMode::Strict,
        squashfs: SquashfsOptions::default(),
        twins: TwinLevel::Shell,
        verify_twins: false,
        cache: kiln_records::CacheDepth::Packages,
        cache_from: None,
        cache_asked: false,
        locked: false,
        additions: kiln_records::additions::Additions::default(),
        containerfile: Box::default(),
        profiles: vec!["Compute".to_owned()],
        epoch: None,
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
        ended: None,
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

    let asked = [jobs[0].id, JobId::new(), jobs[2].id];
    let mut found = ids(&store.get_runs(&asked).await.unwrap());
    found.sort_by_key(|id| asked.iter().position(|asked| asked == id));
    assert_eq!(found, [jobs[0].id, jobs[2].id]);
    assert_eq!(store.get_runs(&[]).await.unwrap(), []);
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
    assert!(store.open_runs().await.unwrap().is_empty());
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

async fn jobs_that_a_later_server_has_written_are_left_alone(place: &Place) {
    let store = place.open().await;
    let (known, later) = (job("known"), job("later"));
    for job in [&known, &later] {
        store.insert_run(job, &run()).await.unwrap();
    }
    place
        .execute("UPDATE jobs SET run = replace(run, '\"namespace\"', '\"hovercraft\"') WHERE name = 'later'")
        .await;
    let open = store.open_runs().await.unwrap();
    assert_eq!((ids(&open), open.unread.clone()), (vec![known.id], vec![later.id]));
    let whole = store.get_run(later.id).await;
    assert!(matches!(whole, Err(StoreError::Damaged(_))), "{whole:?}");
}

async fn servers_show_life_and_say_what_they_offer(place: &Place) {
    let store = place.open().await;
    let (one, two) = (ServerId::new(), ServerId::new());
    store.show_life(one, None).await.unwrap();
    store.show_life(two, Some("{}")).await.unwrap();
    let of = async |id| {
        let rows = store.servers().await.unwrap();
        rows.into_iter().find(|row| row.id == id)
    };
    let (first, other) = (of(one).await.unwrap(), of(two).await.unwrap());
    assert_eq!((first.offers, other.offers.as_deref()), (None, Some("{}")));
    tokio::time::sleep(Duration::from_millis(2)).await;
    store.show_life(one, Some("[]")).await.unwrap();
    let now = of(one).await.unwrap();
    assert_eq!(now.offers.as_deref(), Some("[]"));
    assert!(now.mark != first.mark && of(two).await.unwrap().mark == other.mark);
    store.forget_old_servers().await.unwrap();
    store.forget_server(one).await.unwrap();
    store.forget_server(one).await.unwrap();
    assert_eq!(store.servers().await.unwrap().len(), 1);
}

async fn a_site_has_one_id(place: &Place) {
    let (one, two) = (place.open().await, place.open().await);
    let ids = join_all([&one, &two, &one, &two].map(|store| store.site_id())).await;
    let first = ids[0].as_ref().unwrap();
    assert!(ids.iter().all(|id| id.as_ref().unwrap() == first));
}

async fn servers_give_room_at_a_shared_place_one_after_the_other(place: &Place) {
    let (one, two) = (place.open().await, place.open().await);
    let held = one.lock_place("x1", Duration::from_mins(1)).await.unwrap();
    assert!(held.is_some());
    // Other places are free.
    assert!(two.lock_place("x2", Duration::from_mins(1)).await.unwrap().is_some());
    // No other server can use an SQLite file.
    assert_eq!(
        two.lock_place("x1", Duration::from_mins(1)).await.unwrap().is_none(),
        one.is_shared()
    );
    drop(held);
    assert!(two.lock_place("x1", Duration::from_mins(1)).await.unwrap().is_some());
}
