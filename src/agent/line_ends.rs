//! Looks at the first lines of a recipe's scripts for what an editor of another system put there. Reads these files only.

use std::{
    io::{self, Read},
    path::Path,
};

use kiln_records::{Code, Failure, Warning};

use super::template;

/// The scripts that kiwi runs while it makes a root (kiwi 11.1.6, `defaults.py`), and `images.sh`, which Kiln runs.
const SCRIPTS: [&str; 5] = [
    "post_bootstrap.sh",
    "config.sh",
    "config-overlay.sh",
    "config-host-overlay.sh",
    "images.sh",
];

/// The longest first line that is looked at, in bytes; Linux itself reads less.
const LONGEST: u64 = 4096;

/// The byte order mark of UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// Refuses scripts whose first line ends as in Windows: the kernel, or the shell, takes the carriage return for a part of a name.
/// They would fail only after all packages were installed. Returns warnings of scripts that are run in another way than their
/// first lines say.
///
/// # Errors
///
/// `script_failed`, with the script's name.
pub(crate) fn check(recipe: &Path) -> Result<Vec<Warning>, Failure> {
    let mut warnings = Vec::new();
    for name in SCRIPTS {
        // A script outside the recipe is kiwi's to refuse.
        let Ok(path) = template::inside(recipe, name) else {
            continue;
        };
        let unreadable = |error: io::Error| Failure::io(format!("cannot read {name}"), &error);
        let (first, has_end) = first_line(&path).map_err(unreadable)?;
        if has_end && first.ends_with(b"\r") {
            let line = String::from_utf8_lossy(&first);
            return Err(Failure::new(
                Code::ScriptFailed,
                format!(
                    "{name} has the line ends of Windows (CRLF), so its first line `{}` names no program",
                    line.trim_end().escape_debug()
                ),
            )
            .hint(format!(
                "convert it: sed -i 's/\\r$//' {name}; git keeps it so by `*.sh text eol=lf` in .gitattributes"
            )));
        }
        if first.strip_prefix(MARK).is_some_and(|rest| rest.starts_with(b"#!")) {
            let message =
                format!("{name} begins with a byte order mark, so its first line is not seen and a shell runs it");
            warnings.push(Warning::new(Code::ScriptMark, message).hint("save it without the mark"));
        }
    }
    Ok(warnings)
}

/// The first line of a script, as far as it is looked at, and whether it ends there.
///
/// # Errors
///
/// The script cannot be read.
pub(crate) fn first_line(path: &Path) -> io::Result<(Vec<u8>, bool)> {
    let mut head = Vec::new();
    fs_err::File::open(path)?.take(LONGEST).read_to_end(&mut head)?;
    let end = head.iter().position(|byte| *byte == b'\n');
    head.truncate(end.unwrap_or(head.len()));
    Ok((head, end.is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_line_ends_of_the_first_line_count() {
        let of = |name: &str, text: &str| {
            let recipe = tempfile::tempdir().unwrap();
            fs_err::write(recipe.path().join(name), text).unwrap();
            check(recipe.path())
                .map(|warnings| warnings.len())
                .map_err(|failure| failure.detail)
        };
        for (text, lines) in [
            ("#!/bin/bash\necho\r\n", 0),
            ("#!/bin/bash", 0),
            ("", 0),
            ("#!/bin/bash\r", 0),
            ("\u{feff}#!/bin/bash\n", 1),
        ] {
            assert_eq!(of("config.sh", text), Ok(lines), "{text:?}");
        }
        assert_eq!(of("other.sh", "#!/bin/bash\r\n"), Ok(0));
        for name in SCRIPTS {
            for text in ["#!/bin/bash -e\r\nexit 0\r\n", "\u{feff}#!/bin/sh\r\n", "echo\r\n"] {
                let why = of(name, text).unwrap_err();
                assert!(
                    why.contains(name) && why.contains("CRLF") && !why.contains("\\r"),
                    "{why}"
                );
            }
        }
    }
}
