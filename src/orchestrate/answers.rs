//! Limits how long a place may take to answer, and says once when one does not: a silent place costs the jobs elsewhere
//! nothing. Pure apart from the clock, and the log.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use kiln_records::{Code, Failure};
use tokio::time::timeout;

/// The longest time for an answer. Two of them are shorter than the pause between two passes that the clocks of jobs leave
/// out.
pub(super) const ANSWER: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 4000 });

/// The same for an answer that only the clearing away of remains waits for. Podman's service ends when nobody has asked it for a few
/// seconds, and a slow node takes longer than the other to start it.
const PATIENT: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 20_000 });

/// How many answers of a place may be missing in one pass before it is not asked again: a node of a cluster that hangs is
/// not the whole cluster.
const MISSING: usize = 4;

/// What a place answers, in time.
///
/// # Errors
///
/// `place_silent`, beside those of the answer.
pub(super) async fn in_time<T>(place: &str, answer: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    within(ANSWER, place, answer).await
}

/// The same in more time, where no job waits for the answer.
///
/// # Errors
///
/// As for [`in_time`].
pub(super) async fn patiently<T>(place: &str, answer: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    within(PATIENT, place, answer).await
}

async fn within<T>(
    limit: Duration,
    place: &str,
    answer: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let answer = timeout(limit, answer).await;
    answer.unwrap_or_else(|_| Err(silent(place, limit)))
}

/// The failure of a place that has not answered in this time.
pub(super) fn silent(place: &str, within: Duration) -> Failure {
    let detail = format!("the place `{place}` does not answer within {within:?}");
    Failure::new(Code::PlaceSilent, detail).hint("see whether it is overloaded or cut off")
}

/// One pass over the jobs at a place.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    place: &'a str,
    missing: AtomicUsize,
}

impl<'a> Asked<'a> {
    /// A pass over the jobs at this place.
    pub(super) fn at(place: &'a str) -> Self {
        Self {
            place,
            missing: AtomicUsize::new(0),
        }
    }

    /// What the place answers, in time.
    ///
    /// # Errors
    ///
    /// As for [`in_time`]; at once when too many answers are missing already.
    pub(super) async fn ask<T>(&self, answer: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        if self.missing.load(Ordering::Relaxed) >= MISSING {
            return Err(silent(self.place, ANSWER));
        }
        let answer = in_time(self.place, answer).await;
        if matches!(&answer, Err(failure) if failure.code == Code::PlaceSilent) {
            self.missing.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }
}

/// The places whose jobs could not be looked at in the last pass, with the reason.
#[derive(Debug, Default)]
pub(super) struct Troubles(BTreeMap<String, Code>);

impl Troubles {
    /// Notes how a pass over the jobs at a place went. The log has a line when that changes.
    pub(super) fn note(&mut self, place: &str, trouble: Option<&Failure>) {
        let before = match trouble {
            Some(failure) => self.0.insert(place.to_owned(), failure.code),
            None => self.0.remove(place),
        };
        match (before, trouble) {
            (Some(before), Some(failure)) if before == failure.code => {}
            (_, Some(failure)) => tracing::warn!(
                place,
                code = failure.code.name(),
                hint = failure.hint,
                "jobs cannot be looked at: {failure}"
            ),
            (Some(_), None) => tracing::info!(place, "jobs can be looked at again"),
            (None, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_place_is_asked_until_a_few_answers_are_missing() {
        let asked = Asked::at("one");
        for _ in 0..MISSING {
            assert_eq!(asked.ask(async { Ok(1) }).await, Ok(1));
            let missing = asked.ask::<()>(std::future::pending()).await;
            assert_eq!(missing.unwrap_err().code, Code::PlaceSilent);
        }
        let unasked = asked.ask::<()>(async { panic!("it is asked again") });
        assert_eq!(unasked.await.unwrap_err().code, Code::PlaceSilent);
        assert_eq!(
            Asked::at("one").ask(async { Ok(1) }).await,
            Ok(1),
            "the next pass asks again"
        );
    }
}
