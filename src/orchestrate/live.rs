//! What is known of a running job by this process's own clock, which no change of the time of day touches.

use std::{
    collections::{HashSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    time::{Duration, Instant},
};

use crate::records::run::Used;

/// Lines that are remembered: a loop that says fewer different ones than that says nothing new.
const REMEMBERED: usize = 4096;

/// A job that runs.
#[derive(Debug)]
pub(super) struct Live {
    /// Which try.
    pub(super) attempt: u32,
    /// When its agent was last heard.
    pub(super) heard: Instant,
    /// When it last got on.
    pub(super) progressed: Instant,
    /// When it began, as far as this process can tell.
    pub(super) begun: Instant,
    /// What it used at the last look.
    pub(super) used: Used,
    /// When it was last looked at.
    pub(super) measured: Option<Instant>,
    progress: Option<(u64, u64)>,
    said: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Live {
    /// A try that was launched that long ago. Its agent gets the whole time again to be heard: while no server was there,
    /// nobody could hear it.
    pub(super) fn new(attempt: u32, ago: Duration) -> Self {
        let now = Instant::now();
        Self {
            attempt,
            heard: now,
            progressed: now,
            begun: now.checked_sub(ago).unwrap_or(now),
            used: Used::default(),
            measured: None,
            progress: None,
            said: HashSet::new(),
            order: VecDeque::new(),
        }
    }

    /// How far the current step is.
    pub(super) fn progress(&self) -> Option<(u64, u64)> {
        self.progress
    }

    /// The agent was heard.
    pub(super) fn hear(&mut self) {
        self.heard = Instant::now();
    }

    /// A step began or ended.
    pub(super) fn step(&mut self) {
        self.progress = None;
        self.said.clear();
        self.order.clear();
        self.get_on();
    }

    /// Its user has left it: it is at work again.
    pub(super) fn leave(&mut self) {
        self.begun = Instant::now();
        self.step();
    }

    /// The step is that far.
    pub(super) fn advance(&mut self, done: u64, total: u64) {
        if self.progress.is_none_or(|(before, _)| done > before) {
            self.get_on();
        }
        self.progress = Some((done, total));
    }

    /// A line was said. Only one that differs from all before in more than numbers is news: a tool that counts its
    /// attempts gets nowhere.
    pub(super) fn line(&mut self, text: &str) {
        let mut hasher = DefaultHasher::new();
        for letter in text.chars().filter(|letter| !letter.is_ascii_digit()) {
            letter.hash(&mut hasher);
        }
        let line = hasher.finish();
        if !self.said.insert(line) {
            return;
        }
        self.order.push_back(line);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.said.remove(&oldest);
        }
        self.get_on();
    }

    fn get_on(&mut self) {
        self.progressed = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_is_progress() {
        let mut live = Live::new(1, Duration::ZERO);
        let mut gets_on = |does: &dyn Fn(&mut Live)| {
            let before = live.progressed;
            std::thread::sleep(Duration::from_millis(2));
            does(&mut live);
            live.progressed > before
        };
        assert!(gets_on(&|live| live.line("waiting for repository, try 1")));
        assert!(!gets_on(&|live| live.line("waiting for repository, try 2")));
        assert!(gets_on(&|live| live.line("found it")));
        assert!(!gets_on(&|live| live.line("found it")));
        assert!(!gets_on(&Live::hear));
        assert!(gets_on(&|live| live.advance(5, 10)));
        assert!(!gets_on(&|live| live.advance(5, 10)));
        assert!(gets_on(&Live::step));
        assert!(gets_on(&|live| live.line("found it")));
    }

    #[test]
    fn memory_has_an_end() {
        let mut live = Live::new(1, Duration::ZERO);
        for letters in 0..2 * REMEMBERED {
            live.line(&"x".repeat(letters));
        }
        assert_eq!((live.said.len(), live.order.len()), (REMEMBERED, REMEMBERED));
    }
}
