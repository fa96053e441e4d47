//! Receives the bodies of requests within limits of size, time and memory. Touches the request only.
//!
//! All bodies in progress share one budget of memory, and each caller has a part of it. What was only declared takes
//! nothing of it: the budget is used as bytes arrive. A body that does not fit any more is refused, and the others go on.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, header},
};
use futures::{Stream, StreamExt};
use tokio::time::{Instant, timeout};

use super::rate::Key;
use crate::artifacts::Room;

/// How much of a too large body is read nevertheless: a caller that only listens after sending everything thus receives
/// the reason for the refusal.
const LINGER: u64 = 16 << 20;

/// The longest time for reading a body that nobody wants.
const LINGER_TIME: Duration = Duration::from_secs(5);

/// The fewest bytes of a file that have to come in the time for a request.
const LEAST: usize = 64 << 10;

/// The longest time for a file.
const LONGEST_UPLOAD: Duration = Duration::from_hours(12);

/// The first allocation for a body, in bytes.
const FIRST: usize = 4 << 10;

/// The memory for bodies in progress. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Bodies(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    of_all: usize,
    of_one: usize,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    all: usize,
    callers: HashMap<Key, usize>,
}

impl Bodies {
    /// So many bytes for all callers, and for each of them.
    pub(super) fn new(of_all: usize, of_one: usize) -> Self {
        Self(Arc::new(Budget {
            of_all,
            of_one,
            used: Mutex::default(),
        }))
    }

    /// The memory of one request of a caller; nothing at first.
    pub(super) fn share(&self, caller: Key) -> Share {
        Share {
            bodies: self.clone(),
            caller,
            bytes: 0,
            lacked: false,
        }
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        // Each change is complete before anything can panic.
        self.0.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory that one request uses, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    bodies: Bodies,
    caller: Key,
    bytes: usize,
    lacked: bool,
}

impl Share {
    /// Whether there was too little memory at some time.
    pub(super) fn has_lacked(&self) -> bool {
        self.lacked
    }
}

impl Room for Share {
    fn take(&mut self, bytes: usize) -> bool {
        let budget = &self.bodies.0;
        let mut used = self.bodies.used();
        let own = used.callers.get(&self.caller).copied().unwrap_or(0);
        let (own, all) = (own.saturating_add(bytes), used.all.saturating_add(bytes));
        if own > budget.of_one || all > budget.of_all {
            self.lacked = true;
            return false;
        }
        used.all = all;
        used.callers.insert(self.caller.clone(), own);
        self.bytes += bytes;
        true
    }

    fn give_back(&mut self) {
        let mut used = self.bodies.used();
        used.all -= self.bytes;
        if let Some(own) = used.callers.get_mut(&self.caller) {
            *own -= self.bytes;
            if *own == 0 {
                used.callers.remove(&self.caller);
            }
        }
        self.bytes = 0;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Why a body was not received.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    /// It is larger than allowed.
    #[error("{0} were sent")]
    TooLarge(String),
    /// It took too long.
    #[error("it took too long")]
    Slow,
    /// There is too little memory for it now.
    #[error("there are too many bodies in progress")]
    Full,
    /// The connection broke.
    #[error("The body broke off: {0}.")]
    Broken(axum::Error),
}

/// Receives a whole body of at most `most` bytes within `time`.
///
/// A caller that waits for leave to send a body that is too large by its own declaration does not get it.
///
/// # Errors
///
/// Why there is no body.
pub(super) async fn receive(
    headers: &HeaderMap,
    body: Body,
    most: u64,
    time: Duration,
    share: &mut Share,
) -> Result<Bytes, Refused> {
    let declared = declared(headers);
    if let Some(declared) = declared.filter(|declared| *declared > most)
        && waits_for_leave(headers)
    {
        return Err(Refused::TooLarge(format!("{declared} bytes")));
    }
    match timeout(time, collect(body, declared, most, share)).await {
        Ok(collected) => collected,
        Err(_) => Err(Refused::Slow),
    }
}

async fn collect(body: Body, declared: Option<u64>, most: u64, share: &mut Share) -> Result<Bytes, Refused> {
    let (mut kept, mut received) = (Vec::new(), 0);
    let mut stream = body.into_data_stream();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(Refused::Broken)?;
        received += piece.len() as u64;
        if received <= most {
            keep(&mut kept, &piece, most, share)?;
        } else if received > LINGER || declared.is_some_and(|declared| declared > LINGER) {
            break;
        }
    }
    match declared.unwrap_or(received).max(received) {
        sent if sent <= most => Ok(kept.into()),
        _ if declared.is_none() && received > LINGER => Err(Refused::TooLarge("more than 16 MiB".to_owned())),
        sent => Err(Refused::TooLarge(format!("{sent} bytes"))),
    }
}

/// Appends a piece, and counts whatever is allocated for it.
fn keep(kept: &mut Vec<u8>, piece: &[u8], most: u64, share: &mut Share) -> Result<(), Refused> {
    let needed = kept.len() + piece.len();
    if needed > kept.capacity() {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let wanted = (2 * kept.capacity()).clamp(FIRST.min(most), most).max(needed);
        if !share.take(wanted - kept.capacity()) {
            return Err(Refused::Full);
        }
        kept.reserve_exact(wanted - kept.len());
    }
    kept.extend_from_slice(piece);
    Ok(())
}

/// Reads a body that nobody wants, so that its sender hears the answer; for a short time, and keeping nothing.
pub(super) async fn discard(headers: &HeaderMap, body: Body) {
    if waits_for_leave(headers) || declared(headers).is_some_and(|declared| declared > LINGER) {
        return;
    }
    let reading = async {
        let (mut stream, mut read) = (body.into_data_stream(), 0);
        while let Some(Ok(piece)) = stream.next().await {
            read += piece.len() as u64;
            if read > LINGER {
                return;
            }
        }
    };
    let _ = timeout(LINGER_TIME, reading).await;
}

/// A body that is a file, in pieces. It may take long, but must neither stall nor trickle: in each `time` in which it is
/// waited for, some of it has to come.
pub(super) fn pieces(body: Body, time: Duration) -> impl Stream<Item = Result<Bytes, axum::Error>> {
    let (begun, stream) = (Instant::now(), body.into_data_stream());
    futures::stream::unfold((stream, time, 0), move |(mut stream, left, came)| async move {
        let waiting = Instant::now();
        if begun.elapsed() > LONGEST_UPLOAD {
            return Some((Err(axum::Error::new(StoodStill)), (stream, left, came)));
        }
        let piece = match timeout(left, stream.next()).await {
            Ok(piece) => piece?,
            Err(_) => Err(axum::Error::new(StoodStill)),
        };
        let came = came + piece.as_ref().map_or(0, Bytes::len);
        let next = if came >= LEAST {
            (stream, time, 0)
        } else {
            (stream, left.saturating_sub(waiting.elapsed()), came)
        };
        Some((piece, next))
    })
}

/// The reason for giving up an upload.
#[derive(Debug, thiserror::Error)]
#[error("too little came for too long")]
struct StoodStill;

/// The length of the body, as declared by the caller.
fn declared(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Whether the caller sends the body only when it is told to go on.
fn waits_for_leave(headers: &HeaderMap) -> bool {
    let expects = headers.get(header::EXPECT).and_then(|value| value.to_str().ok());
    expects.is_some_and(|text| text.eq_ignore_ascii_case("100-continue"))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn caller(last: u8) -> Key {
        Key::peer(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)))
    }

