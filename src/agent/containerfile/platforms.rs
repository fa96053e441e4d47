//! Names the platform of every base of a Containerfile. Pure: no I/O.
//!
//! buildah 1.39 takes the platform that one `FROM --platform` names for all later stages, too, which would then be made of another
//! architecture than the image's. Where each names its own, nothing is taken over.

use std::collections::BTreeSet;

/// The Containerfile with a platform in each `FROM` of an image, if one of them has one; none if nothing is to be changed. No line is
/// added or removed.
pub(super) fn named(text: &str, platform: &str) -> Option<String> {
    let lines: Vec<&str> = text.split('\n').collect();
    let froms: Vec<(usize, Vec<&str>)> = instructions(&lines)
        .filter(|(_, words)| words.first().is_some_and(|word| word.eq_ignore_ascii_case("FROM")))
        .collect();
    let has_platform = |words: &[&str]| words.iter().any(|word| word.starts_with("--platform"));
    if !froms.iter().any(|(_, words)| has_platform(words)) {
        return None;
    }
    let mut named: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
    let mut stages = BTreeSet::new();
    for (number, words) in &froms {
        let base = words.iter().skip(1).find(|word| !word.starts_with("--"));
        let is_image = base.is_some_and(|base| *base != "scratch" && !stages.contains(&base.to_lowercase()));
        if is_image
            && !has_platform(words)
            && let Some(line) = named.get_mut(*number)
        {
            let begin = line.len() - line.trim_start().len() + "FROM".len();
            line.insert_str(begin, &format!(" --platform={platform}"));
        }
        if let [.., before, name] = words.as_slice()
            && before.eq_ignore_ascii_case("AS")
        {
            stages.insert(name.to_lowercase());
        }
    }
    Some(named.join("\n"))
}

/// The instructions: the number of the first line of each, from 0, and its words. Comments, continued lines and heredocs are none.
fn instructions<'a>(lines: &'a [&'a str]) -> impl Iterator<Item = (usize, Vec<&'a str>)> {
    let escape = escape(lines);
    let mut is_continued = false;
    let mut heredocs: Vec<String> = Vec::new();
    lines.iter().enumerate().filter_map(move |(number, line)| {
        if let Some(end) = heredocs.first() {
            if line.trim_start_matches('\t') == end {
                heredocs.remove(0);
            }
            return None;
        }
        let plain = line.trim();
        // A comment or an empty line between continued lines does not end them.
        if plain.starts_with('#') || plain.is_empty() {
            return None;
        }
        let begins = !is_continued;
        is_continued = plain.ends_with(escape);
        heredocs.extend(heredocs_of(plain));
        begins.then(|| (number, plain.split_whitespace().collect()))
    })
}

/// The character that continues a line, which a directive at the top may name.
fn escape(lines: &[&str]) -> char {
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

    #[test]
    fn every_base_has_its_platform_where_one_has() {
        let text = "# syntax=docker/dockerfile:1\nFROM --platform=$BUILDPLATFORM golang AS tool\nRUN <<EOF\nselect x\nFROM table\nEOF\n\
                    from debian as base\nRUN echo \\\nFROM nothing \\\n# a comment\n\nFROM either\nFROM base\nFROM scratch\nCOPY --from=tool /x /\n  FROM tool AS last";
        let expected = text.replace("from debian", "from --platform=linux/arm64 debian");
        assert_eq!(named(text, "linux/arm64"), Some(expected));
        assert_eq!(named("FROM debian\nRUN true\n", "linux/arm64"), None);
    }

    #[test]
    fn another_character_may_continue_lines() {
        let text = "# escape=`\nFROM --platform=linux/amd64 a\nRUN x `\nFROM no\nRUN c:\\\nFROM b";
        let expected = text.replace("FROM b", "FROM --platform=linux/arm64 b");
        assert_eq!(named(text, "linux/arm64"), Some(expected));
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
