//! Accepts connections, and limits their silence. Touches the given socket only.

use std::{pin::Pin, sync::Arc, time::Duration};

use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    time::sleep,
};
use tokio_io_timeout::TimeoutStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    front::Front,
    places::{Limits, Place, Places},
};

/// The most header bytes of one request, and the most bytes that are read at a time.
const MOST_READ: usize = 128 << 10;

/// The most headers of one request.
const MOST_HEADERS: usize = 100;

/// Accepts connections until told to stop.
pub(super) async fn accept(
    listener: TcpListener,
    front: Front,
    limits: Limits,
    stop: CancellationToken,
    tasks: TaskTracker,
) {
    let places = Places::new(limits);
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Most likely out of file descriptors; some will be free soon.
                    tracing::warn!(%error, "embedded S3: a connection was not accepted");
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        let Some(place) = places.take() else {
            tracing::debug!(
                "embedded S3: a connection was refused, since there are {}",
                limits.connections
            );
            refuse(&stream);
            continue;
        };
        // Otherwise a body waits 40 ms until the client acknowledges the headers sent before it.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "embedded S3: small packets will be late");
        }
        tasks.spawn(serve(stream, front.clone(), Arc::new(place), limits, stop.clone()));
    }
}

/// Tells a client to come again, if it listens.
fn refuse(stream: &TcpStream) {
    let _ = stream.try_write(b"HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
}

async fn serve(stream: TcpStream, front: Front, place: Arc<Place>, limits: Limits, stop: CancellationToken) {
    // No client speaks HTTP/2 without TLS, and HTTP/2 has many requests in one connection.
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_headers(MOST_HEADERS)
        .max_buf_size(MOST_READ);
    let answer = {
        let place = Arc::clone(&place);
        service_fn(move |request| {
            let (front, place) = (front.clone(), Arc::clone(&place));
            async move { front.answer(request, place).await }
        })
    };
    let io = TokioIo::new(hurried(stream, limits.stall));
    let mut connection = std::pin::pin!(builder.serve_connection(io, answer));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = place.given_up.cancelled() => return,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "embedded S3: a connection broke");
    }
}

/// A connection that breaks when its peer takes no byte for too long.
fn hurried<S: AsyncRead + AsyncWrite>(stream: S, stall: Duration) -> Pin<Box<TimeoutStream<S>>> {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(stall));
    Box::pin(stream)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::EmbeddedS3;

    /// All that the server says on a connection until it closes it.
    async fn said(stream: &mut TcpStream) -> String {
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said).await;
        String::from_utf8(said).unwrap()
    }

    async fn server(limits: Limits) -> (EmbeddedS3, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let address = ([127, 0, 0, 1], 0).into();
        (
            EmbeddedS3::start_within(dir.path(), address, limits).await.unwrap(),
            dir,
        )
    }

    async fn connect(server: &EmbeddedS3) -> TcpStream {
        TcpStream::connect(server.endpoint().strip_prefix("http://").unwrap())
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn connections_that_say_nothing_or_half_a_request_are_closed() {
        let limits = Limits {
            head: Duration::from_millis(50),
            ..Limits::default()
        };
        let (server, _dir) = server(limits).await;
        let (mut silent, mut half) = (connect(&server).await, connect(&server).await);
        half.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ").await.unwrap();
        assert_eq!(said(&mut silent).await, "");
        said(&mut half).await;
        server.shutdown().await;
    }

    #[tokio::test]
    async fn connections_beyond_the_limit_are_refused_and_later_ones_served() {
        let limits = Limits {
            connections: 1,
            ..Limits::default()
        };
        let (server, _dir) = server(limits).await;
        let mut first = connect(&server).await;
        let request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        first.write_all(&request[..9]).await.unwrap();
        let mut second = connect(&server).await;
        assert!(!said(&mut second).await.contains("AccessDenied"));
        first.write_all(&request[9..]).await.unwrap();
        assert!(said(&mut first).await.contains("AccessDenied"));
        // The place is free once the server's side has noticed.
        for _ in 0..500 {
            let mut third = connect(&server).await;
            third.write_all(request).await.unwrap();
            if said(&mut third).await.contains("AccessDenied") {
                return server.shutdown().await;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("no later connection was served");
    }

    #[tokio::test]
    async fn a_peer_that_takes_no_more_bytes_is_not_waited_for() {
        let (ours, _theirs) = tokio::io::duplex(4);
        let mut hurried = hurried(ours, Duration::from_millis(20));
        let error = hurried.write_all(b"more than four").await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    }
}
