//! Text of records on pages: everything shown is visible, of a bounded length, and in the words of people. Pure, but for
//! the clock.

use std::{borrow::Cow, time::Duration};

use bytesize::ByteSize;
use kiln_records::{Moment, names};
use maud::{Markup, html};

/// The longest text in a list, in characters.
const LONGEST: usize = 80;

/// The longest text in a tooltip, in characters.
const LONGEST_TITLE: usize = 16_384;

/// A text of somebody else: invisible characters and marks of direction are written out.
pub(super) fn shown(text: &str) -> Cow<'_, str> {
    names::shown(text)
}

/// A text of somebody else in a list: a long one is cut, with the whole in its title. Isolated, so that the direction of
/// its script does not spread.
pub(super) fn name(text: &str) -> Markup {
    cut(text, LONGEST)
}

/// As [`name`], with another limit.
pub(super) fn cut(text: &str, longest: usize) -> Markup {
    let whole = shown(text);
    match whole.char_indices().nth(longest) {
        None if whole.trim().is_empty() => html! { bdi.dim { "(no name)" } },
        None => html! { bdi { (whole) } },
        Some((end, _)) => {
            let title: String = whole.chars().take(LONGEST_TITLE).collect();
            html! { bdi title=(title) { (&whole[..end]) "…" } }
        }
    }
}

/// The beginning of an id, with the whole in its title.
pub(super) fn short(id: impl std::fmt::Display) -> Markup {
    let id = id.to_string();
    html! { code title=(id) { (id.get(..8).unwrap_or(&id)) } }
}

/// A size.
pub(super) fn bytes(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

/// A duration, in its two largest units.
pub(super) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) if seconds == 0 => format!("{} ms", duration.as_millis()),
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// Milliseconds, as a duration.
pub(super) fn millis(ms: u64) -> String {
    duration(Duration::from_millis(ms))
}

/// The time from one moment to a later one.
pub(super) fn between(from: Moment, until: Moment) -> Duration {
    let micros = until.micros().saturating_sub(from.micros());
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}

/// A moment, as the time since then, or until then, with the date in its title.
pub(super) fn when(moment: Moment) -> Markup {
    let now = Moment::now();
    let words = if moment > now {
        format!("in {}", duration(between(now, moment)))
    } else if now.micros().saturating_sub(moment.micros()) < 1_000_000 {
        "now".to_owned()
    } else {
        format!("{} ago", duration(between(moment, now)))
    };
    let iso = moment.to_the_second().to_string();
    html! { time datetime=(iso) title=(iso) { (words) } }
}

/// A line of a log without the colours of terminals, which mean nothing on a page. All else that cannot be seen is
/// written out.
pub(super) fn plain(line: &str) -> String {
    let mut rest = line.trim_end_matches('\r');
    let mut text = String::with_capacity(rest.len());
    while let Some(at) = rest.find("\u{1b}[") {
        let parameters = &rest[at + 2..];
        let end = parameters.find(|c: char| !c.is_ascii_digit() && c != ';');
        if let Some(end) = end
            && matches!(parameters.as_bytes()[end], b'm' | b'K')
        {
            text.push_str(&rest[..at]);
            rest = &parameters[end + 1..];
        } else {
            text.push_str(&rest[..at + 2]);
            rest = parameters;
        }
    }
    text.push_str(rest);
    shown(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_is_escaped_shown_and_cut() {
        let markup = name("<script>alert(1)</script>\u{202e}gnp\"").into_string();
        assert_eq!(
            markup,
            "<bdi>&lt;script&gt;alert(1)&lt;/script&gt;\\u{202e}gnp&quot;</bdi>"
        );
        let long = "é\"".repeat(5000);
        let markup = name(&long).into_string();
        assert!(markup.starts_with(&format!("<bdi title=\"{}", "é&quot;".repeat(5000))));
        assert!(markup.ends_with(&format!(">{}…</bdi>", "é&quot;".repeat(40))));
    }

    #[test]
    fn colours_of_a_line_are_left_out_and_other_escapes_are_shown() {
        for (line, expected) in [
            ("\u{1b}[1;31merror\u{1b}[0m: x\r", "error: x"),
            (
                "\u{1b}[2Jgone \u{1b}]0;title\u{7}",
                "\\u{1b}[2Jgone \\u{1b}]0;title\\u{7}",
            ),
            ("é\u{1b}[", "é\\u{1b}["),
            ("a\u{1b}[31", "a\\u{1b}[31"),
            ("a\rb", "a\\u{d}b"),
        ] {
            assert_eq!(plain(line), expected);
        }
    }

    #[test]
    fn durations_have_two_units() {
        for (seconds, words) in [(5, "5 s"), (65, "1 min 5 s"), (3660, "1 h 1 min"), (90_000, "1 d 1 h")] {
            assert_eq!(duration(Duration::from_secs(seconds)), words);
        }
        assert_eq!(millis(12), "12 ms");
    }
}
