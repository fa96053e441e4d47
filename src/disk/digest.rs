//! Digests what a disk is made of, on several CPUs: one digest takes longer than to copy the same bytes. Reads files only.

use std::{
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use sha2::{Digest, Sha256};

/// The bytes that are digested at a time.
const CHUNK: u64 = 8 << 20;

/// The most threads: more would wait for the disk.
const THREADS: usize = 4;

/// A digest of these texts and the content of these files, in order: the SHA-256 of the lengths and of the SHA-256 of each
/// text and chunk.
pub(super) fn of(texts: &[&[u8]], files: &[&Path]) -> io::Result<[u8; 32]> {
    let mut whole = Sha256::new();
    for text in texts {
        whole.update(Sha256::digest(text));
    }
    let mut chunks = Vec::new();
    for path in files {
        let size = fs_err::metadata(path)?.len();
        whole.update(size.to_le_bytes());
        let starts = (0..size).step_by(usize::try_from(CHUNK).unwrap_or(usize::MAX));
        chunks.extend(starts.map(|start| (*path, start, CHUNK.min(size - start))));
    }
    for digest in in_parallel(&chunks)? {
        whole.update(digest);
    }
    Ok(whole.finalize().into())
}

type Chunk<'a> = (&'a Path, u64, u64);

/// The digest of each chunk, in order.
fn in_parallel(chunks: &[Chunk<'_>]) -> io::Result<Vec<[u8; 32]>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(vec![[0; 32]; chunks.len()]);
    let work = || -> io::Result<()> {
        let mut buffer = vec![0; 1 << 20];
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(chunk) = chunks.get(number) else { return Ok(()) };
            let digest = of_chunk(*chunk, &mut buffer)?;
            done.lock().unwrap_or_else(PoisonError::into_inner)[number] = digest;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get().min(THREADS));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let broken = |_| Err(io::Error::other("a digest was broken off"));
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(broken))
    })?;
    Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn of_chunk((path, start, size): Chunk<'_>, buffer: &mut [u8]) -> io::Result<[u8; 32]> {
    let file = fs_err::File::open(path)?;
    let (mut at, end) = (start, start + size);
    let mut digest = Sha256::new();
    while at < end {
        let most = usize::try_from(end - at).map_or(buffer.len(), |left| left.min(buffer.len()));
        // A file that became shorter meanwhile is an error.
        file.file().read_exact_at(&mut buffer[..most], at)?;
        digest.update(&buffer[..most]);
        at += most as u64;
    }
    Ok(digest.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_parts_have_equal_digests_and_others_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &[u8]| {
            let path = dir.path().join(name);
            fs_err::write(&path, content).unwrap();
            path
        };
        let mut content = vec![7; usize::try_from(CHUNK).unwrap() * 3 + 5];
        let one = file("one", &content);
        let same = file("same", &content);
        *content.last_mut().unwrap() = 8;
        let last = file("last", &content);
        // Two chunks that change places.
        content[0] = 9;
        let first = file("first", &content);
        content.rotate_left(usize::try_from(CHUNK).unwrap());
        let moved = file("moved", &content);
        let digest = |texts: &[&[u8]], files: &[&Path]| of(texts, files).unwrap();
        let digests = [
            digest(&[b"a", b"b"], &[&one]),
            digest(&[b"ab", b""], &[&one]),
            digest(&[b"a", b"b"], &[&one, &one]),
            digest(&[b"a", b"b"], &[&last]),
            digest(&[b"a", b"b"], &[&first]),
            digest(&[b"a", b"b"], &[&moved]),
            digest(&[b"a", b"b"], &[]),
        ];
        for (number, digest) in digests.iter().enumerate() {
            assert!(!digests[..number].contains(digest), "{number}");
        }
        assert_eq!(digests[0], digest(&[b"a", b"b"], &[&same]));
        assert!(of(&[], &[&dir.path().join("none")]).is_err());
    }
}