    /// A body of a declared length, of which nothing more comes after these bytes.
    fn unfinished(came: usize) -> (HeaderMap, Body) {
        let headers = HeaderMap::from_iter([(header::CONTENT_LENGTH, "1048576".parse().unwrap())]);
        let first = futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from(vec![0; came]))]);
        (headers, Body::from_stream(first.chain(futures::stream::pending())))
    }

    #[tokio::test]
    async fn what_was_only_declared_takes_no_memory() {
        let bodies = Bodies::new(2 << 20, 1 << 20);
        let mut shares: Vec<_> = (0..1000).map(|_| bodies.share(caller(1))).collect();
        for share in &mut shares[..100] {
            let (headers, body) = unfinished(1000);
            let received = receive(&headers, body, 1 << 20, Duration::from_millis(1), share).await;
            assert!(matches!(received, Err(Refused::Slow)), "{received:?}");
        }
        assert_eq!(bodies.used().all, 100 * FIRST);
    }

    #[tokio::test]
    async fn a_caller_has_a_share_and_all_callers_have_a_limit() {
        let bodies = Bodies::new(250_000, 100_000);
        let send = async |last: u8, bytes: usize| {
            let mut share = bodies.share(caller(last));
            let body = Body::from(vec![0; bytes]);
            let received = receive(&HeaderMap::new(), body, 1 << 20, Duration::from_secs(9), &mut share).await;
            received.map(|bytes| (bytes, share))
        };
        assert!(matches!(send(1, 100_001).await, Err(Refused::Full)));
        let first = send(1, 100_000).await.unwrap();
        assert!(matches!(send(1, 1).await, Err(Refused::Full)));
        let _second = send(2, 100_000).await.unwrap();
        assert!(matches!(send(3, 60_000).await, Err(Refused::Full)));
        drop(first);
        let _third = send(3, 60_000).await.unwrap();
        let _again = send(1, 50_000).await.unwrap();
    }

    #[tokio::test]
    async fn whoever_waits_for_leave_to_send_too_much_does_not_get_it() {
        let polled = futures::stream::poll_fn(|_| -> std::task::Poll<Option<Result<Bytes, std::io::Error>>> {
            panic!("leave was given")
        });
        let mut headers = HeaderMap::from_iter([(header::CONTENT_LENGTH, "100000000".parse().unwrap())]);
        headers.insert(header::EXPECT, "100-Continue".parse().unwrap());
        let mut share = Bodies::new(9, 9).share(caller(1));
        let body = Body::from_stream(polled);
        let received = receive(&headers, body, 1 << 20, Duration::from_secs(9), &mut share).await;
        assert!(matches!(received, Err(Refused::TooLarge(_))), "{received:?}");
    }

    #[tokio::test]
    async fn a_file_that_trickles_is_given_up() {
        let slow = futures::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b"x")), ()))
        });
        let pieces = pieces(Body::from_stream(slow), Duration::from_millis(100));
        let mut refused = std::pin::pin!(pieces.take(10_000).filter(|piece| std::future::ready(piece.is_err())));
        assert!(refused.next().await.is_some(), "ten seconds of it are taken");
    }
}
