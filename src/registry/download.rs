//! Reads a blob from a registry: checked against its digest, and gone on with where a connection broke. Talks to the
//! registry.

use futures::{StreamExt, stream};
use kiln_records::{Code, Failure};
use reqwest::{Method, Response, StatusCode, header::RANGE};

use crate::{digest::Hasher, model::Descriptor, refusal, remote::Remote, source::Pieces, transport::Pace};

/// A blob that is being read.
struct Reading {
    remote: Remote,
    blob: Descriptor,
    what: String,
    response: Option<Response>,
    hasher: Option<Hasher>,
    at: u64,
    /// Bytes to skip: the registry began from the start although it was asked not to.
    skip: u64,
    failed: u32,
    pace: Pace,
}

/// The bytes of a blob. The last piece comes only when digest and size are right.
pub fn pieces(remote: &Remote, blob: &Descriptor) -> Pieces {
    let what = format!(
        "cannot read {} from {}/{}",
        blob.digest, remote.transport.registry, remote.repository
    );
    let reading = Reading {
        hasher: Some(blob.digest.hasher()),
        pace: Pace::new(remote.transport.patience().idle),
        remote: remote.clone(),
        blob: blob.clone(),
        what,
        response: None,
        at: 0,
        skip: 0,
        failed: 0,
    };
    stream::try_unfold(reading, |mut reading| async move {
        Ok(reading.next().await?.map(|piece| (piece, reading)))
    })
    .boxed()
}

impl Reading {
    async fn next(&mut self) -> Result<Option<bytes::Bytes>, Failure> {
        loop {
            if self.at == self.blob.size && (self.response.is_some() || self.at > 0) {
                return self.end();
            }
            let failure = match self.piece().await {
                Ok(Some(piece)) => {
                    self.pace.came(piece.len());
                    let skipped = piece.len().min(usize::try_from(self.skip).unwrap_or(usize::MAX));
                    self.skip -= skipped as u64;
                    let piece = piece.slice(skipped..);
                    if piece.is_empty() {
                        continue;
                    }
                    self.failed = 0;
                    self.at += piece.len() as u64;
                    if self.at > self.blob.size {
                        return Err(self.wrong(format_args!("more than the {} bytes announced", self.blob.size)));
                    }
                    if let Some(hasher) = &mut self.hasher {
                        hasher.update(&piece);
                    }
                    if self.at == self.blob.size {
                        // Nothing of what is wrong shall look finished.
                        self.end()?;
                    }
                    return Ok(Some(piece));
                }
                Ok(None) if self.blob.size == 0 => return self.end(),
                Ok(None) => Failure::new(
                    Code::RegistryLost,
                    format!("{}: it ended after {} of {} bytes", self.what, self.at, self.blob.size),
                ),
                Err(failure) => failure,
            };
            self.response = None;
            self.failed += 1;
            let patience = *self.remote.transport.patience();
            if failure.code != Code::RegistryLost || self.failed >= patience.tries {
                return Err(failure);
            }
            tokio::time::sleep(patience.pause(self.failed)).await;
            self.pace = Pace::new(patience.idle);
        }
    }

    /// The next bytes of the answer, which is asked for first if there is none.
    async fn piece(&mut self) -> Result<Option<bytes::Bytes>, Failure> {
        let transport = &self.remote.transport;
        let mut response = if let Some(response) = self.response.take() {
            response
        } else {
            let mut ask = self
                .remote
                .read(Method::GET, &format!("blobs/{}", self.blob.digest), &self.what);
            if self.at > 0 {
                ask = ask.header(RANGE, &format!("bytes={}-", self.at));
            }
            let response = transport.send(&ask).await?;
            match response.status() {
                StatusCode::OK => self.skip = self.at,
                StatusCode::PARTIAL_CONTENT if self.at > 0 => self.skip = 0,
                _ => return Err(transport.refuse(response, &self.what).await),
            }
            response
        };
        let chunk = tokio::time::timeout(self.pace.left(), response.chunk()).await;
        let chunk = chunk.map_err(|_| refusal::slow(&transport.registry, &self.what))?;
        let chunk = chunk.map_err(|error| refusal::unanswered(&transport.registry, &self.what, &error))?;
        self.response = Some(response);
        Ok(chunk)
    }

    fn end(&mut self) -> Result<Option<bytes::Bytes>, Failure> {
        if let Some(hasher) = self.hasher.take()
            && hasher.finish() != self.blob.digest
        {
            return Err(self.wrong("content with another digest"));
        }
        Ok(None)
    }

    fn wrong(&self, sent: impl std::fmt::Display) -> Failure {
        Failure::new(
            Code::RegistryDigest,
            format!("{}: {} sent {sent}", self.what, self.remote.transport.registry),
        )
        .hint("repeat; if it fails again, the registry or a cache before it is damaged")
    }
}
