//! Checks the commands in the documents: that all of them parse, and that each block of a session says whether a test runs
//! it. Only a test: it reads the documents.
//!
//! A block of ```` ```console ```` has a mark on the line before it: `<!-- run by tests/FILE.rs -->`, or `<!-- not run: REASON -->`.
//! Its commands follow a prompt (`$`, or `#` for root). A block of ```` ```text ```` needs no mark, and its commands begin their lines.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::error::ContextKind;

use super::{command, command_line};

mod shell;

/// The files and directories with the documents of users.
const DOCUMENTS: [&str; 4] = ["README.md", "docs", "kata", "recipes"];

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A line of a document.
#[derive(Debug)]
struct Line {
    /// The document, as seen from the root of the repository.
    file: String,
    number: usize,
    text: String,
}

impl Line {
    fn fault(&self, what: impl std::fmt::Display) -> String {
        format!("{}:{}: {what}", self.file, self.number)
    }
}

#[derive(Debug)]
struct Block {
    /// What stands before it.
    mark: Line,
    is_session: bool,
    lines: Vec<Line>,
}

impl Block {
    /// The commands in it. Lines that end with a backslash or within a quotation are joined with the next ones.
    fn commands(&self) -> Vec<Line> {
        let mut commands = Vec::new();
        let mut lines = self.lines.iter().peekable();
        while let Some(line) = lines.next() {
            let Some(begun) = self.command(line) else { continue };
            let mut text = begun.to_owned();
            while (text.ends_with('\\') || shell::simple_commands(&text).is_err())
                && let Some(more) = lines.next_if(|line| self.command(line).is_none())
            {
                text = format!("{}\n{}", text.trim_end_matches('\\'), more.text);
            }
            commands.push(Line {
                file: line.file.clone(),
                number: line.number,
                text,
            });
        }
        commands
    }

    /// The command that begins with a line.
    fn command<'a>(&self, line: &'a Line) -> Option<&'a str> {
        let text = &*line.text;
        if self.is_session {
            text.strip_prefix("$ ").or_else(|| text.strip_prefix("# "))
        } else {
            Some(text).filter(|text| text.starts_with("kiln "))
        }
    }
}

/// The blocks of a document with sessions or commands.
fn blocks(file: &str, text: &str) -> Vec<Block> {
    let mut lines = text.lines().enumerate().map(|(index, text)| Line {
        file: file.to_owned(),
        number: index + 1,
        text: text.to_owned(),
    });
    let mut blocks = Vec::new();
    let mut before = None;
    while let Some(line) = lines.next() {
        let fence = line.text.trim_start();
        let indent = line.text.len() - fence.len();
        let is_session = fence == "```console";
        if !is_session && fence != "```text" {
            before = Some(line);
            continue;
        }
        let mut inside = Vec::new();
        for mut line in lines.by_ref() {
            line.text = line.text.get(indent..).unwrap_or_default().to_owned();
            if line.text == "```" {
                break;
            }
            inside.push(line);
        }
        blocks.push(Block {
            mark: before.take().unwrap_or(line),
            is_session,
            lines: inside,
        });
    }
    blocks
}

/// What is wrong with the mark of a block.
fn fault_of_mark(mark: &Line) -> Option<String> {
    let said = mark.text.trim();
    let said = said
        .strip_prefix("<!-- ")
        .and_then(|said| said.strip_suffix(" -->"))
        .unwrap_or_default();
    if let Some(reason) = said.strip_prefix("not run: ") {
        return reason.trim().is_empty().then(|| mark.fault("there is no reason"));
    }
    let Some(runner) = said.strip_prefix("run by ") else {
        return Some(
            mark.fault("`<!-- not run: REASON -->` or `<!-- run by tests/FILE.rs -->` is missing before a block"),
        );
    };
    let text = fs_err::read_to_string(Path::new(ROOT).join(runner)).unwrap_or_default();
    (!runner.starts_with("tests/") || !text.contains(&mark.file))
        .then(|| mark.fault(format_args!("there is no {runner} that names {}", mark.file)))
}

