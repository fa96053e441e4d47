//! Tidies a command line as users paste it, before it is parsed. Pure: no I/O.

use std::ffi::OsString;

use super::client_help::GROUPS;

/// Options of the groups that talk to a server, which users also put before the group. Each takes a value.
const CARRIED: [&str; 6] = [
    "--server",
    "--format",
    "--token",
    "--ca-file",
    "--hostname",
    "--configuration",
];

/// Options of every command that take a value.
const GLOBAL: [&str; 2] = ["--data-dir", "--config"];

/// The arguments in the form that the parser expects.
pub(super) fn tidy(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    carry_behind_group(join_spaced(arguments))
}

/// Joins `--flag = value`, as IMS's manual prints it, into `--flag=value`. A lone `=` has no other meaning.
fn join_spaced(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut joined: Vec<OsString> = Vec::new();
    let mut rest = arguments.into_iter().peekable();
    while let Some(argument) = rest.next() {
        let follows_flag = joined.last().and_then(|last| last.to_str()).is_some_and(is_bare_flag);
        let next = rest.peek().and_then(|next| next.to_str());
        if argument == "="
            && follows_flag
            && next.is_some_and(|next| !next.starts_with("--"))
            && let (Some(flag), Some(value)) = (joined.last_mut(), rest.next())
        {
            flag.push("=");
            flag.push(value);
            continue;
        }
        joined.push(argument);
    }
    joined
}

fn is_bare_flag(text: &str) -> bool {
    text.len() > 2 && text.starts_with("--") && !text.contains('=')
}

/// Changes `kiln --server URL images list` into `kiln images --server URL list`. These options do not belong to every
/// command, so `kiln build --server URL` stays an error.
fn carry_behind_group(arguments: Vec<OsString>) -> Vec<OsString> {
    let (mut before, mut carried) = (Vec::new(), Vec::new());
    let mut rest = arguments.iter();
    before.extend(rest.next().cloned());
    while let Some(argument) = rest.next() {
        let text = argument.to_str().unwrap_or_default();
        if GROUPS.contains(&text) {
            before.push(argument.clone());
            before.extend(carried);
            before.extend(rest.cloned());
            return before;
        }
        let flag = text.split_once('=').map_or(text, |(flag, _)| flag);
        if !text.starts_with('-') {
            break;
        }
        let to = if CARRIED.contains(&flag) {
            &mut carried
        } else {
            &mut before
        };
        to.push(argument.clone());
        if flag == text && (CARRIED.contains(&flag) || GLOBAL.contains(&flag)) {
            to.extend(rest.next().cloned());
        }
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tidied(line: &str) -> String {
        let words = tidy(line.split(' ').map(OsString::from));
        words
            .iter()
            .map(|word| word.to_str().unwrap())
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn spaces_around_the_sign_are_forgiven() {
        assert_eq!(
            tidied("kiln recipes create --arch = aarch64 --name x"),
            "kiln recipes create --arch=aarch64 --name x"
        );
        for line in [
            "kiln build = x",
            "kiln x --a=b = c",
            "kiln x --a = --b",
            "kiln x --a =",
            "kiln x -- = y",
            "kiln -a = b",
        ] {
            assert_eq!(tidied(line), line);
        }
    }

    #[test]
    fn options_of_a_group_may_stand_before_it() {
        assert_eq!(
            tidied("kiln -v --server http://x --config f --format=json images list --limit 1"),
            "kiln -v --config f images --server http://x --format=json list --limit 1"
        );
        for line in [
            "kiln --server",
            "kiln --server images",
            "kiln --server x build recipes",
            "kiln build --format json recipes",
            "kiln",
        ] {
            assert_eq!(tidied(line), line);
        }
    }
}
