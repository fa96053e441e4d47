//! Sets up a sandbox's file systems, from the first mount to the change of root. Mounts through the [`Kernel`] trait
//! only.
//!
//! ```text
//! /            overlay: the toolbox below, the job's own layer above
//! /proc        of the sandbox's own process namespace
//! /sys         empty
//! /dev         null zero full random urandom tty, own pts and shm; nothing else
//! /run         tmpfs; /run/agent is the agent, /run/kiln the server's sockets, besides the agent's companions
//! /tmp         in the job's own layer, so on disk
//! /scratch     the job's disk space
//! ```

use std::path::{Path, PathBuf};

use kiln_records::Failure;
use nix::mount::MsFlags;

use super::kernel::Kernel;

/// Where the sandbox is assembled before it becomes `/`: a tmpfs over the host's `/tmp`, visible in this namespace
/// only. Every system has that directory, and every user may enter it.
const STAGE: &str = "/tmp";

/// The path of a job's disk space inside its sandbox.
pub const SCRATCH: &str = "/scratch";

/// The path of the storage of working containers inside their sandbox.
pub const STORAGE: &str = "/var/lib/containers";
/// Its directory in the disk space.
pub const STORAGE_LAYER: &str = "containers";

/// The path of the agent inside its sandbox.
pub const AGENT: &str = "/run/agent";

/// The name of the program that goes in front of the emulator: beside the agent on the host, in `/run` inside a sandbox.
pub const PRELUDE: &str = "kiln-exec";

/// Programs for the agent, beside it on the host; each is in `/run` under its own name. A host without native twins
/// has none.
pub const COMPANIONS: [&str; 2] = [PRELUDE, "answers.so"];

/// The path of the server's sockets inside its sandboxes.
pub const DOORS: &str = "/run/kiln";

/// Directories of the disk space without content of the job's own: changes to the toolbox, and the overlays' work
/// directories.
pub const JOBLESS_LAYERS: [&str; 4] = ["upper", "work", "scratch-work", STORAGE_LAYER];

/// Links that every `/dev` has, and their targets.
pub const DEV_LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "fd"),
    ("fd/0", "stdin"),
    ("fd/1", "stdout"),
    ("fd/2", "stderr"),
    ("pts/ptmx", "ptmx"),
];