/// What is wrong with the commands of Kiln on a command line. A value that is not written out may be any.
fn faults_of_commands(line: &Line) -> Vec<String> {
    let Ok(commands) = shell::simple_commands(&line.text) else {
        return vec![line.fault("a quotation has no end")];
    };
    let of_kiln = commands.iter().filter_map(|words| shell::run_program(words, "kiln"));
    let parse = |words: &[String]| {
        let words = command_line::tidy(words.iter().map(OsString::from));
        let error = command().try_get_matches_from(words).err()?;
        let value = error.get(ContextKind::InvalidValue).map(ToString::to_string);
        (!value.is_some_and(|value| value.contains(shell::LEFT_OUT))).then_some(error)
    };
    of_kiln
        .filter_map(parse)
        .map(|error| line.fault(format_args!("{}\n{error}", line.text)))
        .collect()
}

/// The documents at a path and below it, without those that a build made.
fn documents(at: &Path, found: &mut Vec<PathBuf>) {
    if at.is_dir() {
        for entry in fs_err::read_dir(at).unwrap() {
            documents(&entry.unwrap().path(), found);
        }
    } else if at.extension().is_some_and(|extension| extension == "md") {
        found.push(at.to_owned());
    }
}

fn all_blocks() -> Vec<Block> {
    let mut found = Vec::new();
    for document in DOCUMENTS {
        documents(&Path::new(ROOT).join(document), &mut found);
    }
    found.sort();
    let read = |path: &PathBuf| {
        let file = path.strip_prefix(ROOT).unwrap().to_str().unwrap();
        blocks(file, &fs_err::read_to_string(path).unwrap())
    };
    found.iter().flat_map(read).collect()
}

fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn every_session_in_the_documents_is_run_or_says_why_not() {
    let blocks = all_blocks();
    let sessions = || blocks.iter().filter(|block| block.is_session);
    assert!(sessions().count() > 40, "the blocks are not found");
    let mut faults: Vec<String> = sessions().filter_map(|block| fault_of_mark(&block.mark)).collect();
    let empty = sessions().filter(|block| block.commands().is_empty());
    faults.extend(empty.map(|block| block.mark.fault("there is no prompt (`$ `) in the block after this")));
    assert_none(&faults);
}

#[test]
fn every_command_in_the_documents_parses() {
    let commands: Vec<Line> = all_blocks().iter().flat_map(Block::commands).collect();
    let of_kiln = commands.iter().filter(|line| line.text.contains("kiln "));
    assert!(of_kiln.count() > 60, "the commands are not found");
    let faults: Vec<String> = commands.iter().flat_map(faults_of_commands).collect();
    assert_none(&faults);
}

#[test]
fn what_is_wrong_is_found_and_where() {
    let text = "Text.\n\n  ```console\n  $ kiln images list --no-such\n  kiln nonsense\n  $ A=b kiln jobs \\\n      lost | cat\n  ```\n\n\
                <!-- not run:  -->\n```console\n# ls && kiln man . > kiln\n```\n\n\
                <!-- run by tests/nothing.rs -->\n```console\n$ echo \"$(target/kiln nothing)\" # kiln\n```\n\
                ```text\nkiln version\n kiln drawn\nkiln tokens delete 2f…\nkiln build x --memory $(free)\n```\n";
    let blocks = blocks("docs/x.md", text);
    let marks: Vec<_> = blocks.iter().filter(|block| block.is_session).collect();
    let marks: Vec<_> = marks.iter().filter_map(|block| fault_of_mark(&block.mark)).collect();
    assert_eq!(
        marks,
        [
            "docs/x.md:2: `<!-- not run: REASON -->` or `<!-- run by tests/FILE.rs -->` is missing before a block",
            "docs/x.md:10: there is no reason",
            "docs/x.md:15: there is no tests/nothing.rs that names docs/x.md",
        ]
    );
    let commands: Vec<Line> = blocks.iter().flat_map(Block::commands).collect();
    let faults: Vec<_> = commands.iter().flat_map(faults_of_commands).collect();
    let starts: Vec<_> = faults
        .iter()
        .filter_map(|fault| fault.split_once("\nerror: "))
        .collect();
    let starts: Vec<_> = starts
        .iter()
        .map(|(at, said)| format!("{at} => {}", said.lines().next().unwrap_or_default()))
        .collect();
    assert_eq!(
        starts,
        [
            "docs/x.md:4: kiln images list --no-such => unexpected argument '--no-such' found",
            "docs/x.md:6: A=b kiln jobs \n    lost | cat => unrecognized subcommand 'lost'",
            "docs/x.md:17: echo \"$(target/kiln nothing)\" # kiln => unrecognized subcommand 'nothing'",
            "docs/x.md:20: kiln version => unrecognized subcommand 'version'",
        ]
    );
}
