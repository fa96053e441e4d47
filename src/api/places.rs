//! The places for connections: how many there are, for each peer and in all, and who gives one up for another. Pure: no
//! I/O.
//!
//! A connection on which nobody has been admitted so far is a *stranger*. When there are too many connections, one of
//! them makes room for the next: an idle stranger first, then a stranger whose request is in progress, then a connection
//! that is idle between two requests. Of equals, the one that has been so for longest goes. A request of somebody who
//! was admitted is never broken off for another connection.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio_util::sync::CancellationToken;

/// The places for connections of peers of a kind. Cheap to clone.
#[derive(Debug)]
pub(super) struct Places<K> {
    most: usize,
    taken: Arc<Mutex<Taken<K>>>,
}

impl<K> Clone for Places<K> {
    fn clone(&self) -> Self {
        Self {
            most: self.most,
            taken: Arc::clone(&self.taken),
        }
    }
}

#[derive(Debug)]
struct Taken<K> {
    connections: HashMap<u64, Connection<K>>,
    /// Those that may be given up, the first one first.
    spare: BTreeSet<Rank>,
    /// The same by peer, with the number of all its connections.
    peers: HashMap<K, (usize, BTreeSet<Rank>)>,
    next: u64,
}

#[derive(Debug)]
struct Connection<K> {
    peer: K,
    known: bool,
    requests: usize,
    /// Its rank among those that may be given up; none while it may not.
    rank: Option<Rank>,
    given_up: CancellationToken,
}

/// The order in which connections are given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    kind: Spare,
    since: u64,
    number: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Spare {
    IdleStranger,
    BusyStranger,
    Idle,
}

/// What a place can do, whoever the peers are.
pub(super) trait Hold: std::fmt::Debug + Send + Sync {
    /// Notes that somebody on the connection was admitted.
    fn admit(&self);
    /// Notes that a request begins.
    fn begin(&self);
    /// Notes that a request, with the body of its answer, has ended.
    fn end(&self);
    /// Notes that the connection no longer speaks HTTP: it was asked for, and is in use until it is closed.
    fn hand_over(&self);
    /// Whether it no longer speaks HTTP.
    fn is_handed_over(&self) -> bool;
}

/// The place of one connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Place<K: Eq + Hash + Clone> {
    taken: Arc<Mutex<Taken<K>>>,
    number: u64,
    known: AtomicBool,
    handed_over: AtomicBool,
    /// Fires when another connection gets the place.
    pub(super) given_up: CancellationToken,
}

impl<K: Eq + Hash + Clone> Places<K> {
    /// So many places.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            taken: Arc::new(Mutex::new(Taken {
                connections: HashMap::new(),
                spare: BTreeSet::new(),
                peers: HashMap::new(),
                next: 0,
            })),
        }
    }

    /// A place for a new connection of this peer, which may have `of_one`; at the cost of another connection where there
    /// are too many. None when all others are in use.
    pub(super) fn take(&self, peer: K, of_one: usize) -> Option<Place<K>> {
        let mut taken = locked(&self.taken);
        if let Some((count, spare)) = taken.peers.get(&peer)
            && *count >= of_one
        {
            let first = spare.first().copied()?;
            taken.give_up(first);
        }
        if taken.connections.len() >= self.most {
            let first = taken.spare.first().copied()?;
            taken.give_up(first);
        }
        let given_up = CancellationToken::new();
        let number = taken.add(peer, given_up.clone());
        Some(Place {
            taken: Arc::clone(&self.taken),
            number,
            known: AtomicBool::new(false),
            handed_over: AtomicBool::new(false),
            given_up,
        })
    }
}

impl<K: Eq + Hash + Clone> Taken<K> {
    fn add(&mut self, peer: K, given_up: CancellationToken) -> u64 {
        let number = self.count();
        self.peers.entry(peer.clone()).or_default().0 += 1;
        let connection = Connection {
            peer,
            known: false,
            requests: 0,
            rank: None,
            given_up,
        };
        self.connections.insert(number, connection);
        self.rank(number);
        number
    }

