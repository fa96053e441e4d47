use std::{
    io::{Read, Seek, SeekFrom},
    sync::{Arc as Shared, Mutex},
};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{HeaderMap, Response, header},
};

use super::*;

/// How the server behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Well,
    /// From the second answer on it has another object, and does not look at `If-Match`.
    Changes,
    /// The same, and it says so.
    Notices,
    /// The other object differs by its size only.
    Grows,
    /// Every second request is refused, or its answer broken off.
    Stumbles,
    /// It gives the whole object.
    Whole,
    /// It gives the part before the one that was asked for.
    Other,
    /// The answer has more bytes than it says.
    Longer,
    Shorter,
    Expired,
    /// It is reached, and says nothing; its user ends the reading then.
    Silent,
}

struct Object {
    way: Way,
    bytes: Vec<u8>,
    /// The ranges that were asked for.
    asked: Mutex<Vec<(usize, usize)>>,
    /// Ends the reading, as its user does.
    cancelled: CancellationToken,
}

async fn answer(State(object): State<Shared<Object>>, headers: HeaderMap) -> Response<Body> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let (begin, end) = text(header::RANGE).unwrap()["bytes=".len()..].split_once('-').unwrap();
    let (begin, end) = (begin.parse::<usize>().unwrap(), end.parse::<usize>().unwrap() + 1);
    let count = {
        let mut asked = object.asked.lock().unwrap();
        asked.push((begin, end));
        asked.len()
    };
    let is_first = count == 1;
    let (mut status, mut size, mut tag) = (206, object.bytes.len(), "\"one\"");
    let (mut said, mut part) = ((begin, end), object.bytes[begin..end].to_vec());
    match object.way {
        Way::Changes if !is_first => tag = "\"two\"",
        Way::Notices if !is_first && text(header::IF_MATCH) == Some("\"one\"") => status = 412,
        Way::Grows if !is_first => size += 1,
        Way::Stumbles if count % 4 == 1 => status = 503,
        Way::Stumbles if count % 4 == 3 => {
            let broken = [Ok(part), Err(std::io::Error::other("broken"))];
            let body = Body::from_stream(futures::stream::iter(broken));
            return reply(status, said, size, tag, body);
        }
        Way::Whole => (status, part) = (200, object.bytes.clone()),
        Way::Other if !is_first => said = (0, end - begin),
        Way::Longer => part.push(0),
        Way::Shorter => drop(part.pop()),
        Way::Expired if !is_first => status = 403,
        Way::Silent => {
            object.cancelled.cancel();
            std::future::pending::<()>().await;
        }
        _ => {}
    }
    reply(status, said, size, tag, Body::from(part))
}

fn reply(status: u16, (begin, end): (usize, usize), size: usize, tag: &str, body: Body) -> Response<Body> {
    let answer = Response::builder().status(status).header(header::ETAG, tag);
    let range = format!("bytes {begin}-{}/{size}", end - 1);
    answer.header(header::CONTENT_RANGE, range).body(body).unwrap()
}

/// Reads an object of `blocks` blocks and a half from such a server. Returns the ranges it was asked for, too.
fn with<T: Send + 'static>(
    way: Way,
    blocks: usize,
    cancelled: CancellationToken,
    read: impl FnOnce(Ranges, &[u8]) -> T + Send + 'static,
) -> (T, Vec<(usize, usize)>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        // Another test of this process may have installed it already.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let size = blocks * BLOCK + BLOCK / 2;
        let bytes: Vec<u8> = (0..size).map(|at| u8::try_from(at / 7 % 251).unwrap()).collect();
        let object = Shared::new(Object {
            way,
            bytes: bytes.clone(),
            asked: Mutex::default(),
            cancelled: cancelled.clone(),
        });
        let router = Router::new().fallback(answer).with_state(Shared::clone(&object));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!(
            "http://{}/bucket/root?X-Amz-Signature=secret",
            listener.local_addr().unwrap()
        );
        let url = url.parse().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let http = reqwest::Client::builder()
            .no_proxy()
            .tls_certs_only([])
            .build()
            .unwrap();
        let ranges = Ranges::new(
            super::Object { http, url },
            "s3://bucket/root".to_owned(),
            size as u64,
            cancelled,
        );
        let done = tokio::task::spawn_blocking(move || read(ranges, &bytes)).await.unwrap();
        let asked = object.asked.lock().unwrap().clone();
        (done, asked)
    })
}

