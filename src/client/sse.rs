//! Parses server-sent events, as the HTML standard defines them, except for `id` and `retry`: the data itself contains
//! the position to continue from. Pure: no I/O.

/// The longest event, in bytes: a line of a log has at most 64 KiB, which JSON escapes can make six times as long.
const LONGEST: usize = 4 << 20;

/// An event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Event {
    /// Its name.
    pub(super) name: String,
    /// Its data.
    pub(super) data: String,
}

/// Assembles events from pieces of any size.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// A line without its end so far.
    partial: Vec<u8>,
    /// An event without its end so far.
    event: Event,
}

/// An event is longer than the server's own ever are.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl Events {
    /// The events that this piece completes.
    pub(super) fn read(&mut self, piece: &[u8]) -> Result<Vec<Event>, TooLong> {
        let mut events = Vec::new();
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(part);
            if self.partial.len() + self.event.data.len() > LONGEST {
                return Err(TooLong);
            }
            if self.partial.pop_if(|last| *last == b'\n').is_some() {
                self.partial.pop_if(|last| *last == b'\r');
                let line = std::mem::take(&mut self.partial);
                events.extend(self.line(&String::from_utf8_lossy(&line)));
            }
        }
        Ok(events)
    }

    /// Adds a line. An empty line ends an event; one that begins with a colon is a comment.
    fn line(&mut self, line: &str) -> Option<Event> {
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            return (!event.data.is_empty()).then_some(event);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event.name),
            "data" => {
                if !self.event.data.is_empty() {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = ": hello\n\nid: 7\nevent: log\ndata: {\"text\":\"näme\"}\n\nevent:end\r\ndata:a\r\ndata: b\r\n\r\n\
                        event: empty\n\ndata\n\n:\ndata: unnamed\n\nevent: cut off\ndata: x";

    #[test]
    fn events_are_whole_however_they_are_cut() {
        let event = |name: &str, data: &str| Event {
            name: name.to_owned(),
            data: data.to_owned(),
        };
        let expected = [
            event("log", "{\"text\":\"näme\"}"),
            event("end", "a\nb"),
            event("", "unnamed"),
        ];
        for size in [1, 2, 3, 7, 1000] {
            let mut events = Events::default();
            let mut seen = Vec::new();
            for piece in TEXT.as_bytes().chunks(size) {
                seen.extend(events.read(piece).unwrap());
            }
            assert_eq!(seen, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn what_never_ends_is_not_collected() {
        let mut events = Events::default();
        let piece = vec![b'x'; 64 << 10];
        let refused = (0..=LONGEST / piece.len()).find_map(|_| events.read(&piece).err());
        assert_eq!(refused, Some(TooLong));
    }
}
