//! Process 1 of a sandbox whose program is QEMU: its root, its relays, its start.
//!
//! ```text
//! /usr /lib* /bin …   the host's, read-only: QEMU and its libraries
//! /etc                only what finds libraries, and the resolver of the sandbox
//! /dev                null zero urandom, and kvm where it is used
//! /vm                 the kernel and the first root
//! /run/kiln           the server's sockets
//! ```

use std::{
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use nix::{
    fcntl::{FcntlArg, FdFlag, OFlag, fcntl, open},
    mount::MsFlags,
    sys::stat::Mode,
};

use super::{
    DOORS,
    files::{Files, link_to},
    plan::Plan,
    relays,
};
use crate::{
    arch::Arch,
    records::Failure,
    sandbox::microvm::{
        Accelerator, VmSpec, initrd,
        qemu::{self, Wires},
    },
    sandbox::room::{kernel::Kernel, mounts::companions},
};

/// Where the root is put together; see `mounts`.
const STAGE: &str = "/tmp";

/// Where the host has programs and libraries, all of them links to or directories beside `/usr`.
const PROGRAMS: [&str; 7] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// What finds libraries, where it is there.
const LIBRARY_PATHS: [&str; 3] = ["ld.so.cache", "ld.so.conf", "alternatives"];

/// Devices of the host that QEMU opens.
const DEVICES: [&str; 3] = ["null", "zero", "urandom"];

/// What a machine is made from, opened before we lose the right to walk to it.
#[derive(Debug)]
pub(super) struct OpenedMachine {
    kernel: OwnedFd,
    initrd: OwnedFd,
    kvm: Option<OwnedFd>,
    disks: Option<(OwnedFd, OwnedFd)>,
    doors: Option<OwnedFd>,
}

/// Opens what the machine of a plan is made from, and puts its first root together.
pub(super) fn open_machine(plan: &Plan, machine: &VmSpec) -> Result<OpenedMachine, Failure> {
    let files = Files::of(&plan.dir);
    let open = |path: &Path, flags: OFlag| {
        open(path, flags | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|errno| Failure::new("sandbox_start", format!("cannot open {}: {errno}", path.display())))
    };
    let initrd = match plan.agent() {
        Some(agent) => {
            let mut programs = vec![("agent", agent.agent.clone())];
            programs.extend(companions(&agent.agent));
            first_root(&machine.initrd, &programs, &files.agent())
                .map_err(|error| Failure::io("cannot make the machine's first root", &error))?;
            files.agent()
        }
        None => machine.initrd.clone(),
    };
    let kvm = match machine.accelerator {
        Accelerator::Kvm if files.kvm().exists() => Some(open(&files.kvm(), OFlag::O_PATH)?),
        Accelerator::Kvm => Some(open(Path::new(KVM), OFlag::O_PATH)?),
        Accelerator::Tcg => None,
    };
    let disks = match &machine.toolbox {
        Some(toolbox) => Some((open(toolbox, OFlag::O_RDONLY)?, open(&files.disk(), OFlag::O_RDWR)?)),
        None => None,
    };
    let doors = plan.agent().map(|agent| open(&agent.doors, OFlag::O_PATH));
    Ok(OpenedMachine {
        kernel: open(&machine.kernel, OFlag::O_PATH)?,
        initrd: open(&initrd, OFlag::O_PATH)?,
        kvm,
        disks,
        doors: doors.transpose()?,
    })
}

/// The device that runs guests on the CPU itself.
pub(super) const KVM: &str = "/dev/kvm";

/// Copies the first root that all machines share, and appends what is this job's.
fn first_root(base: &Path, programs: &[(&str, PathBuf)], to: &Path) -> std::io::Result<()> {
    fs_err::copy(base, to)?;
    let mut out = std::io::BufWriter::new(fs_err::File::options().append(true).open(to)?);
    std::io::Seek::seek(&mut out, std::io::SeekFrom::End(0))?;
    initrd::append_programs(&mut out, programs)?;
    std::io::Write::flush(&mut out)
}

/// What QEMU's root is made from, as paths that this process can open.
#[derive(Debug)]
struct Sources {
    kernel: PathBuf,
    initrd: PathBuf,
    kvm: Option<PathBuf>,
    doors: Option<PathBuf>,
    /// Links of the host's root to where they lead, and directories.
    programs: Vec<(&'static str, Option<String>)>,
    library_paths: Vec<(&'static str, bool)>,
}

impl Sources {
    fn of(opened: &OpenedMachine) -> Self {
        let programs = PROGRAMS.into_iter().filter_map(|name| {
            let path = Path::new("/").join(name);
            let link = fs_err::read_link(&path).ok().map(|to| to.display().to_string());
            path.exists().then_some((name, link))
        });
        let library_paths = LIBRARY_PATHS.into_iter().filter_map(|name| {
            let path = Path::new("/etc").join(name);
            path.exists().then(|| (name, path.is_dir()))
        });
        Self {
            kernel: link_to(&opened.kernel),
            initrd: link_to(&opened.initrd),
            kvm: opened.kvm.as_ref().map(link_to),
            doors: opened.doors.as_ref().map(link_to),
            programs: programs.collect(),
            library_paths: library_paths.collect(),
        }
    }
}

/// Puts QEMU's root together and enters it.
fn furnish(os: &mut dyn Kernel, sources: &Sources, resolv_conf: &str) -> Result<(), Failure> {
    let root = Path::new(STAGE).join("root");
    let inside = |path: &str| root.join(path.trim_start_matches('/'));
    let safe = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | safe;
    let bind = |os: &mut dyn Kernel, from: &str, to: &str, is_dir: bool| -> Result<(), Failure> {
        if is_dir {
            os.mkdir(&inside(to))?;
        } else {
            os.write(&inside(to), "")?;
        }
        os.mount(from, &inside(to), "", MsFlags::MS_BIND, "")?;
        os.mount("", &inside(to), "", read_only, "")
    };
    os.mount("", Path::new("/"), "", MsFlags::MS_REC | MsFlags::MS_PRIVATE, "")?;
    os.mount("kiln", Path::new(STAGE), "tmpfs", safe, "mode=0755,size=1m")?;
    os.mkdir(&root)?;
    // What becomes the root must be a mount.
    os.mount("kiln", &root, "tmpfs", safe, "mode=0755,size=1m")?;
    for (name, link) in &sources.programs {
        match link {
            Some(to) => os.symlink(to, &inside(name))?,
            None => bind(os, &format!("/{name}"), name, true)?,
        }
    }
    for dir in ["/etc", "/dev", "/proc", "/tmp", "/vm", "/run"] {
        os.mkdir(&inside(dir))?;
    }
    for (name, is_dir) in &sources.library_paths {
        bind(os, &format!("/etc/{name}"), &format!("/etc/{name}"), *is_dir)?;
    }
    os.write(&inside("/etc/resolv.conf"), resolv_conf)?;
    bind(os, &sources.kernel.display().to_string(), qemu::KERNEL, false)?;
    bind(os, &sources.initrd.display().to_string(), qemu::INITRD, false)?;
    let devices = DEVICES.into_iter().map(|name| (name, format!("/dev/{name}")));
    let kvm = sources.kvm.iter().map(|path| ("kvm", path.display().to_string()));
    for (name, from) in devices.chain(kvm) {
        let node = inside(&format!("/dev/{name}"));
        os.write(&node, "")?;
        os.mount(&from, &node, "", MsFlags::MS_BIND, "")?;
    }
    if let Some(doors) = &sources.doors {
        bind(os, &doors.display().to_string(), DOORS, true)?;
    }
    os.mount("kiln", &inside("/tmp"), "tmpfs", safe, "mode=1777")?;
    os.mount("proc", &inside("/proc"), "proc", safe | MsFlags::MS_NOEXEC, "")?;
    os.enter_root(&root)
}

/// Enters QEMU's root, opens the relays and returns QEMU, ready to start. Its words go to `words`, or where this
/// process's go.
pub(super) fn prepare(
    os: &mut dyn Kernel,
    plan: &Plan,
    machine: &VmSpec,
    opened: &OpenedMachine,
    control: &OwnedFd,
    words: Option<OwnedFd>,
) -> Result<Command, Failure> {
    let resolv_conf = plan.agent().map_or("", |agent| agent.resolv_conf.as_str());
    furnish(os, &Sources::of(opened), resolv_conf)?;
    relays::open(&machine.relays)?;
    let system = |error: std::io::Error| Failure::io("cannot start the machine", &error);
    let words = match words {
        Some(words) => words,
        None => std::io::stderr().as_fd().try_clone_to_owned().map_err(system)?,
    };
    let hand_down = |fd: &OwnedFd| -> Result<RawFd, Failure> {
        fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty())).map_err(|errno| system(errno.into()))?;
        Ok(fd.as_raw_fd())
    };
    let disks = match &opened.disks {
        Some((toolbox, scratch)) => Some((hand_down(toolbox)?, hand_down(scratch)?)),
        None => None,
    };
    let wires = Wires {
        control: hand_down(control)?,
        words: hand_down(&words)?,
        disks,
    };
    let mut command = Command::new(&machine.qemu);
    command
        .args(qemu::arguments(Arch::host(), machine, wires))
        .env_clear()
        .env("LC_ALL", "C")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::from(words.try_clone().map_err(system)?));
    // It stays open under its number until QEMU has it, which is as long as this process lives.
    std::mem::forget(words);
    Ok(command)
}
