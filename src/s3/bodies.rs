//! Bodies of objects: files with random names, written once, read often, and removed together with their last record.
//! Touches files in the data directory only.
//!
//! A body is received into `incoming/` and synced there. It vanishes when its [`Received`] is dropped, unless it is
//! renamed into `bodies/` right before its record is made ([`Bodies::keep`]). A crash in between leaves a file without
//! a record; [`Bodies::sweep`] removes those at a later start.

use std::{
    collections::HashSet,
    io::{self, Read, Seek, SeekFrom, Write},
    ops::Range,
    path::{Path, PathBuf},
    pin::Pin,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use s3s::StdError;
use tempfile::NamedTempFile;
use tokio::{sync::mpsc, task::spawn_blocking};
use uuid::Uuid;

use super::{
    checksums::{Digester, Expected},
    directory::{Directory, sync_directory},
    fault::{Fault, Result},
    sums::Sums,
};

/// The most chunks queued between network and disk, in either direction.
const QUEUE: usize = 4;

/// Bytes read from disk at a time.
const READ_SIZE: usize = 256 * 1024;

/// How long a file without a record is left alone: it may belong to a request that another process is serving.
const ORPHAN_AGE: Duration = Duration::from_hours(1);

/// The directories of bodies.
#[derive(Debug, Clone)]
pub(super) struct Bodies {
    finished: PathBuf,
    incoming: PathBuf,
}

/// A body on disk that has no record yet.
#[derive(Debug, Clone)]
pub(super) struct Body {
    /// Its file name.
    pub(super) name: String,
    /// Size in bytes.
    pub(super) size: u64,
    /// MD5 of the whole body.
    pub(super) md5: [u8; 16],
    /// The checksums that the client gave.
    pub(super) sums: Sums,
}

/// A body that is complete, verified and on disk. Dropping this removes it.
#[derive(Debug)]
pub(super) struct Received {
    file: NamedTempFile,
    /// The body that it becomes once it is kept.
    pub(super) body: Body,
}

/// The bytes of an object on their way out.
pub(super) type BodyStream = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send + Sync>>;

/// A run of an object's bytes that lies in one body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// Its number in the upload; 0 for an object that came in one request.
    pub(super) number: i32,
    /// The body's file name.
    pub(super) body: String,
    /// Size in bytes.
    pub(super) size: u64,
}

impl Bodies {
    pub(super) fn new(directory: &Directory) -> Self {
        Self {
            finished: directory.bodies(),
            incoming: directory.incoming(),
        }
    }

    /// Writes a stream to disk, verifies it against what the request promised, and makes it durable.
    pub(super) async fn receive(
        &self,
        mut stream: impl Stream<Item = std::result::Result<Bytes, StdError>> + Unpin,
        expected: Expected,
    ) -> Result<Received> {
        let (chunks, queue) = mpsc::channel(QUEUE);
        let incoming = self.incoming.clone();
        let digester = expected.digester();
        let writer = spawn_blocking(move || write(&incoming, queue, digester));
        while let Some(chunk) = stream.next().await {
            // The queue closes early only when writing failed; the writer's result has the reason.
            if chunks.send(Some(chunk.map_err(Fault::Body)?)).await.is_err() {
                break;
            }
        }
        // If the queue closes without this, the client has hung up, and the writer discards the file.
        let _ = chunks.send(None).await;
        let (file, digester) = writer.await??;
        let (size, md5, sums) = expected.verify(digester)?;
        let name = Uuid::new_v4().simple().to_string();
        let body = Body { name, size, md5, sums };
        Ok(Received { file, body })
    }

    /// Moves a received body to where records may name it, durably.
    pub(super) async fn keep(&self, received: Received) -> Result<()> {
        let (directory, path) = (self.finished.clone(), self.finished.join(received.body.name));
        spawn_blocking(move || {
            received.file.persist_noclobber(path)?;
            sync_directory(&directory)
        })
        .await??;
        Ok(())
    }

    /// Streams `range` out of the concatenated pieces. An error in opening the first one is returned at once.
    pub(super) async fn read(&self, pieces: Vec<Piece>, range: Range<u64>) -> io::Result<BodyStream> {
        let mut runs = runs(&self.finished, pieces, range).into_iter();
        let (chunks, mut queue) = mpsc::channel(QUEUE);
        let first = runs.next();
        let first = spawn_blocking(move || first.map(Run::open).transpose())
            .await
            .map_err(io::Error::other)??;
        spawn_blocking(move || {
            let opened = first.into_iter().map(Ok).chain(runs.map(Run::open));
            for run in opened {
                if let Err(error) = run.and_then(|file| send(file, &chunks)) {
                    let _ = chunks.blocking_send(Err(error));
                    return;
                }
            }
        });
        Ok(Box::pin(futures::stream::poll_fn(move |context| {
            queue.poll_recv(context)
        })))
    }

