//! Disk space of a fixed size in a virtual machine: a file on the volume with its own file system. The volume itself
//! is a shared directory there, which is slow for small files and has no size limit. Makes the file, a loop device and
//! a mount.

use std::{os::unix::process::CommandExt, path::Path, process::Command};

use kiln_inside::room::order::{TOOLBOX, VOLUME};
use kiln_records::{Code, Failure};
use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
    sys::stat::{Mode, SFlag, makedev, mknod},
};

/// The file's name on the volume.
const FILE: &str = "disk.ext4";

/// The volume's path for the toolbox's tools.
const IN_TOOLBOX: &str = "/mnt";

/// The kernel's numbers for loop devices and for their control device (its `Documentation/admin-guide/devices.txt`).
const LOOP_MAJOR: u64 = 7;
const LOOP_CONTROL: (u64, u64) = (10, 237);

/// Mounts a file system of this many bytes and inodes over `dir`, creating it unless an earlier sandbox left it. Disk
/// space that was left as a directory stays one. Returns whether it has a size limit.
///
/// # Errors
///
/// `no_scratch` with the message of the kernel or the tool.
pub(super) fn mount_file(dir: &Path, (bytes, inodes): (u64, u64)) -> Result<bool, Failure> {
    let (here, there) = (Path::new(VOLUME).join(FILE), format!("{IN_TOOLBOX}/{FILE}"));
    if !here.exists() && dir.join("scratch").exists() {
        return Ok(false);
    }
    let failed = |what: &str, errno: Errno| no_scratch(&format!("{what}: {errno}"));
    let in_toolbox = |path: &str| format!("{TOOLBOX}{path}");
    for (from, to) in [(VOLUME, in_toolbox(IN_TOOLBOX)), ("/dev", in_toolbox("/dev"))] {
        mount(Some(from), to.as_str(), None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .map_err(|errno| failed("cannot show it to the toolbox", errno))?;
    }
    let node = |path: &str, kind: SFlag, (major, minor): (u64, u64)| match mknod(
        path,
        kind,
        Mode::from_bits_truncate(0o600),
        makedev(major, minor),
    ) {
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(failed("cannot make a device", errno)),
    };
    if !here.exists() {
        let made = fs_err::File::create(&here).and_then(|made| made.set_len(bytes));
        made.map_err(|error| Failure::io("cannot make the sandbox's disk space", &error))?;
        // Nothing in it has to survive a crash of the machine.
        let inodes = inodes.to_string();
        tool(
            "mkfs.ext4",
            &["-q", "-F", "-m", "0", "-N", &inodes, "-O", "^has_journal", &there],
        )?;
    }
    node("/dev/loop-control", SFlag::S_IFCHR, LOOP_CONTROL)?;
    let device = tool("losetup", &["--find"])?;
    let number = device.strip_prefix("/dev/loop").and_then(|number| number.parse().ok());
    let number: u64 = number.ok_or_else(|| no_scratch(&format!("`{device}` is not a loop device")))?;
    node(&device, SFlag::S_IFBLK, (LOOP_MAJOR, number))?;
    tool("losetup", &[&device, &there])?;
    let mounted = mount(
        Some(device.as_str()),
        dir,
        Some("ext4"),
        MsFlags::MS_NODEV,
        None::<&str>,
    );
    // The device is released when it is no longer mounted, or now.
    tool("losetup", &["--detach", &device])?;
    mounted.map_err(|errno| failed("cannot mount it", errno))?;
    Ok(true)
}

/// Runs a tool of the toolbox. Returns its output.
fn tool(name: &str, args: &[&str]) -> Result<String, Failure> {
    let mut command = Command::new(format!("/usr/sbin/{name}"));
    command.args(args).env_clear();
    // SAFETY: between fork and exec only system calls are made.
    #[expect(unsafe_code, reason = "nothing else runs in the child before the program")]
    unsafe {
        command.pre_exec(|| {
            nix::unistd::chroot(TOOLBOX)?;
            nix::unistd::chdir("/")?;
            Ok(())
        });
    }
    let output = command
        .output()
        .map_err(|error| no_scratch(&format!("cannot run {name}: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(no_scratch(&format!(
        "{name}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    )))
}

fn no_scratch(why: &str) -> Failure {
    Failure::new(
        Code::NoScratch,
        format!("the virtual machine cannot make the sandbox's disk space: {why}"),
    )
    .hint("its kernel needs loop devices and ext4; kata/README.md lists all requirements")
}
