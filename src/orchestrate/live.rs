//! Tracks what this process knows of running jobs, by its own clock, which no change of the time of day affects. Pure
//! apart from reading that clock.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use kiln_records::{JobId, Moment, Run, run::Used, usage::UsageCurve};

/// The number of lines remembered: a loop that prints fewer different lines than this says nothing new.
const REMEMBERED: usize = 4096;

/// The longest time between two passes over the jobs that counts for their clocks.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The running jobs that this process knows of. A new process knows none, and begins their clocks anew.
#[derive(Debug, Default)]
pub(super) struct LiveJobs(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    jobs: HashMap<JobId, Live>,
    /// When the jobs were last watched.
    watched: Option<Instant>,
}

impl LiveJobs {
    fn known(&self) -> MutexGuard<'_, Known> {
        // A panic while the lock is held leaves nothing half-done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `read` says of a job; `None` if nothing is known of it.
    pub(super) fn of<T>(&self, job: JobId, read: impl FnOnce(&mut Live) -> T) -> Option<T> {
        self.known().jobs.get_mut(&job).map(read)
    }

    /// What `note` says of a job in its current try, whose clocks begin now if nothing is known of it.
    pub(super) fn with<T>(&self, job: JobId, run: &Run, note: impl FnOnce(&mut Live) -> T) -> T {
        let mut known = self.known();
        let new = || Live::new(run.attempt, since_launch(run));
        let live = known.jobs.entry(job).or_insert_with(new);
        if live.attempt != run.attempt {
            *live = new();
        }
        note(live)
    }

    /// Whether something is known of a job.
    pub(super) fn has(&self, job: JobId) -> bool {
        self.known().jobs.contains_key(&job)
    }

    /// Begins the clocks of a job.
    pub(super) fn begin(&self, job: JobId, live: Live) {
        self.known().jobs.insert(job, live);
    }

    /// Forgets a job.
    pub(super) fn forget(&self, job: JobId) {
        self.known().jobs.remove(&job);
    }

    /// Begins a pass over the jobs that are open: forgets the others, and moves all clocks on by the time in which this
    /// process could not watch: it was stopped, or the database was away, and their agents could not be heard.
    pub(super) fn begin_pass(&self, is_open: impl Fn(&JobId) -> bool) {
        let mut known = self.known();
        let last = known.watched.replace(Instant::now());
        let pause = last.map_or(Duration::ZERO, |last| last.elapsed());
        if pause > LONGEST_PAUSE {
            known.jobs.values_mut().for_each(|live| live.leave_out(pause));
        }
        known.jobs.retain(|job, _| is_open(job));
    }

    /// The longest time for which an agent whose sandbox has started was not heard.
    pub(super) fn longest_unheard(&self) -> Duration {
        let known = self.known();
        let running = known.jobs.values().filter(|live| live.waits().is_none());
        running.map(|live| live.heard.elapsed()).max().unwrap_or_default()
    }
}

/// How long ago a try was launched, or was left by its user.
fn since_launch(run: &Run) -> Duration {
    run.at_work_since().map_or(Duration::ZERO, since)
}

/// The time since that moment, by the time of day; zero when it is still to come.
pub(super) fn since(moment: Moment) -> Duration {
    let micros = Moment::now().micros().saturating_sub(moment.micros());
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}

