//! The root file system of an image, as its layers make it: which programs and scripts there are, and for which machine.
//! Reads tar streams, which may be hostile: entries, bytes and links are bounded.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::{Component, Path},
};

use kiln_records::arch::Arch;
use tar::{Archive, EntryType};

use crate::elf::{self, Program};

/// The most entries of all layers.
const MAX_ENTRIES: usize = 4 << 20;

/// The most bytes of all paths and targets together.
const MAX_PATHS: usize = 512 << 20;

/// The most links that lead from one to the next.
const MAX_LINKS: usize = 40;

/// How deeply interpreters may be scripts again: as deep as the kernel goes.
const MAX_SCRIPTS: usize = 5;

/// A file of the root.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    Directory,
    Program(Program),
    Script(Vec<u8>),
    Link(Vec<u8>),
    Other,
}

/// The files of a root.
#[derive(Debug, Default)]
pub struct Root {
    /// By path, without a leading slash.
    nodes: BTreeMap<Vec<u8>, Node>,
    entries: usize,
    path_bytes: usize,
}

/// Why a command cannot be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unrunnable {
    /// There is no such file.
    Missing(String),
    /// The file is neither a program nor a script.
    NoProgram(String),
    /// The interpreter of a script, or the loader of a program, is missing.
    NoInterpreter {
        /// The script or program.
        of: String,
        /// What it needs.
        needs: String,
    },
    /// It is of another machine.
    OtherMachine {
        /// The program.
        path: String,
        /// Its machine.
        machine: String,
    },
    /// Links or scripts lead in a circle.
    Circle(String),
}

impl std::fmt::Display for Unrunnable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing(path) => write!(f, "{path} is not there"),
            Self::NoProgram(path) => write!(f, "{path} is neither a program nor a script"),
            Self::NoInterpreter { of, needs } => write!(f, "{of} needs {needs}, which is not there"),
            Self::OtherMachine { path, machine } => write!(f, "{path} is for {machine}"),
            Self::Circle(path) => write!(f, "{path} leads in a circle"),
        }
    }
}

