//! The command line as people paste it.

use std::ffi::OsString;

/// Joins `--flag = value`, as IMS's manual prints it, into `--flag=value`. A lone `=` means nothing else.
pub(super) fn join_spaced(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(line: &str) -> String {
        let words = join_spaced(line.split(' ').map(OsString::from));
        words
            .iter()
            .map(|word| word.to_str().unwrap())
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn spaces_around_the_sign_are_forgiven() {
        assert_eq!(
            joined("kiln recipes create --arch = aarch64 --name x"),
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
            assert_eq!(joined(line), line);
        }
    }
}
