//! Replaces the sandbox's `chroot` and package managers by the agent itself, which is called under their names.
//! Renames programs of the sandbox, and listens on a socket.
//!
//! kiwi enters the new root by calling `chroot`, once for each script and package manager; a tool that makes a root of
//! rpms from outside enters it for each script of a package. The agent has to know beforehand: it then has native
//! twins ready for the programs in the root, and mounts them for this one call. The rest of the call is left to the
//! real program.

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

use super::{mount, request::Request};

/// Programs that the agent replaces, with their paths in the toolbox. A toolbox need not have all of them.
const PROGRAMS: [(&str, &str); 3] = [
    (CHROOT, "/usr/sbin/chroot"),
    ("zypper", "/usr/bin/zypper"),
    // dnf is a link to it.
    ("dnf-3", "/usr/bin/dnf-3"),
];

/// Enters the root at once. The others enter it when something is in it.
const CHROOT: &str = "chroot";

/// The suffix of the real programs once the agent has replaced them.
const REAL: &str = ".real";

/// The agent's socket. Not in the root, so that programs there do not find it.
const SOCKET: &str = "/run/twins";

/// The agent's hidden subcommand for programs that enter a root by themselves, such as sshd: `kiln-agent enter-twins
/// ROOT PROGRAM ARGUMENT…`.
pub const ENTER: &str = "enter-twins";

/// This program, for starting it again.
pub const ENTER_PROGRAM: &str = "/proc/self/exe";

/// The question before a root is entered, one JSON line.
#[derive(Debug, Serialize, Deserialize)]
struct Question {
    root: PathBuf,
    wait: bool,
}

/// The answer, one JSON line.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    /// The directory of twins to mount; `None` when there are none for this root.
    twins: Option<PathBuf>,
}

/// The program that the agent was called as, from the path `name`.
pub fn called(name: &OsStr) -> Option<&'static str> {
    let name = Path::new(name).file_name()?;
    let is_called = |(program, _): &&(&'static str, &str)| name == *program || (name == "dnf" && *program == "dnf-3");
    PROGRAMS.iter().find(is_called).map(|(program, _)| *program)
}

/// Runs the program `name` with its `arguments`. Returns only when the real one cannot be started.
pub fn main(name: &str, arguments: impl Iterator<Item = OsString>) -> io::Error {
    let arguments: Vec<OsString> = arguments.collect();
    let root = if name == CHROOT {
        new_root(&arguments)
    } else {
        other_root(&arguments)
    };
    if let Some(root) = root {
        mount_twins(Path::new(root), Path::new(root), name == CHROOT);
    }
    Command::new(real(name)).arg0(name).args(arguments).exec()
}

/// The subcommand [`ENTER`]: runs a program of the sandbox with the twins of a root. Returns only when it cannot be
/// started.
pub fn enter(mut arguments: impl Iterator<Item = OsString>) -> io::Error {
    let (Some(root), Some(program)) = (arguments.next(), arguments.next()) else {
        return io::ErrorKind::InvalidInput.into();
    };
    mount_twins(Path::new(&root), Path::new(&root), false);
    Command::new(program).args(arguments).exec()
}

/// Mounts the twins of a root in it, if there are any; the agent knows the root as `known_as`. After any error the root can still be entered without them.
pub(crate) fn mount_twins(root: &Path, known_as: &Path, wait: bool) {
    let entered = ask(known_as, wait).and_then(|twins| match twins {
        Some(twins) => mount::enter(root, &twins),
        None => Ok(()),
    });
    if let Err(error) = entered {
        let _ = writeln!(io::stderr(), "kiln: no twins in {}: {error}", root.display());
    }
}

/// The path of the real program.
pub(super) fn real(name: &str) -> PathBuf {
    let path = PROGRAMS.iter().find(|(program, _)| *program == name);
    let path = path.map_or(name, |(_, path)| *path);
    let real = PathBuf::from(format!("{path}{REAL}"));
    if real.exists() { real } else { PathBuf::from(path) }
}

/// The new root among the arguments of `chroot`, whose options all begin with two dashes.
fn new_root(arguments: &[OsString]) -> Option<&OsStr> {
    let mut words = arguments.iter();
    let first = words.find(|word| !word.as_bytes().starts_with(b"--") || word.len() == 2)?;
    let root = if first == "--" { words.next()? } else { first };
    Some(root)
}

/// The root on which a package manager works from outside.
fn other_root(arguments: &[OsString]) -> Option<&OsStr> {
    const OPTIONS: [&str; 3] = ["--root", "--installroot", "-R"];
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        if OPTIONS.iter().any(|option| word == option) {
            return words.next().map(OsString::as_os_str);
        }
        let value = |option: &&str| word.as_bytes().strip_prefix(option.as_bytes())?.strip_prefix(b"=");
        if let Some(value) = OPTIONS.iter().find_map(value) {
            return Some(OsStr::from_bytes(value));
        }
    }
    None
}

fn ask(root: &Path, wait: bool) -> io::Result<Option<PathBuf>> {
    let mut stream = UnixStream::connect(SOCKET)?;
    let root = root.to_owned();
    let mut question = serde_json::to_vec(&Question { root, wait })?;
    question.push(b'\n');
    stream.write_all(&question)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(serde_json::from_str::<Answer>(&line)?.twins)
}

/// Replaces the sandbox's programs, and passes on the question of each call.
///
/// # Errors
///
/// The sandbox's files cannot be changed.
pub(super) fn listen(requests: Sender<Request>) -> io::Result<()> {
    // The root may be made more than once; who listened before it has no twins any more.
    let _ = fs_err::remove_file(SOCKET);
    let listener = UnixListener::bind(SOCKET)?;
    for (_, path) in PROGRAMS {
        let real = format!("{path}{REAL}");
        if Path::new(path).exists() && !Path::new(&real).exists() {
            fs_err::rename(path, real)?;
            symlink(std::env::current_exe()?, path)?;
        }
    }
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let requests = requests.clone();
            thread::spawn(move || {
                // A caller that hangs up halfway enters without twins.
                let _ = answer(stream, &requests);
            });
        }
    });
    Ok(())
}

fn answer(mut stream: UnixStream, requests: &Sender<Request>) -> io::Result<()> {
    let mut line = String::new();
    BufReader::new(stream.try_clone()?).read_line(&mut line)?;
    let Question { root, wait } = serde_json::from_str(&line)?;
    let (reply, replied) = channel();
    // Both ends are gone when the build step is over.
    let asked = requests.send(Request::Enter { root, wait, reply });
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
    #[test]
    fn a_package_manager_says_where_its_root_is() {
        for (words, root) in [
            (
                &["--config", "/c", "--root", "/scratch/root", "install", "bash"][..],
                Some("/scratch/root"),
            ),
            (&["-y", "--installroot=/r", "install"], Some("/r")),
            (&["-y", "--installroot", "/r"], Some("/r")),
            (&["--rooted", "makecache"], None),
            (&["--root"], None),
        ] {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            assert_eq!(other_root(&words), root.map(OsStr::new));
        }
    }

    #[test]
    fn programs_are_known_by_the_names_that_they_are_called_by() {
        let called = |name: &str| called(OsStr::new(name));
        assert_eq!(called("/usr/sbin/chroot"), Some("chroot"));
        assert_eq!(called("zypper"), Some("zypper"));
        assert_eq!(called("/usr/bin/dnf"), Some("dnf-3"));
        assert_eq!(called("/run/kiln-agent"), None);
    }
}
