//! Prints what library code reports through `tracing` while a command runs. It writes to standard error and nothing
//! else.
//!
//! A warning is printed like every other message of the command, without a time stamp. `KILN_LOG` requests more than
//! warnings; those are printed as log lines, for developers.

use std::{
    fmt::{self, Write},
    io::{self, IsTerminal},
};

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
};
use tracing_subscriber::{
    EnvFilter, Layer, filter::filter_fn, fmt as log_lines, layer::Context, layer::SubscriberExt, registry::LookupSpan,
    util::SubscriberInitExt,
};

use super::printer::Printer;

/// The S3 library calls each request that it refuses an error, a stranger's too. Kiln has lines of its own for what
/// concerns the operator.
const SILENCED: &str = "s3s=off";

/// What is logged: as `KILN_LOG` says, else by `default`. Neither says anything of [`SILENCED`] unless it names it.
pub(super) fn filter(default: &str) -> EnvFilter {
    let with = |directives: &str| EnvFilter::try_new(format!("{SILENCED},{directives}"));
    let asked = std::env::var("KILN_LOG").ok().filter(|asked| !asked.trim().is_empty());
    asked
        .and_then(|asked| with(&asked).ok())
        .or_else(|| with(default).ok())
        .unwrap_or_default()
}

/// Prints warnings and errors through `printer`, and more if `KILN_LOG` requests it.
pub(super) fn start(printer: &Printer) {
    let filter = filter("warn");
    let printer = printer.clone();
    let messages = Messages::layer(move |severity, text, hint| match severity {
        Severity::Error => printer.error(text, hint),
        Severity::Warning => printer.warning(text, hint),
    });
    tracing_subscriber::registry()
        .with(filter)
        .with(messages)
        .with(more(io::stderr, wants_colour()))
        .init();
}

/// Whether log lines have colours.
fn wants_colour() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Prints everything below a warning as log lines.
fn more<S, W>(writer: fn() -> W, has_colour: bool) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: io::Write + 'static,
{
    log_lines::layer()
        .with_writer(writer)
        .with_ansi(has_colour)
        .with_filter(filter_fn(|metadata| *metadata.level() > Level::WARN))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Severity {
    Error,
    Warning,
}

/// Passes warnings and errors on as messages with their hints.
struct Messages<P>(P);

impl<P> Messages<P>
where
    P: Fn(Severity, &str, Option<&str>) + Send + Sync + 'static,
{
    fn layer<S>(print: P) -> impl Layer<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        Self(print).with_filter(LevelFilter::WARN)
    }
}

impl<S, P> Layer<S> for Messages<P>
where
    S: Subscriber,
    P: Fn(Severity, &str, Option<&str>) + Send + Sync + 'static,
{
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let severity = if *event.metadata().level() == Level::ERROR {
            Severity::Error
        } else {
            Severity::Warning
        };
        let mut said = Said::default();
        event.record(&mut said);
        (self.0)(severity, &said.text(), said.hint.as_deref());
    }
}

/// The fields of an event that are useful to a user.
#[derive(Debug, Default)]
struct Said {
    message: String,
    error: Option<String>,
    hint: Option<String>,
    /// All other fields: some libraries report without a message.
    others: String,
}

impl Said {
    fn text(&self) -> String {
        let message = if self.message.is_empty() {
            self.others.trim_start()
        } else {
            &self.message
        };
        match &self.error {
            Some(error) if message.is_empty() => error.clone(),
            Some(error) => format!("{message}: {error}"),
            None => message.to_owned(),
        }
    }
}

impl Visit for Said {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "error" => self.error = Some(format!("{value:?}")),
            "hint" => self.hint = Some(format!("{value:?}")),
            name => {
                let _ = write!(self.others, " {name}={value:?}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use super::*;

    type Printed = Arc<Mutex<Vec<(Severity, String, Option<String>)>>>;

    /// The messages printed while `work` runs.
    fn printed(work: impl FnOnce()) -> Vec<(Severity, String, Option<String>)> {
        let printed = Printed::default();
        let into = Arc::clone(&printed);
        let messages = Messages::layer(move |severity, text: &str, hint: Option<&str>| {
            let entry = (severity, text.to_owned(), hint.map(str::to_owned));
            into.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        });
        tracing::subscriber::with_default(tracing_subscriber::registry().with(messages), work);
        let printed = printed.lock().unwrap_or_else(PoisonError::into_inner);
        printed.clone()
    }

    #[test]
    fn warnings_are_messages_with_their_cause_and_hint() {
        let error = io::Error::other("the disk is gone");
        let printed = printed(|| {
            tracing::warn!(job.id = "1", "no control groups: {}", "builds have no limits");
            tracing::warn!(%error, "a file was not removed");
            tracing::warn!(code = "io", hint = Some("look at the disk"), "old packages stay");
            tracing::error!(hint = None::<&str>, "the database is gone");
            tracing::warn!(attempts = 3, reason = "slow");
            tracing::info!("not a message");
        });
        let warning = |text: &str, hint: Option<&str>| (Severity::Warning, text.to_owned(), hint.map(str::to_owned));
        assert_eq!(
            printed,
            [
                warning("no control groups: builds have no limits", None),
                warning("a file was not removed: the disk is gone", None),
                warning("old packages stay", Some("look at the disk")),
                (Severity::Error, "the database is gone".to_owned(), None),
                warning("attempts=3 reason=slow", None),
            ]
        );
    }

    #[test]
    fn what_is_less_than_a_warning_is_a_log_line() {
        static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());
        struct ToLines;
        impl io::Write for ToLines {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                LINES.lock().unwrap().write(bytes)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let log = tracing_subscriber::registry().with(more(|| ToLines, false));
        tracing::subscriber::with_default(log, || {
            tracing::warn!("a message");
            tracing::debug!(port = 9001, "listening");
        });
        let lines = String::from_utf8(LINES.lock().unwrap().clone()).unwrap();
        assert!(!lines.contains("a message") && !lines.contains('\u{1b}'), "{lines}");
        assert!(
            lines.contains("DEBUG") && lines.trim_end().ends_with("listening port=9001"),
            "{lines}"
        );
    }
}
