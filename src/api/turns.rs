//! How many requests of a kind are carried out at a time: so many of each caller, and so many in all. Keeps its counts in
//! memory: no I/O.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use axum::http::Extensions;
use kiln_records::budget::{STREAMS, STREAMS_OF_CALLER};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    problem::{Problem, Result},
    rate::Key,
};

/// The turns of one kind of request.
#[derive(Debug)]
pub struct Turns {
    of_caller: usize,
    all: Arc<Semaphore>,
    callers: Mutex<HashMap<Key, Weak<Semaphore>>>,
}

/// A request's turn, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    _own: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Turns {
    /// So many at a time, and so many of them of one caller.
    pub(super) fn new(all: usize, of_caller: usize) -> Self {
        Self {
            of_caller,
            all: Arc::new(Semaphore::new(all)),
            callers: Mutex::default(),
        }
    }

    /// The turns of answers that grow as long as their jobs run.
    pub fn of_streams() -> Self {
        Self::new(STREAMS, STREAMS_OF_CALLER)
    }

    /// Waits for a turn: first for the caller's own others, so that they take none from anybody else.
    pub(super) async fn turn(&self, caller: Key) -> Option<Turn> {
        let own = self.of(caller).acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(Turn {
            _own: own,
            _of_all: of_all,
        })
    }

    /// A turn now, for the caller of a request.
    ///
    /// # Errors
    ///
    /// 429: the caller has as many as it may; 503: all have.
    pub fn now(&self, request: &Extensions) -> Result<Turn> {
        let caller = request.get::<Key>().cloned().unwrap_or(Key::Others);
        let own = self.of(caller).try_acquire_owned().map_err(|_| {
            let detail = format!(
                "You follow {} jobs already, as many as one caller may. End one of these requests first.",
                self.of_caller
            );
            Problem::new(axum::http::StatusCode::TOO_MANY_REQUESTS, detail)
        })?;
        let of_all = Arc::clone(&self.all).try_acquire_owned();
        let of_all =
            of_all.map_err(|_| Problem::busy("As many jobs are followed as this server can show. Try again later."))?;
        Ok(Turn {
            _own: own,
            _of_all: of_all,
        })
    }

    fn of(&self, caller: Key) -> Arc<Semaphore> {
        // Each change is complete before anything can panic.
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = callers.get(&caller).and_then(Weak::upgrade) {
            return known;
        }
        callers.retain(|_, known| known.strong_count() > 0);
        let new = Arc::new(Semaphore::new(self.of_caller));
        callers.insert(caller, Arc::downgrade(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use futures::FutureExt;

    use super::*;

    fn caller(last: u8) -> Key {
        Key::peer(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)))
    }

    fn request(last: u8) -> Extensions {
        let mut request = Extensions::new();
        request.insert(caller(last));
        request
    }

    #[test]
    fn a_caller_has_some_and_leaves_the_rest_to_others() {
        let turns = Turns::new(3, 2);
        let held: Vec<_> = (0..2).map(|_| turns.now(&request(1)).unwrap()).collect();
        assert_eq!(turns.now(&request(1)).unwrap_err().status.as_u16(), 429);
        let other = turns.now(&request(2)).unwrap();
        assert_eq!(turns.now(&request(3)).unwrap_err().status.as_u16(), 503);
        drop((held, other));
        drop(turns.now(&request(1)).unwrap());
        assert!(turns.callers.lock().unwrap().len() <= 3);
    }

    #[test]
    fn whoever_waits_comes_next() {
        let turns = Turns::new(2, 1);
        let first = turns.turn(caller(1)).now_or_never().unwrap();
        let mut second = Box::pin(turns.turn(caller(1)));
        assert!(second.as_mut().now_or_never().is_none());
        assert!(turns.turn(caller(2)).now_or_never().is_some());
        drop(first);
        assert!(second.now_or_never().is_some());
    }
}
