//! Sets up the root of a job in a virtual machine. Mounts, and writes files of the root. It looks as in a sandbox of
//! namespaces:
//!
//! ```text
//! /            overlay: the toolbox's squashfs below, the job's own layer on its disk above
//! /sys         the machine's: builds of modules depend on it. Not read-only, since packages bring a directory `sys`
//!              whose times and mode are set where kiwi has mounted it; the machine is the wall
//! /dev         the few devices that builds need; /proc and /run as everywhere
//! /run/agent   the agent, with its companions
//! /scratch     the job's disk space
//! ```

use std::{
    fs::Permissions,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use kiln_inside::room::{
    mounts::{DEV_LINKS, STORAGE, STORAGE_LAYER},
    process1,
};
use kiln_records::{
    Failure,
    guest::{GuestJob, SCRATCH_DISK, TOOLBOX_DISK},
};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::stat::{Mode, SFlag, makedev, mknod, umask},
    unistd::sethostname,
};

use super::devices;

/// Where the job's root is assembled, and stays as seen from process 1.
pub(super) const ROOT: &str = "/root";

/// The mount point of the job's disk, beside its root.
pub(super) const DISK: &str = "/disk";

/// The mount point of the toolbox.
const TOOLBOX: &str = "/toolbox";

/// The directory in the initrd with the agent and its companions.
const PROGRAMS: &str = "/programs";

/// Devices that a build may have: name, and the kernel's numbers.
const DEVICES: [(&str, u64, u64); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];

/// Assembles the job's root.
pub(super) fn furnish(job: &GuestJob) -> Result<(), Failure> {
    // Modes are exactly as given here.
    umask(Mode::empty());
    let furnished = try_furnish(job).and_then(|()| Ok(sethostname(&job.hostname)?));
    umask(Mode::from_bits_truncate(0o022));
    furnished.map_err(|error| devices::failed("cannot set up the root of the machine", &error))
}

fn try_furnish(job: &GuestJob) -> std::io::Result<()> {
    let find = |serial| devices::disk(serial).map_err(std::io::Error::other);
    for dir in [ROOT, DISK, TOOLBOX] {
        fs_err::create_dir_all(dir)?;
    }
    let safe = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount_on(&find(TOOLBOX_DISK)?, TOOLBOX, "squashfs", MsFlags::MS_RDONLY, "")?;
    let flags = MsFlags::MS_NOATIME;
    // With `discard`, deleted space is returned to the host.
    mount_on(&find(SCRATCH_DISK)?, DISK, "ext4", flags, "discard,noinit_itable")?;
    process1::clear_layers(Path::new(DISK))?;
    for dir in ["upper", "work", "scratch", STORAGE_LAYER] {
        fs_err::create_dir_all(Path::new(DISK).join(dir))?;
    }
    let mode = |path: &Path, mode| fs_err::set_permissions(path, Permissions::from_mode(mode));
    mode(&Path::new(DISK).join("scratch"), 0o755)?;
    let layers = format!("lowerdir={TOOLBOX},upperdir={DISK}/upper,workdir={DISK}/work,volatile");
    mount_on(Path::new("kiln"), ROOT, "overlay", MsFlags::empty(), &layers)?;

    mode(Path::new(ROOT), 0o755)?;
    for dir in ["proc", "sys", "dev", "run", "tmp", "scratch"] {
        fs_err::create_dir_all(inside(dir))?;
        mode(&inside(dir), 0o755)?;
    }
    mode(&inside("tmp"), 0o1777)?;
    let tmpfs = |dir: &str, flags, data| mount_on(Path::new("kiln"), inside(dir), "tmpfs", flags, data);
    mount_on(Path::new("proc"), inside("proc"), "proc", safe | MsFlags::MS_NOEXEC, "")?;
    mount_on(
        Path::new("sysfs"),
        inside("sys"),
        "sysfs",
        safe | MsFlags::MS_NOEXEC,
        "",
    )?;
    mount_on(Path::new("/disk/scratch"), inside("scratch"), "", MsFlags::MS_BIND, "")?;
    let storage = inside(STORAGE.trim_start_matches('/'));
    fs_err::create_dir_all(&storage)?;
    mount_on(&Path::new(DISK).join(STORAGE_LAYER), storage, "", MsFlags::MS_BIND, "")?;
    tmpfs("dev", MsFlags::MS_NOSUID, "mode=0755,size=1m")?;
    for (name, major, minor) in DEVICES {
        let mode = Mode::from_bits_truncate(0o666);
        mknod(&inside("dev").join(name), SFlag::S_IFCHR, mode, makedev(major, minor))?;
    }
    for (target, link) in DEV_LINKS {
        symlink(target, inside("dev").join(link))?;
    }
    for dir in ["dev/pts", "dev/shm"] {
        fs_err::create_dir(inside(dir))?;
    }
    let terminals = "newinstance,ptmxmode=0666,mode=0620,gid=5";
    let quiet = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    mount_on(Path::new("devpts"), inside("dev/pts"), "devpts", quiet, terminals)?;
    tmpfs("dev/shm", safe, "mode=1777")?;

    tmpfs("run", safe, "mode=0755")?;
    fs_err::create_dir(inside("run/lock"))?;
    let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | safe;
    for program in fs_err::read_dir(PROGRAMS)? {
        let program = program?;
        let place = inside("run").join(program.file_name());
        fs_err::write(&place, "")?;
        mount_on(&program.path(), &place, "", MsFlags::MS_BIND, "")?;
        mount_on(Path::new(""), &place, "", read_only, "")?;
    }
    write("etc/resolv.conf", &job.resolv_conf)?;
    write(
        "etc/hosts",
        &format!("127.0.0.1 localhost {}\n::1 localhost\n", job.hostname),
    )?;
    write("etc/hostname", &format!("{}\n", job.hostname))
}

/// Unmounts the job's disk, so that it is consistent without a journal. No process uses it any more; one that did
/// could only prevent another attempt from continuing with it, which the next sandbox notices.
pub(super) fn let_go() {
    let _ = umount2(ROOT, MntFlags::MNT_DETACH);
    let _ = umount2(DISK, MntFlags::empty());
}

fn inside(path: &str) -> PathBuf {
    Path::new(ROOT).join(path)
}

fn write(path: &str, content: &str) -> std::io::Result<()> {
    let path = inside(path);
    // A link in the toolbox would lead elsewhere.
    if path.is_symlink() {
        fs_err::remove_file(&path)?;
    }
    fs_err::write(path, content)
}

fn mount_on(source: &Path, target: impl AsRef<Path>, kind: &str, flags: MsFlags, data: &str) -> std::io::Result<()> {
    let target = target.as_ref();
    let some = |text| if str::is_empty(text) { None } else { Some(text) };
    mount(Some(source), target, some(kind), flags, some(data))
        .map_err(|errno| std::io::Error::other(format!("cannot mount {kind} on {}: {errno}", target.display())))
}
