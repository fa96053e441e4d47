//! Decides which lines of a job's log are sent, and which are dropped because there are too many. Pure: no I/O, and the
//! caller says what time it is.
//!
//! A tool may write faster than anyone reads, and without end. Beyond a rate, and beyond a size in all, its lines go
//! into a ring, of which the last ones are sent when the gap ends: when the tool writes less again, when it is quiet,
//! or when its step ends. A line in between says how many were dropped. The tool is not slowed down, and its job goes
//! on.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use kiln_records::{
    log,
    protocol::{Event, Stream, What},
};

/// The rate at which tools may write in the long run, in bytes per second.
const RATE: u64 = 4 << 20;

/// What they may write at once, in bytes.
const BURST: u64 = 8 << 20;

/// The most that is kept of the end of a gap, in bytes.
const LONGEST_TAIL: u64 = 256 << 10;

/// A gap ends when nothing was written for this long.
pub(crate) const QUIET: Duration = Duration::from_secs(2);

/// In a long gap, a line is sent this often: it shows whether its tool gets on.
const SAMPLE: Duration = Duration::from_mins(1);

/// The budget of one attempt's log.
#[derive(Debug)]
pub(crate) struct LogBudget {
    /// The size that the log may still get, in bytes.
    left: u64,
    /// The part of it that is not for tools, but for the ends of gaps and the agent's own lines.
    reserve: u64,
    /// The most in the ring, in bytes.
    longest_tail: u64,
    /// What may be written at once, in bytes, at that time.
    burst: (u64, Instant),
    /// The last lines of a gap.
    tail: VecDeque<Event>,
    tail_bytes: u64,
    /// When the last line came into the ring.
    added: Instant,
    /// When a gap was last ended.
    ended: Instant,
    /// The number and the bytes of the lines that left it.
    dropped: (u64, u64),
}

impl LogBudget {
    /// A budget of this size, in bytes.
    pub(crate) fn new(bytes: u64, now: Instant) -> Self {
        Self {
            left: bytes,
            reserve: bytes / 4,
            longest_tail: LONGEST_TAIL.min(bytes / 16),
            burst: (BURST, now),
            tail: VecDeque::new(),
            tail_bytes: 0,
            added: now,
            ended: now,
            dropped: (0, 0),
        }
    }

    /// Takes a line; other events are not its concern. Returns what is to be sent now.
    pub(crate) fn take(&mut self, line: Event, now: Instant) -> Vec<Event> {
        let (stream, size) = measure(&line);
        if stream == Some(Stream::Agent) && size <= self.left / 2 {
            self.left -= size;
            return vec![line];
        }
        self.refill(now);
        let mut sent = Vec::new();
        if !self.tail.is_empty() && self.burst.0 >= BURST / 2 && self.left > self.reserve + self.longest_tail {
            sent = self.end_gap();
        }
        if self.tail.is_empty() && size <= self.burst.0 && size + self.reserve <= self.left {
            self.burst.0 -= size;
            self.left -= size;
            sent.push(line);
        } else {
            if self.tail.is_empty() {
                self.ended = now;
            }
            self.keep(line, size, now);
            if now.saturating_duration_since(self.ended) >= SAMPLE {
                self.ended = now;
                while self.tail.len() > 1 {
                    self.drop_first();
                }
                return self.end_gap();
            }
        }
        sent
    }

    /// Ends a gap, if there is one: says how large it is, and returns its last lines. Each time it uses no more than a
    /// sixteenth of what is left, so that something is left for the next.
    pub(crate) fn end_gap(&mut self) -> Vec<Event> {
        let Some(first) = self.tail.front() else {
            return Vec::new();
        };
        let mut note = Event {
            time: first.time,
            what: self.note(),
        };
        let room = self.left / 16;
        while let Some(first) = self.tail.front()
            && self.tail_bytes + measure(&note).1 > room
        {
            note.time = first.time;
            self.drop_first();
            note.what = self.note();
        }
        let mut sent = Vec::with_capacity(self.tail.len() + 1);
        if self.dropped.0 > 0 && measure(&note).1 <= room {
            self.left -= measure(&note).1;
            self.dropped = (0, 0);
            sent.push(note);
        }
        self.left -= self.tail_bytes;
        self.tail_bytes = 0;
        sent.extend(self.tail.drain(..));
        sent
    }

    /// The same, if nothing was written for a while.
    pub(crate) fn end_quiet_gap(&mut self, now: Instant) -> Vec<Event> {
        if now.saturating_duration_since(self.added) < QUIET {
            return Vec::new();
        }
        self.end_gap()
    }

    fn note(&self) -> What {
        let (lines, bytes) = self.dropped;
        What::Log {
            stream: Stream::Agent,
            text: format!("{lines} lines, {} of output were dropped here", shown(bytes)),
        }
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.burst.1).as_millis();
        let more = u64::try_from(passed).unwrap_or(u64::MAX).saturating_mul(RATE) / 1000;
        if more > 0 {
            self.burst = (self.burst.0.saturating_add(more).min(BURST), now);
        }
    }

    fn keep(&mut self, line: Event, size: u64, now: Instant) {
        self.tail.push_back(line);
        self.tail_bytes += size;
        self.added = now;
        // The last line stays: without it, nothing would say that there was one.
        while self.tail_bytes > self.longest_tail && self.tail.len() > 1 {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        if let Some(first) = self.tail.pop_front() {
            self.tail_bytes -= measure(&first).1;
            if let What::Log { text, .. } = &first.what {
                self.dropped.0 += 1;
                self.dropped.1 += text.len() as u64 + 1;
            }
        }
    }
}

