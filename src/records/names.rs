//! Checks names that users give. Pure: no I/O.
//!
//! A name ends up in lists on a terminal, in headers of S3 objects, in file names and in arguments of programs.
//! Characters with a meaning there are refused at the start, so that no later code has to quote a name.

use std::borrow::Cow;

/// The longest name, in bytes.
pub const MAX_NAME: usize = 1024;

/// The longest file name, in bytes (`NAME_MAX` of Linux).
pub const MAX_FILE_NAME: usize = 255;

/// Checks the name of a record: no control characters, and a limited length. A name may otherwise be any readable text;
/// it is never part of a path.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    if name.len() > MAX_NAME {
        return Err("Longer than 1024 bytes.");
    }
    if name.chars().any(is_refused) {
        return Err("Contains control characters.");
    }
    Ok(())
}

/// Checks the name of a file in a directory that Kiln chooses.
pub fn check_file_name(name: &str) -> Result<(), &'static str> {
    check_name(name)?;
    if name.len() > MAX_FILE_NAME {
        return Err("Longer than 255 bytes.");
    }
    if name.contains('/') || matches!(name, "." | "..") {
        return Err("Not a plain file name.");
    }
    if name.starts_with('-') {
        return Err("Begins with a hyphen.");
    }
    Ok(())
}

/// Checks a host's name: letters, digits, dots, hyphens and underscores, beginning with a letter or digit.
pub fn check_host_name(name: &str) -> Result<(), &'static str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if name.len() > 253 || !name.chars().all(plain) || !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err("Not a host name.");
    }
    Ok(())
}

/// Checks a public key: it has to be one line of `authorized_keys`, with or without its line end. The SSH server judges
/// the content of the line.
pub fn check_public_key(key: &str) -> Result<(), &'static str> {
    let line = key
        .strip_suffix('\n')
        .map_or(key, |line| line.strip_suffix('\r').unwrap_or(line));
    if line.contains(['\n', '\r']) {
        return Err("More than one line.");
    }
    if line.trim().is_empty() {
        return Err("Blank.");
    }
    if line.len() > 16_384 {
        return Err("Longer than 16384 bytes.");
    }
    if line.chars().any(|c| c != '\t' && is_refused(c)) {
        return Err("Contains control characters.");
    }
    Ok(())
}

/// Control characters, and the marks that reverse the direction of text. No name has them.
fn is_refused(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Characters that a terminal obeys, and those that cannot be seen, which make one name look like another. Some of them
/// are part of ordinary words in some scripts, so that names may have them; nobody sees whether they do.
pub fn is_invisible(c: char) -> bool {
    is_refused(c)
        || matches!(
            c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200d}' | '\u{2028}' | '\u{2029}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// A text of somebody else in a form that can be shown: what is [invisible](is_invisible) is written as `\u{202e}`,
/// except tabs.
pub fn shown(text: &str) -> Cow<'_, str> {
    let hidden = |c: char| c != '\t' && is_invisible(c);
    if !text.contains(hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if hidden(c) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_be_anything_readable() {
        for name in [
            "cray-shasta-compute-sles15sp2.x86_64-1.4.24",
            "Ölmühle 3/4 (neu)",
            "123",
            "$(id)",
            "a'b\"c",
        ] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in [
            "two\nlines",
            "tab\t",
            "\u{1b}[31mred",
            "nul\0",
            "gnp\u{202e}exe",
            &"x".repeat(1025),
        ] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn nothing_hides_in_a_text_that_is_shown() {
        for (text, safe) in [
            ("plain\tnäme 日本 100 %", "plain\tnäme 日本 100 %"),
            ("\u{1b}]0;title\u{7}", "\\u{1b}]0;title\\u{7}"),
            ("gnp\u{202e}exe", "gnp\\u{202e}exe"),
            ("a\nb\u{85}", "a\\u{a}b\\u{85}"),
            (
                "in\u{200b}visible\u{feff}\u{e0041}",
                "in\\u{200b}visible\\u{feff}\\u{e0041}",
            ),
        ] {
            assert_eq!(shown(text), safe);
            assert_eq!(shown(safe), safe, "once is enough");
        }
    }

    #[test]
    fn file_names_stay_in_their_directory() {
        for name in ["vmlinuz-6.1.0", "Image", "initrd.img", "..."] {
            assert_eq!(check_file_name(name), Ok(()), "{name}");
        }
        for name in ["..", ".", "a/b", "/etc/passwd", "-o", &"x".repeat(256)] {
            assert!(check_file_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_host_name_is_no_option_of_ssh() {
        assert_eq!(check_host_name("x3000c0s17b0n0"), Ok(()));
        assert_eq!(check_host_name("node-1.example_site.org"), Ok(()));
        for name in ["-oProxyCommand=id", "a b", "host;id", "", "root@host", "ünode"] {
            assert!(check_host_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_key_is_one_line() {
        for key in [
            "ssh-ed25519 AAAA me@here",
            "ssh-ed25519 AAAA me@here\n",
            "ssh-rsa AAAA\r\n",
            "not a key",
        ] {
            assert_eq!(check_public_key(key), Ok(()), "{key:?}");
        }
        for key in ["ssh-rsa A\nssh-rsa B\n", "\n", " ", "a\0b"] {
            assert!(check_public_key(key).is_err(), "{key:?}");
        }
    }
}
