//! Progress: bars on a terminal, plain lines elsewhere. Writes to standard error.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::printer::Printer;
use crate::{
    arch::Arch,
    records::{
        Failure, Step,
        protocol::{Event, What},
    },
};

/// One line with the latest message, for work without steps.
#[derive(Debug)]
pub(super) struct Spinner {
    bar: Option<ProgressBar>,
    verbose: Option<Printer>,
}

impl Spinner {
    pub(super) fn new(printer: &Printer, what: &str) -> Self {
        let bar = printer.wants_bars().then(|| {
            let style = ProgressStyle::with_template("{spinner} {prefix} {elapsed_precise} {wide_msg:.dim}");
            let bar = ProgressBar::new_spinner().with_prefix(what.to_owned());
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self {
            bar,
            verbose: printer.is_verbose().then(|| printer.clone()),
        }
    }

    pub(super) fn line(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.to_owned());
        }
        if let Some(printer) = &self.verbose {
            printer.note(text);
        }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The builds of one command, a lane each.
#[derive(Debug)]
pub(super) struct Progress {
    bars: Option<MultiProgress>,
    printer: Printer,
    several: bool,
}

/// The display of one build.
#[derive(Debug)]
pub(super) struct Lane {
    bar: Option<ProgressBar>,
    printer: Printer,
    /// The prefix of plain lines when several builds share the output.
    prefix: String,
    begun: Instant,
    step: Mutex<Option<Step>>,
}

impl Progress {
    pub(super) fn new(printer: &Printer, archs: &[Arch]) -> Self {
        let bars = printer.wants_bars().then(MultiProgress::new);
        Self {
            bars,
            printer: printer.clone(),
            several: archs.len() > 1,
        }
    }

    pub(super) fn lane(&self, arch: Arch) -> Lane {
        let bar = self.bars.as_ref().map(|bars| {
            let steps = Step::ALL.len() as u64;
            let template = "{prefix:<8} {bar:14} {pos}/{len} {elapsed_precise} {wide_msg}";
            let bar = bars.add(ProgressBar::new(steps).with_prefix(arch.name()));
            bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        let prefix = if self.several {
            format!("{arch:<8} ")
        } else {
            String::new()
        };
        Lane {
            bar,
            printer: self.printer.clone(),
            prefix,
            begun: Instant::now(),
            step: Mutex::new(None),
        }
    }
}

impl Lane {
    pub(super) fn show(&self, event: &Event) {
        match &event.what {
            What::StepStarted(step) => {
                *self.step.lock().unwrap_or_else(PoisonError::into_inner) = Some(*step);
                self.message(step.name());
            }
            What::StepFinished { step, wall_ms, cpu_ms } => {
                let (wall, cpu) = (seconds(*wall_ms), seconds(*cpu_ms));
                match &self.bar {
                    Some(bar) => bar.inc(1),
                    None => self.plain(&format!("{step:<8} done in {wall} (CPU {cpu})")),
                }
            }
            What::Log { text, .. } => {
                if self.printer.is_verbose() {
                    self.plain(text);
                }
                self.message(text);
            }
            What::Progress { done, total } => {
                let percent = done * 100 / (*total).max(1);
                self.message(&format!("{percent} %"));
            }
            What::Execs(_) | What::Sandbox(_) | What::Shell(_) => {}
        }
    }

    /// Shows the reason for waiting.
    pub(super) fn say(&self, text: &str) {
        match &self.bar {
            Some(_) => self.message(text),
            None => self.plain(text),
        }
    }

    /// Ends the display, with the result.
    pub(super) fn end_as(&self, how: &str) {
        let took = seconds(u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX));
        let text = format!("{how} after {took}");
        match &self.bar {
            Some(bar) => bar.abandon_with_message(text),
            None => self.plain(&text),
        }
    }

    pub(super) fn end(&self, failure: Option<&Failure>) {
        let took = seconds(u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX));
        let text = match failure {
            None => format!("done in {took}"),
            Some(failure) => format!("failed after {took}: {failure}"),
        };
        match &self.bar {
            Some(bar) => bar.abandon_with_message(text),
            None => self.plain(&text),
        }
    }

    fn message(&self, text: &str) {
        if let Some(bar) = &self.bar {
            let step = self.step.lock().unwrap_or_else(PoisonError::into_inner);
            // A control sequence in a tool's output must not reach the terminal.
            let clean: String = text.chars().filter(|c| !c.is_control()).collect();
            bar.set_message(format!("{}: {clean}", step.map_or("start", Step::name)));
        }
    }

    fn plain(&self, text: &str) {
        let clean: String = text.chars().filter(|c| !c.is_control() || *c == '\t').collect();
        self.printer.note(format_args!("{}{clean}", self.prefix));
    }
}

fn seconds(millis: u64) -> String {
    format!("{}.{} s", millis / 1000, millis % 1000 / 100)
}
