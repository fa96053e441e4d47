//! Digests of whole files, and of the parts of an upload while they are read. Reads files only.

use std::{
    io::{self, Read},
    path::Path,
};

use bytes::Bytes;
use fs_err::File;
use kiln_records::{Digests, artifact::Digesting};
use md5::Md5;
use sha2::{Digest as _, Sha256};

/// How much is read between two rounds of hashing: small enough to be in the CPU's cache for all three digests.
const PIECE: usize = 128 * 1024;

/// One part of an upload.
#[derive(Debug, Clone)]
pub struct Part {
    /// Its number, counted from 1.
    pub number: u32,
    /// Its content.
    pub bytes: Bytes,
    /// MD5 of the content, lower-case hexadecimal.
    pub md5_hex: String,
}

/// Reads a file once, in parts, and computes the digests of each part and of the whole on the way.
#[derive(Debug)]
pub struct PartReader {
    file: File,
    part_size: usize,
    number: u32,
    whole: Digesting,
}

impl PartReader {
    /// Opens `path`. Every part except the last will have `part_size` bytes.
    pub fn open(path: &Path, part_size: usize) -> io::Result<Self> {
        if part_size == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a part cannot have 0 bytes",
            ));
        }
        Ok(Self {
            file: File::open(path)?,
            part_size,
            number: 0,
            whole: Digesting::default(),
        })
    }

    /// The next part; `None` after the last. An empty file has one empty part, because an upload needs at least one.
    pub fn next_part(&mut self) -> io::Result<Option<Part>> {
        let mut bytes = Vec::with_capacity(self.part_size);
        let mut part_md5 = Md5::new();
        while bytes.len() < self.part_size {
            let start = bytes.len();
            let piece = PIECE.min(self.part_size - start);
            if (&mut self.file).take(piece as u64).read_to_end(&mut bytes)? == 0 {
                break;
            }
            part_md5.update(&bytes[start..]);
            self.whole.update(&bytes[start..]);
        }
        if bytes.is_empty() && self.number > 0 {
            return Ok(None);
        }
        self.number += 1;
        Ok(Some(Part {
            number: self.number,
            bytes: bytes.into(),
            md5_hex: hex::encode(part_md5.finalize()),
        }))
    }

    /// Size and digests of everything read so far: of the whole file, once [`PartReader::next_part`] has returned
    /// `None`.
    pub fn finish(self) -> Digests {
        self.whole.finish()
    }
}

/// Size in bytes and SHA-256 (lower-case hexadecimal) of a file.
pub fn sha256_of(path: &Path) -> io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut piece = vec![0; PIECE];
    let mut size = 0;
    loop {
        match file.read(&mut piece)? {
            0 => return Ok((size, hex::encode(hasher.finalize()))),
            read => {
                hasher.update(&piece[..read]);
                size += read as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn parts_of(content: &[u8], part_size: usize) -> (Vec<Part>, Digests) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content).unwrap();
        let mut reader = PartReader::open(file.path(), part_size).unwrap();
        let mut parts = Vec::new();
        while let Some(part) = reader.next_part().unwrap() {
            parts.push(part);
        }
        assert!(reader.next_part().unwrap().is_none());
        (parts, reader.finish())
    }

    #[test]
    fn known_digests() {
        let (parts, digests) = parts_of(b"abc", 2);
        assert_eq!(parts.len(), 2);
        assert_eq!((parts[0].number, &parts[0].bytes[..]), (1, &b"ab"[..]));
        assert_eq!((parts[1].number, &parts[1].bytes[..]), (2, &b"c"[..]));
        assert_eq!(parts[0].md5_hex, "187ef4436122d1cc2f40dc2b92f0eba0");
        assert_eq!(digests.size, 3);
        assert_eq!(digests.md5, "900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(
            digests.sha256,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn an_empty_file_is_one_empty_part() {
        let (parts, digests) = parts_of(b"", 5);
        assert_eq!(parts.len(), 1);
        assert!(parts[0].bytes.is_empty());
        assert_eq!(digests.md5, "d41d8cd98f00b204e9800998ecf8427e");
    }

    #[test]
    fn parts_join_to_the_file() {
        let content: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
        for part_size in [1_000, PIECE - 1, PIECE, PIECE + 1, 150_000, 300_000, 300_001] {
            let (parts, digests) = parts_of(&content, part_size);
            assert_eq!(parts.len(), content.len().div_ceil(part_size));
            let joined: Vec<u8> = parts.iter().flat_map(|part| part.bytes.to_vec()).collect();
            assert!(joined == content, "{part_size}");
            assert_eq!(digests.sha256, hex::encode(Sha256::digest(&content)));
            for part in &parts {
                assert_eq!(part.md5_hex, hex::encode(Md5::digest(&part.bytes)));
            }
        }
    }
}
