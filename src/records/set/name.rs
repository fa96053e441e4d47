//! The names and versions of sets, and of channels. Pure: no I/O.
//!
//! They are parts of addresses that firmware and boot loaders read, of object names and of shell lines: letters, digits
//! and a few signs that need no quoting anywhere.

/// The longest name of a set, in bytes.
pub const MAX_NAME: usize = 128;

/// The longest version, in bytes.
pub const MAX_VERSION: usize = 64;

/// The longest name of a channel, in bytes.
pub const MAX_CHANNEL: usize = 32;

/// The channel that always leads to the newest complete set.
pub const LATEST: &str = "latest";

/// The form of names and versions, for descriptions.
pub const PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._~-]*$";

/// Checks the name of a set.
///
/// # Errors
///
/// One sentence.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    check(name, MAX_NAME, "Longer than 128 bytes.")
}

/// Checks the version of a set.
///
/// # Errors
///
/// One sentence.
pub fn check_version(version: &str) -> Result<(), &'static str> {
    check(version, MAX_VERSION, "Longer than 64 bytes.")
}

/// Checks the name of a channel.
///
/// # Errors
///
/// One sentence.
pub fn check_channel(name: &str) -> Result<(), &'static str> {
    check(name, MAX_CHANNEL, "Longer than 32 bytes.")
}

fn check(text: &str, longest: usize, too_long: &'static str) -> Result<(), &'static str> {
    if text.len() > longest {
        return Err(too_long);
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._~-".contains(&byte);
    if !text.starts_with(|c: char| c.is_ascii_alphanumeric()) || !text.bytes().all(plain) {
        return Err("Not made of letters, digits and `._~-`, with a letter or digit first.");
    }
    Ok(())
}

/// Which version of a set a user means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// This one: `NAME@VERSION`.
    Version(String),
    /// The one that a channel leads to: `NAME:CHANNEL`, or `NAME` for [`LATEST`].
    Channel(String),
}

/// Reads `NAME`, `NAME@VERSION` or `NAME:CHANNEL`.
///
/// # Errors
///
/// One sentence.
pub fn parse(text: &str) -> Result<(String, Which), String> {
    let named = |part: &str, result: Result<(), &'static str>| result.map_err(|why| format!("`{}`: {why}", cut(part)));
    let (name, which) = match text.find(['@', ':']) {
        None => (text, Which::Channel(LATEST.to_owned())),
        Some(at) => {
            let (name, rest) = (&text[..at], &text[at + 1..]);
            if text[at..].starts_with('@') {
                named(rest, check_version(rest))?;
                (name, Which::Version(rest.to_owned()))
            } else {
                named(rest, check_channel(rest))?;
                (name, Which::Channel(rest.to_owned()))
            }
        }
    };
    named(name, check_name(name))?;
    Ok((name.to_owned(), which))
}

/// The beginning of a text that may be long.
fn cut(text: &str) -> String {
    let shown = crate::names::shown(text);
    if shown.chars().count() <= 80 {
        return shown.into_owned();
    }
    shown.chars().take(80).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_need_no_quoting() {
        for name in ["compute", "24.11", "a", "0", "Compute_x~rc1-2"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        let long = "x".repeat(10_240);
        for name in [
            "",
            ".",
            "..",
            "-x",
            "a b",
            "a/b",
            "a@b",
            "a:b",
            "<b>",
            "a\u{202e}b",
            "ä",
            "a\n",
            "a+b",
            "a%2f",
            &long,
        ] {
            assert!(check_name(name).is_err(), "{name:?}");
            assert!(check_version(name).is_err(), "{name:?}");
            assert!(check_channel(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_set_is_named_with_its_version_or_channel() {
        let channel = |name: &str| Which::Channel(name.to_owned());
        assert_eq!(parse("compute").unwrap(), ("compute".to_owned(), channel("latest")));
        assert_eq!(
            parse("compute:stable").unwrap(),
            ("compute".to_owned(), channel("stable"))
        );
        let version = Which::Version("24.11".to_owned());
        assert_eq!(parse("compute@24.11").unwrap(), ("compute".to_owned(), version));
        for text in ["", "@1", ":x", "a@", "a:", "a@1:x", "a:b@1", "a b", "a@\u{202e}1"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        let why = parse(&"\u{1b}".repeat(20_000)).unwrap_err();
        assert!(why.len() < 300 && !why.contains('\u{1b}'), "{why}");
    }
}
