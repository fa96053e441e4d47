//! Decides which runs of a schedule are due, and when it is due next. Pure: no I/O.

use kiln_records::{
    JobId, Moment, Schedule, SetId,
    schedule::{MissedRuns, Outcome, Tick, Timing},
};

/// How late a run may be without counting as missed, in microseconds. A restarted server is back within that time.
pub(super) const ON_TIME: i64 = 60_000_000;

/// Whether a run was missed.
pub(super) fn is_missed(tick: &Tick) -> bool {
    tick.fired.micros() - tick.due.micros() >= ON_TIME
}

/// The changes to store together: the updated schedule, and its ticks up to now.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) schedule: Schedule,
    pub(super) ticks: Vec<Tick>,
}

/// The runs of a schedule that are due by now, or `None` if there are none.
pub(super) fn claim(schedule: &Schedule, timing: &Timing, now: Moment) -> Option<Claim> {
    let first = schedule.next_run.filter(|first| *first <= now)?;
    let before_first = Moment::from_micros(first.micros() - 1);
    let missed_until = Moment::from_micros(now.micros() - ON_TIME);
    let on_time: Vec<Moment> = timing
        .after(before_first.max(missed_until))
        .take_while(|due| *due <= now)
        .collect();
    let most = match schedule.missed_runs {
        MissedRuns::Skip => 0,
        // A run that is due now stands for those before it.
        MissedRuns::Once => usize::from(on_time.is_empty()),
        MissedRuns::All => schedule.missed_runs_limit as usize,
    };
    let mut missed = timing.last_between(before_first, missed_until, most + 1);
    let skipped = (missed.len() > most).then(|| missed.remove(0));

    let mut next = schedule.clone();
    let mut ticks = Vec::new();
    let mut tick = |due: Moment| {
        next.runs += 1;
        Tick {
            schedule_id: schedule.id,
            due,
            fired: now,
            number: next.runs,
            outcome: Outcome::Waiting,
            job_id: schedule.image_set.is_none().then(JobId::new),
            set_id: schedule.image_set.is_some().then(SetId::new),
            why: None,
        }
    };
    // The last skipped run stands for all of them: if the clock was wrong, the nearest runs still come.
    if let Some(last) = skipped {
        let why = if last == first {
            "No server ran at that time.".to_owned()
        } else {
            let since = timing.local(first).strftime("%Y-%m-%d %H:%M");
            format!("No server ran at that time, nor at that of any run since {since}.")
        };
        ticks.push(tick(last).skipped(why));
    }
    let runs: Vec<Moment> = missed.into_iter().chain(on_time).collect();
    let has_run = !runs.is_empty();
    ticks.extend(runs.into_iter().map(tick));
    if has_run {
        next.last_run = Some(now);
    }
    next.next_run = timing.next_after(now);
    Some(Claim { schedule: next, ticks })
}

/// Pauses a schedule whose times can no longer be computed, for example because the database of time zones has lost a
/// name. It stays paused until a user changes it.
pub(super) fn unreadable(schedule: &Schedule, why: &str, now: Moment) -> Claim {
    let mut next = schedule.clone();
    next.paused = true;
    next.runs += 1;
    let tick = Tick {
        schedule_id: schedule.id,
        due: schedule.next_run.unwrap_or(now),
        fired: now,
        number: next.runs,
        outcome: Outcome::Waiting,
        job_id: None,
        set_id: None,
        why: None,
    };
    next.next_run = None;
    let why = format!("The schedule is paused, because its times are invalid: {why}");
    Claim {
        schedule: next,
        ticks: vec![tick.failed(why)],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::orchestrate::schedule::tests::{moment, schedule};

    /// When the runs were due; the skipped ones are marked `!`.
    fn ticks(cron: &str, missed_runs: MissedRuns, next: &str, now: &str) -> Vec<String> {
        let schedule = Schedule {
            missed_runs,
            missed_runs_limit: 3,
            ..schedule(cron, next)
        };
        let timing = Timing::parse(&schedule.cron, &schedule.timezone).unwrap();
        let Some(claim) = claim(&schedule, &timing, moment(now)) else {
            return Vec::new();
        };
        assert!(claim.schedule.next_run.unwrap() > moment(now));
        assert_eq!(claim.schedule.runs as usize, claim.ticks.len());
        let ticks = claim.ticks.iter().map(|tick| {
            let mark = if tick.outcome == Outcome::Skipped { "!" } else { "" };
            format!("{}{mark}", &tick.due.to_string()[11..16])
        });
        ticks.collect()
    }

    #[test]
    fn what_was_missed_is_skipped_made_up_for_once_or_all_of_it() {
        use MissedRuns::{All, Once, Skip};
        let hourly = "0 * * * *";
        let next = "2026-11-21T02:00:00Z";
        for (missed, now, expected) in [
            (Once, "2026-11-21T01:59:59Z", &[][..]),
            (Skip, "2026-11-21T02:00:00Z", &["02:00"]),
            (Skip, "2026-11-21T02:00:59Z", &["02:00"]),
            (Skip, "2026-11-21T02:01:00Z", &["02:00!"]),
            (Skip, "2026-11-21T07:30:00Z", &["07:00!"]),
            (Skip, "2026-11-21T07:00:01Z", &["06:00!", "07:00"]),
            (Once, "2026-11-21T02:30:00Z", &["02:00"]),
            (Once, "2026-11-21T07:30:00Z", &["06:00!", "07:00"]),
            (Once, "2026-11-21T07:00:01Z", &["06:00!", "07:00"]),
            (All, "2026-11-21T04:30:00Z", &["02:00", "03:00", "04:00"]),
            (All, "2026-11-21T05:00:01Z", &["02:00", "03:00", "04:00", "05:00"]),
            (All, "2026-11-21T07:30:00Z", &["04:00!", "05:00", "06:00", "07:00"]),
        ] {
            assert_eq!(ticks(hourly, missed, next, now), expected, "{missed:?} at {now}");
        }
    }

    #[test]
    fn the_run_of_a_time_that_does_not_exist_is_claimed_as_any_other() {
        let now = "2026-03-29T01:00:00.25Z";
        assert_eq!(
            ticks("30 2 * * *", MissedRuns::Skip, "2026-03-29T01:00:00Z", now),
            ["01:00"]
        );
    }

    proptest! {
        /// A clock that goes forward in steps of any size: each time of the cron line is claimed once, as long as every
        /// missed run is made up for.
        #[test]
        fn every_time_is_claimed_once(
            cron in prop::sample::select(vec!["* * * * *", "*/7 * * * *", "30 2 * * *", "0 2,14 * * *"]),
            steps in prop::collection::vec(1..200_000_000_i64, 1..60),
        ) {
            let start = moment("2026-10-24T23:50:00Z");
            let mut schedule = Schedule {
                missed_runs: MissedRuns::All,
                missed_runs_limit: 1_000,
                ..schedule(cron, "2026-10-24T23:50:00Z")
            };
            let timing = Timing::parse(cron, &schedule.timezone).unwrap();
            schedule.next_run = timing.next_after(start);
            let mut now = start;
            let mut claimed = Vec::new();
            for step in steps {
                now = Moment::from_micros(now.micros() + step);
                if let Some(claim) = claim(&schedule, &timing, now) {
                    claimed.extend(claim.ticks.iter().map(|tick| tick.due));
                    schedule = claim.schedule;
                }
            }
            let expected: Vec<_> = timing.after(start).take_while(|due| *due <= now).collect();
            prop_assert_eq!(claimed, expected);
        }
    }
}
