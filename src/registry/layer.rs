//! Makes a layer of an image's squashfs: a tar archive of its root, compressed with Zstandard. Runs `sqfs2tar`, which
//! needs no rights: owners, modes, times, extended attributes, hard links and device nodes go from one format to the
//! other without ever being files here.

use std::{
    io::{self, Read, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use kiln_records::{Code, Failure, arch::Arch, names::shown};

use crate::{
    digest::{Digest, Hasher},
    pipe,
    root::Root,
    source::{Pieces, Source},
};

const PROGRAM: &str = "sqfs2tar";

/// The level of compression. Higher ones cost more time than they save on the way.
const LEVEL: i32 = 1;

/// The most bytes of a root. A small file of holes can be of any size.
const MAX_ROOT: u64 = 256 << 30;

/// The most of what the program says that is shown.
const MAX_WORDS: u64 = 4 << 10;

/// Commands that a container begins with, in the order of preference.
const SHELLS: [&str; 2] = ["/bin/bash", "/bin/sh"];

/// What was found out while the layer was made.
#[derive(Debug, Clone)]
pub struct Made {
    /// The digest of the archive before compression.
    pub diff_id: Digest,
    /// The command that a container begins with, if the root has a shell.
    pub command: Option<&'static str>,
}

/// A squashfs file, as the source of a layer.
#[derive(Debug)]
pub struct Layer {
    squashfs: PathBuf,
    arch: Arch,
    made: Arc<Mutex<Option<Made>>>,
}

impl Layer {
    /// A layer of this file, which is the root of an image of this architecture.
    pub fn new(squashfs: PathBuf, arch: Arch) -> Self {
        Self {
            squashfs,
            arch,
            made: Arc::default(),
        }
    }

    /// What was found out, once all was read.
    pub fn made(&self) -> Option<Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl Source for Layer {
    async fn open(&self) -> Result<Pieces, Failure> {
        let mut child = start(&self.squashfs)?;
        let (sender, receiver) = pipe::queue();
        let (arch, made) = (self.arch, Arc::clone(&self.made));
        tokio::task::spawn_blocking(move || {
            let outcome = convert(&mut child, pipe::Writer::new(sender.clone()), arch);
            // Where it was not read to its end it would wait for that.
            let _ = child.kill();
            let _ = child.wait();
            match outcome {
                Ok(found) => *made.lock().unwrap_or_else(PoisonError::into_inner) = Some(found),
                // Nobody waits any more where sending failed.
                Err(failure) => drop(sender.blocking_send(Err(failure))),
            }
        });
        let pieces = stream::unfold(receiver, |mut receiver| async move {
            let piece = receiver.recv().await?;
            Some((piece, receiver))
        });
        Ok(pieces.boxed())
    }
}

fn start(squashfs: &PathBuf) -> Result<Child, Failure> {
    Command::new(PROGRAM)
        // Without it, the owner and mode of the root itself are lost.
        .args(["--root-becomes", "."])
        .arg(squashfs)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| {
            let failure = Failure::new(Code::LayerUnmade, format!("`{PROGRAM}` cannot be started: {error}"));
            failure.hint("install squashfs-tools-ng (Debian, Ubuntu, Fedora and EPEL have it)")
        })
}

/// Reads the archive: its files are looked at, and all of its bytes are digested, compressed and sent.
struct Tee<R> {
    from: R,
    hasher: Hasher,
    to: zstd::stream::write::Encoder<'static, pipe::Writer>,
    read: u64,
}

impl<R: Read> Read for Tee<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let size = self.from.read(to)?;
        self.read += size as u64;
        if self.read > MAX_ROOT {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("it has more than {MAX_ROOT} bytes"),
            ));
        }
        self.hasher.update(&to[..size]);
        self.to.write_all(&to[..size])?;
        Ok(size)
    }
}

fn convert(child: &mut Child, to: pipe::Writer, arch: Arch) -> Result<Made, Failure> {
    let unmade = |why: &dyn std::fmt::Display| {
        Failure::new(
            Code::LayerUnmade,
            format!("the root cannot become a layer: {}", shown(&why.to_string())),
        )
    };
    let (Some(stdout), Some(mut stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(unmade(&"its output is not there"));
    };
    // It warns of each socket that it leaves out, and would stand still if nothing read that.
    let words = std::thread::spawn(move || {
        let mut words = Vec::new();
        let _ = (&mut stderr).take(MAX_WORDS).read_to_end(&mut words);
        let _ = io::copy(&mut stderr, &mut io::sink());
        words
    });
    let to = zstd::stream::write::Encoder::new(to, LEVEL).map_err(|error| unmade(&error))?;
    let mut tee = Tee {
        from: io::BufReader::with_capacity(1 << 20, stdout),
        hasher: Hasher::default(),
        to,
        read: 0,
    };
    let mut root = Root::default();
    let read = root.add_layer(&mut tee);
    if let Err(error) = &read
        && error.kind() == io::ErrorKind::BrokenPipe
    {
        return Err(unmade(error));
    }
    if let Err(error) = &read {
        return Err(unmade(error).hint("`unsquashfs -ll` shows what is in the root"));
    }
    let status = child.wait().map_err(|error| unmade(&error))?;
    if !status.success() {
        let words = words.join().unwrap_or_default();
        let words = String::from_utf8_lossy(&words).trim().replace('\n', "; ");
        return Err(
            unmade(&format_args!("`{PROGRAM}` fails: {words} ({status})")).hint("the image's root must be a squashfs")
        );
    }
    check_machine(&root, arch)?;
    let to = tee.to.finish().and_then(|mut to| to.flush());
    to.map_err(|error| unmade(&error))?;
    // The usual way in, if it runs.
    let command = SHELLS
        .into_iter()
        .find(|shell| root.check_command(shell, "", arch).is_ok());
    Ok(Made {
        diff_id: tee.hasher.finish(),
        command,
    })
}

/// Checks that most programs are of the image's architecture: its label goes into the index.
fn check_machine(root: &Root, arch: Arch) -> Result<(), Failure> {
    match root.machines().first() {
        Some((found, name, _)) if *found != Some(arch) => Err(Failure::new(
            Code::LayerUnmade,
            format!("the image is labelled {arch}, and most of its programs are for {name}"),
        )
        .hint("`kiln images update ID --arch ARCH` corrects the label")),
        // A root without programs says nothing against its label.
        _ => Ok(()),
    }
}
