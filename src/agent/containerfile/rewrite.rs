//! Rewrites a Containerfile so that buildah 1.39 makes of it what its author means, and refuses by name what buildah would pass over.
//! Pure: no I/O.
//!
//! * One `FROM --platform` is taken over for all later stages, which would then be of another architecture than the image. So each
//!   base has its own platform, if one has.
//! * `COPY --link` and `RUN --security=sandbox` say how to build, and not what; buildah refuses them.
//! * `ADD` of a git repository copies the context if the clone fails, and `RUN --mount=type=ssh` mounts nothing: both without a word.
//!
//! Bases in files are relative to the context, and buildah runs elsewhere.
//!
//! No line is added or removed, so that messages have the numbers of the author's lines.

use std::{collections::BTreeSet, path::Path};

use kiln_records::{Code, Failure};

/// How bases in files begin.
const FORMS: [&str; 4] = ["oci:", "oci-archive:", "docker-archive:", "dir:"];

/// The file for buildah, with bases in files of this context. `values` are those of the job, which words of it may stand for.
///
/// # Errors
///
/// `containerfile_invalid` for what buildah does not do.
pub(super) fn rewritten<'v>(
    text: &str,
    (platform, context): (&str, &Path),
    values: impl Iterator<Item = &'v str>,
) -> Result<String, Failure> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines: Vec<String> = text.split('\n').map(str::to_owned).collect();
    let instructions = instructions(&lines);
    refuse(&instructions, values)?;
    for instruction in &instructions {
        let dropped: &[&str] = match instruction.name.as_str() {
            "COPY" | "ADD" => &["--link", "--link=true", "--link=false"],
            "RUN" => &["--security=sandbox"],
            _ => &[],
        };
        let is_dropped = |word: &&Word| dropped.contains(&word.text.as_str());
        let mut changes: Vec<(&Word, String)> = instruction
            .flags()
            .filter(is_dropped)
            .map(|word| (word, String::new()))
            .collect();
        if ["FROM", "ARG"].contains(&instruction.name.as_str()) {
            changes.extend(instruction.words.iter().filter_map(|word| {
                let (before, base) = word.text.split_once('=').unwrap_or(("", &word.text));
                let equals = &word.text[before.len()..word.text.len() - base.len()];
                Some((word, format!("{before}{equals}{}", located(base, context)?)))
            }));
        }
        // From the end, so that no place moves before it is used.
        for (word, text) in changes.into_iter().rev() {
            if let Some(line) = lines.get_mut(word.line) {
                line.replace_range(word.at..word.at + word.text.len(), &text);
            }
        }
    }
    // At the beginning of lines, before all that was changed.
    name_platforms(&mut lines, &instructions, platform);
    Ok(lines.join("\n"))
}

/// A base in files of the context with its whole path; none if this is no such base.
pub(super) fn located(base: &str, context: &Path) -> Option<String> {
    let form = FORMS.iter().find(|form| base.starts_with(**form))?;
    let path = Path::new(&base[form.len()..]);
    path.is_relative()
        .then(|| format!("{form}{}", context.join(path).display()))
}

/// An instruction, without comments and heredocs.
struct Instruction {
    /// Its name, in upper case.
    name: String,
    /// Its words, the name among them.
    words: Vec<Word>,
}

struct Word {
    text: String,
    /// The number of its line, from 0, and its place there.
    line: usize,
    at: usize,
}

impl Instruction {
    /// The options before everything else.
    fn flags(&self) -> impl Iterator<Item = &Word> {
        self.words.iter().skip(1).take_while(|word| word.text.starts_with("--"))
    }

    /// What follows the options.
    fn arguments(&self) -> impl Iterator<Item = &str> {
        let words = self.words.iter().skip(1).map(|word| word.text.as_str());
        words.skip_while(|word| word.starts_with("--"))
    }
}

/// The instructions of a file.
fn instructions(lines: &[String]) -> Vec<Instruction> {
    let escape = escape(lines);
    let mut found: Vec<Instruction> = Vec::new();
    let mut is_continued = false;
    let mut heredocs: Vec<String> = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let line = line.trim_end_matches('\r');
        if let Some(end) = heredocs.first() {
            if line.trim_start_matches('\t') == end {
                heredocs.remove(0);
            }
            continue;
        }
        let plain = line.trim();
        // A comment or an empty line between continued lines does not end them.
        if plain.starts_with('#') || plain.is_empty() {
            continue;
        }
        let begins = !is_continued;
        is_continued = plain.ends_with(escape);
        heredocs.extend(heredocs_of(plain));
        let words = words_of(line, number, escape);
        if begins {
            let name = words.first().map(|word| word.text.to_uppercase()).unwrap_or_default();
            found.push(Instruction { name, words });
        } else if let Some(last) = found.last_mut() {
            last.words.extend(words);
        }
    }
    found
}

