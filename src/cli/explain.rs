//! `kiln jobs explain`: how each program of an emulated build was run, and why. Talks to the server.

use std::{cmp::Reverse, collections::BTreeMap, fmt::Write};

use clap::Args;
use kiln_records::{Code, Failure};

use super::{
    records::{Which, missing},
    session::Session,
};
use crate::client::{
    Data,
    collection::{JOBS, PROGRAMS},
};

#[derive(Debug, Args)]
pub(super) struct Explain {
    #[command(flatten)]
    which: Which,

    /// Show only the programs with this name or path.
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    program: Option<String>,

    /// Show every program, not only those that were emulated.
    #[arg(long)]
    all: bool,
}

impl Explain {
    pub(super) async fn run(self, session: &Session) -> Result<(), Failure> {
        let job = session.client.find(&JOBS, &self.which.id).await?.id;
        let answer = session.client.job_programs(&job).await;
        let answer = answer.map_err(|failure| missing(&JOBS, failure))?;
        if session.wants_data() && self.program.is_none() {
            return session.show(&answer);
        }
        let is_recorded = *answer.get("recorded") == Data::Bool(true);
        if !is_recorded {
            session.printer.result(answer.text("note").unwrap_or_default());
            return Ok(());
        }
        if let Some(name) = &self.program {
            return session.show_table(&PROGRAMS, called(&answer, name)?);
        }
        session.printer.result(summary(&answer));
        if self.all {
            return session.show_table(&PROGRAMS, programs(&answer).cloned().collect());
        }
        let emulated = emulated(&answer);
        if !emulated.is_empty() {
            session.printer.result(emulated);
        }
        Ok(())
    }
}

fn programs(answer: &Data) -> impl Iterator<Item = &Data> {
    answer.items("programs").iter()
}

/// The programs with this name, or the one at this path.
fn called(answer: &Data, name: &str) -> Result<Vec<Data>, Failure> {
    let is_it = |program: &&Data| {
        let path = program.text("path").unwrap_or_default();
        path == name || path.rsplit('/').next() == Some(name)
    };
    let found: Vec<_> = programs(answer).filter(is_it).cloned().collect();
    if found.is_empty() {
        return Err(Failure::new(
            Code::RecordUnknown,
            format!("no program `{name}` was considered for a native twin"),
        )
        .hint("the list has the programs of packages, by their own paths, as long as they are unchanged; all others are emulated"));
    }
    Ok(found)
}

/// How many programs were run in each way.
fn summary(answer: &Data) -> String {
    let counts = answer.get("counts");
    let count = |name: &str| counts.number(name).unwrap_or_default();
    let mut text = format!(
        "twins      {} by rule, {} by entry\nemulated   {}",
        count("by_rule"),
        count("by_entry"),
        count("emulated")
    );
    if let Some(note) = answer.text("note") {
        let _ = write!(text, "\nnote       {note}");
    }
    let omitted = answer.number("omitted").unwrap_or_default();
    if omitted > 0 {
        let _ = write!(text, "\nnote       {omitted} further programs are left out");
    }
    text
}

/// The emulated programs by reason, the most frequent reason first.
fn emulated(answer: &Data) -> String {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for program in programs(answer).filter(|program| *program.get("twin") == Data::Bool(false)) {
        let why = program.text("why").unwrap_or_default();
        let paths = by_reason.entry(why).or_default();
        paths.push(program.text("path").unwrap_or_default());
    }
    let mut reasons: Vec<_> = by_reason.into_iter().collect();
    reasons.sort_by_key(|(_, paths)| Reverse(paths.len()));
    let mut text = String::new();
    for (why, paths) in reasons {
        let _ = write!(text, "\n{} emulated: {why}", paths.len());
        for path in paths {
            let _ = write!(text, "\n  {path}");
        }
        text.push('\n');
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Data {
        let program = |path: &str, twin: bool, why: &str| {
            format!(r#"{{"path":"{path}","package":"p","version":"1","twin":{twin},"why":"{why}"}}"#)
        };
        let programs = [
            program(
                "/usr/bin/arch",
                false,
                "the table says emulated: it says what the machine is",
            ),
            program("/usr/bin/dot", false, "found in it: dlopen"),
            program("/usr/bin/sed", true, "twin by entry: text in, text out"),
            program(
                "/usr/bin/uname",
                false,
                "the table says emulated: it says what the machine is",
            ),
            program("/usr/sbin/arch", true, "twin by rule"),
        ];
        let text = format!(
            r#"{{"recorded":true,"note":"a note","counts":{{"by_rule":1,"by_entry":1,"emulated":3}},
                "omitted":2,"programs":[{}]}}"#,
            programs.join(",")
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn the_most_frequent_reason_comes_first() {
        insta::assert_snapshot!(format!("{}\n{}", summary(&answer()), emulated(&answer())), @"
        twins      1 by rule, 1 by entry
        emulated   3
        note       a note
        note       2 further programs are left out

        2 emulated: the table says emulated: it says what the machine is
          /usr/bin/arch
          /usr/bin/uname

        1 emulated: found in it: dlopen
          /usr/bin/dot
        ");
    }

    #[test]
    fn a_program_is_found_by_name_or_path() {
        assert_eq!(called(&answer(), "arch").unwrap().len(), 2);
        assert_eq!(called(&answer(), "/usr/bin/arch").unwrap().len(), 1);
        assert_eq!(called(&answer(), "other").unwrap_err().code, Code::RecordUnknown);
    }
}
