//! Compresses new data with several threads and writes it in the order in which it was added, so that the result does
//! not depend on the number of threads. Reads files of the root; writes the new image only.

use std::{
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::FileExt,
    path::Path,
    sync::{Mutex, PoisonError},
    thread,
};

use fs_err::os::unix::fs::OpenOptionsExt;
use nix::fcntl::OFlag;

use super::{
    base::{Content, Fragment, PLAIN, Tail},
    codec::Codec,
    stop::{Stop, unfit},
    tree::Found,
    unpacked,
};

/// The most bytes that may wait for compression.
const WAITING: usize = 64 << 20;

/// Blocks per thread in one round. More use the threads better and take more memory.
const ROUND: usize = 8;

/// The owner of a block.
#[derive(Debug, Clone, Copy)]
enum Of {
    File(usize),
    Fragment(usize),
}

#[derive(Debug)]
struct Block {
    of: Of,
    /// Empty for a block of zeros, which is not written.
    raw: Vec<u8>,
    packed: Option<Vec<u8>>,
}

/// Writes new data to the end of an image.
#[derive(Debug)]
pub struct Packer<'a> {
    out: &'a std::fs::File,
    codec: Codec,
    block_size: usize,
    cpus: usize,
    /// Offset of the next block.
    pub at: u64,
    /// The content of each node of the tree.
    pub contents: Vec<Content>,
    /// The fragments of the image.
    pub fragments: Vec<Fragment>,
    /// Bytes written so far.
    pub written: u64,
    waiting: Vec<Block>,
    waiting_bytes: usize,
    /// The fragment that collects small files: its number and its bytes so far.
    open: Option<(usize, Vec<u8>)>,
}

impl<'a> Packer<'a> {
    /// Writes to `out`, starting at `at`. `contents` has one element per node.
    pub fn new(
        out: &'a std::fs::File,
        at: u64,
        codec: Codec,
        block_size: u32,
        cpus: u32,
        contents: Vec<Content>,
    ) -> Self {
        Self {
            out,
            codec,
            block_size: block_size as usize,
            cpus: cpus.max(1) as usize,
            at,
            contents,
            fragments: Vec::new(),
            written: 0,
            waiting: Vec::new(),
            waiting_bytes: 0,
            open: None,
        }
    }

