//! Progress: bars for people at a terminal, plain lines for everybody else.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::printer::Printer;

/// One line with the latest thing said, for work without steps.
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