impl Root {
    /// Adds a layer, which is an uncompressed tar archive. Reads it to its end.
    pub fn add_layer(&mut self, layer: impl Read) -> io::Result<()> {
        let mut archive = Archive::new(layer);
        for entry in archive.entries()? {
            let mut entry = entry?;
            self.entries += 1;
            let path = plain(&entry.path_bytes());
            self.path_bytes += path.len();
            if self.entries > MAX_ENTRIES || self.path_bytes > MAX_PATHS {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it has too many files"));
            }
            let Some(path) = self.settle(path) else { continue };
            let node = match entry.header().entry_type() {
                EntryType::Directory => Node::Directory,
                EntryType::Symlink => {
                    let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                    self.path_bytes += target.len();
                    Node::Link(target)
                }
                EntryType::Link => {
                    let target = plain(&entry.link_name_bytes().unwrap_or_default());
                    self.nodes.get(&target).cloned().unwrap_or(Node::Other)
                }
                EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                    let mut head = Vec::new();
                    (&mut entry).take(4).read_to_end(&mut head)?;
                    if head.starts_with(b"\x7fELF") || head.starts_with(b"#!") {
                        (&mut entry).take(elf::HEAD as u64 - 4).read_to_end(&mut head)?;
                    }
                    match (Program::parse(&head), elf::script(&head)) {
                        (Some(program), _) => Node::Program(program),
                        (None, Some(interpreter)) => Node::Script(interpreter),
                        (None, None) => Node::Other,
                    }
                }
                _ => Node::Other,
            };
            if node != Node::Directory && self.nodes.get(&path) == Some(&Node::Directory) {
                self.remove_below(&path);
            }
            self.nodes.insert(path, node);
        }
        // The digest is that of all bytes, also of those after the archive's end.
        io::copy(&mut archive.into_inner(), &mut io::sink()).map(drop)
    }

    /// Carries out what a layer removes. Returns the path of what it adds.
    fn settle(&mut self, path: Vec<u8>) -> Option<Vec<u8>> {
        let at = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (dir, name) = (path[..at].strip_suffix(b"/").unwrap_or(&path[..at]), &path[at..]);
        let Some(hidden) = name.strip_prefix(b".wh.".as_slice()).map(<[u8]>::to_vec) else {
            return Some(path);
        };
        if hidden == b".wh..opq" {
            self.remove_below(dir);
            return None;
        }
        let gone = [&path[..at], &hidden].concat();
        self.nodes.remove(&gone);
        self.remove_below(&gone);
        None
    }

    fn remove_below(&mut self, dir: &[u8]) {
        let begin = if dir.is_empty() {
            Vec::new()
        } else {
            [dir, b"/"].concat()
        };
        let below = self.nodes.range(begin.clone()..);
        let below = below
            .map(|(path, _)| path.clone())
            .take_while(|path| path.starts_with(&begin));
        for path in below.collect::<Vec<_>>() {
            self.nodes.remove(&path);
        }
    }

    /// The machines of all programs and libraries, and how many files each has; the most frequent one first.
    pub fn machines(&self) -> Vec<(Option<Arch>, String, usize)> {
        let mut counts: BTreeMap<String, (Option<Arch>, usize)> = BTreeMap::new();
        for node in self.nodes.values() {
            if let Node::Program(program) = node {
                let count = counts.entry(program.machine_name()).or_insert((program.arch(), 0));
                count.1 += 1;
            }
        }
        let mut counts: Vec<_> = counts
            .into_iter()
            .map(|(name, (arch, count))| (arch, name, count))
            .collect();
        counts.sort_by_key(|(_, _, count)| std::cmp::Reverse(*count));
        counts
    }

    /// Checks that a command can be started on a machine, by the program that it begins with.
    pub fn check_command(&self, command: &str, search: &str, arch: Arch) -> Result<(), Unrunnable> {
        let candidates: Vec<Vec<u8>> = if command.contains('/') {
            vec![command.as_bytes().to_vec()]
        } else {
            search
                .split(':')
                .map(|dir| format!("{dir}/{command}").into_bytes())
                .collect()
        };
        let found = candidates
            .iter()
            .find(|path| self.find(path).is_ok_and(|node| node.is_some()));
        let Some(path) = found else {
            return Err(Unrunnable::Missing(command.to_owned()));
        };
        self.check_program(path, arch, 0)
    }

    fn check_program(&self, path: &[u8], arch: Arch, depth: usize) -> Result<(), Unrunnable> {
        let shown = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        let needs = |needed: &[u8]| match self.find(needed) {
            Ok(Some(_)) => Ok(()),
            _ => Err(Unrunnable::NoInterpreter {
                of: shown(path),
                needs: shown(needed),
            }),
        };
        if depth > MAX_SCRIPTS {
            return Err(Unrunnable::Circle(shown(path)));
        }
        match self.find(path)? {
            None => Err(Unrunnable::Missing(shown(path))),
            Some(Node::Program(program)) if program.arch() == Some(arch) => match &program.loader {
                Some(loader) => {
                    needs(loader)?;
                    // A loader needs none itself.
                    match self.find(loader)? {
                        Some(Node::Program(program)) if program.arch() == Some(arch) => Ok(()),
                        _ => Err(Unrunnable::NoProgram(shown(loader))),
                    }
                }
                None => Ok(()),
            },
            Some(Node::Program(program)) => Err(Unrunnable::OtherMachine {
                path: shown(path),
                machine: program.machine_name(),
            }),
            Some(Node::Script(interpreter)) => {
                needs(interpreter)?;
                self.check_program(interpreter, arch, depth + 1)
            }
            Some(Node::Directory | Node::Other | Node::Link(_)) => Err(Unrunnable::NoProgram(shown(path))),
        }
    }

    /// The file that a path leads to, inside the root.
    fn find(&self, path: &[u8]) -> Result<Option<&Node>, Unrunnable> {
        let circle = || Unrunnable::Circle(String::from_utf8_lossy(path).into_owned());
        let parts = |path: &[u8]| -> Vec<Vec<u8>> {
            path.split(|byte| *byte == b'/')
                .filter(|part| !part.is_empty() && *part != b".")
                .rev()
                .map(<[u8]>::to_vec)
                .collect()
        };
        let mut left = parts(path);
        let (mut here, mut links): (Vec<u8>, usize) = (Vec::new(), 0);
        while let Some(part) = left.pop() {
            if part == b".." {
                let end = here.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                here.truncate(end);
                continue;
            }
            let next = if here.is_empty() {
                part
            } else {
                [&here[..], b"/", &part].concat()
            };
            if let Some(Node::Link(target)) = self.nodes.get(&next) {
                links += 1;
                if links > MAX_LINKS || left.len() > 4096 {
                    return Err(circle());
                }
                if target.starts_with(b"/") {
                    here.clear();
                }
                left.extend(parts(target));
                continue;
            }
            here = next;
        }
        Ok(self.nodes.get(&here))
    }
}