/// The words of a line, without the character that continues it.
fn words_of(line: &str, number: usize, escape: char) -> Vec<Word> {
    let rest = line.trim_end();
    let rest = rest.strip_suffix(escape).unwrap_or(rest);
    let mut words = Vec::new();
    let mut at = 0;
    for piece in rest.split_inclusive(char::is_whitespace) {
        let text = piece.trim_end();
        if !text.is_empty() {
            words.push(Word {
                text: text.to_owned(),
                line: number,
                at,
            });
        }
        at += piece.len();
    }
    words
}

/// Refuses what buildah passes over.
fn refuse<'v>(instructions: &[Instruction], values: impl Iterator<Item = &'v str>) -> Result<(), Failure> {
    let invalid = |instruction: &Instruction, why: &str, hint: &str| {
        let line = instruction.words.first().map_or(0, |word| word.line);
        let text = format!("line {}, `{}`: {why}", line + 1, instruction.name);
        Err(Failure::new(Code::ContainerfileInvalid, text).hint(hint))
    };
    let mut named: Vec<&str> = values.collect();
    let defaults = instructions
        .iter()
        .filter(|one| ["ARG", "ENV"].contains(&one.name.as_str()));
    named.extend(
        defaults
            .flat_map(Instruction::arguments)
            .flat_map(|word| word.split('=')),
    );
    let some_value_is_git = named.into_iter().any(is_git);
    for instruction in instructions {
        let has = |flag: &str| instruction.flags().any(|word| word.text.contains(flag));
        match instruction.name.as_str() {
            "RUN" if has("--security=insecure") => {
                return invalid(
                    instruction,
                    "--security=insecure is not supported: commands have the rights of the sandbox",
                    "leave it out",
                );
            }
            "RUN" if has("type=ssh") => {
                return invalid(
                    instruction,
                    "mounts of the type ssh are not supported",
                    "give it the key as a secret: `RUN --mount=type=secret,id=key,mode=0400`",
                );
            }
            "ADD"
                if instruction
                    .arguments()
                    .any(|word| is_git(word) || word.contains('$') && some_value_is_git) =>
            {
                return invalid(
                    instruction,
                    "a git repository cannot be added",
                    "clone it in a RUN of a stage of its own, and copy from that",
                );
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether buildah would clone this (its `add.go`).
fn is_git(word: &str) -> bool {
    let word = word.trim_matches(['"', '\'', ',', '[', ']']);
    let (bare, _) = word.split_once('#').unwrap_or((word, ""));
    let is_address = word.contains("://") || word.starts_with("git@") || word.starts_with("github.com/");
    word.starts_with("git://")
        || word.starts_with("git@")
        || is_address && bare.rsplit_once('.').is_some_and(|(_, ending)| ending == "git")
}

/// Writes the platform into each `FROM` of an image, if one of them has one.
fn name_platforms(lines: &mut [String], instructions: &[Instruction], platform: &str) {
    let froms: Vec<&Instruction> = instructions.iter().filter(|one| one.name == "FROM").collect();
    let has_platform = |from: &Instruction| from.flags().any(|word| word.text.starts_with("--platform"));
    if !froms.iter().any(|from| has_platform(from)) {
        return;
    }
    let mut stages = BTreeSet::new();
    for from in froms {
        let arguments: Vec<&str> = from.arguments().collect();
        let is_image = arguments
            .first()
            .is_some_and(|base| *base != "scratch" && !stages.contains(&base.to_lowercase()));
        if is_image
            && !has_platform(from)
            && let Some(name) = from.words.first()
            && let Some(line) = lines.get_mut(name.line)
        {
            line.insert_str(name.at + name.text.len(), &format!(" --platform={platform}"));
        }
        if let [.., before, name] = arguments.as_slice()
            && before.eq_ignore_ascii_case("AS")
        {
            stages.insert(name.to_lowercase());
        }
    }
}

/// The character that continues a line, which a directive at the top may name.
fn escape(lines: &[String]) -> char {
    let directives = lines.iter().map_while(|line| line.trim().strip_prefix('#'));
    let mut named = directives.filter_map(|directive| directive.split_once('='));
    let escape = named.find(|(name, _)| name.trim().eq_ignore_ascii_case("escape"));
    escape
        .and_then(|(_, value)| value.trim().chars().next())
        .unwrap_or('\\')
}

/// The lines that end the heredocs that a line begins.
fn heredocs_of(line: &str) -> Vec<String> {
    let mut ends = Vec::new();
    for (_, rest) in line.match_indices("<<").map(|(at, _)| (at, &line[at + 2..])) {
        let rest = rest.strip_prefix('-').unwrap_or(rest);
        let quote = rest.chars().next().filter(|first| "'\"".contains(*first));
        let word = rest.trim_start_matches(['\'', '"']);
        let word: String = word
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || "_-.".contains(*c))
            .collect();
        let is_word = word
            .chars()
            .next()
            .is_some_and(|first| first.is_ascii_alphabetic() || first == '_');
        if is_word && (quote.is_some() || !rest.starts_with('<')) {
            ends.push(word);
        }
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str) -> Result<String, String> {
        rewritten(text, ("linux/arm64", Path::new("/c")), std::iter::empty()).map_err(|failure| failure.detail)
    }

    #[test]
    fn every_base_has_its_platform_where_one_has() {
        let text = "# syntax=docker/dockerfile:1\nFROM --platform=$BUILDPLATFORM golang AS tool\nRUN <<EOF\nselect x\nFROM table\nEOF\n\
                    from debian as base\nRUN echo \\\nFROM nothing \\\n# a comment\n\nFROM either\nFROM base\nFROM scratch\nCOPY --from=tool /x /\n  FROM tool AS last";
        let expected = text.replace("from debian", "from --platform=linux/arm64 debian");
        assert_eq!(with(text), Ok(expected.clone()));
        // As editors of Windows write it.
        let windows = |text: &str| format!("\u{feff}{}", text.replace('\n', "\r\n"));
        assert_eq!(with(&windows(text)), Ok(expected.replace('\n', "\r\n")));
        let plain = "FROM debian\nRUN true\n";
        assert_eq!(with(plain).as_deref(), Ok(plain));
    }

    #[test]
    fn another_character_may_continue_lines() {
        let text = "# escape=`\nFROM --platform=linux/amd64 a\nRUN x `\nFROM no\nRUN c:\\\nFROM b";
        let expected = text.replace("FROM b", "FROM --platform=linux/arm64 b");
        assert_eq!(with(text), Ok(expected));
    }

    #[test]
    fn options_that_say_only_how_are_dropped_and_files_found() {
        for (text, expected) in [
            ("COPY --link a b", "COPY  a b"),
            (
                "COPY --from=x --link=true \\\n  --chmod=644 a b",
                "COPY --from=x  \\\n  --chmod=644 a b",
            ),
            ("ADD \\\n --link a b", "ADD \\\n  a b"),
            ("RUN --security=sandbox echo --link", "RUN  echo --link"),
            (
                "ARG A=1 BASE=oci:base:1\nFROM oci:base AS x",
                "ARG A=1 BASE=oci:/c/base:1\nFROM oci:/c/base AS x",
            ),
            (
                "FROM --platform=p docker-archive:a.tar",
                "FROM --platform=p docker-archive:/c/a.tar",
            ),
            ("FROM oci:/abs", "FROM oci:/abs"),
            ("RUN echo --security=sandbox", "RUN echo --security=sandbox"),
            ("RUN <<EOF\nCOPY --link a b\nEOF", "RUN <<EOF\nCOPY --link a b\nEOF"),
        ] {
            assert_eq!(with(text).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn what_buildah_would_pass_over_is_refused() {
        for (text, says) in [
            ("FROM a\nADD https://h/x.git /src", "line 2, `ADD`: a git repository"),
            (
                "FROM a\nADD --keep-git-dir=true https://h/x.git#v1:sub /src",
                "a git repository",
            ),
            ("FROM a\nADD git@h:x /src", "a git repository"),
            (
                "FROM a\nARG REPO=https://h/x.git\nADD ${REPO}#v1 /src",
                "a git repository",
            ),
            ("FROM a\nRUN --mount=type=ssh \\\n git clone x", "type ssh"),
            ("FROM a\nRUN --security=insecure true", "--security=insecure"),
        ] {
            let refused = with(text).unwrap_err();
            assert!(refused.contains(says), "{text}: {refused}");
        }
        for text in [
            "ADD https://h/x.tar /src",
            "ADD $FILE /src",
            "RUN echo type=ssh x.git",
            "ADD x.git /src",
        ] {
            assert!(with(text).is_ok(), "{text}");
        }
        let value = rewritten(
            "ADD $X /src",
            ("linux/arm64", Path::new("/c")),
            ["https://h/x.git"].into_iter(),
        );
        assert_eq!(value.unwrap_err().code, Code::ContainerfileInvalid);
    }

    #[test]
    fn heredocs_are_told_from_shifts() {
        for (line, ends) in [
            ("RUN <<EOF", &["EOF"][..]),
            ("RUN <<-'END' cat && <<\"B\"", &["END", "B"]),
            ("RUN cat <<< word", &[]),
            ("RUN echo $((1 << 2))", &[]),
        ] {
            assert_eq!(heredocs_of(line), ends, "{line}");
        }
    }
}