    /// Removes bodies that no record names any more. A failure is only logged: the sweep will find the file again.
    pub(super) async fn remove(&self, names: Vec<String>) {
        if names.is_empty() {
            return;
        }
        let directory = self.finished.clone();
        let remove = move || {
            for name in names {
                if let Err(error) = fs_err::remove_file(directory.join(name))
                    && error.kind() != io::ErrorKind::NotFound
                {
                    tracing::warn!(%error, "embedded S3: a body could not be removed");
                }
            }
        };
        if let Err(error) = spawn_blocking(remove).await {
            tracing::warn!(%error, "embedded S3: bodies were not removed");
        }
    }

    /// Finished bodies that have not been touched for [`ORPHAN_AGE`].
    pub(super) fn old(&self) -> io::Result<HashSet<String>> {
        let names = old_files(&self.finished)?;
        Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
    }

    /// Removes `orphans` and abandoned incoming files.
    pub(super) fn sweep(&self, orphans: &HashSet<String>) -> io::Result<()> {
        let abandoned = old_files(&self.incoming)?
            .into_iter()
            .map(|name| self.incoming.join(name));
        let orphans = orphans.iter().map(|name| self.finished.join(name));
        for path in orphans.chain(abandoned) {
            tracing::info!(path = %path.display(), "embedded S3: removing an unreferenced file");
            match fs_err::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

fn old_files(directory: &Path) -> io::Result<Vec<std::ffi::OsString>> {
    let mut names = Vec::new();
    for entry in fs_err::read_dir(directory)? {
        let entry = entry?;
        let modified = match entry.metadata() {
            Ok(metadata) => metadata.modified()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if SystemTime::now()
            .duration_since(modified)
            .is_ok_and(|age| age > ORPHAN_AGE)
        {
            names.push(entry.file_name());
        }
    }
    Ok(names)
}

fn write(
    directory: &Path,
    mut queue: mpsc::Receiver<Option<Bytes>>,
    mut digester: Digester,
) -> io::Result<(NamedTempFile, Digester)> {
    let mut file = NamedTempFile::new_in(directory)?;
    loop {
        match queue.blocking_recv() {
            Some(Some(chunk)) => {
                digester.update(&chunk);
                file.write_all(&chunk)?;
            }
            Some(None) => {
                file.as_file().sync_all()?;
                return Ok((file, digester));
            }
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// A range of bytes in one file.
struct Run {
    path: PathBuf,
    range: Range<u64>,
}

impl Run {
    fn open(self) -> io::Result<io::Take<fs_err::File>> {
        let mut file = fs_err::File::open(self.path)?;
        file.seek(SeekFrom::Start(self.range.start))?;
        Ok(file.take(self.range.end - self.range.start))
    }
}

/// The ranges of files that make up `range` of the whole.
fn runs(directory: &Path, pieces: Vec<Piece>, range: Range<u64>) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut begin = 0;
    for piece in pieces {
        let end = begin + piece.size;
        let (from, to) = (range.start.max(begin), range.end.min(end));
        if from < to {
            runs.push(Run {
                path: directory.join(piece.body),
                range: from - begin..to - begin,
            });
        }
        begin = end;
    }
    runs
}

/// Reads a run to its end. A receiver that is gone is not an error.
fn send(mut run: io::Take<fs_err::File>, chunks: &mpsc::Sender<io::Result<Bytes>>) -> io::Result<()> {
    while run.limit() > 0 {
        let mut chunk = Vec::with_capacity(READ_SIZE);
        if run.by_ref().take(READ_SIZE as u64).read_to_end(&mut chunk)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if chunks.blocking_send(Ok(chunk.into())).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_touches_only_the_pieces_it_needs() {
        let pieces = [("a", 10), ("b", 5), ("c", 0), ("d", 10)].map(|(body, size)| Piece {
            number: 0,
            body: body.to_owned(),
            size,
        });
        let runs = runs(Path::new(""), pieces.to_vec(), 9..16);
        let seen: Vec<_> = runs
            .iter()
            .map(|run| (run.path.to_str().unwrap(), run.range.clone()))
            .collect();
        assert_eq!(seen, [("a", 9..10), ("b", 0..5), ("d", 0..1)]);
    }
}
