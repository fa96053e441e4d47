//! Renders templates in a process of their own: whatever a template does to the engine ends that process only. An
//! expression that is nested without end overflows the stack, which no code can catch.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use kiln_records::{Code, Failure, protocol::TemplateMode};
use serde::{Deserialize, Serialize};

use crate::process;

/// The agent's first argument in that process.
pub const COMMAND: &str = "render";

/// What the process is, for people.
const PROGRAM: &str = "the process that renders the recipe's templates";

/// What to do.
#[derive(Serialize, Deserialize)]
enum Order {
    Render {
        recipe: PathBuf,
        values: BTreeMap<String, String>,
        mode: TemplateMode,
    },
    /// Say which values are asked for.
    Ask { recipe: PathBuf },
}

/// What the process says, line by line.
#[derive(Serialize, Deserialize)]
enum Said {
    /// For the log.
    Line(String),
    /// The names of values.
    Names(BTreeSet<String>),
    /// The end.
    Done(Option<Failure>),
}

/// As [`render`](super::render).
///
/// # Errors
///
/// `template_failed` also when the process ended early; `tool_killed`.
pub fn render(
    recipe: &Path,
    values: &BTreeMap<String, String>,
    mode: TemplateMode,
    say: &dyn Fn(&str),
) -> Result<(), Failure> {
    let order = Order::Render {
        recipe: recipe.to_owned(),
        values: values.clone(),
        mode,
    };
    carry_out(&order, say).map(drop)
}

/// As [`needed_values`](super::needed_values).
///
/// # Errors
///
/// `template_failed` also when the process ended early; `tool_killed`.
pub fn needed_values(recipe: &Path) -> Result<BTreeSet<String>, Failure> {
    let recipe = recipe.to_owned();
    carry_out(&Order::Ask { recipe }, &|_| ())
}

/// Has the process do it. Returns the names that it says.
fn carry_out(order: &Order, say: &dyn Fn(&str)) -> Result<BTreeSet<String>, Failure> {
    let lost = |error: std::io::Error| Failure::io("cannot render in a process", &error);
    let order = serde_json::to_vec(order).map_err(|error| Failure::new(Code::Protocol, error))?;
    let mut child = Command::new(std::env::current_exe().map_err(lost)?)
        .arg(COMMAND)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(lost)?;
    // A process that ended at once says why below.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(&order));
    let (mut outcome, mut names) = (None, BTreeSet::new());
    for line in child
        .stdout
        .take()
        .map(BufReader::new)
        .into_iter()
        .flat_map(BufRead::lines)
    {
        match serde_json::from_str(&line.map_err(lost)?) {
            Ok(Said::Line(line)) => say(&line),
            Ok(Said::Names(said)) => names = said,
            Ok(Said::Done(failure)) => outcome = Some(failure),
            Err(error) => return Err(Failure::new(Code::Protocol, error)),
        }
    }
    let status = child.wait().map_err(lost)?;
    match outcome {
        Some(None) => Ok(names),
        Some(Some(failure)) => Err(failure),
        None => Err(process::killed(PROGRAM, status).unwrap_or_else(|| {
            Failure::new(Code::TemplateFailed, format!("{PROGRAM} ended: {status}"))
                .hint("an expression in a template is nested too deeply for the engine")
        })),
    }
}

/// The process.
///
/// # Errors
///
/// When it was not started by one of those.
pub fn main() -> Result<(), Failure> {
    let order: Order = serde_json::from_reader(std::io::stdin().lock())
        .map_err(|error| Failure::new(Code::Protocol, format_args!("there is nothing to render: {error}")))?;
    let say = |said: &Said| {
        if let Ok(line) = serde_json::to_string(said) {
            // Without a reader nobody waits for the result.
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    };
    let done = match order {
        Order::Render { recipe, values, mode } => super::render(&recipe, &values, mode, &|line| {
            say(&Said::Line(line.to_owned()));
        }),
        Order::Ask { recipe } => super::needed_values(&recipe).map(|names| say(&Said::Names(names))),
    };
    say(&Said::Done(done.err()));
    Ok(())
}