/// A path of an archive in its plain form: without `.`, and `..` as far as it stays inside.
fn plain(path: &[u8]) -> Vec<u8> {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let mut plain: Vec<&[u8]> = Vec::new();
    for part in Path::new(OsStr::from_bytes(path)).components() {
        match part {
            Component::Normal(name) => plain.push(name.as_bytes()),
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    plain.join(&b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(files: &[(&str, &[u8])], links: &[(&str, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o755);
            builder.append_data(&mut header, path, *content).unwrap();
        }
        for (path, target) in links {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(EntryType::Symlink);
            header.set_size(0);
            builder.append_link(&mut header, path, target).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn host() -> Arch {
        std::env::consts::ARCH.parse().unwrap()
    }

    #[test]
    fn commands_are_followed_to_programs_of_the_machine() {
        let this = fs_err::read("/proc/self/exe").unwrap();
        let loader = String::from_utf8(Program::parse(&this[..elf::HEAD]).unwrap().loader.unwrap()).unwrap();
        let mut root = Root::default();
        let files: [(&str, &[u8]); 5] = [
            ("usr/bin/sh", &this),
            ("usr/ld.so", &this),
            ("entry", b"#!/bin/sh\n"),
            ("lost", b"#!/bin/ksh\n"),
            ("data", b"x"),
        ];
        let links = [
            ("bin", "usr/bin"),
            ("loop", "loop"),
            ("up", "../../../usr/bin/sh"),
            (&loader[1..], "/usr/ld.so"),
        ];
        root.add_layer(&layer(&files, &links)[..]).unwrap();
        let check = |root: &Root, command: &str| {
            root.check_command(command, "/none:/bin", host())
                .map_err(|why| why.to_string())
        };
        for command in ["/bin/sh", "sh", "/entry", "/up"] {
            assert_eq!(check(&root, command), Ok(()), "{command}");
        }
        for (command, why) in [
            ("/none", "/none is not there"),
            ("data", "data is not there"),
            ("/data", "/data is neither a program nor a script"),
            ("/lost", "/lost needs /bin/ksh, which is not there"),
            ("/loop", "/loop is not there"),
        ] {
            assert_eq!(check(&root, command), Err(why.to_owned()), "{command}");
        }
        let other = if host() == Arch::Aarch64 {
            Arch::X86_64
        } else {
            Arch::Aarch64
        };
        assert_eq!(
            root.check_command("/bin/sh", "", other).unwrap_err().to_string(),
            format!("/bin/sh is for {}", host())
        );
        assert_eq!(root.machines()[0].0, Some(host()));

        // A later layer takes the shell away, and the rest of the directory.
        root.add_layer(&layer(&[("usr/bin/.wh.sh", b"")], &[])[..]).unwrap();
        assert_eq!(
            check(&root, "/entry"),
            Err("/entry needs /bin/sh, which is not there".to_owned())
        );
        root.add_layer(&layer(&[(".wh..wh..opq", b"")], &[])[..]).unwrap();
        assert!(root.nodes.is_empty());
    }
}
