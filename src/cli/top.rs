//! `kiln top`: what waits, what runs and what the places have, on one screen that follows the server. Talks to the server
//! and the terminal.

use std::{fmt::Write, io::IsTerminal, time::Duration};

use bytesize::ByteSize;
use clap::Args;
use dialoguer::console::Term;
use kiln_records::{Failure, Moment};
use reqwest::Method;

use super::{
    format::{table, terminal_width},
    printer::Printer,
    session::{ServerOptions, Session},
};
use crate::client::{
    Collection, Data,
    collection::{TOP_JOBS, TOP_PLACES, TOP_QUEUE},
};

/// The most jobs of each list where no terminal limits them.
const MOST: usize = 200;

/// The fewest of each list on a terminal, however low it is.
const FEWEST: usize = 3;

#[derive(Debug, Args)]
pub(super) struct TopArguments {
    /// Print the overview once.
    #[arg(long)]
    once: bool,

    /// The seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,

    #[command(flatten)]
    options: ServerOptions,
}

impl TopArguments {
    pub(super) async fn run(self, printer: &Printer) -> Result<(), Failure> {
        let session = self.options.open(printer)?;
        if session.wants_data() {
            return session.show(&look(&session).await?);
        }
        if self.once || !std::io::stdout().is_terminal() {
            printer.result(screen(&look(&session).await?, MOST, terminal_width()));
            return Ok(());
        }
        follow(&session, Duration::from_secs(self.every)).await
    }
}

async fn look(session: &Session) -> Result<Data, Failure> {
    let path = ["kiln", "v1", "overview"];
    session.client.send(Method::GET, &path, &[], None).await
}

/// Shows the overview again and again. A server that is away for a while is waited for, once it has answered.
async fn follow(session: &Session, every: Duration) -> Result<(), Failure> {
    let terminal = Term::stdout();
    let failed = |error: std::io::Error| Failure::io("cannot write to the terminal", &error);
    let mut overview = look(session).await?;
    let mut trouble = None;
    loop {
        let (height, width) = terminal.size();
        // Headings, empty lines and the lines that count what is left out.
        let rest = usize::from(height).saturating_sub(11 + overview.items("places").len());
        let mut text = screen(&overview, (rest / 2).max(FEWEST), Some(usize::from(width)));
        if let Some(trouble) = &trouble {
            text = format!("{trouble}; trying again\n{text}");
        }
        terminal.clear_screen().map_err(failed)?;
        terminal.write_line(&text).map_err(failed)?;
        tokio::time::sleep(every).await;
        match look(session).await {
            Ok(now) => (overview, trouble) = (now, None),
            Err(failure) if failure.code.is_passing() => trouble = Some(failure),
            Err(failure) => return Err(failure),
        }
    }
}

/// The whole screen, with so many jobs of each list at most, and no wider than this.
fn screen(overview: &Data, most: usize, width: Option<usize>) -> String {
    let now = overview.text("now").and_then(|now| now.parse().ok());
    let count = |member| overview.number(member).unwrap_or_default();
    let mut text = format!("{} running, {} waiting", count("running"), count("queued"));
    if count("unread") > 0 {
        let unread = count("unread");
        let _ = write!(
            text,
            ", {unread} of another version of Kiln, which this server cannot read"
        );
    }
    text.push('\n');
    let places = overview.items("places").iter().map(place);
    let all = overview.items("places").len();
    section(
        &mut text,
        (&TOP_PLACES, places.collect()),
        all as u64,
        (usize::MAX, width),
    );
    let jobs = overview.items("jobs").iter().map(|job| running(job, now));
    section(&mut text, (&TOP_JOBS, jobs.collect()), count("running"), (most, width));
    let queue = overview.items("queue").iter().map(|job| waiting(job, now));
    section(&mut text, (&TOP_QUEUE, queue.collect()), count("queued"), (most, width));
    text.trim_end().to_owned()
}

/// Adds a table of so many rows at most, and no wider than this, unless it is empty. There are `all` in all.
fn section(
    text: &mut String,
    (collection, mut rows): (&Collection, Vec<Data>),
    all: u64,
    (most, width): (usize, Option<usize>),
) {
    if rows.is_empty() {
        return;
    }
    rows.truncate(most);
    let _ = writeln!(text, "\n{}", table(collection, &rows, width).trim_end());
    let left_out = all.saturating_sub(rows.len() as u64);
    if left_out > 0 {
        let _ = writeln!(text, "… and {left_out} more");
    }
}

fn place(place: &Data) -> Data {
    let bytes = |member| place.number(member).map(|bytes| ByteSize(bytes).to_string());
    let disk = match (bytes("disk_free_bytes"), bytes("disk_total_bytes")) {
        (Some(free), Some(total)) => Some(format!("{free} of {total}")),
        _ => None,
    };
    let is = match place.get("usable") {
        Data::Bool(true) => "ready",
        Data::Bool(false) => "cannot be used",
        _ => place.text("awaits").unwrap_or("not looked at yet"),
    };
    row([
        ("name", place.get("name").clone()),
        ("arch", place.get("arch").clone()),
        ("is", Data::Text(is.to_owned())),
        ("jobs", place.get("jobs").clone()),
        ("cpus", place.get("cpus").clone()),
        ("memory", text(bytes("memory_bytes"))),
        ("disk", text(disk)),
    ])
}

