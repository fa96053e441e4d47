//! Decides what happens to waiting runs while earlier ones have not ended. Pure: no I/O.

use super::due::is_missed;
use kiln_records::schedule::{Outcome, Overlap, Tick, Work};

/// The most runs of one schedule that may wait.
const MOST_WAITING: usize = 100;

/// The decision on the waiting runs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Ticks that change.
    pub(super) ticks: Vec<Tick>,
    /// What is to be cancelled.
    pub(super) cancel: Vec<Work>,
}

/// Decides about the waiting runs of a schedule, in their order. `unfinished` is the work of earlier runs.
///
/// Runs that are made up for always wait for each other: the purpose of keeping them is to run them all.
pub(super) fn decide(overlap: Overlap, waiting: &[Tick], unfinished: &[Work]) -> Verdict {
    let mut verdict = Verdict::default();
    // The last run that was on time takes the place of all before it.
    let replacing = match overlap {
        Overlap::Replace => waiting.iter().rposition(|tick| !is_missed(tick)),
        _ => None,
    };
    if replacing.is_some() {
        verdict.cancel.extend(unfinished);
    }
    let mut busy = unfinished.first().copied();
    let mut places = MOST_WAITING;
    for (index, tick) in waiting.iter().enumerate() {
        let next = if replacing.is_some_and(|last| index < last) {
            tick.clone().skipped("A later run took its place.")
        } else if let Some(work) = busy {
            let why = format!("The {work} of an earlier run has not ended.");
            if overlap == Overlap::Forbid && !is_missed(tick) {
                tick.clone().skipped(why)
            } else if places == 0 {
                tick.clone()
                    .skipped(format!("{MOST_WAITING} earlier runs are waiting already."))
            } else {
                places -= 1;
                tick.clone().waiting(why)
            }
        } else {
            busy = tick.work();
            tick.clone().now(Outcome::Making)
        };
        if next != *tick {
            verdict.ticks.push(next);
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use Outcome::{Making, Skipped, Waiting};
    use kiln_records::{JobId, Moment};

    use super::*;
    use crate::orchestrate::schedule::tests::{moment, schedule};

    /// Waiting runs, one minute apart; those with `true` were missed.
    fn waiting(missed: &[bool]) -> Vec<Tick> {
        let schedule = schedule("* * * * *", "2026-11-21T02:00:00Z");
        let start = moment("2026-11-21T02:00:00Z").micros();
        let ticks = missed.iter().zip(1..).map(|(missed, number)| {
            let due = start + i64::from(number) * 60_000_000;
            Tick {
                schedule_id: schedule.id,
                due: Moment::from_micros(due),
                fired: Moment::from_micros(due + if *missed { 3_600_000_000 } else { 1_000 }),
                number,
                outcome: Waiting,
                job_id: Some(JobId::new()),
                set_id: None,
                why: None,
            }
        });
        ticks.collect()
    }

    /// The outcome of each run, and whether the unfinished job is cancelled.
    fn decided(overlap: Overlap, missed: &[bool], is_busy: bool) -> (Vec<Outcome>, bool) {
        let mut ticks = waiting(missed);
        let unfinished: Vec<Work> = is_busy.then(|| Work::Job(JobId::new())).into_iter().collect();
        let verdict = decide(overlap, &ticks, &unfinished);
        for changed in verdict.ticks {
            let tick = ticks.iter_mut().find(|tick| tick.due == changed.due).unwrap();
            assert_eq!(changed.job_id.is_none(), changed.outcome == Skipped);
            assert_eq!(changed.why.is_none(), changed.outcome == Making);
            *tick = changed;
        }
        assert!(verdict.cancel.is_empty() || verdict.cancel == unfinished);
        (
            ticks.iter().map(|tick| tick.outcome).collect(),
            !verdict.cancel.is_empty(),
        )
    }

    #[test]
    fn each_policy_does_as_it_says() {
        use Overlap::{Forbid, Queue, Replace};
        for (overlap, missed, is_busy, expected, cancels) in [
            (Forbid, &[false][..], false, &[Making][..], false),
            (Forbid, &[false], true, &[Skipped], false),
            (Forbid, &[false, false], false, &[Making, Skipped], false),
            (Forbid, &[true, true], false, &[Making, Waiting], false),
            (Forbid, &[true, true, false], true, &[Waiting, Waiting, Skipped], false),
            (Queue, &[false], false, &[Making], false),
            (Queue, &[false, false], true, &[Waiting, Waiting], false),
            (Queue, &[true, false, false], false, &[Making, Waiting, Waiting], false),
            (Replace, &[false], false, &[Making], false),
            (Replace, &[false], true, &[Waiting], true),
            (Replace, &[false, false], true, &[Skipped, Waiting], true),
            (Replace, &[true, true, false], false, &[Skipped, Skipped, Making], false),
            (Replace, &[true, true], true, &[Waiting, Waiting], false),
            (Replace, &[], true, &[], false),
        ] {
            let found = decided(overlap, missed, is_busy);
            assert_eq!(found, (expected.to_vec(), cancels), "{overlap:?} {missed:?} {is_busy}");
        }
    }

    #[test]
    fn what_waits_is_bounded_and_a_second_look_changes_nothing() {
        let ticks = waiting(&[false; MOST_WAITING + 2]);
        let busy = [Work::Job(JobId::new())];
        let verdict = decide(Overlap::Queue, &ticks, &busy);
        let skipped = verdict.ticks.iter().filter(|tick| tick.outcome == Skipped).count();
        assert_eq!((verdict.ticks.len(), skipped), (MOST_WAITING + 2, 2));
        let left: Vec<_> = verdict
            .ticks
            .into_iter()
            .filter(|tick| tick.outcome == Waiting)
            .collect();
        assert_eq!(decide(Overlap::Queue, &left, &busy), Verdict::default());
    }
}
