//! Writes and reads the line with which an agent says on its standard error what its server does not hear. Pure: no I/O.

use crate::{Code, Failure};

/// The beginning of the line.
const WHO: &str = "kiln-agent: ";

/// The line for a failure.
pub fn say(failure: &Failure) -> String {
    format!("{WHO}{} ({})", failure.detail, failure.code)
}

/// The failure in a line that an agent wrote. A job's own programs can write such a line too, once they run.
pub fn said(line: &str) -> Option<Failure> {
    let (detail, code) = line.strip_prefix(WHO)?.strip_suffix(')')?.rsplit_once(" (")?;
    Some(Failure::new(Code::named(code)?, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_says_is_read_as_it_was_meant() {
        let failure = Failure::new(
            Code::AgentUnreachable,
            "https://kiln:9000 (server): invalid peer certificate",
        );
        assert_eq!(said(&say(&failure)), Some(failure));
        for line in [
            "",
            "kiln-agent: ended",
            "kiln-agent: x (no_such_code)",
            "x (agent_unreachable)",
        ] {
            assert_eq!(said(line), None, "{line}");
        }
    }
}
