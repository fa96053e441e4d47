//! `kiln images files`: lists the files of an image's root, or reads one. Talks to the server and to S3, of which it reads
//! only the parts of the root that it needs; writes one file.

use std::{
    ffi::OsString,
    io::{self, Read, Seek, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use clap::Args;
use kiln_records::{ArtifactKind, Code, Failure, Moment, names};
use tokio_util::sync::CancellationToken;

use super::{session::Session, signals::cancel_on_signal};
use crate::{
    client::{
        Data, Ranges,
        collection::{FILES, IMAGES},
    },
    disk,
    squashfs::{Found, Image, Inode, Kind, Pieces, Unread},
};

#[derive(Debug, Args)]
pub(super) struct RootFiles {
    /// The image: its id, the beginning of its id, or its name.
    image: String,

    /// A directory or file in its root. A link at the end is listed itself unless a `/` comes after it.
    #[arg(default_value = "/")]
    path: OsString,

    /// List all that is below the directory.
    #[arg(short, long)]
    recursive: bool,

    /// Write the content of the file to this file, which must not exist yet, or to standard output (`-`). Links are
    /// followed within the image.
    #[arg(long, value_name = "FILE", conflicts_with = "recursive")]
    output: Option<PathBuf>,
}

/// Where the content of a file goes.
#[derive(Debug, Clone)]
enum Output {
    Standard,
    File(PathBuf),
}

impl RootFiles {
    pub(super) async fn run(self, session: &Session) -> Result<(), Failure> {
        let output = match self.output {
            Some(file) if file == Path::new("-") => Some(Output::Standard),
            Some(file) => {
                disk::must_be_new(&file)?;
                Some(Output::File(file))
            }
            None => None,
        };
        let cancelled = cancel_on_signal()?;
        let root = root_of(session, &self.image, cancelled.clone()).await?;
        let (path, recursive, to) = (self.path, self.recursive, output.clone());
        let stopped = cancelled.clone();
        let work = move || {
            let mut image = Image::open(root).map_err(failure)?;
            let path = path.as_bytes();
            match &to {
                None => list(&mut image, path, recursive),
                Some(to) => copy(&mut image, path, to, &stopped).map(|()| Vec::new()),
            }
        };
        let listed = tokio::task::spawn_blocking(work).await;
        let listed = listed.map_err(|error| Failure::new(Code::RootUnreadable, error))??;
        match output {
            None => {
                let row = |found: &Found| row(found, session.wants_data());
                session.show_table(&FILES, listed.iter().map(row).collect())
            }
            Some(Output::File(file)) => {
                session.printer.result(file.display());
                Ok(())
            }
            Some(Output::Standard) => Ok(()),
        }
    }
}

/// The root of an image.
async fn root_of(session: &Session, given: &str, cancelled: CancellationToken) -> Result<Ranges, Failure> {
    let id = session.client.find(&IMAGES, given).await?.id;
    let answer = session.client.get(&["kiln", "v1", "images", &id, "artifacts"]).await?;
    let is_root = |artifact: &&Data| {
        let media_type = artifact.text("type").unwrap_or_default();
        media_type.starts_with(ArtifactKind::Rootfs.media_type())
    };
    let root = answer.items("artifacts").iter().find(is_root);
    let root = root.and_then(|root| Some((root.text("url")?, root.text("path")?, root.number("size")?)));
    let (url, path, size) = root.ok_or_else(|| {
        let cause = format!("the image `{given}` has no root file system");
        Failure::new(Code::RootUnreadable, cause).hint("`kiln images describe` shows its link")
    })?;
    let object = session.client.object(url).await?;
    Ok(Ranges::new(object, path.to_owned(), size, cancelled))
}

fn list<R: Read + Seek>(image: &mut Image<R>, path: &[u8], recursive: bool) -> Result<Vec<Found>, Failure> {
    let found = image.find(path, false).map_err(failure)?;
    image.list(found, recursive).map_err(failure)
}

/// Writes the content of a file.
fn copy<R: Read + Seek>(
    image: &mut Image<R>,
    path: &[u8],
    to: &Output,
    cancelled: &CancellationToken,
) -> Result<(), Failure> {
    let found = image.find(path, true).map_err(failure)?;
    let Kind::File(content) = found.inode.kind else {
        let detail = format!("{} is {}, not a regular file", text(&found.path), kind(&found.inode));
        return Err(Failure::new(Code::Usage, detail).hint("without `--output`, `kiln images files` lists it"));
    };
    let mut pieces = image.pieces(content);
    match to {
        Output::File(file) => write_file(&mut pieces, file, cancelled),
        Output::Standard => match write(&mut pieces, &mut io::stdout().lock(), cancelled)? {
            // A reader that went away (`| head`) is not a failure of Kiln.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(Failure::io("cannot write to standard output", &error))
            }
            _ => Ok(()),
        },
    }
}

/// Writes a file that appears only when it is complete.
fn write_file<R: Read + Seek>(
    pieces: &mut Pieces<'_, R>,
    to: &Path,
    cancelled: &CancellationToken,
) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::io(format!("cannot write {}", to.display()), &error);
    let dir = to.parent().filter(|dir| !dir.as_os_str().is_empty());
    let mut file = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))
        .tempfile_in(dir.unwrap_or(Path::new(".")))
        .map_err(failed)?;
    write(pieces, &mut file, cancelled)?.map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist_noclobber(to).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Writes all pieces: what cannot be read is a failure, and what cannot be written the error inside.