    /// Adds the file of a node, which must be unchanged since the scan.
    pub fn add_file(&mut self, node: usize, path: &Path, found: &Found) -> Result<(), Stop> {
        let mut file = open_found(path, found)?;
        self.contents[node] = Content {
            size: found.size,
            ..Content::default()
        };
        let (mut at, mut data) = (0, 0);
        while at < found.size {
            let size = (found.size - at).min(self.block_size as u64);
            if found.sparse && data <= at {
                data = next_data(&file, at)?.unwrap_or(found.size);
                file.seek(SeekFrom::Start(at))?;
            }
            let size = usize::try_from(size).map_err(unfit)?;
            at += size as u64;
            let raw = if data >= at {
                file.seek(SeekFrom::Start(at))?;
                Vec::new()
            } else {
                let mut raw = vec![0; size];
                file.read_exact(&mut raw).map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof => changed(path),
                    _ => error.into(),
                })?;
                raw
            };
            if found.size < self.block_size as u64 {
                // A hole as large as the file is simpler than a separate rule.
                self.add_small(node, &if raw.is_empty() { vec![0; size] } else { raw })?;
            } else {
                let zeros = raw.iter().all(|byte| *byte == 0);
                self.add(Of::File(node), if zeros { Vec::new() } else { raw })?;
            }
        }
        check_unchanged(&file, path, found)
    }

    /// Adds a fragment, numbered after the last one.
    pub fn add_fragment(&mut self, raw: Vec<u8>) -> Result<(), Stop> {
        let number = self.reserve_fragment();
        self.add(Of::Fragment(number), raw)
    }

    /// Writes everything that still waits.
    pub fn finish(&mut self) -> Result<(), Stop> {
        if let Some((number, raw)) = self.open.take() {
            self.add(Of::Fragment(number), raw)?;
        }
        self.round()
    }

    fn reserve_fragment(&mut self) -> usize {
        self.fragments.push(Fragment { start: 0, size: 0 });
        self.fragments.len() - 1
    }

    fn add_small(&mut self, node: usize, raw: &[u8]) -> Result<(), Stop> {
        if let Some((number, full)) = self.open.take_if(|(_, open)| open.len() + raw.len() > self.block_size) {
            self.add(Of::Fragment(number), full)?;
        }
        let (number, mut open) = match self.open.take() {
            Some(open) => open,
            None => (self.reserve_fragment(), Vec::new()),
        };
        self.contents[node].tail = Some(Tail {
            fragment: u32::try_from(number).map_err(unfit)?,
            offset: u32::try_from(open.len()).map_err(unfit)?,
            size: u32::try_from(raw.len()).map_err(unfit)?,
        });
        open.extend_from_slice(raw);
        self.open = Some((number, open));
        Ok(())
    }

    fn add(&mut self, of: Of, raw: Vec<u8>) -> Result<(), Stop> {
        // A block of zeros takes some memory too.
        self.waiting_bytes += raw.len().max(64);
        self.waiting.push(Block { of, raw, packed: None });
        if self.waiting_bytes >= (self.cpus * ROUND * self.block_size).min(WAITING) {
            self.round()?;
        }
        Ok(())
    }

    /// Compresses and writes the waiting blocks.
    fn round(&mut self) -> Result<(), Stop> {
        let mut blocks = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        compress(self.codec, &mut blocks, self.cpus)?;
        for Block { of, raw, packed } in blocks {
            let (bytes, plain) = match &packed {
                Some(packed) => (packed, 0),
                None => (&raw, if raw.is_empty() { 0 } else { PLAIN }),
            };
            // Never more than a block, so this cannot fail.
            let size = u32::try_from(bytes.len()).map_err(unfit)? | plain;
            self.out.write_all_at(bytes, self.at)?;
            match of {
                Of::File(node) => {
                    let content = &mut self.contents[node];
                    if content.blocks.is_empty() {
                        content.start = self.at;
                    }
                    content.blocks.push(size);
                }
                Of::Fragment(number) => self.fragments[number] = Fragment { start: self.at, size },
            }
            self.at += bytes.len() as u64;
            self.written += bytes.len() as u64;
        }
        Ok(())
    }
}

fn compress(codec: Codec, blocks: &mut [Block], cpus: usize) -> io::Result<()> {
    let threads = cpus.min(blocks.len());
    let work = Mutex::new(blocks.iter_mut());
    let one_after_the_other = || -> io::Result<()> {
        loop {
            let next = work.lock().unwrap_or_else(PoisonError::into_inner).next();
            match next {
                Some(block) if block.raw.is_empty() => {}
                Some(block) => block.packed = codec.pack(&block.raw)?,
                None => return Ok(()),
            }
        }
    };
    thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads).map(|_| scope.spawn(one_after_the_other)).collect();
        let mut done = one_after_the_other();
        for helper in helpers {
            done = done.and(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    })
}

/// Opens a file of the tree, which must be unchanged since the scan.
pub fn open_found(path: &Path, found: &Found) -> Result<fs_err::File, Stop> {
    // The path may be something else by now: opening it must neither block nor follow a link.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = fs_err::OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)?;
    check_unchanged(&file, path, found)?;
    Ok(file)
}

fn check_unchanged(file: &fs_err::File, path: &Path, found: &Found) -> Result<(), Stop> {
    let stat = file.metadata()?;
    if stat.is_file() && unpacked::key(&stat) == found.key {
        Ok(())
    } else {
        Err(changed(path))
    }
}

fn changed(path: &Path) -> Stop {
    unfit(format!("{} changed while it was packed", path.display()))
}

/// The offset at which a sparse file next has data.
fn next_data(file: &fs_err::File, at: u64) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file.file(), rustix::fs::SeekFrom::Data(at)) {
        Ok(data) => Ok(Some(data)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
