//! Schedules and their ticks.

use std::collections::HashSet;

use futures::future::join_all;
use kiln::store::{Query, SharedStore, StoreError};
use kiln_records::{
    JobId, Moment, RecipeId, Schedule, ScheduleId,
    job::JobOptions,
    schedule::{MissedRuns, Outcome, Overlap, Tick},
};

use crate::store::place::Place;

on_both!(
    comes_back_as_it_went_in,
    the_soonest_are_due_first,
    a_change_and_its_ticks_are_made_together_or_not_at_all,
    a_tick_goes_only_where_it_can,
    one_of_many_claims_a_tick,
    deleting_takes_the_ticks_along,
    old_ticks_are_forgotten_but_for_those_that_are_open,
);

fn schedule(name: &str, next_run: Option<i64>) -> Schedule {
    Schedule {
        id: ScheduleId::new(),
        created: Moment::from_micros(1_700_000_000_123_456),
        name: name.to_owned(),
        recipe_id: Some(RecipeId::new()),
        cron: "0 2 * * *".to_owned(),
        timezone: "Europe/Berlin".to_owned(),
        image_root_archive_name: Some("nightly-{date}".to_owned()),
        image_set: None,
        public_key_id: None,
        options: JobOptions {
            job_mem_size: Some(3),
            kernel_file_name: Some("Image \"ü\"".to_owned()),
            ..JobOptions::default()
        },
        missed_runs: MissedRuns::All,
        missed_runs_limit: 7,
        overlap: Overlap::Queue,
        paused: next_run.is_none(),
        next_run: next_run.map(Moment::from_micros),
        last_run: None,
        runs: 0,
    }
}

fn tick(schedule: &Schedule, due: i64, outcome: Outcome) -> Tick {
    Tick {
        schedule_id: schedule.id,
        due: Moment::from_micros(due),
        fired: Moment::from_micros(due + 1),
        number: 1,
        outcome,
        job_id: Some(JobId::new()),
        set_id: None,
        why: None,
    }
}

async fn add(store: &SharedStore, schedule: &Schedule) {
    store.insert_schedule(schedule).await.unwrap();
}

async fn comes_back_as_it_went_in(place: &Place) {
    let store = place.open().await;
    let (one, other) = (schedule("nightly", Some(5)), schedule("weekly", None));
    for schedule in [&one, &other] {
        assert_eq!(store.get_schedule(schedule.id).await.unwrap(), None);
        add(&store, schedule).await;
        let stored = store.get_schedule(schedule.id).await.unwrap().unwrap();
        assert_eq!((&stored.record, stored.revision), (schedule, 1));
        let again = store.insert_schedule(schedule).await;
        assert!(matches!(again, Err(StoreError::Exists)), "{again:?}");
    }
    let find = async |name: Option<&str>| {
        let query = Query {
            name: name.map(str::to_owned),
            limit: 9,
            ..Query::default()
        };
        let page = store.page_text_of_schedules(&query).await.unwrap();
        serde_json::from_str::<Vec<Schedule>>(&format!("[{}]", page.text)).unwrap()
    };
    assert_eq!(find(None).await, [one, other.clone()]);
    assert_eq!(find(Some("weekly")).await, [other]);
}

async fn the_soonest_are_due_first(place: &Place) {
    let store = place.open().await;
    for next in [Some(30), Some(10), None, Some(20)] {
        add(&store, &schedule("s", next)).await;
    }
    let moments = |found: Vec<kiln::store::Stored<Schedule>>| -> Vec<i64> {
        found
            .iter()
            .map(|stored| stored.record.next_run.unwrap().micros())
            .collect()
    };
    let at = Moment::from_micros(20);
    assert_eq!(moments(store.due_schedules(at, 9).await.unwrap()), [10, 20]);
    assert_eq!(moments(store.due_schedules(at, 1).await.unwrap()), [10]);
    assert_eq!(moments(store.schedules_running_after(at, 9).await.unwrap()), [30]);
}

async fn a_change_and_its_ticks_are_made_together_or_not_at_all(place: &Place) {
    let store = place.open().await;
    let before = schedule("s", Some(10));
    add(&store, &before).await;
    let after = Schedule {
        next_run: Some(Moment::from_micros(20)),
        runs: 1,
        ..before.clone()
    };
    let first = tick(&before, 10, Outcome::Making);
    store
        .replace_schedule(&after, 1, std::slice::from_ref(&first))
        .await
        .unwrap();
    let late = store
        .replace_schedule(&before, 1, &[tick(&before, 15, Outcome::Making)])
        .await;
    assert!(matches!(late, Err(StoreError::Stale)), "{late:?}");
    // The clock was set back: the tick of that time is the one that was.
    let again = [tick(&before, 10, Outcome::Waiting), tick(&before, 20, Outcome::Waiting)];
    store.replace_schedule(&after, 2, &again).await.unwrap();
    assert_eq!(
        store.ticks(before.id, 9).await.unwrap(),
        [again[1].clone(), first.clone()]
    );
    assert_eq!(store.ticks(before.id, 1).await.unwrap(), again[1..]);
    assert_eq!(store.open_ticks().await.unwrap(), [first, again[1].clone()]);
    let stored = store.get_schedule(before.id).await.unwrap().unwrap();
    assert_eq!((stored.record, stored.revision), (after, 3));
}

