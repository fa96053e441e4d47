//! What kiwi warned of while it made a root, as the programs around it have noted. Reads and removes one file.

use std::io::{BufRead, BufReader, Read};

use kiln_records::{Warning, Warnings};

/// The file of these warnings. The programs write it.
const WARNINGS: &str = "/run/kiln-kiwi-warnings.jsonl";

/// The most bytes of it that are read: more than a record has.
const MOST: u64 = 4 * Warnings::MOST_BYTES as u64;

/// Forgets the warnings of an earlier root.
pub(crate) fn forget() {
    // Usually there are none.
    let _ = fs_err::remove_file(WARNINGS);
}

/// The warnings of the root. All are in the log, so that those beyond the bound are left out.
pub(crate) fn all() -> Vec<Warning> {
    match fs_err::File::open(WARNINGS) {
        Ok(file) => read(file),
        Err(_) => Vec::new(),
    }
}

fn read(file: impl Read) -> Vec<Warning> {
    let lines = BufReader::new(file.take(MOST)).lines();
    let lines = lines.map_while(Result::ok);
    lines.filter_map(|line| serde_json::from_str(&line).ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use kiln_records::Code;

    use super::{super::PROGRAMS, *};

    #[test]
    fn what_is_no_warning_is_left_out() {
        let text = "{\"code\": \"recipe_paths\", \"message\": \"a\"}\nnone\n{\"code\": \"root_modes\", \"message\": \"b\"}\n{\"code\":";
        let expected = [Warning::new(Code::RecipePaths, "a"), Warning::new(Code::RootModes, "b")];
        assert_eq!(read(text.as_bytes()), expected);
        let endless = std::io::repeat(b'x');
        assert_eq!(read(endless), []);
    }

    #[test]
    fn every_code_of_the_programs_is_known() {
        let calls = PROGRAMS.iter().flat_map(|(_, text)| text.split("warn(\"").skip(1));
        let codes: BTreeSet<_> = calls.map(|rest| rest.split('"').next().unwrap()).collect();
        assert!(codes.len() >= 5, "{codes:?}");
        for code in codes {
            assert!(Code::named(code).is_some_and(|known| known != Code::Unknown), "{code}");
        }
    }
}
