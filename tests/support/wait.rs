//! Waiting for what a test expects: the one pair of loops that look again, and the one time after which they give up.

use std::{
    fmt::Display,
    panic::Location,
    time::{Duration, Instant},
};

/// How long a test waits for what it expects. It only ends a test that would wait forever: on a host with six times as
/// much to do as it has processors, a few seconds are as many minutes.
pub const PATIENCE: Duration = Duration::from_mins(10);

/// How long a whole build may take, with the start of its machine.
pub const FOR_A_BUILD: Duration = Duration::from_mins(40);

/// The result of one look: what was waited for, or what is there instead.
pub trait Look {
    type Found;

    fn found(self) -> Result<Self::Found, String>;
}

impl Look for bool {
    type Found = ();

    fn found(self) -> Result<(), String> {
        self.then_some(()).ok_or_else(|| "it is not so".to_owned())
    }
}

impl<T> Look for Option<T> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.ok_or_else(|| "there is none".to_owned())
    }
}

impl<T, E: Display> Look for Result<T, E> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.map_err(|seen| format!("{seen:#}"))
    }
}

/// Looks until something is found, and returns it. Panics with what the last look saw.
#[track_caller]
pub fn eventually<L: Look>(look: impl FnMut() -> L) -> L::Found {
    within(PATIENCE, look)
}

/// [`eventually`], for what takes another time.
#[track_caller]
pub fn within<L: Look>(patience: Duration, look: impl FnMut() -> L) -> L::Found {
    try_within(patience, look).unwrap_or_else(|seen| panic!("waited for {patience:?}: {seen}"))
}

/// [`within`], for who has something to clear away before panicking: returns what the last look saw.
pub fn try_within<L: Look>(patience: Duration, mut look: impl FnMut() -> L) -> Result<L::Found, String> {
    let begun = Instant::now();
    loop {
        match look().found() {
            Err(_) if begun.elapsed() < patience => std::thread::sleep(pause(begun)),
            outcome => return outcome,
        }
    }
}

/// [`eventually`], for looks that await something.
#[track_caller]
pub fn eventually_async<L: Look, F: Future<Output = L>>(mut look: impl FnMut() -> F) -> impl Future<Output = L::Found> {
    let caller = Location::caller();
    async move {
        let begun = Instant::now();
        loop {
            match look().await.found() {
                Err(_) if begun.elapsed() < PATIENCE => tokio::time::sleep(pause(begun)).await,
                outcome => break outcome.unwrap_or_else(|seen| panic!("{caller}: waited for {PATIENCE:?}: {seen}")),
            }
        }
    }
}

/// What takes long is looked at less often.
fn pause(begun: Instant) -> Duration {
    (begun.elapsed() / 20).clamp(Duration::from_millis(2), Duration::from_millis(200))
}
