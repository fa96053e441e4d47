//! Limits what the cluster's API can cost: how large an answer may be, and how often a watch begins. A layer below the
//! client; its own retries heed `Retry-After`. Pure apart from the clock.

use std::{
    collections::HashMap,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::http::{Request, Response};
use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, sleep_until};
use tower::{BoxError, Layer, Service};

/// The largest answer, and the largest event of a watch: some thousand objects, or one that no API server would store.
const LARGEST: usize = 64 << 20;

/// The time between two beginnings of the same watch: whatever is in front of an API server may end each at once.
const BETWEEN_WATCHES: Duration = Duration::from_secs(2);

/// Adds the limits to a client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget;

impl<S> Layer<S> for Budget {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited {
            inner,
            next: HashMap::new(),
        }
    }
}

/// A client with limits.
#[derive(Debug)]
pub(super) struct Limited<S> {
    inner: S,
    /// When each watch, known by its path, may begin again.
    next: HashMap<String, Instant>,
}

impl<S, Q, B> Service<Request<Q>> for Limited<S>
where
    S: Service<Request<Q>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<Counted<B>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let is_watch = request
            .uri()
            .query()
            .is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"));
        let begins = is_watch.then(|| {
            let next = self
                .next
                .entry(request.uri().path().to_owned())
                .or_insert_with(Instant::now);
            let begins = (*next).max(Instant::now());
            *next = begins + BETWEEN_WATCHES;
            begins
        });
        // Nothing is sent before the future is polled.
        let answer = self.inner.call(request);
        async move {
            if let Some(begins) = begins {
                sleep_until(begins).await;
            }
            let counted = |body| Counted {
                body,
                by_line: is_watch,
                left: LARGEST,
            };
            Ok(answer.await?.map(counted))
        }
        .boxed()
    }
}

/// A body that fails when it is too large.
#[derive(Debug)]
pub(super) struct Counted<B> {
    body: B,
    /// Whether each line counts, instead of all together.
    by_line: bool,
    left: usize,
}

impl<B> Counted<B> {
    /// Whether there is room for these bytes, too.
    fn has_room_for(&mut self, data: &[u8]) -> bool {
        let newline = data.iter().rposition(|byte| *byte == b'\n').filter(|_| self.by_line);
        if let Some(at) = newline {
            self.left = LARGEST;
            return self.has_room_for(data.get(at + 1..).unwrap_or_default());
        }
        let left = self.left.checked_sub(data.len());
        self.left = left.unwrap_or_default();
        left.is_some()
    }
}

impl<B> Body for Counted<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(frame) => frame.map_err(Into::into),
            None => return Poll::Ready(None),
        };
        Poll::Ready(Some(frame.and_then(|frame| {
            if frame.data_ref().is_none_or(|data| self.has_room_for(data)) {
                Ok(frame)
            } else {
                Err(format!("the answer has more than {LARGEST} bytes").into())
            }
        })))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_may_go_on_and_an_answer_may_not() {
        let counted = |by_line| Counted {
            body: (),
            by_line,
            left: LARGEST,
        };
        let half = vec![b'x'; LARGEST / 2];
        let mut answer = counted(false);
        assert!(answer.has_room_for(&half) && answer.has_room_for(&half));
        assert!(!answer.has_room_for(b"\n"));
        assert!(!answer.has_room_for(b"x"));
        let mut watch = counted(true);
        for _ in 0..4 {
            assert!(watch.has_room_for(&half) && watch.has_room_for(&half) && watch.has_room_for(b"\n"));
        }
        assert!(watch.has_room_for(&half) && watch.has_room_for(&half));
        assert!(!watch.has_room_for(b"x"));
    }
}
