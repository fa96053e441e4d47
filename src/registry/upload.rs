//! Sends a blob to a registry in chunks, and goes on where a connection broke. Reads the source, and talks to the
//! registry.
//!
//! ```text
//!  source ──pieces──▶ chunk (in memory until the registry has it) ──PATCH──▶ registry
//!                       ▲                                                     │
//!                       └── broken: how much is there? the rest of it again ◀─┘
//! ```
//!
//! A source need not know its digest before its end, and is read once if nothing breaks: no chunk is let go of before
//! the registry has acknowledged it.

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use kiln_records::{Code, Failure};
use reqwest::{
    Method, Response, StatusCode, Url,
    header::{CONTENT_RANGE, CONTENT_TYPE, HeaderName, RANGE},
};
use tokio::sync::mpsc;

use crate::{
    digest::{Digest, Hasher},
    model::Descriptor,
    remote::Remote,
    source::{Pieces, Source},
    transport::Ask,
};

/// Bytes of a chunk. Large enough that the answers to chunks cost nothing, and small enough to keep some of them.
const CHUNK: usize = 16 << 20;

/// The largest chunk that a registry may ask for.
const MAX_CHUNK: usize = 256 << 20;

/// How often a blob is begun anew, because the registry forgot what it had.
const RESTARTS: u32 = 4;

const MIN_LENGTH: HeaderName = HeaderName::from_static("oci-chunk-min-length");

/// What was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// Its digest.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
}

/// Why an attempt ended.
enum Stop {
    /// The registry has forgotten what it had.
    Forgotten(Failure),
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Sends all of `source`. `expected` is its digest and size, if these are known.
pub async fn upload(remote: &Remote, expected: Option<&Descriptor>, source: &dyn Source) -> Result<Sent, Failure> {
    let what = match expected {
        Some(blob) => format!("cannot send {}", blob.digest),
        None => "cannot send a layer".to_owned(),
    };
    let sending = Sending {
        remote,
        expected,
        what: format!("{what} to {}/{}", remote.transport.registry, remote.repository),
    };
    let mut restarts = 0;
    loop {
        match sending.attempt(source).await {
            Ok(sent) => return Ok(sent),
            Err(Stop::Failed(failure)) => return Err(failure),
            Err(Stop::Forgotten(failure)) => {
                restarts += 1;
                if restarts > RESTARTS {
                    return Err(failure);
                }
                tokio::time::sleep(remote.transport.patience().pause(restarts)).await;
            }
        }
    }
}

struct Sending<'a> {
    remote: &'a Remote,
    expected: Option<&'a Descriptor>,
    what: String,
}

/// Bytes of the source, and with the last of them the digest of all.
struct Chunk {
    bytes: Bytes,
    digest: Option<Digest>,
}