/// A size for users.
fn shown(bytes: u64) -> String {
    match bytes {
        0..=0xfffff => format!("{} KiB", bytes.div_ceil(1 << 10)),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// An event with the current time.
pub(crate) fn now(what: What) -> Event {
    Event {
        time: Timestamp::now(),
        what,
    }
}

fn measure(event: &Event) -> (Option<Stream>, u64) {
    match &event.what {
        What::Log { stream, text } => (Some(*stream), log::size_of(text)),
        _ => (None, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn line(stream: Stream, text: &str) -> Event {
        now(What::Log {
            stream,
            text: text.to_owned(),
        })
    }

    fn texts(events: &[Event]) -> Vec<&str> {
        events
            .iter()
            .filter_map(|event| match &event.what {
                What::Log { text, .. } => Some(text.as_str()),
                _ => None,
            })
            .collect()
    }

    fn size(events: &[Event]) -> u64 {
        events.iter().map(|event| measure(event).1).sum()
    }

    /// Writes numbered lines of a kilobyte at this rate per second; returns what was sent.
    fn flood(budget: &mut LogBudget, begin: Instant, lines: u32, rate: u32) -> Vec<Event> {
        let mut sent = Vec::new();
        for number in 0..lines {
            let now = begin + Duration::from_secs(1) * number / rate;
            let text = format!("{number} {}", "x".repeat(1000));
            sent.extend(budget.take(line(Stream::Stdout, &text), now));
        }
        sent
    }

    fn dropped(events: &[Event]) -> u64 {
        let number = |text: &&str| {
            text.split_once(" lines, ")
                .and_then(|(number, _)| number.parse::<u64>().ok())
        };
        texts(events)
            .iter()
            .filter(|text| text.ends_with("were dropped here"))
            .filter_map(number)
            .sum()
    }

    #[test]
    fn an_ordinary_build_loses_nothing() {
        let begin = Instant::now();
        let mut budget = LogBudget::new(30 * MIB, begin);
        let sent = flood(&mut budget, begin, 15_000, 2_000);
        assert_eq!(sent.len(), 15_000);
        assert!(budget.end_gap().is_empty());
    }

    #[test]
    fn a_flood_is_bounded_and_its_end_is_kept() {
        let begin = Instant::now();
        let mut budget = LogBudget::new(30 * MIB, begin);
        // 100 MB within a second.
        let mut sent = flood(&mut budget, begin, 100_000, 100_000);
        assert!(size(&sent) <= BURST + RATE + LONGEST_TAIL, "{}", size(&sent));
        sent.extend(budget.end_gap());
        assert!(texts(&sent).last().unwrap().starts_with("99999 "), "the end is lost");
        let gaps = dropped(&sent);
        let notes = texts(&sent)
            .iter()
            .filter(|text| text.contains("were dropped here"))
            .count() as u64;
        assert_eq!(
            sent.len() as u64 - notes + gaps,
            100_000,
            "every line was sent or counted"
        );
        // What follows is sent as before.
        let later = begin + Duration::from_secs(10);
        let sent = budget.take(line(Stream::Stdout, "afterwards"), later);
        assert_eq!(texts(&sent), ["afterwards"]);
    }

    #[test]
    fn a_tool_that_writes_without_end_leaves_room_for_the_steps_after_it() {
        let begin = Instant::now();
        let mut budget = LogBudget::new(30 * MIB, begin);
        let mut sent = Vec::new();
        for step in 0..60 {
            let begin = begin + Duration::from_secs(100) * step;
            sent.extend(flood(&mut budget, begin, 5_000, 1_000));
            sent.extend(budget.end_gap());
            let own = budget.take(line(Stream::Agent, "the step failed because of this"), begin);
            assert_eq!(own.len(), 1, "step {step}");
            sent.extend(own);
        }
        assert!(size(&sent) <= 30 * MIB, "{}", size(&sent));
        assert!(dropped(&sent) > 200_000);
    }

    #[test]
    fn a_gap_ends_when_it_is_quiet() {
        let begin = Instant::now();
        let mut budget = LogBudget::new(MIB, begin);
        flood(&mut budget, begin, 2_000, 2_000);
        let last = begin + Duration::from_secs(1);
        assert!(budget.end_quiet_gap(last).is_empty());
        let tail = budget.end_quiet_gap(last + QUIET);
        assert!(texts(&tail)[0].ends_with("were dropped here"));
        assert!(texts(&tail).last().unwrap().starts_with("1999 "));
        assert!(budget.end_quiet_gap(last + 2 * QUIET).is_empty());
    }

    #[test]
    fn a_tool_that_gets_on_beyond_its_budget_is_not_taken_for_silent() {
        let begin = Instant::now();
        let mut budget = LogBudget::new(MIB, begin);
        // An hour, ten lines a second.
        let sent = flood(&mut budget, begin, 36_000, 10);
        let seen: Vec<u64> = texts(&sent)
            .iter()
            .filter_map(|text| text.split_once(" x")?.0.parse().ok())
            .collect();
        let longest = seen.windows(2).map(|two| two[1] - two[0]).max().unwrap();
        assert!(longest <= 1200, "no line was sent for {} s", longest / 10);
        assert!(*seen.last().unwrap() > 34_000);
        assert!(size(&sent) <= MIB);
    }

    #[test]
    fn empty_lines_count_too_and_no_budget_sends_nothing() {
        let begin = Instant::now();
        let mut budget = LogBudget::new(MIB, begin);
        let sent: usize = (0..100_000)
            .map(|_| budget.take(line(Stream::Stderr, ""), begin).len())
            .sum();
        assert!(sent <= 10_000, "{sent}");
        let mut none = LogBudget::new(0, begin);
        for stream in [Stream::Agent, Stream::Stdout] {
            assert!(none.take(line(stream, "a"), begin).is_empty());
        }
        assert!(none.end_gap().is_empty());
        assert!(none.tail.is_empty());
    }
}