    fn count(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn give_up(&mut self, rank: Rank) {
        if let Some(connection) = self.remove(rank.number) {
            connection.given_up.cancel();
        }
    }

    fn remove(&mut self, number: u64) -> Option<Connection<K>> {
        let connection = self.connections.remove(&number)?;
        if let Some((count, spare)) = self.peers.get_mut(&connection.peer) {
            *count -= 1;
            if let Some(rank) = connection.rank {
                self.spare.remove(&rank);
                spare.remove(&rank);
            }
            if *count == 0 {
                self.peers.remove(&connection.peer);
            }
        }
        Some(connection)
    }

    /// Changes a connection that was not given up meanwhile.
    fn change(&mut self, number: u64, change: impl FnOnce(&mut Connection<K>)) {
        if let Some(connection) = self.connections.get_mut(&number) {
            change(connection);
            self.rank(number);
        }
    }

    /// Puts a connection where it belongs now.
    fn rank(&mut self, number: u64) {
        let since = self.count();
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let kind = match (connection.known, connection.requests) {
            (false, 0) => Some(Spare::IdleStranger),
            (false, _) => Some(Spare::BusyStranger),
            (true, 0) => Some(Spare::Idle),
            (true, _) => None,
        };
        if connection.rank.map(|rank| rank.kind) == kind {
            return;
        }
        let rank = kind.map(|kind| Rank { kind, since, number });
        let before = std::mem::replace(&mut connection.rank, rank);
        let spare = &mut self.peers.entry(connection.peer.clone()).or_default().1;
        for set in [&mut self.spare, spare] {
            before.map(|before| set.remove(&before));
            rank.map(|rank| set.insert(rank));
        }
    }
}

impl<K: Eq + Hash + Clone + std::fmt::Debug + Send> Hold for Place<K> {
    fn admit(&self) {
        if !self.known.swap(true, Ordering::Relaxed) {
            locked(&self.taken).change(self.number, |connection| connection.known = true);
        }
    }

    fn begin(&self) {
        locked(&self.taken).change(self.number, |connection| connection.requests += 1);
    }

    fn end(&self) {
        locked(&self.taken).change(self.number, |connection| connection.requests -= 1);
    }

    fn hand_over(&self) {
        self.handed_over.store(true, Ordering::Relaxed);
        // A request that does not end.
        self.begin();
    }

    fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Relaxed)
    }
}

impl<K: Eq + Hash + Clone> Drop for Place<K> {
    fn drop(&mut self) {
        locked(&self.taken).remove(self.number);
    }
}

fn locked<K>(taken: &Mutex<Taken<K>>) -> MutexGuard<'_, Taken<K>> {
    // Each change is complete before anything can panic.
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken<const N: usize>(places: &Places<u8>, peers: [u8; N], of_one: usize) -> [Place<u8>; N] {
        peers.map(|peer| places.take(peer, of_one).unwrap())
    }

    fn gone(places: &[Place<u8>]) -> Vec<usize> {
        let gone = |(at, place): (usize, &Place<u8>)| place.given_up.is_cancelled().then_some(at);
        places.iter().enumerate().filter_map(gone).collect()
    }

    #[test]
    fn idle_strangers_go_before_busy_ones_and_those_before_idle_users() {
        let places = Places::new(4);
        let held = taken(&places, [1, 2, 3, 4], 9);
        held[0].admit();
        held[1].begin();
        held[3].admit();
        held[3].begin();
        let mut next = Vec::new();
        for expected in [&[2][..], &[1, 2], &[0, 1, 2]] {
            let place = places.take(5, 9).unwrap();
            // The newcomers stay, so that the next one to go is found among the others.
            place.admit();
            place.begin();
            next.push(place);
            assert_eq!(gone(&held), expected);
        }
        assert!(places.take(6, 9).is_none(), "a request in progress was broken off");
        held[3].end();
        assert!(places.take(6, 9).is_some());
        assert_eq!(gone(&held), [0, 1, 2, 3]);
    }

    #[test]
    fn a_peer_with_too_many_connections_loses_its_own() {
        let places = Places::new(9);
        let held = taken(&places, [1, 1, 2], 2);
        let third = places.take(1, 2).unwrap();
        assert_eq!(gone(&held), [0]);
        third.admit();
        third.begin();
        held[1].admit();
        held[1].begin();
        assert!(places.take(1, 2).is_none());
        assert!(places.take(2, 2).is_some());
    }

    #[test]
    fn places_come_back() {
        let places = Places::new(2);
        let held = taken(&places, [1, 1], 9);
        for place in &held {
            place.admit();
            place.begin();
        }
        assert!(places.take(1, 9).is_none());
        held[0].end();
        drop(held);
        let taken = locked(&places.taken);
        assert!(taken.connections.is_empty() && taken.spare.is_empty() && taken.peers.is_empty());
    }

    #[test]
    fn what_was_given_up_stays_so() {
        let places = Places::new(1);
        let [first] = taken(&places, [1], 9);
        let second = places.take(2, 9).unwrap();
        first.admit();
        first.begin();
        first.end();
        drop(first);
        assert!(!second.given_up.is_cancelled());
        assert_eq!(locked(&places.taken).connections.len(), 1);
    }
}
