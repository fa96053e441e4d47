//! Progress: bars on a terminal, plain lines elsewhere. Writes to standard error.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use kiln_records::{
    Failure, JobType, Step,
    arch::Arch,
    protocol::{Event, What},
};

use super::{job_logs::harmless, printer::Printer};

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
            bar.set_message(harmless(text).into_owned());
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
    /// The steps of the job.
    steps: &'static [Step],
    begun: Instant,
    step: Mutex<Option<Step>>,
}

impl Progress {
    pub(super) fn new(printer: &Printer, archs: &[Arch]) -> Self {
        let bars = printer.wants_bars().then(MultiProgress::new);
        printer.set_bars(bars.clone());
        Self {
            bars,
            printer: printer.clone(),
            several: archs.len() > 1,
        }
    }

    /// A lane for a job of this type.
    pub(super) fn lane(&self, arch: Arch, job_type: JobType) -> Lane {
        let bar = self.bars.as_ref().map(|bars| {
            let template = "{prefix:<8} {bar:14} {pos}/{len} {elapsed_precise} {wide_msg}";
            let bar = bars.add(ProgressBar::no_length().with_prefix(arch.name()));
            bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        let prefix = if self.several {
            format!("{arch:<8} ")
        } else {
            String::new()
        };
        Lane::new(bar, &self.printer, prefix, job_type)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.printer.set_bars(None);
    }
}

impl Lane {
    fn new(bar: Option<ProgressBar>, printer: &Printer, prefix: String, job_type: JobType) -> Self {
        let steps = Step::of(job_type);
        if let Some(bar) = &bar {
            bar.set_length(steps.len() as u64);
        }
        Self {
            bar,
            printer: printer.clone(),
            prefix,
            steps,
            begun: Instant::now(),
            step: Mutex::new(None),
        }
    }

    pub(super) fn show(&self, event: &Event) {
        match &event.what {
            What::StepStarted(step) => {
                *self.step.lock().unwrap_or_else(PoisonError::into_inner) = Some(*step);
                self.message(step.name());
            }
            What::StepFinished { step, wall_ms, cpu_ms } => {
                let (wall, cpu) = (seconds(*wall_ms), seconds(*cpu_ms));
                match &self.bar {
                    // A job may begin with a later step, and another attempt with the first one again.
                    Some(bar) => bar.set_position(self.steps.iter().filter(|other| *other <= step).count() as u64),
                    None => self.plain(&format!("{step:<8} done in {wall} (CPU {cpu})")),
                }
            }
            What::Log { text, .. } => {
                if self.printer.is_verbose() {
                    self.plain(text);
                }
                self.message(without_log_prefix(text));
            }
            What::Progress { done, total } => {
                let percent = done * 100 / (*total).max(1);
                self.message(&format!("{percent} %"));
            }
            What::Execs(_) | What::Sandbox(_) | What::Shell(_) | What::Warning(_) => {}
        }
    }

    /// Shows the reason for waiting.
    pub(super) fn say(&self, text: &str) {
        match &self.bar {
            Some(_) => self.message(text),
            None => self.plain(text),
        }
    }

    /// Says something that stays on the screen.
    pub(super) fn remark(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.plain(text)),
            None => self.plain(text),
        }
    }

    /// Ends the display, with the result.
    pub(super) fn end_as(&self, how: &str) {
        let took = seconds(u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX));
        let text = format!("{how} after {took}");
        match &self.bar {
            Some(bar) => bar.abandon_with_message(harmless(&text).into_owned()),
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
            Some(bar) => bar.abandon_with_message(harmless(&text).into_owned()),
            None => self.plain(&text),
        }
    }

    fn message(&self, text: &str) {
        if let Some(bar) = &self.bar {
            let step = self.step.lock().unwrap_or_else(PoisonError::into_inner);
            // A control sequence in a tool's output must not reach the terminal.
            bar.set_message(format!("{}: {}", step.map_or("start", Step::name), harmless(text)));
        }
    }

    fn plain(&self, text: &str) {
        self.printer.note(format_args!("{}{}", self.prefix, harmless(text)));
    }
}