fn write<R: Read + Seek>(
    pieces: &mut Pieces<'_, R>,
    to: &mut impl Write,
    cancelled: &CancellationToken,
) -> Result<io::Result<()>, Failure> {
    while let Some(piece) = pieces.next_piece().map_err(failure)? {
        // Holes come from nowhere: no request would notice.
        if cancelled.is_cancelled() {
            return Err(Failure::new(Code::Interrupted, "reading the root was interrupted"));
        }
        if let Err(error) = to.write_all(&piece) {
            return Ok(Err(error));
        }
    }
    Ok(to.flush())
}

/// The failure that an error of reading is, or brings along from the network.
fn failure(unread: Unread) -> Failure {
    match unread {
        Unread::Missing(_) => {
            Failure::new(Code::PathMissing, unread).hint("`kiln images files IMAGE DIRECTORY` lists what is there")
        }
        Unread::Source(error) => match error.downcast::<Failure>() {
            Ok(failure) => failure,
            Err(error) => Failure::io("cannot read the root", &error),
        },
        Unread::Damaged(_) => {
            Failure::new(Code::RootUnreadable, unread).hint("`kiln verify` says whether the image is whole")
        }
        Unread::Compressor(_) => Failure::new(Code::RootUnreadable, unread)
            .hint("`kiln artifacts get` downloads it, and unsquashfs may read it"),
        Unread::TooMuch(_) => Failure::new(Code::RootUnreadable, unread).hint("list a part of it"),
    }
}

/// A file as it is shown: to programs with its name as it is, to people without anything that steers a terminal.
fn row(found: &Found, is_data: bool) -> Data {
    let inode = &found.inode;
    let name = |bytes: &[u8]| {
        let text = text(bytes);
        Data::Text(if is_data {
            text
        } else {
            names::shown(&text).replace('\t', "\\t")
        })
    };
    let number = |number: u64| Data::Number(number.into());
    let modified = Moment::from_micros(i64::from(inode.modified) * 1_000_000);
    let (mut size, mut target, mut device) = (Data::Null, Data::Null, Data::Null);
    match &inode.kind {
        Kind::File(content) => size = number(content.size),
        Kind::Link(to) => target = name(to),
        Kind::Block(major, minor) | Kind::Character(major, minor) => device = Data::Text(format!("{major}:{minor}")),
        Kind::Directory(_) | Kind::Pipe | Kind::Socket => {}
    }
    let mut fields = vec![
        ("path", name(&found.path)),
        ("mode", Data::Text(mode(inode))),
        ("owner", Data::Text(format!("{}:{}", inode.uid, inode.gid))),
        ("size", size),
        ("time", Data::Text(modified.to_string())),
        ("target", target),
    ];
    if is_data {
        fields.push(("device", device));
    }
    Data::Map(fields.into_iter().map(|(name, data)| (name.to_owned(), data)).collect())
}

/// The mode as `ls -l` shows it.
fn mode(inode: &Inode) -> String {
    let kind = match inode.kind {
        Kind::Directory(_) => 'd',
        Kind::File(_) => '-',
        Kind::Link(_) => 'l',
        Kind::Block(..) => 'b',
        Kind::Character(..) => 'c',
        Kind::Pipe => 'p',
        Kind::Socket => 's',
    };
    let mut shown = String::from(kind);
    for (shift, special, mark) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = inode.mode >> shift;
        shown.push(if bits & 4 == 0 { '-' } else { 'r' });
        shown.push(if bits & 2 == 0 { '-' } else { 'w' });
        shown.push(match (inode.mode & special != 0, bits & 1 != 0) {
            (true, true) => mark,
            (true, false) => mark.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    shown
}

fn kind(inode: &Inode) -> &'static str {
    match inode.kind {
        Kind::Directory(_) => "a directory",
        Kind::File(_) => "a regular file",
        Kind::Link(_) => "a link",
        Kind::Block(..) | Kind::Character(..) => "a device",
        Kind::Pipe => "a named pipe",
        Kind::Socket => "a socket",
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
