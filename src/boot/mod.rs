//! The boot check: boots an image in a virtual machine and judges by its console whether it came up. Starts sandboxes, and
//! writes the file with the console.
//!
//! ```text
//!  image's files ─▶ parameters ─▶ sandbox: QEMU ─ bytes ─▶ console ─ lines ─▶ verdict
//!                                                             └──────────────▶ the file
//! ```
//!
//! All that is known of the machine is what the image itself writes to its console. So the verdict is no defence against
//! an image that lies about itself.

use std::{
    io::{BufWriter, Write},
    ops::ControlFlow,
    path::Path,
    time::{Duration, Instant},
};

use kiln_records::{
    Code, Failure, Moment, names,
    set::check::{self, BootCheck},
};
use serde::Serialize;

use crate::sandbox::namespace::{Boot, End, Said};

pub mod console;
pub mod parameters;
pub mod verdict;

use console::Console;
use verdict::{Judge, Until, Verdict};

/// The most that is read of a console, in bytes.
pub const MOST_CONSOLE: usize = 16 << 20;

/// The number of last lines in a result.
const LAST_LINES: usize = 20;

/// The result of a boot check.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Checked {
    /// Whether the image came up, or why not.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// How long that took, in seconds.
    pub seconds: f64,
    /// Units that systemd could not start.
    pub failed_units: Vec<String>,
    /// Kernel modules that programs of the image asked for in vain.
    pub missing_modules: Vec<String>,
    /// The end of the console.
    pub last_lines: Vec<String>,
}

/// Boots the machine until the image is up, or cannot come up any more, or its time is over. The console is written to
/// `file` as text, without sequences that steer a terminal.
///
/// # Errors
///
/// When the sandbox cannot be made or the file cannot be written. An image that does not come up is no error.
pub async fn check(boot: Boot, until: Until, file: &Path) -> Result<Checked, Failure> {
    let failed = |error: std::io::Error| Failure::io("cannot write the console", &error);
    if let Some(dir) = file.parent() {
        fs_err::create_dir_all(dir).map_err(failed)?;
    }
    let mut out = BufWriter::new(fs_err::File::create(file).map_err(failed)?);
    let mut console = Console::default();
    let mut judge = Judge::new(until, LAST_LINES);
    let (mut read, mut written, mut found) = (0, Ok(()), None);
    let began = Instant::now();
    let end = boot
        .run(|said| {
            match said {
                Said::Bytes(bytes) => {
                    read += bytes.len();
                    console.feed(bytes, |line| {
                        if found.is_none() {
                            found = judge.line(line);
                        }
                        if written.is_ok() {
                            written = writeln!(out, "{line}");
                        }
                    });
                    if found.is_none() {
                        found = judge.piece(console.unfinished());
                    }
                }
                Said::Nothing => found = judge.unfinished(console.unfinished()),
            }
            if found.is_none() && read > MOST_CONSOLE {
                found = Some(judge.flooded(MOST_CONSOLE));
            }
            if found.is_some() || written.is_err() {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })
        .await?;
    let elapsed = began.elapsed();
    written
        .and_then(|()| writeln!(out, "{}", console.unfinished()))
        .and_then(|()| out.flush())
        .map_err(failed)?;
    let found = found.or_else(|| judge.unfinished(console.unfinished()));
    let verdict = match (found, end) {
        (Some(found), _) => found,
        (None, End::Exited(words)) => judge.exited(words.as_deref()),
        (None, End::TimedOut | End::Heard) => judge.timed_out(console.unfinished()),
    };
    let last_lines = judge.last_lines(console.unfinished());
    Ok(Checked {
        verdict,
        seconds: (elapsed.as_secs_f64() * 10.0).round() / 10.0,
        failed_units: judge.failed_units,
        missing_modules: judge.missing_modules,
        last_lines,
    })
}

impl Checked {
    /// The result as it is kept beside an image whose manifest has this SHA-256.
    pub fn result(&self, manifest_sha256: &str, machine: &str) -> BootCheck {
        let (up, detail) = match &self.verdict {
            Verdict::Up { seen } => (true, seen),
            Verdict::Down { detail, .. } => (false, detail),
        };
        BootCheck {
            manifest_sha256: manifest_sha256.to_owned(),
            up,
            detail: short(detail),
            seconds: u32::try_from(Duration::from_secs_f64(self.seconds.max(0.0)).as_secs()).unwrap_or(u32::MAX),
            machine: short(machine),
            checked: Moment::now(),
            by: None,
        }
    }

    /// The failure that a command reports, unless the image is up.
    pub fn failure(&self, longest: Duration) -> Option<Failure> {
        let (cause, detail) = match &self.verdict {
            Verdict::Up { .. } => return None,
            Verdict::Down { cause, detail } => (*cause, detail),
        };
        let code = match cause {
            verdict::Cause::Timeout => Code::BootTimeout,
            _ => Code::BootFailed,
        };
        let detail = match cause {
            verdict::Cause::Timeout => format!("the image is not up after {} s; {detail}", longest.as_secs()),
            _ => format!("the image did not come up ({:.1} s): {detail}", self.seconds),
        };
        Some(Failure::new(code, detail).hint(cause.hint()))
    }
}

/// The end of what a console said, as it is kept beside an image; empty if it cannot be read.
pub fn end_of_console(file: &Path) -> String {
    // It is text, as it was written.
    let console = fs_err::read_to_string(file).unwrap_or_default();
    let end = &console[console.ceil_char_boundary(console.len().saturating_sub(check::MOST_CONSOLE))..];
    end.replace('\0', "")
}

/// A text that fits into a result.
fn short(text: &str) -> String {
    let text: String = names::shown(text)
        .to_string()
        .chars()
        .take(check::LONGEST_TEXT / 4)
        .collect();
    if text.is_empty() { "-".to_owned() } else { text }
}
