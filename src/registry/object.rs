//! An object at a presigned address, as the source of a blob: gone on with where a connection broke. Talks to the store
//! of the object.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};
use kiln_records::{Code, Failure};
use reqwest::{Client, Response, StatusCode, Url, header::RANGE};

use crate::{
    refusal::innermost,
    source::{Pieces, Source},
    transport::{Pace, Patience},
};

/// An object that anyone may read who knows its address.
#[derive(Clone)]
pub struct Object {
    /// What to call it.
    pub name: String,
    /// Its address, which is a secret.
    pub url: Url,
    /// Its size in bytes.
    pub size: u64,
    /// The client that reads it.
    pub http: Client,
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Object")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Source for Object {
    async fn open(&self) -> Result<Pieces, Failure> {
        let reading = Reading {
            object: self.clone(),
            response: None,
            at: 0,
            failed: 0,
        };
        let pieces = stream::try_unfold(reading, |mut reading| async move {
            Ok(reading.next().await?.map(|piece| (piece, reading)))
        });
        Ok(pieces.boxed())
    }
}

struct Reading {
    object: Object,
    response: Option<(Response, Pace)>,
    at: u64,
    failed: u32,
}

impl Reading {
    async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        let patience = Patience::default();
        loop {
            if self.at >= self.object.size {
                return Ok(None);
            }
            let failure = match self.piece(patience.idle).await {
                Ok(Some(piece)) => {
                    self.failed = 0;
                    self.at += piece.len() as u64;
                    return Ok(Some(piece));
                }
                Ok(None) => self.broken(format_args!("it ended after {} of {} bytes", self.at, self.object.size)),
                Err(failure) => failure,
            };
            self.response = None;
            self.failed += 1;
            if failure.code != Code::S3Unreachable || self.failed >= patience.tries {
                return Err(failure);
            }
            tokio::time::sleep(patience.pause(self.failed)).await;
        }
    }

    /// The next bytes of the answer, which is asked for first if there is none.
    async fn piece(&mut self, idle: Duration) -> Result<Option<Bytes>, Failure> {
        let (mut response, mut pace) = match self.response.take() {
            Some(response) => response,
            None => (self.ask(idle).await?, Pace::new(idle)),
        };
        let chunk = tokio::time::timeout(pace.left(), response.chunk()).await;
        let chunk = chunk.map_err(|_| self.slow())?;
        let chunk = chunk.map_err(|error| self.broken(innermost(&error)))?;
        pace.came(chunk.as_ref().map_or(0, Bytes::len));
        self.response = Some((response, pace));
        Ok(chunk)
    }

    async fn ask(&self, idle: Duration) -> Result<Response, Failure> {
        let mut request = self.object.http.get(self.object.url.clone());
        if self.at > 0 {
            request = request.header(RANGE, format!("bytes={}-", self.at));
        }
        let response = tokio::time::timeout(idle, request.send()).await;
        let response = response.map_err(|_| self.slow())?;
        let response = response.map_err(|error| self.broken(innermost(&error)))?;
        match response.status() {
            StatusCode::OK if self.at == 0 => Ok(response),
            StatusCode::PARTIAL_CONTENT if self.at > 0 => Ok(response),
            StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => Err(Failure::new(
                Code::S3Missing,
                format!("{} cannot be read: S3 answered {}", self.object.name, response.status()),
            )
            .hint("it was deleted meanwhile, or its address is older than six hours: begin again")),
            status => Err(self.broken(format_args!("S3 answered {status}"))),
        }
    }

    fn broken(&self, why: impl std::fmt::Display) -> Failure {
        Failure::new(
            Code::S3Unreachable,
            format!("{} cannot be read: {why}", self.object.name),
        )
        .hint("check that this machine reaches the S3 service (`s3.public_endpoint` of the server)")
    }

    fn slow(&self) -> Failure {
        Failure::new(
            Code::S3Timeout,
            format!("{} cannot be read: S3 sends nothing", self.object.name),
        )
    }
}