fn running(job: &Data, now: Option<Moment>) -> Data {
    let state = job.text("state").unwrap_or_default();
    let step = job.text("step").filter(|_| state == "running").unwrap_or(state);
    let percent = job.number("percent").filter(|_| state == "running");
    let heard = job.number("heard_s").map(span);
    row([
        ("id", job.get("id").clone()),
        ("name", job.get("name").clone()),
        ("arch", job.get("arch").clone()),
        ("how", job.get("how").clone()),
        ("step", Data::Text(step.to_owned())),
        ("done", text(percent.map(|percent| format!("{percent}%")))),
        ("place", job.get("place").clone()),
        ("for", text(since(job, "started", now))),
        ("heard", text(heard.map(|heard| format!("{heard} ago")))),
        ("waits", job.get("waits").clone()),
    ])
}

fn waiting(job: &Data, now: Option<Moment>) -> Data {
    row([
        ("id", job.get("id").clone()),
        ("name", job.get("name").clone()),
        ("arch", job.get("arch").clone()),
        ("for", text(since(job, "created", now))),
        ("reason", job.get("reason").clone()),
    ])
}

/// The time from a member of a job to the answer, by the server's clock.
fn since(job: &Data, member: &str, now: Option<Moment>) -> Option<String> {
    let then: Moment = job.text(member)?.parse().ok()?;
    let micros = now?.micros().saturating_sub(then.micros());
    Some(span(u64::try_from(micros).unwrap_or_default() / 1_000_000))
}

/// A length of time in its two largest units.
fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

fn text(text: Option<String>) -> Data {
    text.map_or(Data::Null, Data::Text)
}

fn row<const N: usize>(members: [(&str, Data); N]) -> Data {
    Data::Map(members.map(|(name, data)| (name.to_owned(), data)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVERVIEW: &str = r#"{"now": "2026-11-20T13:00:00.000000+00:00", "queued": 4, "running": 2, "unread": 0,
        "queue": [
            {"id": "q1", "name": "compute\u001b[31m", "arch": "aarch64", "waits_for": "memory", "created": "2026-11-20T12:00:30.000000+00:00",
             "reason": "needs 4.0 GiB of memory; 3.0 GiB is free now"},
            {"id": "q2", "name": "login", "arch": "x86_64", "waits_for": null, "created": "2026-11-20T13:00:01.000000+00:00", "reason": null},
            {"id": "q3", "name": "c", "arch": "x86_64", "waits_for": "turn", "created": "2026-11-18T12:00:00.000000+00:00", "reason": "its turn is after job q1"}],
        "jobs": [
            {"id": "j1", "name": "base", "arch": "aarch64", "state": "running", "step": "build", "percent": 42, "how": "emulated",
             "place": "local", "attempt": 1, "started": "2026-11-20T12:47:55.000000+00:00", "heard_s": 4, "waits": null},
            {"id": "j2", "name": "slow", "arch": "x86_64", "state": "launching", "step": null, "percent": null, "how": "native",
             "place": "kubernetes-x86_64", "attempt": 2, "started": "2026-11-20T12:59:00.000000+00:00", "heard_s": null, "waits": "no node has room"}],
        "places": [
            {"name": "local", "arch": "x86_64", "usable": true, "jobs": 1, "cpus": 4, "memory_bytes": 19327352832, "disk_free_bytes": 107374182400, "disk_total_bytes": 214748364800},
            {"name": "x3000c0s1b0n0", "arch": "aarch64", "usable": false, "jobs": 0, "cpus": null, "memory_bytes": null, "disk_free_bytes": null, "disk_total_bytes": null},
            {"name": "x3000c0s2b0n0", "arch": "aarch64", "usable": null, "awaits": "the toolbox for aarch64 is being built", "jobs": 0}]}"#;

    #[test]
    fn one_screen_says_it_all() {
        let overview = serde_json::from_str(OVERVIEW).unwrap();
        insta::assert_snapshot!(screen(&overview, 2, None));
    }

    #[test]
    fn an_idle_server_has_an_almost_empty_screen() {
        let overview = r#"{"now": "2026-11-20T13:00:00Z", "queued": 0, "running": 0, "queue": [], "jobs": [], "places": [], "unread": 1}"#;
        assert_eq!(
            screen(&serde_json::from_str(overview).unwrap(), 2, Some(80)),
            "0 running, 0 waiting, 1 of another version of Kiln, which this server cannot read"
        );
    }

    #[test]
    fn times_have_two_units() {
        for (seconds, text) in [(0, "0s"), (61, "1m 01s"), (3660, "1h 01m"), (180_000, "2d 02h")] {
            assert_eq!(span(seconds), text);
        }
    }
}
