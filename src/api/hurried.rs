//! Gives up connections whose peer is silent at the beginning, or takes nothing of what it asked for. Pure: no I/O of its
//! own.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

use super::places::Hold;

/// The beginning of an HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection that breaks when its peer takes no byte for too long, and has a place until it is closed.
#[derive(Debug)]
pub(super) struct Hurried<S> {
    stream: S,
    place: Arc<dyn Hold>,
    stall: Duration,
    until: Pin<Box<Sleep>>,
    stalled: bool,
}

impl<S> Hurried<S> {
    /// Gives up writes that are pending for longer than `stall`.
    pub(super) fn new(stream: S, place: Arc<dyn Hold>, stall: Duration) -> Self {
        Self {
            stream,
            place,
            stall,
            until: Box::pin(sleep(stall)),
            stalled: false,
        }
    }

    /// Turns a write that is pending for too long into an error.
    fn hurry<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = false;
            return written;
        }
        // A user of a shell may look at its output for as long as he likes.
        if self.place.is_handed_over() {
            return written;
        }
        if !self.stalled {
            self.stalled = true;
            self.until.as_mut().reset(Instant::now() + self.stall);
        }
        self.until
            .as_mut()
            .poll(cx)
            .map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Hurried<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Hurried<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.hurry(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.hurry(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// A connection with a deadline for the bytes that tell HTTP/1 from HTTP/2: the HTTP library would wait for ever.
#[derive(Debug)]
pub(super) struct Begun<S> {
    stream: S,
    /// The part of HTTP/2's beginning that may still come.
    missing: &'static [u8],
    until: Pin<Box<Sleep>>,
}

impl<S> Begun<S> {
    /// The first bytes have to come within `longest`.
    pub(super) fn new(stream: S, longest: Duration) -> Self {
        Self {
            stream,
            missing: PREFACE,
            until: Box::pin(sleep(longest)),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Begun<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if self.missing.is_empty() {
            return read;
        }
        if read.is_pending() {
            let late = self.until.as_mut().poll(cx);
            return late.map(|()| Err(io::ErrorKind::TimedOut.into()));
        }
        let came = buf.filled().get(before..).unwrap_or_default();
        // Whatever differs from the beginning of HTTP/2 is HTTP/1, which has a limit of its own.
        self.missing = match self.missing.strip_prefix(came) {
            Some(missing) => missing,
            None => &[],
        };
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Begun<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::api::places::Places;

    const SOON: Duration = Duration::from_millis(20);

    fn place() -> Arc<dyn Hold> {
        Arc::new(Places::new(1).take(0, 1).unwrap())
    }

    #[tokio::test]
    async fn a_peer_that_takes_no_more_bytes_is_given_up_unless_the_connection_was_handed_over() {
        let (ours, _theirs) = tokio::io::duplex(4);
        let place = place();
        let mut hurried = Hurried::new(ours, Arc::clone(&place), SOON);
        let error = hurried.write_all(b"more than four").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        place.hand_over();
        assert!(
            tokio::time::timeout(5 * SOON, hurried.write_all(b"more"))
                .await
                .is_err()
        );
    }

    #[tokio::test]
    async fn a_peer_that_does_not_begin_is_given_up_and_one_that_has_begun_may_be_silent() {
        for (said, is_given_up) in [("", true), ("PRI * HT", true), ("GET /", false)] {
            let (ours, mut theirs) = tokio::io::duplex(64);
            let mut begun = Begun::new(ours, SOON);
            theirs.write_all(said.as_bytes()).await.unwrap();
            begun.read_exact(&mut vec![0; said.len()]).await.unwrap();
            let more = tokio::time::timeout(5 * SOON, begun.read_u8()).await;
            assert_eq!(more.is_ok(), is_given_up, "{said}");
        }
    }
}
