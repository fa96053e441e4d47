//! Patterns of what a directory is copied without, as in a `.dockerignore`. Pure: no I/O.

/// Whether a path below a directory (relative, with `/`) is left out by its patterns: itself, or a directory that it is in. The last
/// pattern that matches counts, and one with `!` takes back in, but nothing that is in a directory which is left out.
pub fn left_out(path: &str, patterns: &[String]) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    (1..=parts.len()).any(|depth| one(&parts[..depth], patterns))
}

fn one(parts: &[&str], patterns: &[String]) -> bool {
    let mut out = false;
    for pattern in patterns {
        let pattern = pattern.trim();
        let (takes_in, pattern) = pattern
            .strip_prefix('!')
            .map_or((false, pattern), |rest| (true, rest.trim()));
        let clean: Vec<&str> = pattern.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        if clean.is_empty() {
            continue;
        }
        let matched = |parts: &[&str]| {
            let pattern: Vec<char> = clean.join("/").chars().collect();
            let text: Vec<char> = parts.join("/").chars().collect();
            matches(&pattern, &text)
        };
        if matched(parts) || (clean.len() < parts.len() && matched(&parts[..clean.len()])) {
            out = !takes_in;
        }
    }
    out
}

fn matches(pattern: &[char], text: &[char]) -> bool {
    match pattern {
        [] => text.is_empty(),
        ['*', '*', rest @ ..] => {
            let stars = rest.iter().take_while(|c| **c == '*').count();
            let rest = &rest[stars..];
            let rest = rest.strip_prefix(&['/']).unwrap_or(rest);
            rest.is_empty()
                || matches(rest, text)
                || (0..text.len()).any(|i| text[i] == '/' && matches(rest, &text[i + 1..]))
        }
        ['*', rest @ ..] => {
            let most = text.iter().position(|c| *c == '/').unwrap_or(text.len());
            (0..=most).any(|i| matches(rest, &text[i..]))
        }
        ['?', rest @ ..] => text.first().is_some_and(|c| *c != '/') && matches(rest, &text[1..]),
        ['[', rest @ ..] if rest.contains(&']') => {
            let end = rest.iter().position(|c| *c == ']').unwrap_or_default();
            let (set, negated) = rest[..end]
                .strip_prefix(&['^'])
                .map_or((&rest[..end], false), |set| (set, true));
            let Some((c, text)) = text.split_first() else {
                return false;
            };
            let within = set.contains(c)
                || set
                    .windows(3)
                    .any(|range| range[1] == '-' && (range[0]..=range[2]).contains(c));
            within != negated && matches(&rest[end + 1..], text)
        }
        ['\\', c, rest @ ..] | [c, rest @ ..] => text.first() == Some(c) && matches(rest, &text[1..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_as_docker_has_them() {
        for (path, patterns, wanted) in [
            ("cache", &["cache"][..], true),
            ("cache/a/b", &["cache/"], true),
            ("a/cache", &["cache"], false),
            ("a/b/.git/x", &["**/.git"], true),
            (".git", &["**/.git"], true),
            ("a.git", &["**/.git"], false),
            ("a/b.o", &["*.o"], false),
            ("a/b.o", &["**/*.o", "!a/b.o"], false),
            ("a/b.o", &["a", "!a/b.o"], true),
            ("a/b/c", &["a/**"], true),
            ("ab", &["a?"], true),
            ("a1", &["a[0-9]", "./x"], true),
            ("a1", &["a[^0-9]"], false),
            ("x", &[" ", "/"], false),
        ] {
            let patterns: Vec<String> = patterns.iter().map(|&p| p.to_owned()).collect();
            assert_eq!(left_out(path, &patterns), wanted, "{path} {patterns:?}");
        }
    }
}
