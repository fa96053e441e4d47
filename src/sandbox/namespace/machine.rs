//! Process 1 of a sandbox that runs QEMU: sets up its root and its relays, and starts it.
//!
//! ```text
//! /usr /lib* /bin …   the host's, read-only: QEMU and its libraries
//! /etc                only the files for finding libraries, and the sandbox's resolver
//! /dev                null zero urandom, and kvm if it is used
//! /vm                 the kernel and the initrd
//! /run/kiln           the server's sockets
//! ```

use std::{
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use kiln_inside::room::{kernel::Kernel, mounts::companions};
use kiln_records::{Code, Failure, arch::Arch};
use nix::{
    fcntl::{self, FcntlArg, FdFlag, OFlag},
    mount::MsFlags,
    sys::stat::Mode,
};

use super::{
    DOORS,
    files::{Files, link_to},
    plan::Plan,
    relays,
};
use crate::sandbox::{
    Kernel as Whose,
    microvm::{
        Accelerator, VmSpec, initrd,
        qemu::{self, Wires},
    },
};

/// Where the root is assembled; see `mounts`.
const STAGE: &str = "/tmp";

/// Directories of programs and libraries on the host; each is `/usr`, or a link to or a directory beside it.
const PROGRAMS: [&str; 7] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Files below `/etc` for finding libraries, where they exist.
const LIBRARY_PATHS: [&str; 3] = ["ld.so.cache", "ld.so.conf", "alternatives"];

/// Host devices that QEMU opens.
const DEVICES: [&str; 3] = ["null", "zero", "urandom"];

/// The parts of a machine, opened before this process loses the right to walk to them.
#[derive(Debug)]
pub(super) struct OpenedMachine {
    pub(super) kernel: OwnedFd,
    pub(super) initrd: OwnedFd,
    pub(super) kvm: Option<OwnedFd>,
    pub(super) disks: Option<(OwnedFd, OwnedFd)>,
    pub(super) doors: Option<OwnedFd>,
}

/// Opens the parts of a plan's machine, and assembles its initrd.
pub(super) fn open_machine(plan: &Plan, machine: &VmSpec) -> Result<OpenedMachine, Failure> {
    let files = Files::of(&plan.dir);
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
    let kvm = open_kvm(&files, machine.accelerator)?;
    let disks = match &machine.toolbox {
        Some(toolbox) => Some((
            open(toolbox, OFlag::O_RDONLY)?,
            open(&files.disk(Whose::Own), OFlag::O_RDWR)?,
        )),
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

/// Opens a file of the host.
pub(super) fn open(path: &Path, flags: OFlag) -> Result<OwnedFd, Failure> {
    fcntl::open(path, flags | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(|errno| Failure::new(Code::SandboxStart, format!("cannot open {}: {errno}", path.display())))
}

/// Opens the device for running guests on the CPU itself, if it is used: the sandbox's own, or the host's.
pub(super) fn open_kvm(files: &Files, accelerator: Accelerator) -> Result<Option<OwnedFd>, Failure> {
    let own = files.kvm();
    match accelerator {
        Accelerator::Kvm if own.exists() => open(&own, OFlag::O_PATH).map(Some),
        Accelerator::Kvm => open(Path::new(KVM), OFlag::O_PATH).map(Some),
        Accelerator::Tcg => Ok(None),
    }
}

/// Lets the program that is started next inherit an open file. Returns its number.
pub(super) fn hand_down(fd: &OwnedFd) -> Result<RawFd, Failure> {
    fcntl::fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))
        .map_err(|errno| Failure::io("cannot start the machine", &errno.into()))?;
    Ok(fd.as_raw_fd())
}

/// The device for running guests on the CPU itself.
pub(super) const KVM: &str = "/dev/kvm";

/// Copies the shared initrd, and appends the job's part.
fn first_root(base: &Path, programs: &[(&str, PathBuf)], to: &Path) -> std::io::Result<()> {
    fs_err::copy(base, to)?;
    let mut out = std::io::BufWriter::new(fs_err::File::options().append(true).open(to)?);
    std::io::Seek::seek(&mut out, std::io::SeekFrom::End(0))?;
    initrd::append_programs(&mut out, programs)?;
    std::io::Write::flush(&mut out)
}

/// The parts of QEMU's root, as paths that this process can open.
#[derive(Debug)]
pub(super) struct Sources {
    kernel: PathBuf,
    initrd: PathBuf,
    kvm: Option<PathBuf>,
    doors: Option<PathBuf>,
    /// Entries of the host's root: links with their targets, and directories.
    programs: Vec<(&'static str, Option<String>)>,
    library_paths: Vec<(&'static str, bool)>,
}

impl Sources {
    pub(super) fn of(opened: &OpenedMachine) -> Self {
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

/// Assembles QEMU's root and enters it.
pub(super) fn furnish(os: &mut dyn Kernel, sources: &Sources, resolv_conf: &str) -> Result<(), Failure> {
    let root = Path::new(STAGE).join("root");
    let inside = |path: &str| root.join(path.trim_start_matches('/'));
    let safe = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let bind = |os: &mut dyn Kernel, from: &str, to: &str, is_dir: bool| -> Result<(), Failure> {
        if is_dir {
            os.mkdir(&inside(to))?;
        } else {
            os.write(&inside(to), "")?;
        }
        // The kernel shows a user namespace no directory without what its host has mounted below it.
        os.mount(from, &inside(to), "", MsFlags::MS_BIND | MsFlags::MS_REC, "")?;
        os.read_only(&inside(to))
    };
    os.mount("", Path::new("/"), "", MsFlags::MS_REC | MsFlags::MS_PRIVATE, "")?;
    os.mount("kiln", Path::new(STAGE), "tmpfs", safe, "mode=0755,size=1m")?;
    os.mkdir(&root)?;
    // Only a mount can become the root.
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

/// Enters QEMU's root, opens the relays and returns QEMU, ready to start. Its output goes to `words`, or to this
/// process's standard error.
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
    // The number must stay open until QEMU inherits it, which is as long as this process lives.
    std::mem::forget(words);
    Ok(command)
}
