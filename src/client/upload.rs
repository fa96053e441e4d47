//! Uploads files and bytes: streamed, with progress, and aborted when they stall. Reads one file, and talks to the
//! server.

use std::{
    sync::{
        Arc as Shared,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{StreamExt, stream};
use kiln_records::{Code, Failure};
use reqwest::{
    Body,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
};
use tokio::io::AsyncReadExt;
use tokio_util::io::ReaderStream;

use super::{Client, Data, IDLE_TIMEOUT};

/// Bytes read at a time.
const PIECE: usize = 256 << 10;

/// How long the server may take after the last byte of an upload: S3 assembles large objects then.
const FINISH_TIMEOUT: Duration = Duration::from_mins(10);

/// The content of an upload.
#[derive(Debug)]
pub enum UploadSource {
    /// A file.
    File(fs_err::File),
    /// Bytes in memory.
    Bytes(Bytes),
}

/// An upload.
#[derive(Debug)]
pub struct Upload {
    /// The content.
    pub source: UploadSource,
    /// Its size in bytes.
    pub size: u64,
    /// Its media type.
    pub media_type: &'static str,
}

impl Upload {
    /// An upload of an open file.
    pub fn file(file: fs_err::File, media_type: &'static str) -> Result<Self, Failure> {
        let metadata = file.metadata().map_err(|error| unreadable(&error))?;
        Ok(Self {
            source: UploadSource::File(file),
            size: metadata.len(),
            media_type,
        })
    }

    /// An upload of bytes.
    pub fn bytes(bytes: Vec<u8>, media_type: &'static str) -> Self {
        Self {
            size: bytes.len() as u64,
            source: UploadSource::Bytes(bytes.into()),
            media_type,
        }
    }
}

fn unreadable(error: &std::io::Error) -> Failure {
    Failure::new(
        Code::UploadUnreadable,
        format!("cannot read what is to be uploaded: {error}"),
    )
}

impl Client {
    /// PUT of an upload. `sent` is called regularly with the number of bytes sent.
    pub async fn upload(
        &self,
        segments: &[&str],
        upload: Upload,
        sent: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<Data, Failure> {
        let size = upload.size;
        let total = Shared::new(AtomicU64::new(0));
        let counted = {
            let total = Shared::clone(&total);
            move |bytes: usize| sent(total.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64)
        };
        let body = match upload.source {
            UploadSource::File(file) => {
                let file = tokio::fs::File::from_std(file.into_file());
                // The length was announced; data appended to the file meanwhile is not part of it.
                Body::wrap_stream(
                    ReaderStream::with_capacity(file.take(size), PIECE).inspect(move |piece| {
                        counted(piece.as_ref().map_or(0, Bytes::len));
                    }),
                )
            }
            UploadSource::Bytes(bytes) => {
                let pieces = (0..bytes.len()).step_by(PIECE);
                let pieces: Vec<_> = pieces.map(|at| bytes.slice(at..bytes.len().min(at + PIECE))).collect();
                Body::wrap_stream(stream::iter(pieces).map(move |piece| {
                    counted(piece.len());
                    Ok::<_, std::io::Error>(piece)
                }))
            }
        };
        let request = self
            .uploads
            .put(self.server.address(segments))
            .header(CONTENT_TYPE, upload.media_type)
            .header(CONTENT_LENGTH, size)
            .body(body);
        tokio::select! {
            answer = self.exchange(&self.uploads, request) => Ok(answer?.0),
            () = stalled(&total, size) => Err(Failure::new(
                Code::ServerTimeout,
                format!("the upload to {} stands still", self.server),
            )),
        }
    }
}

/// Returns when no data was sent for too long.
async fn stalled(total: &AtomicU64, size: u64) {
    let (mut last, mut since) = (0, Instant::now());
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = total.load(Ordering::Relaxed);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        let patience = if now >= size { FINISH_TIMEOUT } else { IDLE_TIMEOUT };
        if since.elapsed() > patience {
            return;
        }
    }
}
