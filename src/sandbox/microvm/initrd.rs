//! Writes a machine's initrd: one archive that is the same for every job, followed by one with the job's agent. The
//! kernel unpacks one after the other. Reads the programs and writes to the given output.
//!
//! Neither contains a secret: the agent's facts come through the control port.

use std::{
    io::{Seek, Write},
    path::PathBuf,
};

use cpio::newc::{Builder, ModeFileType, trailer};

use super::modules::Module;

/// Archives begin at multiples of this.
const ALIGNMENT: u64 = 512;

/// Appends files to an archive.
struct Archive<W: Write> {
    out: W,
    entries: u32,
}

/// Writes the archive that all machines share: the program `init` and the modules.
pub(super) fn write_base<W: Write + Seek>(out: W, init: &[u8], modules: &[Module]) -> std::io::Result<()> {
    let mut archive = Archive { out, entries: 0 };
    archive.dir("dev")?;
    // The kernel opens it for process 1, before any process could make it.
    let console = Builder::new("dev/console").mode(0o600).rdev_major(5).rdev_minor(1);
    archive.add(console.set_mode_file_type(ModeFileType::Char), &[])?;
    archive.file("init", init)?;
    archive.dir("modules")?;
    for (turn, module) in modules.iter().enumerate() {
        archive.file(&format!("modules/{turn:02}-{}.ko", module.name), &module.content)?;
    }
    archive.dir("programs")?;
    archive.finish()
}

/// Appends the archive of one job: its agent and the programs beside it.
pub(crate) fn append_programs<W: Write + Seek>(out: W, programs: &[(&str, PathBuf)]) -> std::io::Result<()> {
    let mut archive = Archive { out, entries: 0 };
    for (name, path) in programs {
        archive.file(&format!("programs/{name}"), &fs_err::read(path)?)?;
    }
    archive.finish()
}

impl<W: Write + Seek> Archive<W> {
    fn dir(&mut self, name: &str) -> std::io::Result<()> {
        let dir = Builder::new(name).mode(0o755);
        self.add(dir.set_mode_file_type(ModeFileType::Directory), &[])
    }

    fn file(&mut self, name: &str, content: &[u8]) -> std::io::Result<()> {
        let file = Builder::new(name).mode(0o755);
        self.add(file.set_mode_file_type(ModeFileType::Regular), content)
    }

    /// Times and owners are 0, so that equal files make equal archives.
    fn add(&mut self, entry: Builder, content: &[u8]) -> std::io::Result<()> {
        let size = u32::try_from(content.len()).map_err(std::io::Error::other)?;
        self.entries += 1;
        let mut writer = entry.ino(self.entries).write(&mut self.out, size);
        writer.write_all(content)?;
        writer.finish().map(drop)
    }

    fn finish(mut self) -> std::io::Result<()> {
        trailer(&mut self.out)?;
        let end = self.out.stream_position()?;
        let padding = end.next_multiple_of(ALIGNMENT) - end;
        self.out.write_all(&vec![0; usize::try_from(padding).unwrap_or(0)])
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use cpio::NewcReader;

    use super::*;

    #[test]
    fn archives_follow_each_other_and_are_the_same_for_the_same_files() {
        let dir = tempfile::tempdir().unwrap();
        let agent = dir.path().join("agent");
        fs_err::write(&agent, "an agent").unwrap();
        let modules = [Module {
            name: "overlay".to_owned(),
            content: b"a module".to_vec(),
        }];
        let make = || {
            let mut both = Cursor::new(Vec::new());
            write_base(&mut both, b"an init", &modules).unwrap();
            assert_eq!(both.position() % 512, 0);
            let base = both.position();
            append_programs(&mut both, &[("agent", agent.clone())]).unwrap();
            (both.into_inner(), base)
        };
        let (both, base) = make();
        assert_eq!(make().0, both);
        let mut found = Vec::new();
        for begin in [0, base] {
            let mut input = Cursor::new(&both);
            input.set_position(begin);
            loop {
                let mut reader = NewcReader::new(input).unwrap();
                if reader.entry().is_trailer() {
                    break;
                }
                let mut text = String::new();
                std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
                let entry = reader.entry();
                found.push(format!("{} {:o} {} {text}", entry.name(), entry.mode(), entry.mtime()));
                input = reader.finish().unwrap();
            }
        }
        insta::assert_snapshot!(found.join("\n"), @r"
        dev 40755 0 
        dev/console 20600 0 
        init 100755 0 an init
        modules 40755 0 
        modules/00-overlay.ko 100755 0 a module
        programs 40755 0 
        programs/agent 100755 0 an agent
        ");
    }
}
