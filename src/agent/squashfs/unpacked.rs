//! Records the files that unsquashfs unpacked from an image, so that unchanged ones are recognised later. Reads the
//! image and the root; the record is stored as a JSON file beside the root.

use std::{
    collections::HashMap,
    io::{self, BufWriter, Write},
    os::unix::fs::MetadataExt,
    path::Path,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use kiln_records::Failure;
use serde::{Deserialize, Serialize};

use super::{base::Base, stop::Stop};

/// Longer than one tick of the clock from which file systems take their times.
const TICK: Duration = Duration::from_millis(20);

/// Which files of a root have the content of which files of the image.
///
/// A file is identified by its inode number, the time of its last change (`ctime`, to the nanosecond) and its size. No
/// program can set a `ctime`, and every write to a file, and every new file that takes over an inode number, gets a
/// later one. Paths do not matter: a directory may be renamed with its content.
///
/// The record can be saved beside the root, so that another attempt at the job can continue from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unpacked {
    /// Identity of the image. `None` if its blocks cannot be reused.
    base: Option<String>,
    /// One entry per file.
    files: Vec<Note>,
}

/// A file's original state: inode number, `ctime` in seconds and nanoseconds, size, and its inode number in the image.
type Note = (u64, i64, i64, u64, u32);

/// The values that identify a file.
type Key = (u64, i64, i64, u64);

impl Unpacked {
    /// Writes the record to a file.
    pub fn save(&self, path: &Path) -> Result<(), Failure> {
        let write = || -> io::Result<()> {
            let mut file = BufWriter::new(fs_err::File::create(path)?);
            serde_json::to_writer(&mut file, self)?;
            file.flush()
        };
        write().map_err(|error| Failure::io("cannot write the list of unpacked files", &error))
    }

    /// Reads a [saved](Unpacked::save) record.
    pub fn load(path: &Path) -> Result<Self, Failure> {
        let read = || -> io::Result<Self> { Ok(serde_json::from_slice(&fs_err::read(path)?)?) };
        read().map_err(|error| Failure::io("cannot read the list of unpacked files", &error))
    }

    /// Records the files that unsquashfs has just unpacked from `base` into `root`. Takes at least 20 ms: the clock
    /// has to move past the last change of a file.
    ///
    /// A base that [`rebase`](super::rebase) cannot use is not an error here.
    pub fn record(base: &Path, root: &Path) -> Result<Self, Failure> {
        let base = match Base::read(base, None) {
            Ok(base) => base,
            Err(Stop::NotPossible(_)) => {
                return Ok(Self {
                    base: None,
                    files: Vec::new(),
                });
            }
            Err(Stop::Failed(failure)) => return Err(failure),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = (i64::try_from(now.as_secs()).unwrap_or(0), i64::from(now.subsec_nanos()));
        // Every change from now on gets a time that no file has yet.
        thread::sleep(TICK);
        let mut files = HashMap::new();
        for (path, index) in &base.paths {
            let file = &base.files[*index];
            // A file that differs from what unsquashfs writes is not the image's file.
            let Ok(found) = fs_err::symlink_metadata(root.join(path)) else {
                continue;
            };
            let same = found.is_file() && found.size() == file.content.size && found.mtime() == i64::from(file.mtime);
            if same && (found.ctime(), found.ctime_nsec()) < now {
                files.insert(key(&found), file.inode);
            }
        }
        let mut files: Vec<Note> = files
            .into_iter()
            .map(|((inode, seconds, nanos, size), of)| (inode, seconds, nanos, size, of))
            .collect();
        files.sort_unstable();
        Ok(Self {
            base: Some(base.identity),
            files,
        })
    }

    /// Whether the root was unpacked from `base`.
    pub(super) fn is_of(&self, base: &Base) -> bool {
        self.base.as_ref() == Some(&base.identity)
    }

    /// The files of `base`, as indexes, by their keys in the root.
    pub(super) fn by_key(&self, base: &Base) -> HashMap<Key, usize> {
        let by_inode: HashMap<u32, usize> = (base.files.iter().enumerate())
            .map(|(index, file)| (file.inode, index))
            .collect();
        self.files
            .iter()
            .filter_map(|(inode, seconds, nanos, size, of)| {
                Some(((*inode, *seconds, *nanos, *size), *by_inode.get(of)?))
            })
            .collect()
    }
}

/// The key of a file of the root.
pub(super) fn key(found: &std::fs::Metadata) -> Key {
    (found.ino(), found.ctime(), found.ctime_nsec(), found.size())
}
