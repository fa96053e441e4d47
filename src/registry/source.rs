//! Where the bytes of a blob come from. Reads files; other sources are given by callers.

use std::{fmt, path::PathBuf};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, stream, stream::BoxStream};
use kiln_records::Failure;
use tokio::io::AsyncReadExt;

/// Bytes as they come.
pub type Pieces = BoxStream<'static, Result<Bytes, Failure>>;

/// Bytes read from a file at a time.
const PIECE: usize = 256 << 10;

/// Bytes that can be read more than once, and are the same each time.
#[async_trait]
pub trait Source: Send + Sync + fmt::Debug {
    /// All bytes, from the first one on.
    async fn open(&self) -> Result<Pieces, Failure>;
}

#[async_trait]
impl Source for Bytes {
    async fn open(&self) -> Result<Pieces, Failure> {
        Ok(stream::iter([Ok(self.clone())]).boxed())
    }
}

/// A file.
#[derive(Debug, Clone)]
pub struct FileSource(pub PathBuf);

#[async_trait]
impl Source for FileSource {
    async fn open(&self) -> Result<Pieces, Failure> {
        kiln_files::open(&self.0)
            .map(pieces)
            .map_err(|error| unreadable(&error))
    }
}

fn unreadable(error: &std::io::Error) -> Failure {
    Failure::io("cannot read a file that is to be sent", error)
}

/// The bytes of an open file.
pub(crate) fn pieces(file: fs_err::File) -> Pieces {
    let pieces = stream::try_unfold(fs_err::tokio::File::from(file), |mut file| async move {
        let mut piece = BytesMut::with_capacity(PIECE);
        let read = file.read_buf(&mut piece).await.map_err(|error| unreadable(&error))?;
        Ok((read > 0).then(|| (piece.freeze(), file)))
    });
    pieces.boxed()
}
