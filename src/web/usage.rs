//! What a job used over time, as plots with the limits that it has. Pure: no I/O.

use std::time::Duration;

use kiln_records::{
    Run,
    usage::{UsageCurve, UsagePoint},
};
use maud::{Markup, html};

use super::text::{bytes, duration};

/// The size of a plot, in its own units.
const WIDTH: u64 = 600;
const HEIGHT: u64 = 100;

/// One of the plots.
struct Plot {
    name: &'static str,
    values: Vec<(u64, u64)>,
    limit: u64,
    /// How a value is written.
    written: fn(u64) -> String,
}

/// The plots of an attempt. Nothing without two points: there is no line.
pub(super) fn plots(run: &Run, curve: Option<&UsageCurve>) -> Markup {
    let Some(curve) = curve.filter(|curve| curve.attempt == run.attempt && curve.points.len() > 1) else {
        return html! {};
    };
    let of = |value: fn(&UsagePoint) -> u64| curve.points.iter().map(|point| (point.at_ms, value(point))).collect();
    let plots = [
        Plot {
            name: "Memory",
            values: of(|point| point.memory),
            limit: run.plan.needs.memory_limit,
            written: bytes,
        },
        Plot {
            name: "CPUs",
            values: busy(&curve.points),
            limit: 0,
            written: |thousandths| format!("{}.{}", thousandths / 1000, thousandths % 1000 / 100),
        },
        Plot {
            name: "Disk",
            values: of(|point| point.disk),
            limit: run.plan.needs.disk_limit,
            written: bytes,
        },
    ];
    let longest = curve.points.last().map_or(1, |point| point.at_ms.max(1));
    html! {
        section aria-labelledby="usage-title" {
            h2 #usage-title { "Resources over time" }
            div.columns { @for plot in &plots { (plot.show(longest)) } }
            p.dim.small { "From the launch to " (duration(Duration::from_millis(longest))) " after it; a point stands for "
                (duration(Duration::from_millis(curve.width_ms))) ", with the most that was measured then." }
        }
    }
}

/// The CPUs that were busy between two points, in thousandths.
fn busy(points: &[UsagePoint]) -> Vec<(u64, u64)> {
    let pairs = points.iter().zip(points.iter().skip(1));
    let between = |(before, after): (&UsagePoint, &UsagePoint)| {
        let (time, cpu) = (after.at_ms - before.at_ms, after.cpu_ms.saturating_sub(before.cpu_ms));
        (after.at_ms, cpu * 1000 / time.max(1))
    };
    pairs.map(between).collect()
}

impl Plot {
    fn show(&self, longest: u64) -> Markup {
        let peak = self.values.iter().map(|(_, value)| *value).max().unwrap_or_default();
        // A limit far away would press the line flat.
        let shows_limit = self.limit > 0 && peak > self.limit / 4;
        let top = if shows_limit { self.limit.max(peak) } else { peak }.max(1);
        let x = |at: u64| at.min(longest) * WIDTH / longest;
        let y = |value: u64| {
            let height = u128::from(value) * u128::from(HEIGHT - 4) / u128::from(top);
            HEIGHT - 2 - u64::try_from(height).unwrap_or(HEIGHT - 4)
        };
        let line: Vec<String> = self
            .values
            .iter()
            .map(|(at, value)| format!("{},{}", x(*at), y(*value)))
            .collect();
        let last = self.values.last().map_or(0, |(_, value)| *value);
        let said = format!(
            "{}: {} at most, {} at last",
            self.name,
            (self.written)(peak),
            (self.written)(last)
        );
        html! {
            figure.plot {
                figcaption { (said) @if self.limit > 0 { span.dim { " · limit " ((self.written)(self.limit)) } } }
                svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(said) {
                    @if shows_limit { line.limit x1="0" x2=(WIDTH) y1=(y(self.limit)) y2=(y(self.limit)) {} }
                    polyline.usage points=(line.join(" ")) {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_cpus_are_cpu_time_by_time() {
        let at = |at_ms, cpu_ms| UsagePoint {
            at_ms,
            memory: 0,
            disk: 0,
            cpu_ms,
        };
        let points = [at(1000, 500), at(3000, 4500), at(3000, 4000), at(4000, 4000)];
        assert_eq!(busy(&points), [(3000, 2000), (3000, 0), (4000, 0)]);
    }
}