fn well<T: Send + 'static>(
    blocks: usize,
    read: impl FnOnce(Ranges, &[u8]) -> T + Send + 'static,
) -> (T, Vec<(usize, usize)>) {
    with(Way::Well, blocks, CancellationToken::new(), read)
}

/// The failure of reading everything from such a server.
fn failure(way: Way) -> Failure {
    let read = |mut ranges: Ranges, _: &[u8]| {
        let error = ranges.read_to_end(&mut Vec::new()).unwrap_err();
        error.downcast::<Failure>().unwrap()
    };
    let (failure, _) = with(way, 4, CancellationToken::new(), read);
    assert!(
        !failure.detail.contains("secret") && !failure.detail.contains("127.0.0.1"),
        "{failure}"
    );
    assert!(failure.hint.is_some(), "{failure}");
    failure
}

#[test]
fn a_place_costs_its_block_and_is_kept() {
    let ((), asked) = well(40, |mut ranges, bytes| {
        let mut some = [0; 100];
        for at in [20 * BLOCK - 50, 20 * BLOCK + 7, 3 * BLOCK, 20 * BLOCK - 50] {
            ranges.seek(SeekFrom::Start(at as u64)).unwrap();
            ranges.read_exact(&mut some).unwrap();
            assert_eq!(some, bytes[at..at + 100]);
        }
        let end = ranges.seek(SeekFrom::End(-5)).unwrap();
        assert_eq!(end, bytes.len() as u64 - 5);
        let mut rest = Vec::new();
        ranges.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, bytes[bytes.len() - 5..]);
        assert_eq!(ranges.seek(SeekFrom::End(9)).unwrap(), bytes.len() as u64 + 9);
        assert_eq!(ranges.read(&mut some).unwrap(), 0);
        ranges.seek(SeekFrom::Current(-i64::MAX)).unwrap_err();
    });
    // The second one is read on to, which takes two.
    let blocks: Vec<(usize, usize)> = asked
        .iter()
        .map(|(begin, end)| (begin / BLOCK, end.div_ceil(BLOCK)))
        .collect();
    assert_eq!(blocks, [(19, 20), (20, 22), (3, 4), (40, 41)]);
}

#[test]
fn reading_on_takes_more_at_a_time_and_keeps_little() {
    let ((), asked) = well(100, |mut ranges, bytes| {
        let mut all = Vec::new();
        ranges.read_to_end(&mut all).unwrap();
        assert!(all == bytes);
        assert_eq!(ranges.kept.len(), KEPT);
    });
    let blocks: Vec<usize> = asked.iter().map(|(begin, end)| (end - begin).div_ceil(BLOCK)).collect();
    assert_eq!(blocks, [1, 2, 4, 8, 16, 16, 16, 16, 16, 6]);
}

#[test]
fn a_stumbling_service_gives_the_same_bytes() {
    let read = |mut ranges: Ranges, bytes: &[u8]| {
        let mut all = Vec::new();
        ranges.read_to_end(&mut all).unwrap();
        all == bytes
    };
    let (is_same, asked) = with(Way::Stumbles, 4, CancellationToken::new(), read);
    assert!(is_same && asked.len() > 3, "{asked:?}");
}

#[test]
fn what_changed_is_never_mixed_with_what_it_was() {
    for way in [Way::Changes, Way::Notices, Way::Grows] {
        assert_eq!(failure(way).code, Code::RootUnreadable, "{way:?}");
    }
}

#[test]
fn an_answer_that_is_not_the_part_is_not_taken_for_it() {
    for way in [Way::Whole, Way::Other, Way::Longer, Way::Shorter] {
        assert_eq!(failure(way).code, Code::RootUnreadable, "{way:?}");
    }
}

#[test]
fn an_address_that_is_not_valid_any_more_is_said() {
    let failure = failure(Way::Expired);
    assert_eq!(failure.code, Code::S3Denied);
    assert!(failure.hint.unwrap().contains("limited time"));
}

#[test]
fn a_user_who_does_not_want_to_wait_ends_it() {
    let read = |mut ranges: Ranges, _: &[u8]| ranges.read(&mut [0]).unwrap_err().downcast::<Failure>().unwrap();
    let (failure, _) = with(Way::Silent, 1, CancellationToken::new(), read);
    assert_eq!(failure.code, Code::Interrupted);
}
