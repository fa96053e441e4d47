//! `kiln jobs explain`: what a build reused of earlier ones, how each program of an emulated build was run, and why. Talks
//! to the server.

use std::{cmp::Reverse, collections::BTreeMap, fmt::Write};

use bytesize::ByteSize;
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
        let status = session.client.job_status(&job).await?;
        if let Some(text) = reuse(status.get("layer")).filter(|_| self.program.is_none()) {
            session.printer.result(text);
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

/// What was reused of an earlier job, or why nothing was.
fn reuse(layer: &Data) -> Option<String> {
    let outcome = match layer.text("outcome")? {
        "reused" => "reused: the root after all packages is that of an earlier job",
        "extended" => "extended: packages were installed in the root of an earlier job of a similar recipe",
        "kept" => "kept: the packages were installed, and later jobs can start from this root",
        "passed" => "none: the packages were installed",
        "image" => "image: nothing was made, since this is a copy of an earlier image",
        other => other,
    };
    let mut text = format!("layer      {outcome}");
    if let Some(why) = layer.text("why") {
        let before = if layer.text("outcome") == Some("extended") {
            ":"
        } else {
            ", since"
        };
        let _ = write!(text, "{before} {why}");
    }
    if let Some(size) = layer.number("size") {
        let _ = write!(text, " ({})", ByteSize(size));
    }
    if let Some(image) = layer.text("image") {
        let _ = write!(text, ", {image}");
    }
    for repository in layer.items("repositories") {
        let [metadata, sha256] = ["metadata", "sha256"].map(|name| repository.text(name).unwrap_or_default());
        let _ = write!(
            text,
            "\nrepository {metadata}, SHA-256 {}…",
            sha256.get(..12).unwrap_or(sha256)
        );
    }
    Some(text)
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
    fn what_was_reused_is_said_with_its_reason() {
        let layer = |text: &str| reuse(&serde_json::from_str(text).unwrap());
        assert_eq!(layer("null"), None);
        let passed = layer(r#"{"outcome":"passed","why":"there is a post_bootstrap.sh","repositories":[]}"#);
        insta::assert_snapshot!(passed.unwrap(), @"layer      none: the packages were installed, since there is a post_bootstrap.sh");
        let reused = layer(
            r#"{"outcome":"reused","size":3221225472,"repositories":
                [{"metadata":"http://deb.debian.org/InRelease","sha256":"0123456789abcdef"}]}"#,
        );
        insta::assert_snapshot!(reused.unwrap(), @"
        layer      reused: the root after all packages is that of an earlier job (3.0 GiB)
        repository http://deb.debian.org/InRelease, SHA-256 0123456789ab…
        ");
    }

    #[test]
    fn a_program_is_found_by_name_or_path() {
        assert_eq!(called(&answer(), "arch").unwrap().len(), 2);
        assert_eq!(called(&answer(), "/usr/bin/arch").unwrap().len(), 1);
        assert_eq!(called(&answer(), "other").unwrap_err().code, Code::RecordUnknown);
    }
}
