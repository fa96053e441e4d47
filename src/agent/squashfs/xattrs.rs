//! Collects the extended attributes of files into a table of sets, to which inodes are indexes. Reads attributes of
//! files in the root.

use std::{collections::HashMap, io, path::Path};

use rustix::{
    fs::{lgetxattr, llistxattr},
    io::Errno,
};

use super::{
    codec::Codec,
    fields::Put,
    metadata::Writer,
    stop::{Stop, unfit},
};

/// The namespaces that squashfs supports, at the index of their numbers. mksquashfs drops all others.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// The most bytes that Linux returns: for the names of a file, or for a value.
const MOST: usize = 1 << 16;

/// Namespace, name and value of each attribute; sorted.
type Set = Vec<(u16, Vec<u8>, Vec<u8>)>;

/// The sets of extended attributes of an image.
#[derive(Debug, Default)]
pub struct Xattrs {
    sets: Vec<Set>,
    index: HashMap<Set, u32>,
    buffer: Vec<u8>,
}

impl Xattrs {
    /// The set of the file at `path`; `None` if it has no attributes.
    pub fn of(&mut self, path: &Path) -> Result<Option<u32>, Stop> {
        self.buffer.resize(MOST, 0);
        let size = match llistxattr(path, &mut self.buffer[..]) {
            Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(None),
            Ok(size) => size,
            Err(error) => return Err(failed(path, error)),
        };
        let names = self.buffer[..size].to_vec();
        let mut set = Set::new();
        for name in names.split_inclusive(|byte| *byte == 0) {
            let name = name.strip_suffix(&[0]).unwrap_or(name);
            let in_namespace = (0..)
                .zip(NAMESPACES)
                .find_map(|(number, prefix)| Some((number, name.strip_prefix(prefix)?)));
            let Some((number, short)) = in_namespace else {
                continue;
            };
            let size = lgetxattr(path, name, &mut self.buffer[..]).map_err(|error| failed(path, error))?;
            set.push((number, short.to_vec(), self.buffer[..size].to_vec()));
        }
        if set.is_empty() {
            return Ok(None);
        }
        set.sort_unstable();
        if let Some(index) = self.index.get(&set) {
            return Ok(Some(*index));
        }
        let index = u32::try_from(self.sets.len()).map_err(unfit)?;
        self.sets.push(set.clone());
        self.index.insert(set, index);
        Ok(Some(index))
    }

    /// Appends the table to `out`, which begins at `start` in the image. Returns the offset by which the table is
    /// found.
    pub fn write(&self, codec: Codec, out: &mut Vec<u8>, start: u64) -> Result<Option<u64>, Stop> {
        if self.sets.is_empty() {
            return Ok(None);
        }
        let (mut values, mut sets) = (Writer::new(codec), Writer::new(codec));
        for set in &self.sets {
            let mut bytes = Vec::new();
            for (namespace, name, value) in set {
                bytes.put_u16(*namespace);
                bytes.put_u16(u16::try_from(name.len()).map_err(unfit)?);
                bytes.extend(name);
                bytes.put_u32(u32::try_from(value.len()).map_err(unfit)?);
                bytes.extend(value);
            }
            let mut entry = Vec::new();
            entry.put_u64(values.place().reference());
            entry.put_u32(u32::try_from(set.len()).map_err(unfit)?);
            entry.put_u32(u32::try_from(bytes.len()).map_err(unfit)?);
            values.write(&bytes)?;
            sets.write(&entry)?;
        }
        let values_at = start + out.len() as u64;
        out.extend(values.finish()?.0);
        let sets_at = start + out.len() as u64;
        let (sets, blocks) = sets.finish()?;
        out.extend(sets);
        let table = start + out.len() as u64;
        out.put_u64(values_at);
        out.put_u32(u32::try_from(self.sets.len()).map_err(unfit)?);
        out.put_u32(0);
        for block in blocks {
            out.put_u64(sets_at + block);
        }
        Ok(Some(table))
    }
}

fn failed(path: &Path, error: Errno) -> Stop {
    let error = io::Error::from(error);
    io::Error::new(
        error.kind(),
        format!("extended attributes of {}: {error}", path.display()),
    )
    .into()
}