async fn a_tick_goes_only_where_it_can(place: &Place) {
    use Outcome::{Ended, Failed, Made, Making, Skipped, Waiting};
    let store = place.open().await;
    let schedule = schedule("s", Some(10));
    add(&store, &schedule).await;
    let mut revision = 1;
    let mut due = 0;
    for from in [Waiting, Making, Made, Ended, Skipped, Failed] {
        for to in [Waiting, Making, Made, Ended, Skipped, Failed] {
            due += 1;
            let tick = tick(&schedule, due, from);
            store
                .replace_schedule(&schedule, revision, std::slice::from_ref(&tick))
                .await
                .unwrap();
            revision += 1;
            let moved = tick.clone().now(to);
            let is_arrow = [
                // With another reason.
                (Waiting, Waiting),
                (Making, Making),
                (Waiting, Making),
                (Waiting, Skipped),
                (Making, Made),
                (Making, Failed),
                (Failed, Made),
                (Made, Ended),
            ]
            .contains(&(from, to));
            assert_eq!(store.settle_tick(&moved).await.unwrap(), is_arrow, "{from:?} → {to:?}");
            let stored = store.ticks(schedule.id, 1).await.unwrap();
            assert_eq!(stored, [if is_arrow { moved } else { tick }]);
        }
    }
    let open = store.open_ticks().await.unwrap();
    assert!(open.iter().all(|tick| Outcome::OPEN.contains(&tick.outcome)));
    let all = store.ticks(schedule.id, 99).await.unwrap();
    let expected = all.iter().filter(|tick| Outcome::OPEN.contains(&tick.outcome)).count();
    assert_eq!(open.len(), expected);
    assert!(!store.settle_tick(&tick(&schedule, 999, Waiting)).await.unwrap());
}

async fn one_of_many_claims_a_tick(place: &Place) {
    let stores = [place.open().await, place.open().await];
    let schedule = schedule("s", Some(1));
    add(&stores[0], &schedule).await;
    for round in 1..=20 {
        let claims = join_all((0..8).map(async |n| {
            let seen = stores[n % 2].get_schedule(schedule.id).await.unwrap().unwrap();
            let claim = tick(&schedule, round, Outcome::Making);
            match stores[n % 2].replace_schedule(&schedule, seen.revision, &[claim]).await {
                Ok(()) => true,
                Err(StoreError::Stale) => false,
                Err(error) => panic!("{error}"),
            }
        }))
        .await;
        assert!(claims.contains(&true));
        // A reader that comes after another's claim may claim again: there is still one tick.
        let ticks = stores[0].ticks(schedule.id, 99).await.unwrap();
        assert_eq!(ticks.len(), usize::try_from(round).unwrap());
    }
    let ticks = stores[1].ticks(schedule.id, 99).await.unwrap();
    let jobs: HashSet<_> = ticks.iter().map(|tick| tick.job_id).collect();
    assert_eq!(jobs.len(), 20);
}

async fn deleting_takes_the_ticks_along(place: &Place) {
    let store = place.open().await;
    let (gone, kept) = (schedule("gone", Some(1)), schedule("kept", Some(1)));
    for schedule in [&gone, &kept] {
        add(&store, schedule).await;
        let ticks = [tick(schedule, 1, Outcome::Waiting), tick(schedule, 2, Outcome::Ended)];
        store.replace_schedule(schedule, 1, &ticks).await.unwrap();
    }
    assert!(store.delete_schedule(gone.id).await.unwrap());
    assert!(!store.delete_schedule(gone.id).await.unwrap());
    assert_eq!(store.ticks(gone.id, 9).await.unwrap(), []);
    assert_eq!(store.ticks(kept.id, 9).await.unwrap().len(), 2);
    let late = store
        .replace_schedule(&gone, 2, &[tick(&gone, 3, Outcome::Making)])
        .await;
    assert!(matches!(late, Err(StoreError::Stale)), "{late:?}");
    assert_eq!(store.open_ticks().await.unwrap().len(), 1);
}

async fn old_ticks_are_forgotten_but_for_those_that_are_open(place: &Place) {
    let store = place.open().await;
    let schedule = schedule("s", Some(1));
    add(&store, &schedule).await;
    let outcome = |due| if due == 3 { Outcome::Waiting } else { Outcome::Ended };
    let ticks: Vec<_> = (1..=1_010).map(|due| tick(&schedule, due, outcome(due))).collect();
    store.replace_schedule(&schedule, 1, &ticks).await.unwrap();
    let left: Vec<_> = store.ticks(schedule.id, 2_000).await.unwrap();
    let left: Vec<_> = left.iter().map(|tick| tick.due.micros()).collect();
    assert_eq!(left.len(), 1_001);
    assert_eq!(left[999..], [11, 3]);
}
