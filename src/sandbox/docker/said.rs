//! Reads the output of a container, which the engine keeps even after the end. Talks to the engine only.

use bollard::{Docker, container::LogOutput, query_parameters::LogsOptionsBuilder};
use futures::StreamExt;
use kiln_inside::room::order::Said;
use kiln_records::Failure;

use super::fault::failure;

/// The most lines of standard error kept as evidence, and the longest line.
const LAST_WORDS: usize = 40;
const LONGEST: usize = 4096;

/// The last line on standard output, parsed.
pub(super) async fn last_said(engine: &Docker, container: &str) -> Result<Option<Said>, Failure> {
    let line = last_line(engine, container).await?;
    Ok(line.and_then(|line| serde_json::from_str(&line).ok()))
}

/// The last line on standard output, as text.
pub(super) async fn last_line(engine: &Docker, container: &str) -> Result<Option<String>, Failure> {
    Ok(lines(engine, container, 1, true).await?.pop())
}

/// The last lines on standard error.
pub(super) async fn last_words(engine: &Docker, container: &str) -> Result<Vec<String>, Failure> {
    let mut lines = lines(engine, container, LAST_WORDS, false).await?;
    lines.drain(..lines.len().saturating_sub(LAST_WORDS));
    Ok(lines)
}

/// The last lines of one of the two outputs. The engine counts the lines of both together, so a first answer may lack
/// lines that a longer one has.
async fn lines(engine: &Docker, container: &str, count: usize, is_stdout: bool) -> Result<Vec<String>, Failure> {
    const TAILS: [&str; 3] = ["100", "5000", "all"];
    let mut found = Vec::new();
    for tail in TAILS {
        found = lines_of(engine, container, tail, is_stdout).await?;
        if found.len() >= count {
            break;
        }
    }
    Ok(found)
}

/// The lines of one output among the last ones of both.
async fn lines_of(engine: &Docker, container: &str, tail: &str, is_stdout: bool) -> Result<Vec<String>, Failure> {
    let options = LogsOptionsBuilder::default()
        .stdout(is_stdout)
        .stderr(!is_stdout)
        .tail(tail)
        .build();
    let mut frames = engine.logs(container, Some(options));
    // Frames are not lines: long lines come in pieces.
    let mut text = Vec::new();
    while let Some(frame) = frames.next().await {
        let frame = frame.map_err(|error| failure("cannot read the output of the sandbox", &error))?;
        if let LogOutput::StdOut { message } | LogOutput::StdErr { message } = frame {
            text.extend_from_slice(&message);
        }
    }
    let text = String::from_utf8_lossy(&text);
    let shortened = |line: &str| line.chars().take(LONGEST).collect();
    Ok(text.lines().map(shortened).collect())
}