impl Sending<'_> {
    async fn attempt(&self, source: &dyn Source) -> Result<Sent, Stop> {
        let (mut url, length) = self.begin().await?;
        let (sender, mut chunks) = mpsc::channel(1);
        let hasher = self.expected.map_or_else(Hasher::default, |blob| blob.digest.hasher());
        // The next chunk is made while one is sent.
        let reading = tokio::spawn(read(source.open().await?, hasher, length, sender));
        let outcome = async {
            let (mut at, mut is_first) = (0, true);
            while let Some(chunk) = chunks.recv().await {
                let chunk: Chunk = chunk?;
                let end = at + chunk.bytes.len() as u64;
                let Some(digest) = chunk.digest else {
                    url = self.send(url, at, chunk.bytes).await?;
                    (at, is_first) = (end, false);
                    continue;
                };
                self.check(&digest, end)?;
                let last = if is_first {
                    chunk.bytes
                } else {
                    if !chunk.bytes.is_empty() {
                        url = self.send(url, at, chunk.bytes).await?;
                    }
                    Bytes::new()
                };
                self.finish(url, &digest, end, last).await?;
                return Ok(Sent { digest, size: end });
            }
            // The reader says why it ends; without that, it broke down.
            Err(Stop::Failed(Failure::new(
                Code::Io,
                format!("{}: its source broke off", self.what),
            )))
        };
        let outcome = outcome.await;
        reading.abort();
        outcome
    }

    /// Checks what the source gave against what it is known to be.
    fn check(&self, digest: &Digest, size: u64) -> Result<(), Failure> {
        match self.expected {
            Some(blob) if blob.digest != *digest || blob.size != size => Err(Failure::new(
                Code::RegistryDigest,
                format!("{}: what is stored there has {size} bytes and {digest} now", self.what),
            )
            .hint("the image's objects were changed or are damaged: build it again")),
            _ => Ok(()),
        }
    }

    /// Opens an upload. Returns its address, and the size of chunks.
    async fn begin(&self) -> Result<(Url, usize), Failure> {
        let transport = &self.remote.transport;
        let ask = self.remote.write(Method::POST, "blobs/uploads/", &self.what);
        let response = transport.send(&ask).await?;
        if response.status() != StatusCode::ACCEPTED {
            return Err(transport.refuse(response, &self.what).await);
        }
        let least = response.headers().get(MIN_LENGTH);
        let least = least.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        let url = transport.target(&ask.url, &response, &self.what)?;
        Ok((url, least.unwrap_or(CHUNK).clamp(CHUNK, MAX_CHUNK)))
    }

    /// Sends one chunk, whose first byte is number `at`. Returns the address for the next one.
    async fn send(&self, mut url: Url, at: u64, chunk: Bytes) -> Result<Url, Stop> {
        let transport = &self.remote.transport;
        let patience = *transport.patience();
        let (mut done, mut failed) = (0, 0);
        loop {
            let rest = chunk.slice(done..);
            let (first, end) = (at + done as u64, at + chunk.len() as u64);
            let ask = Ask::new(Method::PATCH, url.clone(), &self.what, self.remote.push_scope())
                .header(CONTENT_TYPE, "application/octet-stream")
                .header(CONTENT_RANGE, &format!("{first}-{}", end - 1))
                .body(rest)
                .once();
            let failure = match transport.send(&ask).await {
                Ok(response) if response.status() == StatusCode::ACCEPTED => {
                    let next = transport.target(&url, &response, &self.what)?;
                    match received(&response) {
                        // What is not said is taken to be all.
                        None => return Ok(next),
                        Some(received) if received == end => return Ok(next),
                        Some(received) if (first + 1..end).contains(&received) => {
                            (url, failed) = (next, 0);
                            done = usize::try_from(received - at).unwrap_or(chunk.len());
                            continue;
                        }
                        Some(_) => return Err(self.forgotten()),
                    }
                }
                Ok(response) if response.status() == StatusCode::NOT_FOUND => return Err(self.forgotten()),
                // A proxy before a registry that is not there answers so, and it out of step with a chunk that was cut.
                Ok(response) if passes(response.status()) => transport.refuse(response, &self.what).await,
                Ok(response) => return Err(transport.refuse(response, &self.what).await.into()),
                Err(failure) if is_broken(&failure) => failure,
                Err(failure) => return Err(failure.into()),
            };
            failed += 1;
            if failed >= patience.tries {
                return Err(failure.into());
            }
            tokio::time::sleep(patience.pause(failed)).await;
            // The connection broke somewhere in the chunk: the registry knows where.
            let (next, received) = self.status(&url).await?;
            match received {
                Some(received) if received > 1 && (at..=end).contains(&received) => {
                    done = usize::try_from(received - at).unwrap_or(chunk.len());
                    url = next;
                    if received == end {
                        return Ok(url);
                    }
                }
                // `0-0` may be one byte or none.
                _ => return Err(self.forgotten()),
            }
        }
    }

    /// How many bytes the registry has, and where to go on.
    async fn status(&self, url: &Url) -> Result<(Url, Option<u64>), Stop> {
        let transport = &self.remote.transport;
        let ask = Ask::new(Method::GET, url.clone(), &self.what, self.remote.push_scope());
        let response = transport.send(&ask).await?;
        match response.status() {
            StatusCode::NO_CONTENT | StatusCode::OK | StatusCode::ACCEPTED => {
                let next = if response.headers().contains_key(reqwest::header::LOCATION) {
                    transport.target(url, &response, &self.what)?
                } else {
                    url.clone()
                };
                Ok((next, received(&response)))
            }
            // A registry that was restarted may not know its own address any more.
            StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST => Err(self.forgotten()),
            _ => Err(transport.refuse(response, &self.what).await.into()),
        }
    }

    /// Ends the upload, with its last bytes, and checks that the blob is there.
    async fn finish(&self, mut url: Url, digest: &Digest, size: u64, last: Bytes) -> Result<(), Stop> {
        let transport = &self.remote.transport;
        url.query_pairs_mut().append_pair("digest", digest.as_str());
        let mut ask = Ask::new(Method::PUT, url, &self.what, self.remote.push_scope())
            .header(CONTENT_TYPE, "application/octet-stream")
            .body(last)
            .once();
        ask.finishes = true;
        match transport.send(&ask).await {
            Ok(response)
                if matches!(
                    response.status(),
                    StatusCode::CREATED | StatusCode::NO_CONTENT | StatusCode::OK
                ) =>
            {
                self.remote.same_digest(&response, digest, &self.what)?;
            }
            Ok(response) if response.status() == StatusCode::NOT_FOUND => return Err(self.forgotten()),
            Ok(response) if passes(response.status()) => {
                return Err(Stop::Forgotten(transport.refuse(response, &self.what).await));
            }
            Ok(response) => return Err(transport.refuse(response, &self.what).await.into()),
            // It may have arrived.
            Err(failure) if is_broken(&failure) => {
                if self.remote.blob_size(digest).await? != Some(size) {
                    return Err(Stop::Forgotten(failure));
                }
            }
            Err(failure) => return Err(failure.into()),
        }
        match self.remote.blob_size(digest).await? {
            Some(there) if there == size => Ok(()),
            there => Err(Stop::Failed(
                Failure::new(
                    Code::RegistryDigest,
                    match there {
                        Some(there) => format!("{}: {size} bytes were sent, and {there} are there", self.what),
                        None => format!("{}: it was accepted, and is not there", self.what),
                    },
                )
                .hint("repeat; if it fails again, the registry is damaged"),
            )),
        }
    }

    fn forgotten(&self) -> Stop {
        Stop::Forgotten(Failure::new(
            Code::RegistryLost,
            format!("{}: the registry has forgotten what it received", self.what),
        ))
    }
}