/// A running job.
#[derive(Debug)]
pub(super) struct Live {
    /// The number of the try.
    pub(super) attempt: u32,
    /// When its agent was last heard.
    pub(super) heard: Instant,
    /// When it last made progress.
    pub(super) progressed: Instant,
    /// When it began, as far as this process can tell.
    pub(super) begun: Instant,
    /// Its usage at the last measurement.
    pub(super) used: Used,
    /// When its usage was last measured.
    pub(super) measured: Option<Instant>,
    /// Its usage over time, once the store was asked for the beginning, and when that was last stored.
    pub(super) curve: Option<(UsageCurve, Instant)>,
    /// Since when its sandbox waits for its start, and for what.
    waits: Option<(Instant, String)>,
    progress: Option<(u64, u64)>,
    packages: u64,
    said: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Live {
    /// A try launched that long ago. Its agent gets the whole time again to be heard: while there was no server, it had
    /// no way to be heard.
    pub(super) fn new(attempt: u32, ago: Duration) -> Self {
        let now = Instant::now();
        Self {
            attempt,
            heard: now,
            progressed: now,
            begun: now.checked_sub(ago).unwrap_or(now),
            used: Used::default(),
            measured: None,
            curve: None,
            waits: None,
            progress: None,
            packages: 0,
            said: HashSet::new(),
            order: VecDeque::new(),
        }
    }

    /// How far the current step is.
    pub(super) fn progress(&self) -> Option<(u64, u64)> {
        self.progress
    }

    /// Notes that the agent was heard.
    pub(super) fn hear(&mut self) {
        self.heard = Instant::now();
    }

    /// Notes that nothing could be heard for so long.
    pub(super) fn leave_out(&mut self, pause: Duration) {
        let now = Instant::now();
        for clock in [&mut self.heard, &mut self.progressed, &mut self.begun] {
            *clock = (*clock + pause).min(now);
        }
    }

    /// Notes that its sandbox has not started, for this reason. All clocks stand meanwhile. Returns for how long it has
    /// waited.
    pub(super) fn wait(&mut self, why: &str) -> Duration {
        let since = self.waits.as_ref().map_or(self.begun, |(since, _)| *since);
        if self.waits.as_ref().is_none_or(|(_, known)| known != why) {
            self.waits = Some((since, why.to_owned()));
        }
        self.stand();
        since.elapsed()
    }

    /// Notes that its sandbox may still wait, as far as is known. Whether it has waited so far.
    pub(super) fn wait_on(&mut self) -> bool {
        if self.waits.is_some() {
            self.stand();
        }
        self.waits.is_some()
    }

    /// Notes that its sandbox is being started. All clocks stand meanwhile.
    pub(super) fn stand(&mut self) {
        let now = Instant::now();
        (self.heard, self.progressed, self.begun) = (now, now, now);
    }

    /// Notes that its sandbox runs.
    pub(super) fn run(&mut self) {
        self.waits = None;
    }

    /// What its sandbox waits for.
    pub(super) fn waits(&self) -> Option<&str> {
        self.waits.as_ref().map(|(_, why)| why.as_str())
    }

    /// Notes that a step began or ended.
    pub(super) fn step(&mut self) {
        self.progress = None;
        self.said.clear();
        self.order.clear();
        self.get_on();
    }

    /// Notes that it adds packages of this many bytes for later jobs; returns how many these are in all.
    pub(super) fn add_packages(&mut self, bytes: u64) -> u64 {
        self.packages = self.packages.saturating_add(bytes);
        self.packages
    }

    /// Notes that its user has left it: it is at work again.
    pub(super) fn leave(&mut self) {
        self.begun = Instant::now();
        self.step();
    }

    /// Notes how far the step is.
    pub(super) fn advance(&mut self, done: u64, total: u64) {
        if self.progress.is_none_or(|(before, _)| done > before) {
            self.get_on();
        }
        self.progress = Some((done, total));
    }

    /// Notes a line of output. Only a line that differs from all before in more than numbers is news: a tool that
    /// counts its attempts makes no progress.
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
    fn clocks_stand_while_a_sandbox_waits_but_the_one_of_its_waiting() {
        let ago = Duration::from_mins(10);
        let mut live = Live::new(1, ago);
        assert!(live.begun.elapsed() >= ago);
        assert!(live.wait("no room") >= ago);
        assert_eq!(live.waits(), Some("no room"));
        assert!(live.begun.elapsed() < ago);
        // Another reason is no new beginning.
        assert!(live.wait("no image") >= ago);
        assert_eq!(live.waits(), Some("no image"));
        live.run();
        assert_eq!(live.waits(), None);
        assert!(live.begun.elapsed() < ago);
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
