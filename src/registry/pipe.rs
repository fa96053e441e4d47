//! Joins code that waits and code that blocks: bytes go from one to the other through a short queue. No I/O of its own.

use std::io::{self, Read, Write};

use bytes::Bytes;
use kiln_records::Failure;
use tokio::sync::mpsc;

/// Pieces on their way.
const QUEUED: usize = 8;

/// Bytes that are handed over at a time.
const PIECE: usize = 256 << 10;

/// A queue of pieces.
pub type Sender = mpsc::Sender<Result<Bytes, Failure>>;

/// A new queue.
pub fn queue() -> (Sender, mpsc::Receiver<Result<Bytes, Failure>>) {
    mpsc::channel(QUEUED)
}

/// Reads pieces in code that blocks. A failure of the writing side is kept for the caller.
#[derive(Debug)]
pub struct Reader {
    pieces: mpsc::Receiver<Result<Bytes, Failure>>,
    here: Bytes,
    /// Why the pieces ended too early.
    pub failure: Option<Failure>,
}

impl Reader {
    /// Reads from a queue.
    pub fn new(pieces: mpsc::Receiver<Result<Bytes, Failure>>) -> Self {
        Self {
            pieces,
            here: Bytes::new(),
            failure: None,
        }
    }
}

impl Read for Reader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.here.is_empty() {
            match self.pieces.blocking_recv() {
                None => return Ok(0),
                Some(Ok(piece)) => self.here = piece,
                Some(Err(failure)) => {
                    let error = io::Error::other(failure.to_string());
                    self.failure = Some(failure);
                    return Err(error);
                }
            }
        }
        let size = to.len().min(self.here.len());
        to[..size].copy_from_slice(&self.here.split_to(size));
        Ok(size)
    }
}

/// Writes pieces in code that blocks.
#[derive(Debug)]
pub struct Writer {
    pieces: Sender,
    here: Vec<u8>,
}

impl Writer {
    /// Writes to a queue.
    pub fn new(pieces: Sender) -> Self {
        Self {
            pieces,
            here: Vec::with_capacity(PIECE),
        }
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.here.extend_from_slice(bytes);
        if self.here.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.here.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.here, Vec::with_capacity(PIECE));
        let sent = self.pieces.blocking_send(Ok(piece.into()));
        sent.map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "what reads the pieces has ended"))
    }
}