/// The number of bytes that an answer says were received.
fn received(response: &Response) -> Option<u64> {
    let text = response.headers().get(RANGE)?.to_str().ok()?;
    let (_, last) = text.trim_start_matches("bytes=").split_once('-')?;
    last.parse::<u64>().ok().map(|last| last.saturating_add(1))
}

fn passes(status: StatusCode) -> bool {
    let is_out_of_step = status == StatusCode::RANGE_NOT_SATISFIABLE;
    is_out_of_step || (status.is_server_error() && status != StatusCode::INSUFFICIENT_STORAGE)
}

fn is_broken(failure: &Failure) -> bool {
    matches!(failure.code, Code::RegistryLost | Code::RegistryUnreachable)
}

/// Makes chunks of pieces.
async fn read(mut pieces: Pieces, mut hasher: Hasher, length: usize, chunks: mpsc::Sender<Result<Chunk, Failure>>) {
    let mut chunk = BytesMut::new();
    loop {
        let piece = match pieces.next().await {
            Some(Ok(piece)) => piece,
            Some(Err(failure)) => {
                let _ = chunks.send(Err(failure)).await;
                return;
            }
            None => {
                let last = Chunk {
                    bytes: chunk.freeze(),
                    digest: Some(hasher.finish()),
                };
                // Nobody waits any more where sending failed.
                let _ = chunks.send(Ok(last)).await;
                return;
            }
        };
        hasher.update(&piece);
        let mut rest = piece;
        while !rest.is_empty() {
            if chunk.is_empty() {
                chunk.reserve(length);
            }
            let room = rest.len().min(length - chunk.len());
            chunk.extend_from_slice(&rest.split_to(room));
            if chunk.len() == length {
                let full = Chunk {
                    bytes: chunk.split().freeze(),
                    digest: None,
                };
                if chunks.send(Ok(full)).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Has the registry take a blob from another of its repositories. Returns whether it did.
pub async fn mount(remote: &Remote, blob: &Descriptor, from: &str) -> Result<bool, Failure> {
    let what = format!("cannot take {} from {from}", blob.digest);
    let mut ask = remote.write(Method::POST, "blobs/uploads/", &what);
    ask.url
        .query_pairs_mut()
        .append_pair("mount", blob.digest.as_str())
        .append_pair("from", from);
    let response = remote.transport.send(&ask).await?;
    match response.status() {
        StatusCode::CREATED => Ok(remote.blob_size(&blob.digest).await? == Some(blob.size)),
        // It opened an upload instead, which is given up.
        StatusCode::ACCEPTED => {
            if let Ok(url) = remote.transport.target(&ask.url, &response, &what) {
                let ask = Ask::new(Method::DELETE, url, &what, remote.push_scope()).once();
                let _ = remote.transport.send(&ask).await;
            }
            Ok(false)
        }
        status if status.is_server_error() => Err(remote.transport.refuse(response, &what).await),
        _ => Ok(false),
    }
}
