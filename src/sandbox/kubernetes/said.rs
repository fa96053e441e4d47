//! Reads what a pod wrote, which its node keeps until the pod is deleted. The two outputs come as one: messages of the
//! first process are told from its other lines by their form. Pure: no I/O.

use kiln_inside::room::{
    Usage,
    order::{End, Said},
};

/// The most lines kept as evidence, and the longest line.
const LAST_WORDS: usize = 40;
const LONGEST: usize = 4096;

/// The last lines that are no messages of the first process.
pub(super) fn last_words(log: &str) -> Vec<String> {
    let words = log.lines().filter(|line| said(line).is_none());
    let mut words: Vec<String> = words.map(|line| line.chars().take(LONGEST).collect()).collect();
    words.drain(..words.len().saturating_sub(LAST_WORDS));
    words
}

/// The usage that was said last.
pub(super) fn usage(log: &str) -> Option<Usage> {
    log.lines().rev().find_map(said).map(|said| match said {
        Said::Usage(usage) | Said::End(End { usage, .. }) => usage,
    })
}

/// How the sandbox ended, if that was said.
pub(super) fn end(log: &str) -> Option<End> {
    log.lines().rev().find_map(|line| match said(line)? {
        Said::End(end) => Some(end),
        Said::Usage(_) => None,
    })
}

fn said(line: &str) -> Option<Said> {
    line.starts_with('{').then(|| serde_json::from_str(line).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_from_words() {
        let say = |said: &Said| serde_json::to_string(said).unwrap();
        let used = |disk| Usage {
            disk,
            ..Usage::default()
        };
        let log = format!(
            "first\n{}\n{{}}\n{}\nlast\n",
            say(&Said::Usage(used(1))),
            say(&Said::Usage(used(2)))
        );
        assert_eq!(last_words(&log), ["first", "{}", "last"]);
        assert_eq!((usage(&log), end(&log)), (Some(used(2)), None));
        let ended = End {
            exit_code: 7,
            failure: None,
            usage: used(3),
        };
        let log = format!("{log}{}\nmore\n", say(&Said::End(ended)));
        assert_eq!(end(&log).map(|end| end.exit_code), Some(7));
        assert_eq!(usage(&log), Some(used(3)));
        let many = "word\n".repeat(100);
        assert_eq!(last_words(&many).len(), LAST_WORDS);
        assert_eq!((usage(""), last_words("")), (None, vec![]));
    }
}
