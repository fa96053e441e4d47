//! Writes an answer in Prometheus' text format: the counts of this process, and gauges as they are now. Pure: no I/O.

use std::collections::{BTreeMap, BTreeSet};

use kiln_records::Moment;
use prometheus::{Encoder, GaugeVec, TextEncoder, core::Collector};

use super::{
    definition::{About, Gauge, seconds},
    table,
};

/// The type of an answer.
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// The most places with series of their own; the others count together as `others`.
pub const MOST_PLACES: usize = 64;

/// The name under which the rest of the places count together.
const OTHERS: &str = "others";

/// An answer that is being written.
#[derive(Debug, Default)]
pub struct Answer {
    gauges: BTreeMap<&'static str, GaugeVec>,
    places: BTreeSet<String>,
}

impl Answer {
    /// Sets a gauge.
    pub fn set<const N: usize>(&mut self, gauge: &Gauge<N>, values: [&'static str; N], value: f64) {
        self.change(&gauge.about, &values, |gauge| gauge.set(value));
    }

    /// Sets a gauge to a number of things.
    #[expect(clippy::cast_precision_loss, reason = "beyond 2^53 nothing is counted exactly")]
    pub fn count<const N: usize>(&mut self, gauge: &Gauge<N>, values: [&'static str; N], value: u64) {
        self.set(gauge, values, value as f64);
    }

    /// Sets a gauge to a moment.
    pub fn time(&mut self, gauge: &Gauge<0>, value: Moment) {
        self.set(gauge, [], seconds(value));
    }

    /// Adds to the gauge of a place.
    #[expect(clippy::cast_precision_loss, reason = "beyond 2^53 nothing is counted exactly")]
    pub fn add_at(&mut self, gauge: &Gauge<1>, place: &str, value: u64) {
        let is_one = self.places.contains(place) || self.places.len() < MOST_PLACES;
        let place = if is_one { place } else { OTHERS };
        self.places.insert(place.to_owned());
        self.change(&gauge.about, &[place], |gauge| gauge.add(value as f64));
    }

    fn change(&mut self, about: &About, values: &[&str], change: impl FnOnce(&prometheus::Gauge)) {
        if !self.gauges.contains_key(about.name)
            && let Ok(made) = GaugeVec::new(about.options(), &about.names())
        {
            self.gauges.insert(about.name, made);
        }
        if let Some(gauges) = self.gauges.get(about.name)
            && let Ok(gauge) = gauges.get_metric_with_label_values(values)
        {
            change(&gauge);
        }
    }

    /// The whole text.
    pub fn text(self) -> String {
        let mut families: Vec<_> = table::all().iter().flat_map(|metric| metric.collect()).collect();
        families.extend(self.gauges.values().flat_map(Collector::collect));
        // The encoder refuses a metric without any series.
        families.retain(|family| !family.get_metric().is_empty());
        families.sort_by(|one, other| one.name().cmp(other.name()));
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&families, &mut text) {
            tracing::warn!(%error, "the metrics are incomplete");
        }
        String::from_utf8(text).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::gauges;

    fn series(text: &str, name: &str) -> Vec<String> {
        let start = format!("{name}{{");
        let lines = text.lines().filter(|line| line.starts_with(&start));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn many_places_are_counted_together() {
        let mut answer = Answer::default();
        for number in 0..MOST_PLACES + 36 {
            answer.add_at(&gauges::PLACE_JOBS, &format!("x{number:03}"), 2);
            answer.add_at(&gauges::PLACE_CPUS, &format!("x{number:03}"), 4);
        }
        let text = answer.text();
        let lines = series(&text, "kiln_place_jobs");
        assert_eq!(lines.len(), MOST_PLACES + 1);
        assert!(
            lines.contains(&"kiln_place_jobs{place=\"others\"} 72".to_owned()),
            "{lines:?}"
        );
        assert_eq!(series(&text, "kiln_place_cpus").len(), MOST_PLACES + 1);
    }

    #[test]
    fn names_of_places_are_escaped() {
        let mut answer = Answer::default();
        answer.add_at(&gauges::PLACE_JOBS, "a\"b\\c\nd", 1);
        assert!(answer.text().contains("kiln_place_jobs{place=\"a\\\"b\\\\c\\nd\"} 1\n"));
    }

    #[test]
    fn what_was_never_counted_is_zero_and_what_was_not_looked_at_is_missing() {
        let text = Answer::default().text();
        assert!(!series(&text, "kiln_swept_total").is_empty(), "{text}");
        assert!(!text.contains("kiln_place_jobs") && !text.contains("kiln_database_up"));
    }
}
