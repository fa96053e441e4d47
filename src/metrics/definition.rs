//! Describes metrics: a name, a meaning, and labels with all their values. Pure apart from the counts in memory.

use std::{sync::OnceLock, time::Duration};

use kiln_records::Moment;
use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, core::Collector, proto::MetricFamily};

/// Where a figure comes from, and so how those of several servers are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// This process counts it.
    Process,
    /// The records, which all servers on one database share.
    Records,
    /// This server's host, or what this server alone sees.
    Server,
}

/// What a metric is.
#[derive(Debug, Clone, Copy)]
pub(super) struct About {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    #[cfg_attr(not(test), expect(dead_code, reason = "for the page"))]
    pub(super) source: Source,
    pub(super) labels: &'static [Label],
}

/// A label.
#[derive(Debug, Clone, Copy)]
pub(super) struct Label {
    pub(super) name: &'static str,
    /// All its values.
    pub(super) values: Values,
}

/// The values of a label.
#[derive(Debug, Clone, Copy)]
pub(super) enum Values {
    /// These.
    Are(fn() -> Vec<&'static str>),
    /// The names of places, as many as may have series of their own.
    Places,
    /// A text that is the same for the whole life of the process.
    Fixed,
}

/// The kind of a metric.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A metric of any kind.
pub(super) trait Metric: Sync {
    #[cfg(test)]
    fn kind(&self) -> Kind;
    #[cfg(test)]
    fn about(&self) -> &About;
    /// What this process has counted.
    fn collect(&self) -> Vec<MetricFamily>;
}

/// The most series of a counter that are there from the beginning, so that the first event is an increase.
const MOST_AT_ONCE: usize = 40;

/// A counter with `N` labels.
#[derive(Debug)]
pub(super) struct Counter<const N: usize> {
    about: About,
    counts: OnceLock<Option<IntCounterVec>>,
}

impl<const N: usize> Counter<N> {
    pub(super) const fn new(name: &'static str, help: &'static str, labels: &'static [Label; N]) -> Self {
        Self {
            about: About {
                name,
                help,
                source: Source::Process,
                labels,
            },
            counts: OnceLock::new(),
        }
    }

    pub(super) fn add(&self, values: [&'static str; N], by: u64) {
        if let Some(counts) = self.counts()
            && let Ok(count) = counts.get_metric_with_label_values(&values)
        {
            count.inc_by(by);
        }
    }

    fn counts(&self) -> Option<&IntCounterVec> {
        let made = self.counts.get_or_init(|| {
            let counts = IntCounterVec::new(self.about.options(), &self.about.names()).ok()?;
            let all = self.about.combinations();
            for values in all.iter().filter(|_| all.len() <= MOST_AT_ONCE) {
                counts.get_metric_with_label_values(values).ok()?;
            }
            Some(counts)
        });
        made.as_ref()
    }
}

impl<const N: usize> Metric for Counter<N> {
    #[cfg(test)]
    fn kind(&self) -> Kind {
        Kind::Counter
    }

    #[cfg(test)]
    fn about(&self) -> &About {
        &self.about
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.counts().map(Collector::collect).unwrap_or_default()
    }
}

/// A histogram of times with `N` labels.
#[derive(Debug)]
pub(super) struct Histogram<const N: usize> {
    about: About,
    buckets: &'static [f64],
    counts: OnceLock<Option<HistogramVec>>,
}

impl<const N: usize> Histogram<N> {
    pub(super) const fn new(
        name: &'static str,
        help: &'static str,
        labels: &'static [Label; N],
        buckets: &'static [f64],
    ) -> Self {
        Self {
            about: About {
                name,
                help,
                source: Source::Process,
                labels,
            },
            buckets,
            counts: OnceLock::new(),
        }
    }

    pub(super) fn observe(&self, values: [&'static str; N], time: Duration) {
        if let Some(counts) = self.counts()
            && let Ok(histogram) = counts.get_metric_with_label_values(&values)
        {
            histogram.observe(time.as_secs_f64());
        }
    }

    fn counts(&self) -> Option<&HistogramVec> {
        let made = self.counts.get_or_init(|| {
            let options = HistogramOpts::from(self.about.options()).buckets(self.buckets.to_vec());
            HistogramVec::new(options, &self.about.names()).ok()
        });
        made.as_ref()
    }
}

impl<const N: usize> Metric for Histogram<N> {
    #[cfg(test)]
    fn kind(&self) -> Kind {
        Kind::Histogram
    }

    #[cfg(test)]
    fn about(&self) -> &About {
        &self.about
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.counts().map(Collector::collect).unwrap_or_default()
    }
}

/// The time of the last of some events, with one label.
#[derive(Debug)]
pub(super) struct Times {
    about: About,
    times: OnceLock<Option<GaugeVec>>,
}

impl Times {
    pub(super) const fn new(name: &'static str, help: &'static str, labels: &'static [Label; 1]) -> Self {
        Self {
            about: About {
                name,
                help,
                source: Source::Process,
                labels,
            },
            times: OnceLock::new(),
        }
    }

    pub(super) fn set(&self, values: [&'static str; 1], now: Moment) {
        if let Some(times) = self.times()
            && let Ok(time) = times.get_metric_with_label_values(&values)
        {
            time.set(seconds(now));
        }
    }

    fn times(&self) -> Option<&GaugeVec> {
        let made = self
            .times
            .get_or_init(|| GaugeVec::new(self.about.options(), &self.about.names()).ok());
        made.as_ref()
    }
}

impl Metric for Times {
    #[cfg(test)]
    fn kind(&self) -> Kind {
        Kind::Gauge
    }

    #[cfg(test)]
    fn about(&self) -> &About {
        &self.about
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.times().map(Collector::collect).unwrap_or_default()
    }
}

/// A gauge with `N` labels, which is written anew for each answer.
#[derive(Debug)]
pub struct Gauge<const N: usize> {
    pub(super) about: About,
}

impl<const N: usize> Gauge<N> {
    pub(super) const fn new(
        name: &'static str,
        help: &'static str,
        source: Source,
        labels: &'static [Label; N],
    ) -> Self {
        Self {
            about: About {
                name,
                help,
                source,
                labels,
            },
        }
    }
}

impl<const N: usize> Metric for Gauge<N> {
    #[cfg(test)]
    fn kind(&self) -> Kind {
        Kind::Gauge
    }

    #[cfg(test)]
    fn about(&self) -> &About {
        &self.about
    }

    fn collect(&self) -> Vec<MetricFamily> {
        Vec::new()
    }
}

impl About {
    pub(super) fn options(&self) -> Opts {
        Opts::new(self.name, self.help)
    }

    pub(super) fn names(&self) -> Vec<&'static str> {
        self.labels.iter().map(|label| label.name).collect()
    }

    /// All combinations of the values of its labels; none if a label may have others.
    fn combinations(&self) -> Vec<Vec<&'static str>> {
        let mut all = vec![Vec::new()];
        for label in self.labels {
            let Values::Are(values) = label.values else {
                return Vec::new();
            };
            let values = values();
            all = all
                .iter()
                .flat_map(|before: &Vec<_>| values.iter().map(|value| [&before[..], &[*value]].concat()))
                .collect();
        }
        all
    }
}

/// A moment, as Prometheus counts time.
#[expect(clippy::cast_precision_loss, reason = "a millionth of a second more or less")]
pub(super) fn seconds(moment: Moment) -> f64 {
    moment.micros() as f64 / 1e6
}
