//! Makes lines of text from a console's bytes: without sequences that steer a terminal. Pure: no I/O.

/// Longer lines are broken, in bytes.
const LONGEST_LINE: usize = 4096;

/// What is expected after the bytes so far.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// After ESC.
    Escape,
    /// After ESC and an intermediate byte, as in `ESC ( B`.
    Charset,
    /// In a control sequence (`ESC [`).
    Sequence,
    /// In a string for the terminal (`ESC ]`, `ESC P` and others), up to BEL or `ESC \`.
    ForTerminal,
    /// After ESC in such a string.
    EndForTerminal,
}

/// The console of a machine.
#[derive(Debug, Default)]
pub struct Console {
    state: State,
    line: Vec<u8>,
    text: String,
    /// A carriage return came: what follows replaces the line, unless it is a line feed.
    is_returned: bool,
}

impl Console {
    /// Takes the next bytes. Every line that they complete goes to `take`.
    pub fn feed(&mut self, bytes: &[u8], mut take: impl FnMut(&str)) {
        for byte in bytes {
            if let Some(byte) = self.text_byte(*byte) {
                self.add(byte, &mut take);
            }
        }
        self.text = clean(&self.line);
    }

    /// The line that has not ended yet.
    pub fn unfinished(&self) -> &str {
        &self.text
    }

    /// The byte, if it is text.
    fn text_byte(&mut self, byte: u8) -> Option<u8> {
        let is_string = matches!(self.state, State::ForTerminal | State::EndForTerminal);
        let next = match (self.state, byte) {
            // A line feed ends what a hostile or broken program left open, so that nothing hides the rest.
            (_, b'\n') | (State::ForTerminal, 0x07) | (State::EndForTerminal, b'\\') => State::Text,
            (_, 0x1b) if is_string => State::EndForTerminal,
            (_, 0x1b) => State::Escape,
            (State::Escape, b'[') | (State::Sequence, 0x20..=0x3f) => State::Sequence,
            (State::Escape, 0x20..=0x2f) => State::Charset,
            _ if is_string || matches!((self.state, byte), (State::Escape, b']' | b'P' | b'X' | b'^' | b'_')) => {
                State::ForTerminal
            }
            _ => State::Text,
        };
        let is_text = next == State::Text && (self.state == State::Text || matches!(byte, b'\n' | b'\r'));
        self.state = next;
        is_text.then_some(byte)
    }

    fn add(&mut self, byte: u8, take: &mut impl FnMut(&str)) {
        match byte {
            b'\n' => self.end(take),
            b'\r' => self.is_returned = true,
            _ => {
                if std::mem::take(&mut self.is_returned) {
                    self.line.clear();
                }
                self.line.push(byte);
                if self.line.len() >= LONGEST_LINE {
                    self.end(take);
                }
            }
        }
    }

    fn end(&mut self, take: &mut impl FnMut(&str)) {
        self.is_returned = false;
        take(&clean(&self.line));
        self.line.clear();
    }
}

/// Text that steers nothing.
fn clean(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line).replace('\t', " ");
    kiln_records::names::shown(text.trim_end()).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(bytes: &[u8]) -> Vec<String> {
        let (mut console, mut lines) = (Console::default(), Vec::new());
        console.feed(bytes, |line| lines.push(line.to_owned()));
        lines.push(console.unfinished().to_owned());
        lines
    }

    #[test]
    fn sequences_for_terminals_are_left_out() {
        let said =
            b"[\x1b[0;32m  OK  \x1b[0m] Started\tx\r\r\n\x1b]0;evil\x07title\x1b(B\n\x1bP1;2|x\x1b\\a\x1b[?25h login: ";
        assert_eq!(lines(said), ["[  OK  ] Started x", "title", "a login:"]);
    }

    #[test]
    fn a_line_that_is_written_again_is_its_last_form() {
        assert_eq!(
            lines(b"[*  ] waits\r[ * ] waits (2s)\r\ndone"),
            ["[ * ] waits (2s)", "done"]
        );
    }

    #[test]
    fn an_open_string_hides_no_more_than_its_line() {
        assert_eq!(lines(b"a\x1b]0;hidden\nKernel panic\n"), ["a", "Kernel panic", ""]);
    }

    #[test]
    fn long_lines_are_broken() {
        let said = vec![b'x'; 3 * LONGEST_LINE];
        assert!(lines(&said).iter().all(|line| line.len() <= LONGEST_LINE));
    }

    proptest! {
        #[test]
        fn nothing_steers_a_terminal_and_pieces_do_not_matter(said: Vec<u8>, cut: prop::sample::Index) {
            let whole = lines(&said);
            prop_assert!(whole.iter().all(|line| !line.chars().any(char::is_control)));
            let (mut console, mut pieces) = (Console::default(), Vec::new());
            let at = if said.is_empty() { 0 } else { cut.index(said.len()) };
            for piece in [&said[..at], &said[at..]] {
                console.feed(piece, |line| pieces.push(line.to_owned()));
            }
            pieces.push(console.unfinished().to_owned());
            prop_assert_eq!(pieces, whole);
        }
    }
}