/// Device nodes that a build may use. They are bound from the host, since a user namespace cannot make nodes.
pub const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// The sources of the mounts, as paths that this process can open (usually `/proc/self/fd/N`).
#[derive(Debug)]
pub struct Sources {
    /// The unpacked toolbox.
    pub toolbox: PathBuf,
    /// The job's directory on disk.
    pub disk: PathBuf,
    /// The agent's file.
    pub agent: PathBuf,
    /// The [`COMPANIONS`] that exist, with their names.
    pub companions: Vec<(&'static str, PathBuf)>,
    /// The directory with the server's sockets. The directory is bound, not the sockets, so that the sockets of a
    /// restarted server are visible too.
    pub doors: PathBuf,
}

/// The programs beside the agent that go into the sandbox with it.
pub fn companions(agent: &Path) -> impl Iterator<Item = (&'static str, PathBuf)> {
    COMPANIONS
        .into_iter()
        .map(|name| (name, agent.with_file_name(name)))
        .filter(|(_, path)| path.exists())
}

/// Options of an overlay. With `volatile` no fsync reaches the disk: package managers sync after every file, and
/// nothing in a sandbox outlives the job, so nothing can be lost.
fn layers(lower: &Path, disk: &Path, upper: &str, work: &str) -> String {
    format!(
        "lowerdir={},upperdir={},workdir={},userxattr,volatile",
        lower.display(),
        disk.join(upper).display(),
        disk.join(work).display()
    )
}

/// Assembles the sandbox and enters it. The source of its overlays is `name`, so that the mounts of a process show
/// which sandbox it is in.
pub fn furnish(
    kernel: &mut dyn Kernel,
    sources: &Sources,
    name: &str,
    hostname: &str,
    resolv_conf: &str,
) -> Result<(), Failure> {
    let stage = Path::new(STAGE);
    let (lower, disk, root) = (stage.join("lower"), stage.join("disk"), stage.join("root"));
    let safe = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let bind = MsFlags::MS_BIND;
    let text = |path: &Path| path.display().to_string();

    kernel.mount("", Path::new("/"), "", MsFlags::MS_REC | MsFlags::MS_PRIVATE, "")?;
    kernel.mount("kiln", stage, "tmpfs", safe, "mode=0755,size=1m")?;
    for dir in [&lower, &disk, &root] {
        kernel.mkdir(dir)?;
    }
    kernel.mount(&text(&sources.toolbox), &lower, "", bind, "")?;
    kernel.mount(&text(&sources.disk), &disk, "", bind, "")?;
    for dir in ["upper", "work", "scratch", "scratch-work", "empty", STORAGE_LAYER] {
        kernel.mkdir(&disk.join(dir))?;
    }
    kernel.mount(
        "kiln",
        &root,
        "overlay",
        MsFlags::empty(),
        &layers(&lower, &disk, "upper", "work"),
    )?;

    let inside = |path: &str| root.join(path.trim_start_matches('/'));
    for dir in ["/proc", "/sys", "/dev", "/run", "/tmp", SCRATCH] {
        kernel.mkdir(&inside(dir))?;
    }
    kernel.mount("proc", &inside("/proc"), "proc", safe | MsFlags::MS_NOEXEC, "")?;
    // Empty, but writable: kiwi unpacks packages that own the directory while it is mounted into the new root.
    kernel.mount("kiln", &inside("/sys"), "tmpfs", safe, "mode=0755,size=4k")?;
    // Over an empty directory, only for the sake of `volatile`.
    let scratch = layers(&disk.join("empty"), &disk, "scratch", "scratch-work");
    kernel.mount(name, &inside(SCRATCH), "overlay", MsFlags::empty(), &scratch)?;
    // The disk itself: an overlay cannot be the upper layer of those that containers have.
    let storage = disk.join(STORAGE_LAYER);
    kernel.mkdir(&inside(STORAGE))?;
    kernel.mount(&text(&storage), &inside(STORAGE), "", bind, "")?;

    kernel.mount(
        "kiln",
        &inside("/dev"),
        "tmpfs",
        MsFlags::MS_NOSUID,
        "mode=0755,size=1m",
    )?;
    for device in DEVICES {
        let node = inside(&format!("/dev/{device}"));
        kernel.write(&node, "")?;
        kernel.mount(&format!("/dev/{device}"), &node, "", bind, "")?;
    }
    for (target, link) in DEV_LINKS {
        kernel.symlink(target, &inside(&format!("/dev/{link}")))?;
    }
    for dir in ["/dev/pts", "/dev/shm"] {
        kernel.mkdir(&inside(dir))?;
    }
    kernel.mount(
        "devpts",
        &inside("/dev/pts"),
        "devpts",
        MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC,
        "newinstance,ptmxmode=0666,mode=0620,gid=5",
    )?;
    kernel.mount("kiln", &inside("/dev/shm"), "tmpfs", safe, "mode=1777")?;

    kernel.mount("kiln", &inside("/run"), "tmpfs", safe, "mode=0755")?;
    kernel.mkdir(&inside("/run/lock"))?;
    let read_only = bind | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | safe;
    let mut programs = vec![(inside(AGENT), &sources.agent)];
    programs.extend(
        sources
            .companions
            .iter()
            .map(|(name, path)| (inside("/run").join(name), path)),
    );
    for (place, program) in programs {
        kernel.write(&place, "")?;
        kernel.mount(&text(program), &place, "", bind, "")?;
        kernel.mount("", &place, "", read_only, "")?;
    }
    kernel.mkdir(&inside(DOORS))?;
    kernel.mount(&text(&sources.doors), &inside(DOORS), "", bind, "")?;
    kernel.mount("", &inside(DOORS), "", read_only | MsFlags::MS_NOEXEC, "")?;

    kernel.write(&inside("/etc/resolv.conf"), resolv_conf)?;
    kernel.write(
        &inside("/etc/hosts"),
        &format!("127.0.0.1 localhost {hostname}\n::1 localhost\n"),
    )?;
    kernel.write(&inside("/etc/hostname"), &format!("{hostname}\n"))?;
    kernel.enter_root(&root)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_records::Code;

    /// Records the calls.
    #[derive(Default)]
    struct Recorder(Vec<String>);

    impl Kernel for Recorder {
        fn mount(
            &mut self,
            source: &str,
            target: &Path,
            kind: &str,
            flags: MsFlags,
            data: &str,
        ) -> Result<(), Failure> {
            let kind = if kind.is_empty() { "-" } else { kind };
            self.0
                .push(format!("mount {kind} {source} {} {flags:?} {data}", target.display()));
            Ok(())
        }
        fn read_only(&mut self, tree: &Path) -> Result<(), Failure> {
            self.0.push(format!("read-only {}", tree.display()));
            Ok(())
        }
        fn mkdir(&mut self, path: &Path) -> Result<(), Failure> {
            self.0.push(format!("mkdir {}", path.display()));
            Ok(())
        }
        fn write(&mut self, path: &Path, content: &str) -> Result<(), Failure> {
            self.0.push(format!("write {} {content:?}", path.display()));
            Ok(())
        }
        fn symlink(&mut self, target: &str, path: &Path) -> Result<(), Failure> {
            self.0.push(format!("symlink {} -> {target}", path.display()));
            Ok(())
        }
        fn enter_root(&mut self, root: &Path) -> Result<(), Failure> {
            self.0.push(format!("enter {}", root.display()));
            Ok(())
        }
    }

    #[test]
    fn these_mounts_in_this_order() {
        let mut recorder = Recorder::default();
        let sources = Sources {
            toolbox: "/proc/self/fd/5".into(),
            disk: "/proc/self/fd/6".into(),
            agent: "/proc/self/fd/7".into(),
            companions: vec![("kiln-exec", "/proc/self/fd/9".into())],
            doors: "/proc/self/fd/8".into(),
        };
        furnish(&mut recorder, &sources, "test", "kiln-test", "nameserver 192.0.2.1\n").unwrap();
        insta::assert_snapshot!(recorder.0.join("\n"));
    }

    #[test]
    fn a_failing_mount_stops_the_furnishing() {
        struct Refuses(usize);
        impl Kernel for Refuses {
            fn mount(&mut self, _: &str, _: &Path, _: &str, _: MsFlags, _: &str) -> Result<(), Failure> {
                self.0 += 1;
                if self.0 == 5 {
                    Err(Failure::new(Code::SandboxMount, "no"))
                } else {
                    Ok(())
                }
            }
            fn read_only(&mut self, _: &Path) -> Result<(), Failure> {
                Ok(())
            }
            fn mkdir(&mut self, _: &Path) -> Result<(), Failure> {
                Ok(())
            }
            fn write(&mut self, _: &Path, _: &str) -> Result<(), Failure> {
                Ok(())
            }
            fn symlink(&mut self, _: &str, _: &Path) -> Result<(), Failure> {
                Ok(())
            }
            fn enter_root(&mut self, _: &Path) -> Result<(), Failure> {
                panic!("entered a half-furnished root")
            }
        }
        let sources = Sources {
            toolbox: "/a".into(),
            disk: "/b".into(),
            agent: "/c".into(),
            companions: Vec::new(),
            doors: PathBuf::new(),
        };
        let mut kernel = Refuses(0);
        assert!(furnish(&mut kernel, &sources, "n", "h", "").is_err());
        assert_eq!(kernel.0, 5);
    }
}
