//! Figures of past jobs as a plot: one row of points for each architecture, native and emulated side by side. Pure: no I/O.

use std::collections::BTreeMap;

use kiln_records::{JobId, Moment, arch::Arch, run::How};
use maud::{Markup, html};

/// The size of the plot of one architecture, in its own units.
const WIDTH: u32 = 600;
const HEIGHT: u32 = 120;
const MARGIN: u32 = 14;

/// A job that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    pub(super) job: JobId,
    pub(super) arch: Arch,
    pub(super) how: How,
    pub(super) began: Moment,
    pub(super) value: u64,
    pub(super) is_good: bool,
}

/// What the points are about.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figure {
    /// Its name, in the plural.
    pub(super) noun: &'static str,
    /// How a value is written.
    pub(super) written: fn(u64) -> String,
}

/// A plot for each architecture. All have the same axes, so that they can be compared.
pub(super) fn plots(figure: Figure, points: &[Point]) -> Markup {
    let Figure { noun, written } = figure;
    let mut by_arch: BTreeMap<&str, Vec<&Point>> = BTreeMap::new();
    for point in points {
        by_arch.entry(point.arch.name()).or_default().push(point);
    }
    let first = points
        .iter()
        .map(|point| point.began.micros())
        .min()
        .unwrap_or_default();
    let last = points
        .iter()
        .map(|point| point.began.micros())
        .max()
        .unwrap_or_default();
    let most = points.iter().map(|point| point.value).max().unwrap_or_default();
    let place = |at: u128, most: u128, room: u32| {
        let room = u128::from(room - 2 * MARGIN);
        u32::try_from(at * room / most.max(1)).unwrap_or(0) + MARGIN
    };
    let x = |point: &Point| {
        let since = u128::try_from(point.began.micros() - first).unwrap_or(0);
        place(since, u128::try_from(last - first).unwrap_or(0), WIDTH)
    };
    let y = |point: &Point| HEIGHT - place(point.value.into(), most.into(), HEIGHT);
    html! {
        @for (arch, points) in &by_arch {
            figure.plot {
                figcaption { (noun) ", " (arch) span.dim { " up to " (written(most)) } }
                svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="group" aria-label={ (noun) " of " (points.len()) " jobs for " (arch) "; the table below has them all" } {
                    line.axis x1="0" x2=(WIDTH) y1=(HEIGHT - MARGIN) y2=(HEIGHT - MARGIN) {}
                    @for point in points {
                        @let (x, y) = (x(point), y(point));
                        a href={ "/ui/jobs/" (point.job) } aria-label={ (name(point)) ": " (written(point.value)) } {
                            title { (name(point)) ": " (written(point.value)) }
                            @match (point.how, point.is_good) {
                                (How::Native, true) => circle.native cx=(x) cy=(y) r="5" {},
                                (How::Emulated, true) => rect.emulated x=(x.saturating_sub(5)) y=(y.saturating_sub(5)) width="10" height="10" {},
                                (_, false) => path.failed d={ "M" (x.saturating_sub(5)) " " (y.saturating_sub(5)) "l10 10m0 -10l-10 10" } {},
                            }
                        }
                    }
                }
            }
        }
        @if !points.is_empty() {
            p.legend.small { "● native   ■ emulated   ✕ failed" }
        }
    }
}

fn name(point: &Point) -> String {
    let how = point.how.name();
    if point.is_good {
        how.to_owned()
    } else {
        format!("{how}, failed")
    }
}