/// A line of a tool without the level and the time that kiwi begins its lines with, as in
/// `[ DEBUG   ]: 11:36:31 | EXEC: [rsync]`.
fn without_log_prefix(line: &str) -> &str {
    let message = || {
        let (level, rest) = line.strip_prefix("[ ")?.split_once(" ]: ")?;
        let (time, message) = rest.split_once(" |")?;
        let is_level = level.trim_end().chars().all(|c| c.is_ascii_uppercase());
        let is_time = time.len() == 8 && time.chars().all(|c| c.is_ascii_digit() || c == ':');
        (is_level && is_time).then(|| message.trim_start())
    };
    message().unwrap_or(line)
}

fn seconds(millis: u64) -> String {
    format!("{}.{} s", millis / 1000, millis % 1000 / 100)
}

#[cfg(test)]
mod tests {
    use indicatif::ProgressDrawTarget;
    use kiln_records::protocol::Stream;

    use super::*;

    fn show(lane: &Lane, what: What) {
        let time = jiff::Timestamp::UNIX_EPOCH;
        lane.show(&Event { time, what });
    }

    #[test]
    fn what_kiwi_puts_before_a_message_is_not_shown() {
        for (line, message) in [
            ("[ DEBUG   ]: 11:36:31 | EXEC: [rsync -a]", "EXEC: [rsync -a]"),
            (
                "[ INFO    ]: 00:00:00 | Using repository: a | b",
                "Using repository: a | b",
            ),
            ("[ WARNING ]: 23:59:59 |", ""),
            ("[ 50%] Building | all", "[ 50%] Building | all"),
            (
                "[ note ]: 11:36:31 | said by a script",
                "[ note ]: 11:36:31 | said by a script",
            ),
            (
                "[ DEBUG ]: later | said by a script",
                "[ DEBUG ]: later | said by a script",
            ),
            ("Setting up base-files (12.4)", "Setting up base-files (12.4)"),
            ("", ""),
        ] {
            assert_eq!(without_log_prefix(line), message);
        }
    }

    #[test]
    fn a_bar_ends_full() {
        for job_type in [JobType::Create, JobType::Customize] {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
            let lane = Lane::new(Some(bar.clone()), &Printer::new(false, false), String::new(), job_type);
            let steps = Step::of(job_type);
            assert_eq!((bar.position(), bar.length()), (0, Some(steps.len() as u64)));
            for (before, step) in steps.iter().enumerate() {
                show(&lane, What::StepStarted(*step));
                assert_eq!(bar.position(), before as u64);
                let text = "[ INFO    ]: 11:36:31 | at work".to_owned();
                let stream = Stream::Stdout;
                show(&lane, What::Log { stream, text });
                assert_eq!(bar.message(), format!("{step}: at work"));
                show(
                    &lane,
                    What::StepFinished {
                        step: *step,
                        wall_ms: 1,
                        cpu_ms: 1,
                    },
                );
            }
            lane.end(None);
            assert_eq!(Some(bar.position()), bar.length());
            assert!(
                bar.is_finished() && bar.message().starts_with("done in "),
                "{}",
                bar.message()
            );
        }
    }

    #[test]
    fn a_bar_follows_a_second_attempt_and_a_late_beginning() {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let lane = Lane::new(
            Some(bar.clone()),
            &Printer::new(false, false),
            String::new(),
            JobType::Create,
        );
        for (step, position) in [
            (Step::Build, 5),
            (Step::Prepare, 1),
            (Step::Package, 6),
            (Step::Upload, 7),
        ] {
            let (wall_ms, cpu_ms) = (1, 1);
            show(&lane, What::StepFinished { step, wall_ms, cpu_ms });
            assert_eq!(bar.position(), position, "{step}");
        }
    }
}
