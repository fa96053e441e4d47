//! The places for connections: how many there are, and who gives one up for another. Pure: no I/O.
//!
//! The server listens on a loopback address, where all peers have the same address. What tells them apart is a signed
//! request: a connection without one so far is a *stranger*. When there are too many strangers, the one that came first
//! makes room for the next, so half-open connections keep nobody out.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio_util::sync::CancellationToken;

/// What connections may use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The most connections at a time.
    pub(super) connections: usize,
    /// The most of them without a signed request so far.
    pub(super) strangers: usize,
    /// The most requests at a time, with the bodies of their answers. Further ones wait.
    pub(super) requests: usize,
    /// How long a request waits for its turn.
    pub(super) patience: Duration,
    /// The longest time for the headers of a request, and for an idle connection.
    pub(super) head: Duration,
    /// The longest time until the next byte of a body arrives, or the peer takes the next byte of an answer.
    pub(super) stall: Duration,
}

impl Limits {
    /// Limits for so many connections.
    pub(super) fn of(connections: usize) -> Self {
        Self {
            connections,
            strangers: connections / 2,
            // Copying an object needs two files.
            requests: (connections / 2).clamp(1, 128),
            ..Self::default()
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 512,
            strangers: 256,
            requests: 128,
            patience: Duration::from_secs(30),
            head: Duration::from_secs(30),
            stall: Duration::from_mins(1),
        }
    }
}

/// The places for connections. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Places {
    limits: Limits,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    /// Strangers by the order in which they came.
    strangers: BTreeMap<u64, CancellationToken>,
    known: usize,
    next: u64,
}

/// The place of one connection.
#[derive(Debug)]
pub(super) struct Place {
    taken: Arc<Mutex<Taken>>,
    number: u64,
    known: AtomicBool,
    /// Whether another connection got the place.
    pub(super) given_up: CancellationToken,
}

impl Places {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            taken: Arc::default(),
        }
    }

    /// A place for a new connection, at the cost of the oldest stranger when there are too many of them. None when all
    /// places are taken.
    pub(super) fn take(&self) -> Option<Place> {
        let mut taken = locked(&self.taken);
        if taken.strangers.len() >= self.limits.strangers
            && let Some((_, given_up)) = taken.strangers.pop_first()
        {
            given_up.cancel();
        }
        if taken.strangers.len() + taken.known >= self.limits.connections {
            return None;
        }
        let (number, given_up) = (taken.next, CancellationToken::new());
        taken.next += 1;
        taken.strangers.insert(number, given_up.clone());
        Some(Place {
            taken: Arc::clone(&self.taken),
            number,
            known: AtomicBool::new(false),
            given_up,
        })
    }
}

impl Place {
    /// Notes that a signed request came by this connection.
    pub(super) fn note_signature(&self) {
        if !self.known.load(Ordering::Relaxed) {
            let mut taken = locked(&self.taken);
            // Whoever was given up meanwhile stays so.
            if taken.strangers.remove(&self.number).is_some() {
                taken.known += 1;
                self.known.store(true, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = locked(&self.taken);
        taken.strangers.remove(&self.number);
        if self.known.load(Ordering::Relaxed) {
            taken.known -= 1;
        }
    }
}

fn locked(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(connections: usize, strangers: usize) -> Places {
        Places::new(Limits {
            connections,
            strangers,
            ..Limits::default()
        })
    }

    #[test]
    fn the_oldest_stranger_makes_room_for_the_next() {
        let places = places(9, 2);
        let [first, second, third] = [places.take(), places.take(), places.take()].map(Option::unwrap);
        assert!(first.given_up.is_cancelled());
        assert!(!second.given_up.is_cancelled() && !third.given_up.is_cancelled());
        // It is too late for a signature.
        first.note_signature();
        assert!(!first.known.load(Ordering::Relaxed));
    }

    #[test]
    fn who_has_signed_is_not_driven_out_by_strangers() {
        let places = places(9, 1);
        let known = places.take().unwrap();
        known.note_signature();
        let strangers: Vec<_> = (0..9).map(|_| places.take()).collect();
        assert!(!known.given_up.is_cancelled());
        assert_eq!(
            strangers
                .iter()
                .flatten()
                .filter(|it| !it.given_up.is_cancelled())
                .count(),
            1
        );
    }

    #[test]
    fn places_that_are_all_taken_come_back() {
        let places = places(2, 2);
        let (one, two) = (places.take().unwrap(), places.take().unwrap());
        one.note_signature();
        two.note_signature();
        assert!(places.take().is_none());
        drop(one);
        assert!(places.take().is_some());
        drop(two);
        let taken = locked(&places.taken);
        assert_eq!((taken.strangers.len(), taken.known), (0, 0));
    }
}
