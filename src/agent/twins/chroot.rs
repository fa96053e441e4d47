//! The `chroot` of the sandbox: the agent itself, called by that name.
//!
//! kiwi enters the new root by calling `chroot`, once for each script and package manager. The agent has to know
//! before: it then has native twins ready for what is in the root, and mounts them for this one call. What the call
//! does is left to the real program.

use std::{
    ffi::{OsStr, OsString},
    io::{self, BufRead, BufReader, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::symlink,
        net::{UnixListener, UnixStream},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc::{Sender, channel},
    thread,
};

use serde::{Deserialize, Serialize};

use super::{mount, sync::Request};

/// The name by which the agent is this program.
pub const NAME: &str = "chroot";

/// Where the toolbox has the program.
const PROGRAM: &str = "/usr/sbin/chroot";

/// Where it is found once the agent has taken its place.
const REAL: &str = "/usr/sbin/chroot.real";

/// Where the agent listens. Not in the root, so what runs there does not come upon it.
const SOCKET: &str = "/run/twins";

/// What is asked before a root is entered, one JSON line.
#[derive(Debug, Serialize, Deserialize)]
struct Question {
    root: PathBuf,
}

/// The answer, one JSON line.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    /// The directory of twins to mount; none when there are none for this root.
    twins: Option<PathBuf>,
}

/// The program: `arguments` are those of `chroot`. Returns only when the real one cannot be started.
pub fn main(arguments: impl Iterator<Item = OsString>) -> io::Error {
    let arguments: Vec<OsString> = arguments.collect();
    if let Some(root) = new_root(&arguments) {
        // Whatever goes wrong here, the root can be entered without twins.
        let entered = ask(Path::new(root)).and_then(|twins| match twins {
            Some(twins) => mount::enter(Path::new(root), &twins),
            None => Ok(()),
        });
        if let Err(error) = entered {
            let _ = writeln!(io::stderr(), "kiln: no twins in {}: {error}", root.display());
        }
    }
    Command::new(REAL).arg0(NAME).args(arguments).exec()
}

/// The new root among the arguments of `chroot`, whose options all begin with two dashes.
fn new_root(arguments: &[OsString]) -> Option<&OsStr> {
    let mut words = arguments.iter();
    let first = words.find(|word| !word.as_bytes().starts_with(b"--") || word.len() == 2)?;
    let root = if first == "--" { words.next()? } else { first };
    Some(root)
}

fn ask(root: &Path) -> io::Result<Option<PathBuf>> {
    let mut stream = UnixStream::connect(SOCKET)?;
    let root = root.to_owned();
    let mut question = serde_json::to_vec(&Question { root })?;
    question.push(b'\n');
    stream.write_all(&question)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(serde_json::from_str::<Answer>(&line)?.twins)
}

/// Takes the place of the sandbox's `chroot`, and passes on what each call asks.
///
/// # Errors
///
/// When the sandbox's files cannot be changed.
pub(super) fn listen(requests: Sender<Request>) -> io::Result<()> {
    let listener = UnixListener::bind(SOCKET)?;
    if !Path::new(REAL).exists() {
        fs_err::rename(PROGRAM, REAL)?;
        symlink(std::env::current_exe()?, PROGRAM)?;
    }
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let requests = requests.clone();
            thread::spawn(move || {
                // Who hangs up in the middle enters without twins.
                let _ = answer(stream, &requests);
            });
        }
    });
    Ok(())
}

fn answer(mut stream: UnixStream, requests: &Sender<Request>) -> io::Result<()> {
    let mut line = String::new();
    BufReader::new(stream.try_clone()?).read_line(&mut line)?;
    let Question { root } = serde_json::from_str(&line)?;
    let (reply, replied) = channel();
    // Both ends are gone when the build step is over.
    let asked = requests.send(Request::Enter { root, reply });
    let twins = asked.ok().and_then(|()| replied.recv().ok()).flatten();
    serde_json::to_writer(&stream, &Answer { twins })?;
    stream.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_root_is_the_first_word_that_is_no_option() {
        for (words, root) in [
            (&["/scratch/root", "apt-get", "--root", "/x"][..], Some("/scratch/root")),
            (&["--userspec=1:1", "--skip-chdir", "/r", "sh"], Some("/r")),
            (&["--", "--odd"], Some("--odd")),
            (&["--help"], None),
            (&[], None),
        ] {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            assert_eq!(new_root(&words), root.map(OsStr::new));
        }
    }
}
