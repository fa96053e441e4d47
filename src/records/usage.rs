//! What a job used over time, in a bounded number of points. Pure: no I/O.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::run::Used;

/// The most points: enough for a plot as wide as a page.
pub const MOST_POINTS: usize = 120;

/// The time that a point stands for at first, in milliseconds.
const FIRST_WIDTH_MS: u64 = 5000;

/// The use of one attempt's sandbox over time. The longer it runs, the more time each point stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct UsageCurve {
    /// The number of the attempt.
    pub attempt: u32,
    /// The time that a point stands for, in milliseconds.
    pub width_ms: u64,
    /// The points, earliest first.
    pub points: Vec<UsagePoint>,
}

/// What was used in a span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct UsagePoint {
    /// When it was last measured, in milliseconds since the attempt was launched.
    pub at_ms: u64,
    /// The most memory, in bytes.
    pub memory: u64,
    /// The most disk, in bytes.
    pub disk: u64,
    /// The CPU time since the launch, in milliseconds.
    pub cpu_ms: u64,
}

impl UsageCurve {
    /// The curve of an attempt of which nothing was measured yet.
    pub const fn new(attempt: u32) -> Self {
        Self {
            attempt,
            width_ms: FIRST_WIDTH_MS,
            points: Vec::new(),
        }
    }

    /// Adds a measurement, made so long after the launch.
    pub fn note(&mut self, after: Duration, used: Used) {
        let at_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        self.add(UsagePoint {
            at_ms,
            memory: used.memory,
            disk: used.disk,
            cpu_ms: used.cpu_ms,
        });
        while self.points.len() > MOST_POINTS {
            self.width_ms = self.width_ms.saturating_mul(2);
            for point in std::mem::take(&mut self.points) {
                self.add(point);
            }
        }
    }

    fn add(&mut self, point: UsagePoint) {
        let width = self.width_ms.max(1);
        match self.points.last_mut() {
            // A clock that was set back, or a server that took over, does not make time run backwards.
            Some(last) if point.at_ms / width <= last.at_ms / width => {
                *last = UsagePoint {
                    at_ms: last.at_ms.max(point.at_ms),
                    memory: last.memory.max(point.memory),
                    disk: last.disk.max(point.disk),
                    cpu_ms: last.cpu_ms.max(point.cpu_ms),
                };
            }
            _ => self.points.push(point),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_job_has_few_points_and_keeps_its_peaks() {
        let mut curve = UsageCurve::new(1);
        for second in (0..86_400).step_by(5) {
            let memory = if second == 40_000 { 9 << 30 } else { 1 << 30 };
            curve.note(
                Duration::from_secs(second),
                Used {
                    memory,
                    disk: second,
                    cpu_ms: second * 900,
                },
            );
        }
        assert!(
            (MOST_POINTS / 2..=MOST_POINTS).contains(&curve.points.len()),
            "{}",
            curve.points.len()
        );
        assert_eq!(curve.points.iter().map(|point| point.memory).max(), Some(9 << 30));
        assert!(
            curve
                .points
                .is_sorted_by(|one, next| one.at_ms < next.at_ms && one.cpu_ms <= next.cpu_ms)
        );
        assert_eq!(curve.points.last().unwrap().disk, 86_395);
        // Back in time is not a new point.
        let count = curve.points.len();
        curve.note(Duration::from_secs(5), Used::default());
        assert_eq!(curve.points.len(), count);
    }
}
